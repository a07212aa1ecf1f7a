"""How fast the engine is, stepping and leaping, beside the real scheduler of vLLM.

    python -m bench.engine                                     # about 15 seconds
    python -m bench.engine --vllm-python .../bin/python        # vLLM in the same run, a minute more

The workload is in engine_workload.py: 2,000 requests of 50 groups with 1,024-token prefixes, 20,000
blocks. Time is CPU time of this process, from the first token array to the last finished request,
hashing included. The exit status is 1 when stepping and leaping do not agree.
"""

import argparse
import subprocess
import sys
import time
from array import array
from collections.abc import Callable
from dataclasses import asdict, dataclass

from bench import engine_workload
from contract.blocks import root_hash
from replicas.core.engine import Engine
from replicas.core.engine_stats import EngineStats
from replicas.core.sampling import extend_with_own_token, own_token
from replicas.core.scheduler_config import SchedulerConfig
from replicas.core.sequence import Sequence
from replicas.core.step_time import FixedStepTime

VLLM_STEPS_PER_S = 138
VLLM_REQUESTS_PER_S = 191
"""Of vLLM 0.32 on a quiet machine with 2 cores, its hashing not counted."""

FOREVER_US = 10**15
PREFILL_US = 10_000
DECODE_US = 20_000

Prompts = list[tuple["array[int]", int]]


@dataclass(frozen=True)
class Run:
    """One way through the workload."""

    cpu_s: float
    stats: EngineStats
    last_finish_us: int


def leap(prompts: Prompts) -> Run:
    """Take the workload with Engine.advance()."""
    return _timed(prompts, lambda engine: engine.advance(FOREVER_US))


def step_by_step(prompts: Prompts) -> Run:
    """Take the workload with Engine.plan_step() and complete_step()."""

    def run(engine: Engine) -> None:
        now_us = 0
        while (plan := engine.plan_step(now_us)) is not None:
            now_us += engine.step_time_us(plan)
            engine.complete_step(plan, now_us)

    return _timed(prompts, run)


def _timed(prompts: Prompts, run: Callable[[Engine], object]) -> Run:
    began_s = time.process_time()
    config = SchedulerConfig(
        engine_workload.NUM_BLOCKS,
        engine_workload.BLOCK_SIZE,
        engine_workload.MAX_NUM_BATCHED_TOKENS,
        engine_workload.MAX_NUM_SEQS,
        enable_kv_events=False,  # nor does vLLM make any unless asked to
    )
    step_time = FixedStepTime(PREFILL_US, DECODE_US)
    engine = Engine(config, step_time, own_token, extend_with_own_token)
    root = root_hash("bench")
    sequences = [
        Sequence(str(index), tokens, max_tokens, root)
        for index, (tokens, max_tokens) in enumerate(prompts)
    ]
    for sequence in sequences:
        engine.add(sequence, now_us=0)
    run(engine)
    cpu_s = time.process_time() - began_s
    finishes_us = [each.finished_us for each in sequences if each.finished_us is not None]
    assert len(finishes_us) == len(sequences)
    return Run(cpu_s, engine.stats(), max(finishes_us))


def best(rounds: int, way: Callable[[Prompts], Run], prompts: Prompts) -> Run:
    """Return the fastest of some rounds: what disturbs a round only makes it slower."""
    return min((way(prompts) for _ in range(rounds)), key=lambda run: run.cpu_s)


def row(name: str, run: Run, num_requests: int) -> str:
    """Return one line of the table."""
    requests_per_s = num_requests / run.cpu_s
    steps_per_s = run.stats.steps_total / run.cpu_s
    return (
        f"{name:<10}{run.stats.steps_total:>7}{steps_per_s:>10.0f}{requests_per_s:>13.0f}"
        f"{run.cpu_s * 1_000 / num_requests:>22.3f}"
        f"{steps_per_s / VLLM_STEPS_PER_S:>15.1f}{requests_per_s / VLLM_REQUESTS_PER_S:>18.1f}"
    )


def main() -> int:
    """Print the table; return the exit status."""
    parser = argparse.ArgumentParser(prog="bench.engine")
    parser.add_argument("--requests", type=int, default=engine_workload.NUM_REQUESTS)
    parser.add_argument("--rounds", type=int, default=5, help="of which the fastest counts")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--vllm-python", help="an interpreter with vLLM, to measure it as well")
    args = parser.parse_args()
    prompts = [
        (array("I", each.prompt), each.max_tokens)
        for each in engine_workload.requests(args.requests, args.seed)
    ]
    leaping = best(args.rounds, leap, prompts)
    stepping = best(args.rounds, step_by_step, prompts)
    print(
        f"{'':<10}{'steps':>7}{'steps/s':>10}{'requests/s':>13}{'CPU s/1,000 requests':>22}"
        f"{'x vLLM steps':>15}{'x vLLM requests':>18}"
    )
    print(row("leaping", leaping, args.requests))
    print(row("stepping", stepping, args.requests))
    print(f"vLLM 0.32, recorded: {VLLM_STEPS_PER_S} steps/s, {VLLM_REQUESTS_PER_S} requests/s")
    if args.vllm_python:
        seed, count = str(args.seed), str(args.requests)
        command = [args.vllm_python, "-m", "bench.vllm_scheduler", "speed"]
        run = subprocess.run(
            [*command, "--first-seed", seed, "--requests", count],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        print(f"vLLM, in this run: {run.stdout.splitlines()[-1]}")
    agree = (leaping.last_finish_us, asdict(leaping.stats)) == (
        stepping.last_finish_us,
        asdict(stepping.stats),
    )
    if not agree:
        print(f"leaping and stepping differ: {leaping} and {stepping}", file=sys.stderr)
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
