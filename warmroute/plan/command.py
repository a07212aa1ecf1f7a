"""``warmroute plan``: how many GPUs, and what batching, paging and routing are worth.

With ``--json`` a part prints one object of ``inputs`` (its settings by their flags' names) and
``results``; ``example`` prints an object of all parts by name. The keys of the results:

capacity    weight_bytes, kv_bytes_per_token, kv_memory_bytes, kv_tokens, kv_sequences_max,
            decode_floor_us, step_us, step_source, prefill_tokens_per_step,
            node_output_tokens_per_s, output_tokens_per_s, prompt_tokens_per_s,
            computed_prompt_tokens_per_s, nodes; nodes_if_faster and nodes_if_slower, null where
            the step's time was given
batching    static and continuous, each with lengths, finished_at_step (one step for each answer,
            in the order of arrival), steps, mean_finished_at_step, slot_use (0..1)
admission   kv_blocks, reserved_sequences, reserved_use (0..1), paged_sequences, paged_use (0..1)
routing     a list with, for each policy: policy, chosen_replicas (counted from 0, one for each
            request), requests_per_replica, prompt_tokens, prefill_tokens, saved_share (0..1)
steptime    engines by name, each with engine (its constants), total, by and without (scores of
            groups: rows, mape, median, p90, bias); left_out, a list of reason and rows
validate    catalogue and, by run, calibrated: engine, comparisons (run, measured, predicted)
size        fit, load, cut, chosen, spare, baseline (fleets), saved_*, rates, knee, sweep, what_if

Times end in ``_us``, microseconds; ``_bytes`` and ``tokens`` are what they say; shares are 0..1.
"""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from contract.hardware import HardwareError, ModelSpec, find_gpu, find_model
from contract.hf_config import model_from_hf_config
from contract.options import SettingError, build_section
from simulator.admission import AdmissionPlan, AdmissionSettings, plan_admission
from simulator.batching import BatchingRun, BatchingSettings, plan_batching
from simulator.capacity import CapacityPlan, CapacitySettings, node_of, plan_capacity
from simulator.example import CAPACITY, compute_example
from simulator.routing import (
    DEFAULT_CHOICES,
    RoutingRun,
    RoutingSettings,
    parse_choice,
    plan_routing,
)
from simulator.sizing.settings import SizeSettings
from warmroute.flags import add_flags, add_policies_flag, given_flags
from warmroute.plan.size import add_size_flags, find_size, shown
from warmroute.plan.steptime import (
    StepTimeInputs,
    add_steptime_flags,
    plan_steptime,
    steptime_text,
)
from warmroute.plan.text import figures_text
from warmroute.plan.validate import (
    ValidateInputs,
    add_validate_flags,
    plan_validate,
    validate_text,
)

EXIT_USAGE = 2
MODEL_CONFIG_BYTES_MAX = 4 * 1024 * 1024

Section = TypeVar("Section")


@dataclass(frozen=True)
class Planned:
    """One part, computed: ``settings`` and ``results`` for programs, ``text`` for people."""

    settings: Any
    results: Any
    text: str


@dataclass(frozen=True)
class Part:
    """One subcommand: the flags it takes and what it computes from them."""

    add_flags: Callable[[argparse.ArgumentParser], None]
    summary: str
    plan: Callable[[argparse.Namespace], Planned]


