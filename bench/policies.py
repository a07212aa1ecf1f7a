"""Compares routing policies on recorded traffic: a table for each workload and size of cache.

A run is the gateway's own code and the engine's own scheduler in virtual time: equal arguments
give equal figures on any machine.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

import router.policies  # noqa: F401  # registers every policy by its name
from contract.options import SettingError
from replicas.core.scheduler_config import SchedulerConfig
from replicas.core.step_time import FixedStepTime
from router.core.policy import POLICIES, build_policy
from simulator.event_loop import Phase
from simulator.fleet_run import FleetRun
from simulator.fleet_spec import FleetSpec, ReplicaSpec, Timing
from simulator.routing import parse_choice
from simulator.summary import summarise
from simulator.workload.stages import StagedWorkload
from warmroute.fixed_timing import RESULTS
from warmroute.workloads import open_workload

NUM_REPLICAS = 8
BLOCK_TOKENS = 512  # of which Mooncake's traces name each block
STEP_TOKENS = 8_192
NUM_SEQUENCES = 256
STEP_TIME = FixedStepTime(prefill_us=100_000, decode_us=20_000)

OURS_HERE = "min_ttft:step_share=1,eviction=6,crowding=0"
"""Ours, told what these steps are like: of one price for any number of tokens, so a prefill delays
those running only by the step that it needs, and its room in a cache is what is left to weigh."""

READ_REPORTS = {"dynamo_cost", "llmd_scorers", "spill"}
"""Policies that go by figures which only a report has: they find a new one at every arrival. The
others need none, as the only gateway knows its own load."""


@dataclass(frozen=True, slots=True)
class Case:
    """One run."""

    workload: str
    num_blocks: int
    policy: str  # as `parse_choice` reads it


@dataclass(frozen=True, slots=True)
class Result:
    """What came of it. Times in milliseconds."""

    case: Case
    num_requests: int
    num_complete: int
    reuse: float
    ttft_ms: float
    ttft_p99_ms: float
    e2e_ms: float
    e2e_p99_ms: float
    imbalance: float


@dataclass(frozen=True, slots=True)
class Target:
    """What a good policy reaches on a whole trace."""

    reuse: float
    ttft_ms: float
    ttft_p99_ms: float | None = None

    def is_met(self, result: Result) -> bool:
        """Say whether all three are, as the table shows them."""
        p99_ms = self.ttft_p99_ms
        return (
            round(result.reuse, 3) >= self.reuse
            and round(result.ttft_ms) <= self.ttft_ms
            and (p99_ms is None or round(result.ttft_p99_ms) <= p99_ms)
        )


TARGETS = {
    ("conversation", 2_000): Target(0.250, 226, 1_201),
    ("conversation", 5_000): Target(0.335, 213, 1_200),
    ("conversation", 20_000): Target(0.350, 211, 1_100),
    ("synthetic", 2_000): Target(0.540, 204),
    ("synthetic", 5_000): Target(0.645, 184),
    ("synthetic", 20_000): Target(0.645, 184),
}
"""By workload and blocks. They are near the best of a separate study of some 150 rules."""


def run(case: Case) -> Result:
    """Return the figures of one case."""
    fleet_run = FleetRun(_fleet(case), _opened(case.workload))
    if case.policy.partition(":")[0] in READ_REPORTS:
        _report_at_arrivals(fleet_run)
    fleet_run.run()
    summary = summarise(fleet_run)
    return Result(
        case=case,
        num_requests=summary.requests,
        num_complete=summary.ends.get("complete", 0),
        reuse=summary.hit_actual,
        ttft_ms=summary.ttft_ms.mean,
        ttft_p99_ms=summary.ttft_ms.p99,
        e2e_ms=summary.e2e_ms.mean,
        e2e_p99_ms=summary.e2e_ms.p99,
        imbalance=summary.imbalance,
    )


def tables(results: Sequence[Result]) -> Iterator[str]:
    """Yield the lines of all tables, best mean TTFT first."""
    for (workload, num_blocks), group in groupby(
        results, key=lambda result: (result.case.workload, result.case.num_blocks)
    ):
        rows = sorted(group, key=lambda result: (result.ttft_ms, result.case.policy))
        yield f"{workload}, {NUM_REPLICAS} x {num_blocks:,} blocks of {BLOCK_TOKENS} tokens"
        width = max(len("target"), *(len(row.case.policy) for row in rows))
        yield (
            f"{'policy':<{width}}   reuse  TTFT ms     p99   E2E ms      p99  imbalance  complete"
            "  target"
        )
        target = TARGETS.get((workload, num_blocks))
        for row in rows:
            met = "" if target is None else "met" if target.is_met(row) else "-"
            yield (
                f"{row.case.policy:<{width}}  {row.reuse:6.3f} {row.ttft_ms:8.1f}"
                f" {row.ttft_p99_ms:7.0f} {row.e2e_ms:8.0f} {row.e2e_p99_ms:8.0f}"
                f" {row.imbalance:10.2f}  {row.num_complete:>8}  {met}".rstrip()
            )
        if target is not None:
            p99 = "" if target.ttft_p99_ms is None else f"{target.ttft_p99_ms:,.0f}"
            yield f"{'target':<{width}}  {target.reuse:6.3f} {target.ttft_ms:8.1f} {p99:>7}"
        yield ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; return the exit status."""
    args = _arguments(arguments)
    policies = args.policy or [*sorted(POLICIES), OURS_HERE]
    try:
        for text in policies:
            parse_choice(text)
        for text in args.workload:
            _opened(text)
    except SettingError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    cases = [
        Case(workload, num_blocks, policy)
        for workload in args.workload
        for num_blocks in args.blocks
        for policy in policies
    ]
    results = []
    with ProcessPoolExecutor(args.jobs) as pool:
        for number, result in enumerate(pool.map(run, cases), start=1):
            results.append(result)
            print(f"{number}/{len(cases)} {result.case}", file=sys.stderr)
    print("\n".join(tables(results)))
    if args.write:
        RESULTS.write_text(json.dumps(list(_page_cases(results)), indent=1) + "\n")
    if args.json:
        args.json.write_text(json.dumps([asdict(result) for result in results], indent=1))
    return 0


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.policies", description=__doc__)
    parser.add_argument(
        "--workload", nargs="+", default=["conversation", "synthetic"], help="as `warmroute load`"
    )
    parser.add_argument("--blocks", nargs="+", type=int, default=[2_000, 5_000, 20_000])
    parser.add_argument(
        "--policy", nargs="+", help="NAME or NAME:setting=value,...; every policy if not given"
    )
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--json", type=Path, help="write every figure there")
    parser.add_argument(
        "--write", action="store_true", help="keep what has a target for docs/policies.md"
    )
    return parser.parse_args(arguments)


