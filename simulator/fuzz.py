"""Random fleets, workloads and accidents, each fixed by one number, on which the laws must hold.

Everything is small, so that queues fill, blocks run out and sequences are preempted within a few
dozen requests. A number that breaks a law breaks it again, on every machine.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import router.policies  # noqa: F401  # registers every policy by its name
from contract.hardware import find_gpu, find_model
from contract.options import build_section
from replicas.core.hardware_timing import step_time_spec
from replicas.core.scheduler_config import Admission, Batching, SchedulerConfig, SchedulingPolicy
from replicas.core.step_time import FixedStepTime, StepTime, StepTimeModel
from router.core.config import RoutingConfig
from router.core.policy import POLICIES, build_policy
from simulator.autoscaler import AutoscaleRule
from simulator.draws import Draws
from simulator.fleet_run import FleetRun
from simulator.fleet_spec import Fault, FaultKind, FleetSpec, ReplicaSpec, Timing
from simulator.laws import check_laws
from simulator.request import SimRequest
from simulator.timeline import Timeline
from simulator.workload.catalogue import ENTRIES
from simulator.workload.shape import ShapeSettings
from simulator.workload.stages import StagedWorkload

T = TypeVar("T")

REQUESTS_MAX = 60
REPLICAS_MAX = 8
FAULTS_MAX = 5
ACCIDENTS_WITHIN_US = 500_000
"""Most of a tiny workload has arrived by then."""

_LENGTHS = "question_tokens=12,output_tokens=10"
_PROMPTS = f"{_LENGTHS},requests=40,rate=200,length_cv=1"
_LADDER = f"{_LENGTHS},stages=150x0.1+400x0.1,warm_up=100x0.1,groups=5,system_tokens=40"
GENERATORS = {
    "unique": _PROMPTS,
    "hot": f"{_PROMPTS},system_tokens=40",
    "groups": f"{_PROMPTS},system_tokens=40,groups=4",
    "multiturn": "rate=50,conversations=10,turns=4,system_tokens=10,message_tokens=8,"
    "output_tokens=8,think_s=0.05",
    "agents": "rate=20,trees=4,fan_out=3,system_tokens=30,task_tokens=10,instruction_tokens=5,"
    "output_tokens=8,tool_s=0.02",
    "ladder": _LADDER,
    "llmd-37": _LADDER,
    "llmd-73": f"{_LADDER},in_flight_max=6",
    "kubeai": "levels=200@8+400@20,conversations=8,turns=5,message_tokens=6,output_tokens=6",
}
"""Every generator of the catalogue, with settings that make it small."""


@dataclass(frozen=True)
class FuzzCase:
    """One random experiment; equal seeds give equal ones."""

    seed: int
    spec: FleetSpec
    workload: StagedWorkload


def fuzz_case(seed: int) -> FuzzCase:
    """Return the case of this number."""
    draws = Draws("fuzz", seed)
    models = ("small", "large")[: 1 + (draws.below(4) == 0)]
    replicas = _replicas(draws, models)
    return FuzzCase(seed, _fleet(draws, seed, replicas), _workload(draws, seed, models))


def run_case(seed: int) -> int:
    """Run one case and check the laws; return how many requests it had.

    Raises AssertionError where a law is broken, by the laws or by the code that runs.
    """
    case = fuzz_case(seed)
    run = FleetRun(case.spec, case.workload, Timeline(10_000, 50))
    run.run()
    check_laws(run)
    return len(run.outcomes)


def _replicas(draws: Draws, models: Sequence[str]) -> list[ReplicaSpec]:
    count = 1 + draws.below(REPLICAS_MAX)
    kinds = [(_engine(draws), _step_time(draws)) for _ in range(1 + draws.below(3))]
    replicas = []
    for number in range(count):
        engine, step_time = _one_of(draws, kinds)
        late = number > 0 and _happens(draws, 0.15)
        replicas.append(
            ReplicaSpec(
                replica_id=f"replica-{number}",
                model=models[number % len(models)],
                engine=engine,
                step_time=step_time,
                publishes_events=_happens(draws, 0.8),
                joins_us=draws.below(ACCIDENTS_WITHIN_US) if late else 0,
                waiting_max=_one_of(draws, (4_096, 4_096, 3)),
            )
        )
    return replicas


def _engine(draws: Draws) -> SchedulerConfig:
    block_size = _one_of(draws, (1, 4, 8, 16))
    num_blocks = 1 + 160 // block_size + draws.below(20)
    admission = Admission.RESERVE if _happens(draws, 0.1) else Admission.PAGED
    return SchedulerConfig(
        num_blocks=num_blocks,
        block_size=block_size,
        max_num_batched_tokens=_one_of(draws, (8, 32, 128)),
        max_num_seqs=_one_of(draws, (1, 2, 4, 8)),
        max_model_len=_one_of(draws, (60, 120, 160)),
        policy=_one_of(draws, tuple(SchedulingPolicy)),
        batching=Batching.STATIC if _happens(draws, 0.1) else Batching.CONTINUOUS,
        admission=admission,
        enable_prefix_caching=_happens(draws, 0.9),
    )


def _step_time(draws: Draws) -> StepTime:
    if _happens(draws, 0.3):
        spec = step_time_spec(find_model("llama-3.1-8b"), find_gpu(_one_of(draws, ("h100", "l4"))))
        return StepTimeModel(spec)
    return FixedStepTime(
        prefill_us=_one_of(draws, (0, 1_000, 20_000)), decode_us=_one_of(draws, (1, 200, 5_000))
    )


def _fleet(draws: Draws, seed: int, replicas: list[ReplicaSpec]) -> FleetSpec:
    losses = (0.0, 0.0, 0.3)
    return FleetSpec(
        replicas=replicas,
        policy=build_policy(_one_of(draws, sorted(POLICIES))),
        num_gateways=1 + draws.below(3),
        routing=RoutingConfig(
            in_flight_max=_one_of(draws, (0, 0, 1, 4)),
            queue_max=_one_of(draws, (2, 1_000)),
            queue_timeout_s=_one_of(draws, (0.05, 2.0)),
            retry_max=draws.below(4),
            index_entries_max=_one_of(draws, (16, 500_000)),
        ),
        timing=Timing(
            send_delay_us=_one_of(draws, (0, 300, 5_000)),
            report_interval_us=_one_of(draws, (None, 5_000, 100_000)),
            report_delay_us=_one_of(draws, (0, 1_000, 30_000)),
            report_loss=_one_of(draws, losses),
            event_delay_us=_one_of(draws, (0, 1_000, 30_000)),
            event_loss=_one_of(draws, losses),
            snapshot_delay_us=_one_of(draws, (0, 10_000)),
        ),
        faults=[_fault(draws, replicas) for _ in range(draws.below(FAULTS_MAX + 1))],
        autoscale=_autoscale(draws) if _happens(draws, 0.3) else None,
        seed=seed,
    )


def _fault(draws: Draws, replicas: Sequence[ReplicaSpec]) -> Fault:
    return Fault(
        at_us=draws.below(ACCIDENTS_WITHIN_US),
        kind=_one_of(draws, tuple(FaultKind)),
        replica_id=_one_of(draws, replicas).replica_id,
        duration_us=1 + draws.below(ACCIDENTS_WITHIN_US // 2),
        factor=0.5 + 4 * draws.uniform(),
    )


def _autoscale(draws: Draws) -> AutoscaleRule:
    return AutoscaleRule(
        target_in_flight=_one_of(draws, (0.5, 2.0, 8.0)),
        replicas_max=1 + draws.below(REPLICAS_MAX),
        interval_s=0.02,
        cold_start_s=_one_of(draws, (0.0, 0.05)),
        scale_down_delay_s=_one_of(draws, (0.0, 0.1)),
    )


def _workload(draws: Draws, seed: int, models: Sequence[str]) -> StagedWorkload:
    entry = ENTRIES[_one_of(draws, tuple(GENERATORS))]
    given = dict(item.split("=") for item in GENERATORS[entry.name].split(","))
    settings: object = build_section(entry.settings, given, entry.name)
    shape = ShapeSettings(
        seed=str(seed),
        first=1 + draws.below(REQUESTS_MAX),
        rate_scale=_one_of(draws, (0.2, 1.0, 5.0)),
        jitter_ms=_one_of(draws, (0.0, 20.0)),
        prompt_tokens_max=_one_of(draws, (None, 100)),
        output_tokens_max=_one_of(draws, (None, 20)),
    )
    workload = entry.workload((), settings, shape)
    stages = tuple(
        replace(stage, requests=tuple(_varied(draws, each, models) for each in stage.requests))
        for stage in workload.stages
    )
    return replace(workload, stages=stages)


def _varied(draws: Draws, request: SimRequest, models: Sequence[str]) -> SimRequest:
    """Return the request of some client: of a tenant, in a hurry, without patience."""
    model = "unknown" if _happens(draws, 0.01) else _one_of(draws, (None, *models))
    return replace(
        request,
        model=model,
        tenant=_one_of(draws, (None, "a", "b")),
        priority=draws.below(3),
        patience_us=1 + draws.below(ACCIDENTS_WITHIN_US) if _happens(draws, 0.1) else None,
    )


def _happens(draws: Draws, share: float) -> bool:
    return draws.uniform() < share


def _one_of(draws: Draws, choices: Sequence[T]) -> T:
    return choices[draws.below(len(choices))]