def add_plan_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add ``plan`` and its subcommands to those of ``warmroute``."""
    summary = "compute how many GPUs a load needs, and what batching, paging and routing save"
    parser = subparsers.add_parser("plan", help=summary, description=summary)
    parts = parser.add_subparsers(dest="plan_part", required=True, metavar="PART")
    example = "a worked example of all parts, whose figures can be checked on paper"
    _add_json_flag(parts.add_parser("example", help=example, description=example))
    for name, part in PARTS.items():
        part_parser = parts.add_parser(
            name, help=part.summary, description=part.summary, allow_abbrev=False
        )
        part.add_flags(part_parser)
        _add_json_flag(part_parser)


def run_plan(args: argparse.Namespace) -> int:
    """Compute and print the part that ``args`` name; return the exit status, 2 for bad figures."""
    try:
        if args.plan_part == "example":
            planned = _example()
            document = {name: _document(part) for name, part in planned.items()}
            text = "\n\n".join(part.text for part in planned.values())
        else:
            part = PARTS[args.plan_part].plan(args)
            document, text = _document(part), part.text
    except (SettingError, HardwareError) as error:
        print(f"warmroute plan {args.plan_part}: {error}", file=sys.stderr)
        return EXIT_USAGE
    print(json.dumps(document, indent=2) if args.json else text)
    return 0


def _add_json_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON, with full precision")


def _flags_of(section: type) -> Callable[[argparse.ArgumentParser], None]:
    return partial(add_flags, section=section)


def _add_routing_flags(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, RoutingSettings)
    defaults = " ".join(choice.text for choice in DEFAULT_CHOICES)
    add_policies_flag(parser, f"policies to compare (default {defaults})")


def _document(planned: Planned) -> dict[str, Any]:
    return {
        "inputs": msgspec.to_builtins(planned.settings),
        "results": msgspec.to_builtins(planned.results),
    }


def _plan_capacity(args: argparse.Namespace) -> Planned:
    settings = _settings(args, CapacitySettings)
    node = node_of(_read_model(settings.model), find_gpu(settings.gpu), settings)
    return _capacity(settings, plan_capacity(node, settings))


def _plan_batching(args: argparse.Namespace) -> Planned:
    settings = _settings(args, BatchingSettings)
    return _batching(settings, plan_batching(settings))


def _plan_admission(args: argparse.Namespace) -> Planned:
    settings = _settings(args, AdmissionSettings)
    return _admission(settings, plan_admission(settings))


def _plan_routing(args: argparse.Namespace) -> Planned:
    settings = _settings(args, RoutingSettings)
    choices = [parse_choice(text) for text in args.policies or ()] or DEFAULT_CHOICES
    return _routing(settings, [plan_routing(settings, choice) for choice in choices])


def _plan_steptime(args: argparse.Namespace) -> Planned:
    inputs = StepTimeInputs(args.check, args.fit, args.picture)
    results = plan_steptime(inputs)
    return Planned(inputs, results, steptime_text(inputs, results))


def _plan_validate(args: argparse.Namespace) -> Planned:
    inputs = ValidateInputs(args.calibrate)
    results = plan_validate(inputs)
    return Planned(inputs, results, validate_text(inputs, results))


def _plan_size(args: argparse.Namespace) -> Planned:
    settings = _settings(args, SizeSettings)
    results = find_size(settings, _read_model(settings.model), args.jobs)
    return Planned(settings, results, shown(results, settings, args))


def _example() -> dict[str, Planned]:
    example = compute_example()
    admission = replace(AdmissionSettings(), kv_tokens=example.capacity.kv_tokens)
    return {
        "capacity": _capacity(CAPACITY, example.capacity),
        "batching": _batching(BatchingSettings(), example.batching),
        "admission": _admission(admission, example.admission),
        "routing": _routing(RoutingSettings(), example.routing),
    }


def _settings(args: argparse.Namespace, section: type[Section]) -> Section:
    try:
        return build_section(section, given_flags(args, section), "")
    except SettingError as error:
        # The part's name stands before the message already; no name of a section is needed.
        raise SettingError(str(error).lstrip(": ")) from error


def _read_model(text: str) -> ModelSpec:
    """Return a model by its name, or by the path of a config.json or of the folder it is in."""
    path = Path(text)
    path = path / "config.json" if path.is_dir() else path
    if path.suffix != ".json" and not path.is_file():
        try:
            return find_model(text)
        except HardwareError as error:
            raise HardwareError(f"{error}; or give the path of a config.json") from error
    return model_from_hf_config(_read_config(path), text)


def _read_config(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(MODEL_CONFIG_BYTES_MAX + 1)
    except OSError as error:
        raise HardwareError(
            f"cannot read {path}: {error.strerror}; give a known model or the path of a config.json"
        ) from error
    if len(data) > MODEL_CONFIG_BYTES_MAX:
        raise HardwareError(
            f"{path} has more than {MODEL_CONFIG_BYTES_MAX} bytes, expected a model's config.json"
        )
    try:
        config = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise HardwareError(f"{path} is not JSON ({error}), expected a config.json") from error
    if not isinstance(config, dict):
        raise HardwareError(f"{path} holds no JSON object, expected a model's config.json")
    return config


def _capacity(settings: CapacitySettings, plan: CapacityPlan) -> Planned:
    title = f"Capacity: {settings.model} on {settings.gpus} x {settings.gpu}"
    origins = {"step_us": plan.step_source, "node_output_tokens_per_s": _batch_text(settings)}
    return Planned(settings, plan, figures_text(title, plan, origins))


def _batch_text(settings: CapacitySettings) -> str:
    return f"batch / step: {settings.batch:,} sequences, one token each"


def _batching(settings: BatchingSettings, runs: dict[str, BatchingRun]) -> Planned:
    title = f"batching of {len(settings.lengths)} answers on {settings.slots} slots"
    texts = [figures_text(f"{name.capitalize()} {title}", run) for name, run in runs.items()]
    return Planned(settings, runs, "\n\n".join(texts))


def _admission(settings: AdmissionSettings, plan: AdmissionPlan) -> Planned:
    title = (
        f"KV admission: {settings.kv_tokens:,} tokens, {settings.reserve:,} reserved for each "
        f"sequence, or blocks of {settings.block_size} for the {settings.used:,} it uses"
    )
    return Planned(settings, plan, figures_text(title, plan))


def _routing(settings: RoutingSettings, runs: list[RoutingRun]) -> Planned:
    title = (
        f"{len(settings.tenant_names)} requests, {settings.system_tokens:,} + "
        f"{settings.own_tokens:,} tokens, {settings.replicas} replicas, none ends"
    )
    texts = [figures_text(f"Routing by {run.policy}: {title}", run) for run in runs]
    return Planned(settings, runs, "\n\n".join(texts))


PARTS = {
    "capacity": Part(
        _flags_of(CapacitySettings), "servers for a load, and what limits them", _plan_capacity
    ),
    "batching": Part(
        _flags_of(BatchingSettings), "static against continuous batching", _plan_batching
    ),
    "admission": Part(
        _flags_of(AdmissionSettings),
        "sequences in a KV cache: contexts reserved, or blocks",
        _plan_admission,
    ),
    "routing": Part(_add_routing_flags, "prefill that routing policies save", _plan_routing),
    "steptime": Part(
        add_steptime_flags, "the step-time model against published measurements", _plan_steptime
    ),
    "validate": Part(
        add_validate_flags, "the engine core against recorded runs of vLLM", _plan_validate
    ),
    "size": Part(add_size_flags, "GPUs that hold an SLO, found by simulation", _plan_size),
}
"""The parts but for the example, by name."""
