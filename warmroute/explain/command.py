"""``warmroute explain``: where one request of a trace goes, and what each candidate would cost.

The trace is replayed through a simulated fleet up to that request, by the code that serves
traffic. ``--json FILE`` writes one object: ``schema``, ``command``, ``inputs`` and ``results``,
with an explanation for each attempt. Equal inputs give equal bytes.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import msgspec

from contract.options import SettingError, build_section
from router.core.explanation import Explanation
from router.core.policy import DEFAULT_POLICY
from simulator.fleet_run import FleetRun
from simulator.request import SimRequest
from simulator.workload.catalogue import ENTRIES
from simulator.workload.stages import StagedWorkload
from warmroute.explain.text import explanation_text
from warmroute.flags import add_flags, given_flags
from warmroute.simulate.settings import (
    Experiment,
    SimulateSettings,
    check_experiment,
    fleet_of,
    parse_set,
    workload_of,
)

SCHEMA = 1
DEFAULT_REPLICAS = ("4",)


def add_explain_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add ``explain`` to the commands of ``warmroute``."""
    about = "why a request of a trace goes where it goes: each candidate, and what its cost is"
    parser = subparsers.add_parser("explain", help=about, description=about, allow_abbrev=False)
    parser.add_argument(
        "--trace",
        required=True,
        metavar="FILE|WORKLOAD",
        help="a file in Mooncake's format, or as --workload of `warmroute simulate`",
    )
    parser.add_argument(
        "--request", required=True, metavar="ID|NUMBER", help="its id, or its number from 0"
    )
    parser.add_argument("--policy", metavar="NAME[:SETTING=VALUE,...]", default=DEFAULT_POLICY)
    for flag, metavar, text in (
        ("--replicas", "N[:SETTING=VALUE,...]", "so many equal replicas; repeat it for a mix"),
        ("--set", "SECTION.SETTING=VALUE", "timing.SETTING or routing.SETTING; may be repeated"),
        ("--fault", "KIND:SETTING=VALUE,...", "crash, stall, slow or drain; may be repeated"),
    ):
        parser.add_argument(flag, action="append", default=[], metavar=metavar, help=text)
    add_flags(parser, SimulateSettings, only={"gateways", "seed"})
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all of it there, too")
    parser.set_defaults(run=_run)


def explain_request(experiment: Experiment, name: str) -> tuple[SimRequest, list[Explanation]]:
    """Return the request of that id or number, and an explanation for each of its decisions.

    Raises SettingError if the workload has no such request.
    """
    workload = workload_of(experiment)
    request = _find(workload, name)
    run = FleetRun(fleet_of(experiment), _up_to(workload, request))
    for gateway in run.gateways:
        gateway.explained_id = request.request_id
    run.run()
    return request, [each for gateway in run.gateways for each in gateway.explanations]


def _run(args: argparse.Namespace) -> int:
    settings = build_section(SimulateSettings, given_flags(args, SimulateSettings), "explain")
    timing, routing = parse_set(args.set)
    experiment = Experiment(
        workload=_workload_name(args.trace),
        policy=args.policy,
        replicas=tuple(args.replicas) or DEFAULT_REPLICAS,
        gateways=settings.gateways,
        timing=timing,
        routing=routing,
        faults=tuple(args.fault),
        seed=settings.seed,
    )
    check_experiment(experiment)
    request, explanations = explain_request(experiment, args.request)
    print(f"{request.request_id} of {experiment.workload}: {request.prompt_tokens:,} prompt tokens")
    for number, explanation in enumerate(explanations, start=1):
        title = f"\nattempt {number}: " if len(explanations) > 1 else "\n"
        print(title + explanation_text(explanation))
    if args.json is not None:
        _write(args.json, experiment, request, explanations)
    return 0


def _workload_name(trace: str) -> str:
    """Return how the simulator calls it; what is no workload's name is a file's."""
    path = trace.partition(",")[0]
    if path.partition(":")[0] in ENTRIES:
        return trace
    if not Path(path).exists():
        known = ", ".join(ENTRIES)
        raise SettingError(f"--trace {path!r} is no file, and no workload; known: {known}")
    return f"mooncake:{trace}"


def _find(workload: StagedWorkload, name: str) -> SimRequest:
    requests = [request for stage in workload.stages for request in stage.requests]
    for request in requests:
        if request.request_id == name:
            return request
    if name.isascii() and name.isdigit() and int(name) < len(requests):
        return requests[int(name)]
    first, last = requests[0].request_id, requests[-1].request_id
    raise SettingError(
        f"--request is {name!r}, expected a number below {len(requests)}, or an id of the trace "
        f"as in {first!r} or {last!r}"
    )


def _up_to(workload: StagedWorkload, request: SimRequest) -> StagedWorkload:
    """Leave out what comes later and so changes nothing, where it is known what comes later."""
    stages = list(workload.stages)
    while request not in stages[-1].requests:
        stages.pop()
    if request.after is None:
        kept: dict[str, SimRequest] = {}
        for each in stages[-1].requests:
            is_early = each.arrival_us <= request.arrival_us
            if is_early if each.after is None else each.after in kept:
                kept[each.request_id] = each
        stages[-1] = replace(stages[-1], requests=tuple(kept.values()))
    return replace(workload, stages=tuple(stages))


def _write(
    path: Path, experiment: Experiment, request: SimRequest, explanations: list[Explanation]
) -> None:
    inputs = msgspec.to_builtins(experiment) | {"request": request.request_id}
    results = msgspec.to_builtins(explanations)
    document = {"schema": SCHEMA, "command": "explain", "inputs": inputs, "results": results}
    try:
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise SettingError(f"cannot write {path}: {error.strerror}") from error
