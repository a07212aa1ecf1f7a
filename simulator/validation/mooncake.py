"""Mooncake's traces, against what NVIDIA's AISimulate with Dynamo 1.6.0 prints for them."""

from functools import partial

from replicas.core.scheduler_config import SchedulerConfig
from replicas.core.step_time import FixedStepTime
from router.core.policy import build_policy
from simulator.fleet_run import FleetRun
from simulator.fleet_spec import FleetSpec, ReplicaSpec, Timing
from simulator.summary import summarise
from simulator.validation.case import (
    Case,
    Exactly,
    Experiment,
    Figures,
    Opener,
    Within,
    about,
    figure_of,
    near,
)
from simulator.workload.stages import StagedWorkload

BLOCK_TOKENS = 512  # of the traces' own blocks
ENDLESS_BLOCKS = 300_000  # more than both traces have, which is 288,500
CONTEXT_TOKENS = 200_000  # the longest prompt has 191,378
SOURCE = (
    "AISimulate 0.13 and Dynamo 1.6.0 on the traces of Mooncake (FAST'25), blocks of 512 tokens"
)
ROUNDED = (
    "The times are published in whole milliseconds, and where a step's end meets an arrival "
    "another simulator may take the one or the other first."
)


def exact_experiments() -> list[Experiment]:
    """Return one replica whose cache is endless, which takes one prompt after the other."""
    return [
        Experiment(
            name=f"{trace}, endless cache",
            seeds=1,
            # Answers only take time: no prompt of these traces repeats one.
            workload=partial(_opened, f"{trace},output_tokens_max=1"),
            fleet=_endless,
            measure=_measure,
        )
        for trace in ("conversation", "synthetic")
    ]


def exact_cases() -> list[Case]:
    """Return the share of reused tokens and the computed ones, to all digits."""
    known = {
        "conversation": (0.373379905854133, ".15f", 90_730_719),
        "synthetic": (0.6504309495925, ".13f", 21_391_748),
    }
    cases = []
    for trace, (reused, form, computed) in known.items():
        experiments = (f"{trace}, endless cache",)
        cases += [
            Case(
                name=f"{trace}, endless cache: reused / prompt tokens",
                expected=Exactly(reused),
                experiments=experiments,
                value=figure_of("hit"),
                form=form,
                source=SOURCE,
            ),
            Case(
                name=f"{trace}, endless cache: prompt tokens computed",
                expected=Exactly(computed),
                experiments=experiments,
                value=figure_of("computed_tokens"),
                form=",.0f",
                unit="tokens",
                source=SOURCE,
            ),
        ]
    return cases


ROUND_ROBIN = {
    2_000: (0.0816, 277, 1_441),
    5_000: (0.1091, 272, 1_441),
    20_000: (0.1380, 266, 1_440),
}
"""Blocks of each replica: reused share, TTFT mean and p99 in ms."""


def round_robin_experiments() -> list[Experiment]:
    """Return 8 replicas that are used in turn, with caches of three sizes."""
    return [
        Experiment(
            name=f"conversation, round robin, {blocks:,} blocks",
            seeds=1,
            workload=partial(_opened, "conversation"),
            fleet=partial(_round_robin, blocks),
            measure=_measure,
        )
        for blocks in ROUND_ROBIN
    ]


def round_robin_cases() -> list[Case]:
    """Return reuse, mean and p99 of the time to the first token."""
    cases = []
    for blocks, (reused, mean_ms, p99_ms) in ROUND_ROBIN.items():
        name = f"conversation, round robin, {blocks:,} blocks"
        rows: list[tuple[str, str, Within, str, str]] = [
            ("reused / prompt tokens", "hit", near(reused, 0.002), ".4f", ""),
            ("TTFT mean", "ttft_ms_mean", about(mean_ms, 0.01), ".1f", "ms"),
            ("TTFT p99", "ttft_ms_p99", about(p99_ms, 0.01), ".1f", "ms"),
        ]
        cases += [
            Case(
                name=f"{name}: {label}",
                expected=expected,
                experiments=(name,),
                value=figure_of(figure),
                form=form,
                unit=unit,
                source=SOURCE,
                notes=(ROUNDED,) if unit else (),
            )
            for label, figure, expected, form, unit in rows
        ]
    return cases


def _opened(text: str, open_workload: Opener, _: int) -> StagedWorkload:
    return open_workload(text)


def _endless(_: int) -> FleetSpec:
    engine = SchedulerConfig(
        num_blocks=ENDLESS_BLOCKS,
        block_size=BLOCK_TOKENS,
        max_num_batched_tokens=CONTEXT_TOKENS,
        max_num_seqs=1,
        max_model_len=CONTEXT_TOKENS,
        enable_kv_events=False,
    )
    # A request has left before the next one comes, so that it finds all there is.
    replica = ReplicaSpec(
        replica_id="replica-0",
        model="mooncake",
        engine=engine,
        step_time=FixedStepTime(prefill_us=1, decode_us=1),
        publishes_events=False,
        waiting_max=1_000_000,
    )
    return FleetSpec(
        replicas=[replica],
        policy=build_policy("round_robin"),
        timing=Timing(report_interval_us=None),
    )


def _round_robin(blocks: int, _: int) -> FleetSpec:
    engine = SchedulerConfig(
        num_blocks=blocks + 1,  # one of which holds nothing
        block_size=BLOCK_TOKENS,
        max_num_batched_tokens=8_192,
        max_num_seqs=256,
        max_model_len=CONTEXT_TOKENS,
        enable_kv_events=False,
    )
    replicas = ReplicaSpec(
        replica_id="replica",
        model="mooncake",
        engine=engine,
        step_time=FixedStepTime(prefill_us=100_000, decode_us=20_000),
        publishes_events=False,
    ).copies(8)
    return FleetSpec(
        replicas=replicas,
        policy=build_policy("round_robin"),
        timing=Timing(report_interval_us=None),
    )


def _measure(run: FleetRun) -> Figures:
    summary = summarise(run)
    return {
        "hit": summary.hit_actual,
        "computed_tokens": summary.computed_prefill_tokens,
        "ttft_ms_mean": summary.ttft_ms.mean,
        "ttft_ms_p99": summary.ttft_ms.p99,
    }
