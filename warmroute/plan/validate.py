"""``warmroute plan validate``: the engine core against recorded runs of a real engine."""

import argparse
import gzip
from dataclasses import dataclass
from importlib.resources import files

from contract.options import SettingError
from replicas.core.step_time import VLLM
from simulator.measured.run import RecordedRun, read_run
from simulator.measured.run_check import FIGURES, Comparison, RunCheck, check_runs
from warmroute.plan.steptime import speed_text

DATA = files("warmroute").joinpath("data")
RUNS = (
    "rtx4090-llama-3.1-8b",
    "rtxpro6000-llama-3.1-8b",
    "rtxpro6000-qwen3-32b",
    "rtxpro6000-qwen3-30b-a3b",
)
CALIBRATED_ON = "rtxpro6000-llama-3.1-8b"
HEADS = ("TPOT mean", "makespan", "TTFT mean", "TTFT p50", "TTFT p90")
WIDTH = 25


@dataclass(frozen=True)
class ValidateInputs:
    """Which run gives the two constants."""

    calibrate: str = CALIBRATED_ON


@dataclass(frozen=True)
class ValidateResults:
    """The check without calibration, and that on each run in turn."""

    catalogue: RunCheck
    calibrated: dict[str, RunCheck]


def add_validate_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``plan validate``."""
    parser.add_argument(
        "--calibrate",
        metavar="RUN",
        default=CALIBRATED_ON,
        help=f"run that gives two constants: {', '.join(RUNS)} (default {CALIBRATED_ON})",
    )


def load_run(name: str) -> RecordedRun:
    """Return a run that is shipped with warmroute."""
    with DATA.joinpath(f"vllm019_{name}.jsonl.gz").open("rb") as packed, gzip.open(packed) as file:
        return read_run(file)


def plan_validate(inputs: ValidateInputs) -> ValidateResults:
    """Return all checks. Raises SettingError for a run that is not among those shipped."""
    if inputs.calibrate not in RUNS:
        raise SettingError(f"no run {inputs.calibrate!r}; known: {', '.join(RUNS)}")
    runs = [load_run(name) for name in RUNS]
    return ValidateResults(
        check_runs(runs, VLLM), {name: check_runs(runs, VLLM, name) for name in RUNS}
    )


def validate_text(inputs: ValidateInputs, results: ValidateResults) -> str:
    """Return the chosen calibration in full, and the worst errors of all choices."""
    shown = [results.calibrated[inputs.calibrate], results.catalogue]
    return "\n\n".join([*map(check_text, shown), _choices_text(results)])


def check_text(check: RunCheck) -> str:
    """Return one check as a table: predicted, measured, error, for each run and figure."""
    source = f"two constants from {check.calibrated_on}" if check.calibrated_on else "catalogue"
    lines = [f"vLLM 0.19, predicted / measured; {source}", f"  {speed_text(check.engine)}"]
    lines.append(_line("", HEADS))
    for each in check.comparisons:
        note = " *" if each.run == check.calibrated_on else ""
        lines.append(_line(each.run + note, [_pair(each, figure) for figure in FIGURES]))
        lines.append(_line("", [f"{100 * each.error(figure):+.1f} %" for figure in FIGURES]))
    if check.calibrated_on:
        lines.append("  * gave the constants: its own errors are no test")
    return "\n".join(lines)


def _choices_text(results: ValidateResults) -> str:
    lines = ["Worst error on the runs that gave no constant", _line("constants from", HEADS)]
    for check in (results.catalogue, *results.calibrated.values()):
        worst = [f"{100 * check.worst(figure):+.1f} %" for figure in FIGURES]
        lines.append(_line(check.calibrated_on or "catalogue, no run", worst))
    return "\n".join(lines)


def _pair(comparison: Comparison, figure: str) -> str:
    values = (getattr(comparison.predicted, figure), getattr(comparison.measured, figure))
    if figure == FIGURES[0]:
        return " / ".join(f"{value / 1e3:.1f}" for value in values) + " ms"
    return " / ".join(f"{value / 1e6:.2f}" for value in values) + " s"


def _line(head: str, cells: "tuple[str, ...] | list[str]") -> str:
    return "".join([f"  {head:<{WIDTH + 3}}", *(f"{cell:>18}" for cell in cells)]).rstrip()
