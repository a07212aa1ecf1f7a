"""What it costs to know the caches by learning alone: the same runs with KV events and without.

    python -m bench.learned     # the conversation trace, three sizes of cache; minutes

Learned: no replica publishes events, so the gateway knows what it sent, the capacity that reports
tell, and the `cached_tokens` of each answer. Its blocks are of 512 bytes of prompt, the engine's of
512 tokens. Budgets: the hit rate falls by at most 2 points, and what was predicted is within 2
points of what the engines had.
"""

import argparse
import sys
from dataclasses import dataclass

import router.policies  # noqa: F401  # registers every policy by its name
from replicas.core.scheduler_config import SchedulerConfig
from replicas.core.step_time import FixedStepTime
from router.core.policy import build_policy
from simulator.fleet_run import FleetRun
from simulator.fleet_spec import FleetSpec, ReplicaSpec, Timing
from simulator.summary import summarise
from warmroute.workloads import open_workload

NUM_REPLICAS = 8
BLOCK_TOKENS = 512
STEP = FixedStepTime(prefill_us=100_000, decode_us=20_000)
BUDGET = 0.02


@dataclass(frozen=True, slots=True)
class Result:
    """Shares of prompt tokens, and the mean time to the first token."""

    actual: float
    predicted: float
    ttft_ms: float


def run(workload: str, num_blocks: int, policy: str, *, events: bool) -> Result:
    """Return what a run gave."""
    engine = SchedulerConfig(
        num_blocks=num_blocks,
        block_size=BLOCK_TOKENS,
        max_num_batched_tokens=8_192,
        max_num_seqs=256,
    )
    replicas = [
        ReplicaSpec(
            replica_id=f"replica-{number}",
            model="m",
            engine=engine,
            step_time=STEP,
            publishes_events=events,
        )
        for number in range(NUM_REPLICAS)
    ]
    timing = Timing(report_interval_us=None)
    spec = FleetSpec(replicas=replicas, policy=build_policy(policy), timing=timing)
    fleet_run = FleetRun(spec, open_workload(workload))
    fleet_run.run()
    summary = summarise(fleet_run)
    return Result(summary.hit_actual, summary.hit_predicted, summary.ttft_ms.mean)


def main() -> int:
    """Print a row for each size of cache; exit 1 if a budget is not kept."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workload", default="conversation", help="as `warmroute load`")
    parser.add_argument("--blocks", nargs="+", type=int, default=[2_000, 5_000, 20_000])
    parser.add_argument("--policy", default="prefix_load")
    args = parser.parse_args()
    print(
        f"{args.workload}, {args.policy}, {NUM_REPLICAS} replicas, blocks of {BLOCK_TOKENS} tokens"
    )
    print("blocks  known by  hit rate  predicted  TTFT ms  lost  wrong by")
    is_kept = True
    for num_blocks in args.blocks:
        exact = run(args.workload, num_blocks, args.policy, events=True)
        learned = run(args.workload, num_blocks, args.policy, events=False)
        for name, result in (("events", exact), ("learning", learned)):
            lost = exact.actual - result.actual
            wrong = result.predicted - result.actual
            is_kept = is_kept and lost <= BUDGET and abs(wrong) <= BUDGET
            print(
                f"{num_blocks:>6}  {name:<8}  {result.actual:8.4f}  {result.predicted:9.4f}"
                f"  {result.ttft_ms:7.1f}  {lost:+.3f}  {wrong:+.4f}",
                flush=True,
            )
    return 0 if is_kept else 1


if __name__ == "__main__":
    sys.exit(main())
