"""Measure what a router costs: CPU per request and per streamed chunk, beside nginx.

    python -m bench.overhead [--rounds N] [--seconds S] [--json FILE] [--no-nginx]
                             [--gateway-cmd COMMAND] [--peer NAME] [--router NAME=COMMAND]

Four fake replicas and the load client share one core, the router has the other to itself. Routers
take turns, round by round, each started anew, so that what disturbs the machine disturbs all of
them. The CPU time is that of the router's whole process tree. Trust it, and the ratio to nginx in
the same round, more than the rates: those depend on the load side's core too.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from bench.bodies import PromptGroups, chat_requests, write_bodies
from bench.fake_fleet import FakeReplica, affinity, start_replicas
from bench.load import Load, run_load
from bench.native.build import CompilationError, CompilerMissingError, Programs, build
from bench.overhead_report import PhaseResult, Unit, describe_machine, report
from bench.processes import (
    Placement,
    Processes,
    ProcessFailedError,
    cpu_seconds,
    free_ports,
    machine_cpu_seconds,
    placement,
    resident_bytes,
)
from bench.routers import NGINX, PEERS, WARMROUTE, Router, RouterMissingError, Site

NUM_REPLICAS = 4
READY_SECONDS_MAX = 60.0


@dataclass(frozen=True, slots=True)
class Phase:
    """One kind of load; its cost is per request, or per chunk of a stream."""

    name: str
    title: str
    unit: Unit
    prompts: PromptGroups
    concurrency: int
    num_requests: int = 0
    """0: as many as go into the time of a phase."""
    replica_settings: dict[str, int] = field(default_factory=dict)

    def load(self, directory: Path, seconds: float) -> Load:
        """Describe the load; writes its bodies into `directory` the first time."""
        bodies = directory / f"{self.name}.bodies"
        if not bodies.exists():
            write_bodies(bodies, chat_requests(self.prompts))
        return Load(
            bodies,
            concurrency=self.concurrency,
            count=self.num_requests,
            seconds=0.0 if self.num_requests else seconds,
        )


PHASES = [
    Phase(
        name="2kb",
        title="2 KB prompts, 64 connections",
        unit=Unit.REQUEST,
        prompts=PromptGroups(num_requests=4000, prompt_bytes=2_000, stream=False),
        concurrency=64,
    ),
    Phase(
        name="32kb",
        title="32 KB prompts, 64 connections",
        unit=Unit.REQUEST,
        prompts=PromptGroups(num_requests=1000, prompt_bytes=32_000, stream=False),
        concurrency=64,
    ),
    Phase(
        name="streams",
        title="512 streams of 100 chunks, 20 ms apart",
        unit=Unit.CHUNK,
        prompts=PromptGroups(num_requests=4000, prompt_bytes=2_000, stream=True),
        concurrency=512,
        num_requests=1024,
        replica_settings={"chunks": 100, "interval_us": 20_000},
    ),
]

# Not reported: fills caches and connection pools, and shows a router that does not work at all.
WARM_UP = Phase(
    name="warm-up",
    title="warm-up",
    unit=Unit.REQUEST,
    prompts=PromptGroups(num_requests=500, prompt_bytes=2_000, stream=False, seed=2),
    concurrency=16,
    num_requests=500,
)


@dataclass(frozen=True, slots=True)
class Bench:
    """What all measurements of a run share."""

    programs: Programs
    processes: Processes
    replicas: list[FakeReplica]
    placement: Placement
    directory: Path
    seconds: float

    def measure_router(self, router: Router, round_number: int) -> Iterator[PhaseResult]:
        """Start `router`, put every phase through it, and end it."""
        port, admin_port = free_ports(2)
        with tempfile.TemporaryDirectory(dir=self.directory) as scratch:
            argv = router.argv(Site(port, admin_port, self.replicas, Path(scratch)))
            process = self.processes.start(router.name, argv, self.placement.router)
            try:
                self.processes.wait_until_ready(
                    router.name, process, port, router.ready_path, READY_SECONDS_MAX
                )
                self._warm_up(router, port)
                for phase in PHASES:
                    yield self._measure_phase(phase, router, port, process.pid, round_number)
            finally:
                self.processes.stop(process)

    def _warm_up(self, router: Router, port: int) -> None:
        load = WARM_UP.load(self.directory, self.seconds)
        result = run_load(self.programs.load_client, load, port, self.placement.load)
        if result.ok == 0:
            raise ProcessFailedError(
                f"{router.name} answers nothing: {result.errors} errors, {result.truncated} "
                f"truncated, statuses {result.statuses}:\n{self.processes.log_tail(router.name)}"
            )

    def _measure_phase(
        self, phase: Phase, router: Router, port: int, pid: int, round_number: int
    ) -> PhaseResult:
        load = phase.load(self.directory, self.seconds)
        for replica in self.replicas:
            replica.control(**phase.replica_settings)
            replica.reset_stats()
        own_before, all_before = cpu_seconds(pid), machine_cpu_seconds()
        bench_before = cpu_seconds(os.getpid())
        result = run_load(self.programs.load_client, load, port, self.placement.load)
        own = cpu_seconds(pid) - own_before
        foreign = machine_cpu_seconds() - all_before - (cpu_seconds(os.getpid()) - bench_before)
        fleet = [replica.stats() for replica in self.replicas]
        return PhaseResult(
            router=router.name,
            round=round_number,
            phase=phase.name,
            title=phase.title,
            unit=phase.unit,
            cpu_seconds=own,
            other_cpu_cores=max(0.0, foreign) / result.seconds,
            resident_bytes=resident_bytes(pid),
            affinity=affinity(fleet),
            chunks_sent=sum(stats.events for stats in fleet),
            load=result,
        )


# ---- the run


def run_rounds(bench: Bench, routers: Sequence[Router], num_rounds: int) -> Iterator[PhaseResult]:
    """Measure every router once a round; one that fails is named and not tried again."""
    alive = list(routers)
    for round_number in range(num_rounds):
        for router in list(alive):
            try:
                for result in bench.measure_router(router, round_number):
                    _say(_progress(result))
                    yield result
            except (RouterMissingError, ProcessFailedError) as error:
                _say(f"skipped: {error}")
                alive.remove(router)


def _progress(result: PhaseResult) -> str:
    cost = "no answer" if result.cost_us is None else f"{result.cost_us:.1f} us per {result.unit}"
    return (
        f"round {result.round + 1} {result.router:12} {result.phase:8} {cost}; "
        f"{result.load.ok} ok, {result.load.failed} failed"
    )


def _say(text: str) -> None:
    """Print beside the report, which goes to standard output."""
    print(text, file=sys.stderr, flush=True)


def measure(options: argparse.Namespace, routers: Sequence[Router]) -> list[PhaseResult]:
    """Start the replicas and run all rounds; nothing that was started outlives the call."""
    programs = build()
    where = placement()
    with (
        tempfile.TemporaryDirectory(prefix="warmroute-bench-") as scratch,
        Processes(Path(scratch)) as processes,
    ):
        directory = Path(scratch)
        replicas = start_replicas(processes, programs.fake_replica, NUM_REPLICAS, where.load)
        bench = Bench(programs, processes, replicas, where, directory, options.seconds)
        return list(run_rounds(bench, routers, options.rounds))


# ---- the command line


def _named_router(text: str) -> Router:
    name, separator, command = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=COMMAND")
    return Router(name, command, "/health")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.overhead",
        description="CPU per request and per streamed chunk of warmroute, beside nginx.",
        epilog="COMMAND is a template; its placeholders are explained in bench/routers.py.",
    )
    parser.add_argument("--rounds", type=int, default=3, help="turns of each router (3)")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each request phase (4)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every measurement there")
    parser.add_argument("--no-nginx", action="store_true", help="measure without a baseline")
    parser.add_argument("--no-warmroute", action="store_true", help="measure the others only")
    parser.add_argument(
        "--gateway-cmd", metavar="COMMAND", default=WARMROUTE.command, help="start warmroute so"
    )
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        choices=[router.name for router in PEERS],
        help="also measure this router; may be repeated",
    )
    parser.add_argument(
        "--router",
        action="append",
        default=[],
        type=_named_router,
        metavar="NAME=COMMAND",
        help="also measure this command, ready when GET /health answers 200; may be repeated",
    )
    return parser.parse_args(arguments)


def _chosen_routers(options: argparse.Namespace) -> list[Router]:
    chosen = [] if options.no_nginx else [NGINX]
    if not options.no_warmroute:
        chosen.append(replace(WARMROUTE, command=options.gateway_cmd))
    return [*chosen, *(peer for peer in PEERS if peer.name in options.peer), *options.router]


def _write_json(path: Path, machine: str, results: Sequence[PhaseResult]) -> None:
    rows = [{"cost_us": row.cost_us, **msgspec.to_builtins(row)} for row in results]
    document = {"machine": machine, "results": rows}
    path.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the bench; give 1 when a router failed or lost requests, 2 when nothing could run."""
    # An exception in place of a sudden end, so that `finally` ends what was started.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda received, _frame: sys.exit(128 + received))
    options = _options(arguments)
    routers = _chosen_routers(options)
    machine = describe_machine(placement())
    _say(machine)
    try:
        results = measure(options, routers)
    except (CompilerMissingError, CompilationError) as error:
        _say(str(error))
        return 2
    print(f"{machine}\n\n{report(results, NGINX.name)}")
    if options.json:
        _write_json(options.json, machine, results)
    expected = len(routers) * options.rounds * len(PHASES)
    whole = all(result.load.failed == 0 and result.chunks_lost == 0 for result in results)
    return 0 if whole and len(results) == expected else 1


if __name__ == "__main__":
    sys.exit(main())