def _page_cases(results: Sequence[Result]) -> Iterator[dict[str, Any]]:
    """Yield what the page shows, the best mean TTFT of each case first."""
    for (workload, num_blocks), target in TARGETS.items():
        of_case = [
            result
            for result in results
            if (result.case.workload, result.case.num_blocks) == (workload, num_blocks)
        ]
        rows = [
            {
                "policy": result.case.policy,
                "reuse": round(result.reuse, 4),
                "ttft_ms": round(result.ttft_ms, 1),
                "ttft_p99_ms": round(result.ttft_p99_ms),
                "e2e_ms": round(result.e2e_ms),
                "met": target.is_met(result),
            }
            for result in sorted(of_case, key=lambda result: (result.ttft_ms, result.case.policy))
        ]
        yield {
            "workload": workload,
            "num_blocks": num_blocks,
            "target": asdict(target),
            "rows": rows,
        }


def _fleet(case: Case) -> FleetSpec:
    choice = parse_choice(case.policy)
    engine = SchedulerConfig(
        num_blocks=case.num_blocks,
        block_size=BLOCK_TOKENS,
        max_num_batched_tokens=STEP_TOKENS,
        max_num_seqs=NUM_SEQUENCES,
    )
    return FleetSpec(
        replicas=ReplicaSpec(
            replica_id="replica", model="", engine=engine, step_time=STEP_TIME
        ).copies(NUM_REPLICAS),
        policy=build_policy(choice.name, choice.settings),
        timing=Timing(report_interval_us=None),
    )


def _report_at_arrivals(fleet_run: FleetRun) -> None:
    """Let the gateway read a report of every replica whenever a request arrives by the clock."""
    loop, fleet = fleet_run.loop, fleet_run.gateways[0].fleet

    def read() -> None:
        for replica in fleet_run.replicas.values():
            fleet.on_report(replica.report(), 0, loop.now_us)

    (stage,) = fleet_run.stages
    for arrival_us in sorted({request.arrival_us for request in stage.requests}):
        loop.at(arrival_us, Phase.END, read)


@lru_cache(1)
def _opened(text: str) -> StagedWorkload:
    return open_workload(text)


if __name__ == "__main__":
    sys.exit(main())
