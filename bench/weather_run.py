"""One run of the weather table, and the search for a weather's knee.

The figures leave out the requests that come first, while caches are cold.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import router.policies  # noqa: F401  # registers every policy by its name
from bench.weather_cells import LOADS, Gpus, Weather, Window
from contract.hardware import find_gpu, find_model
from replicas.core.hardware_timing import step_time_spec
from replicas.core.scheduler_config import SchedulerConfig
from replicas.core.step_time import StepTimeModel
from router.core.policy import build_policy
from simulator.fleet_run import FleetRun
from simulator.fleet_spec import Fault, FaultKind, FleetSpec, ReplicaSpec, Timing
from simulator.outcome import Outcome
from simulator.request import SimRequest, Workload
from simulator.routing import parse_choice
from simulator.summary import Slo, Spread
from simulator.workload.order import from_zero
from warmroute.workloads import open_workload

MEMORY_SHARE = 0.9  # of a GPU, for weights and KV cache: vLLM's default
SEQUENCES_MAX = 256
WARM_UP_SHARE = 0.2  # of the requests, by arrival
JITTER_MS = 1_500  # Mooncake's arrivals were recorded in batches of 3 s
FOREVER_US = 10**13

KNEE_POLICY = "lmetric"
"""Finds the knee: it knows prefix and load, has no setting, and is not ours."""

KNEE_GOODPUT = 0.9
KNEE_PRECISION = 1.03
SCALE_MAX = 64.0  # a closed loop may have no knee: its clients wait


@dataclass(frozen=True, slots=True)
class Figures:
    """What came of a run. Milliseconds of virtual time, shares 0..1."""

    ttft_ms: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    itl_p99_ms: float
    e2e_ms: float
    goodput: float
    hit_rate: float


def run_cell(weather: Weather, load: str, policy: str, seed: int, knee: float) -> Figures:
    """Return the figures of one policy, which `parse_choice` reads, at a part of the knee."""
    return run_at(weather, LOADS[load] * knee, policy, seed)


def run_at(weather: Weather, scale: float, policy: str, seed: int) -> Figures:
    """Return the figures at ``scale`` times the workload's own rate."""
    requests = tuple(
        replace(request, arrival_us=round(request.arrival_us / scale))
        for request in _requests(weather, seed)
    )
    run = FleetRun(_fleet(weather, policy, seed), Workload(weather.name, "", requests))
    outcomes = sorted(run.run(), key=lambda outcome: outcome.arrival_us)
    return _figures(weather, outcomes[int(WARM_UP_SHARE * len(outcomes)) :])


def find_knee(weather: Weather) -> float:
    """Return the highest rate at which nine of ten answers are good, as a part of the workload's.

    Goodput is taken as falling with the rate; the answer is within 3 % of where it crosses.
    """

    def is_good(scale: float) -> bool:
        return run_at(weather, scale, KNEE_POLICY, 0).goodput >= KNEE_GOODPUT

    low = high = 1.0
    if is_good(low):
        while low < SCALE_MAX and is_good(high := 2 * high):
            low = high
    else:
        while not is_good(low := low / 2):
            high = low
    while high / low > KNEE_PRECISION:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if is_good(middle) else (low, middle)
    return round(low, 4)


def rate_of(weather: Weather) -> float:
    """Return the workload's own rate, in requests per second that wait for no other."""
    free = [request for request in _requests(weather, 0) if request.after is None]
    return len(free) * 1e6 / free[-1].arrival_us


def _figures(weather: Weather, outcomes: Sequence[Outcome]) -> Figures:
    slo = Slo(weather.ttft_ms_max, weather.itl_ms_max)
    answered = [outcome for outcome in outcomes if outcome.ttft_us is not None]
    ttft = Spread.of([outcome.ttft_us / 1_000 for outcome in answered if outcome.ttft_us])
    itl = Spread.of([us / 1_000 for us in (outcome.itl_us for outcome in answered) if us])
    e2e = Spread.of([outcome.e2e_us / 1_000 for outcome in answered if outcome.e2e_us])
    prompt_tokens = sum(outcome.request.prompt_tokens for outcome in answered)
    return Figures(
        ttft_ms=ttft.mean,
        ttft_p50_ms=ttft.p50,
        ttft_p99_ms=ttft.p99,
        itl_p99_ms=itl.p99,
        e2e_ms=e2e.mean,
        goodput=sum(map(slo.holds, outcomes)) / len(outcomes),
        hit_rate=sum(outcome.cached_tokens for outcome in answered) / prompt_tokens,
    )


@lru_cache(2)
def _requests(weather: Weather, seed: int) -> tuple[SimRequest, ...]:
    if weather.window is Window.DRAWN:
        (stage,) = open_workload(f"{weather.workload},seed={seed}").stages
        return stage.requests[: weather.requests]
    (stage,) = open_workload(f"{weather.workload},seed={seed},jitter_ms={JITTER_MS}").stages
    first = seed * weather.requests
    return from_zero(stage.requests[first : first + weather.requests])


def _fleet(weather: Weather, policy: str, seed: int) -> FleetSpec:
    choice = parse_choice(policy)
    replicas = list(_replicas(weather, seed))
    faults = []
    if weather.slow_factor != 1.0:
        faults.append(
            Fault(
                at_us=0,
                kind=FaultKind.SLOW,
                replica_id=replicas[0].replica_id,
                duration_us=FOREVER_US,
                factor=weather.slow_factor,
            )
        )
    return FleetSpec(
        replicas=replicas,
        policy=build_policy(choice.name, choice.settings),
        num_gateways=weather.num_gateways,
        timing=Timing(report_interval_us=weather.report_interval_ms * 1_000),
        faults=faults,
        seed=seed,
    )


def _replicas(weather: Weather, seed: int) -> Iterator[ReplicaSpec]:
    number = 0
    for gpus in weather.fleet:
        spec = step_time_spec(
            find_model(weather.model), find_gpu(gpus.gpu), gpus.tensor_parallel, weather.precision
        )
        engine = SchedulerConfig(
            num_blocks=_kv_tokens(weather, gpus) // weather.block_tokens + 1,  # one holds nothing
            block_size=weather.block_tokens,
            max_num_batched_tokens=gpus.step_tokens,
            max_num_seqs=SEQUENCES_MAX,
        )
        for _ in range(gpus.replicas):
            yield ReplicaSpec(
                replica_id=f"{seed}-{number}",  # decides how ties fall
                model="",
                engine=engine,
                step_time=StepTimeModel(spec),
            )
            number += 1


def _kv_tokens(weather: Weather, gpus: Gpus) -> int:
    if weather.kv_tokens is not None:
        return weather.kv_tokens
    model = find_model(weather.model)
    room = gpus.tensor_parallel * find_gpu(gpus.gpu).memory_bytes * MEMORY_SHARE
    kv_bytes = room - model.weight_bytes(weather.precision)
    return int(kv_bytes // model.kv_bytes_per_token(weather.precision))
