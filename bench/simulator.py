"""How fast the fleet simulator is: requests per CPU second and peak memory, a process for each row.

    python -m bench.simulator                 # the conversation trace; a minute or two
    python -m bench.simulator --large         # and 1,000 replicas, and a million requests

NVIDIA's AISimulate (Rust) replays the first row in the same run where it is found (aisimulate.py).
On a quiet 2-core machine it took 5.8 s of wall time for it, or 2,080 requests/s.
"""

import argparse
import gzip
import json
import resource
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from importlib import resources

import router.policies  # noqa: F401  # registers every policy by its name
from bench.aisimulate import replay
from replicas.core.scheduler_config import SchedulerConfig
from replicas.core.step_time import FixedStepTime
from router.core.config import RoutingConfig
from router.core.policy import build_policy
from simulator.fleet_run import FleetRun
from simulator.fleet_spec import FleetSpec, ReplicaSpec, Timing
from simulator.summary import summarise
from warmroute.workloads import open_workload

STEP = FixedStepTime(prefill_us=100_000, decode_us=20_000)
CONVERSATION = "data/traces/mooncake_conversation_trace.jsonl.gz"


@dataclass(frozen=True)
class Case:
    """One row. ``kv_tokens`` is of each replica."""

    workload: str
    replicas: int
    block_size: int
    policy: str
    kv_tokens: int = 1_024_000
    num_gateways: int = 1


@dataclass(frozen=True)
class Measured:
    """What one row gave."""

    requests: int
    hit_rate: float
    cpu_s: float
    peak_mib: float


CASES = (
    Case("conversation", 8, 512, "round_robin"),
    Case("conversation", 8, 512, "prefix_load"),
    Case("conversation", 8, 16, "prefix_load"),
    Case("conversation,rate_scale=8", 64, 512, "prefix_load"),
)
LARGE = (
    Case("conversation,rate_scale=32", 256, 512, "prefix_load"),
    Case("conversation,rate_scale=125", 1_000, 512, "prefix_load"),
    Case("groups,requests=1000000,groups=5000,rate=400", 64, 512, "prefix_load"),
)


def measure(case: Case) -> Measured:
    """Run one row in this process."""
    engine = SchedulerConfig(
        num_blocks=case.kv_tokens // case.block_size + 1,
        block_size=case.block_size,
        max_num_batched_tokens=8_192,
        max_num_seqs=256,
        max_model_len=1 << 20,
    )
    replicas = ReplicaSpec(replica_id="replica", model="m", engine=engine, step_time=STEP).copies(
        case.replicas
    )
    spec = FleetSpec(
        replicas=replicas,
        policy=build_policy(case.policy, {}),
        num_gateways=case.num_gateways,
        routing=RoutingConfig(index_entries_max=50_000_000),
        timing=Timing(report_interval_us=None),
    )
    run = FleetRun(spec, open_workload(case.workload))
    began_s = time.process_time()
    outcomes = run.run()
    cpu_s = time.process_time() - began_s
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_024
    return Measured(len(outcomes), summarise(run).hit_actual, cpu_s, peak_mib)


def in_process(case: Case) -> Measured:
    """Run one row in a process of its own, so that its peak of memory is its own."""
    argv = [sys.executable, "-m", "bench.simulator", "--case", json.dumps(asdict(case))]
    done = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True)
    return Measured(**json.loads(done.stdout))


def beside(program: str) -> str:
    """Return AISimulate's row for the first case."""
    case = CASES[0]
    trace = resources.files("warmroute").joinpath(CONVERSATION).read_bytes()
    got = replay(
        program,
        gzip.decompress(trace),
        replicas=case.replicas,
        blocks=case.kv_tokens // case.block_size,
        prefill_ms=STEP.prefill_us / 1_000,
        decode_ms=STEP.decode_us / 1_000,
    )
    in_wall_time = (
        f"AISimulate, its start included: {got.requests / got.wall_s:,.0f}/s of wall time"
    )
    return row(case, got.requests / got.cpu_s, got.hit_rate, in_wall_time)


def row(case: Case, per_cpu_s: float, hit_rate: float, note: str) -> str:
    """Return one line of the table."""
    return (
        f"{case.workload[:34]:<34}  {case.replicas:>8}  {case.block_size:>5}  "
        f"{case.policy:<11}  {per_cpu_s:>14,.0f}  {hit_rate:>8.4f}  {note}"
    )


def main() -> int:
    """Print a row for each case."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--large", action="store_true", help="also the rows that take minutes")
    parser.add_argument(
        "--aisimulate",
        metavar="PROGRAM",
        default=shutil.which("aisimulate"),
        help="AISimulate, to run beside the first row; default: the one on the PATH, if any",
    )
    parser.add_argument("--case", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case:
        print(json.dumps(asdict(measure(Case(**json.loads(args.case))))))
        return 0
    print(
        "workload                            replicas  block  policy       requests/CPU s  hit rate"
    )
    for case in CASES + (LARGE if args.large else ()):
        got = in_process(case)
        note = f"{got.peak_mib:,.0f} MiB"
        print(row(case, got.requests / got.cpu_s, got.hit_rate, note), flush=True)
        if case is CASES[0] and args.aisimulate:
            print(beside(args.aisimulate), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
