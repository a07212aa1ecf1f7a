"""Queues whose mean wait is known: M/M/1 and M/D/1 in an engine, M/M/k in the gateway's queue.

A server is a slot of an engine whose steps all take a millisecond, so an answer's length is its
time of service; a prompt is one token and takes no time. Service times are exponential numbers
rounded to whole steps, of which there are 200 in the mean: the rounding moves a mean wait by
less than a thousandth.
"""

from collections.abc import Iterator
from functools import partial
from math import factorial

from replicas.core.scheduler_config import SchedulerConfig
from replicas.core.step_time import FixedStepTime
from router.core.config import RoutingConfig
from router.core.policy import build_policy
from simulator.draws import Draws
from simulator.fleet_run import FleetRun
from simulator.fleet_spec import FleetSpec, ReplicaSpec, Timing
from simulator.outcome import End
from simulator.request import Segment, SimRequest
from simulator.validation.case import Case, Experiment, Figures, Opener, Theory, figure_of
from simulator.workload.stages import Stage, StagedWorkload

STEP_US = 1_000
SERVICE_STEPS = 200
LOAD = 0.7  # of each server
SERVERS = 4
REQUESTS = 6_000
WARM_UP = 500  # the first requests of a run, which find a queue that has not filled
SEEDS = 10
CONFIDENCE = 0.99  # three intervals at 0.95 would miss one time in seven
QUEUED_MAX = 1_000_000
PATIENCE_S = 1e6  # longer than any wait

SOURCE = "Queueing theory: Pollaczek and Khinchine; Erlang's C formula"
IN_INTERVAL = f"Holds if theory lies in the {CONFIDENCE:.0%} interval of the seeds' mean."


def queueing_experiments() -> list[Experiment]:
    """Return the three queues."""
    return [
        _experiment("M/M/1", servers=1, is_exponential=True),
        _experiment("M/D/1", servers=1, is_exponential=False),
        _experiment(f"M/M/{SERVERS}", servers=SERVERS, is_exponential=True),
    ]


def queueing_cases() -> list[Case]:
    """Return the mean wait of each, in milliseconds."""
    service_ms = SERVICE_STEPS * STEP_US / 1_000
    waits = {
        "M/M/1": ("one slot of an engine", LOAD / (1 - LOAD) * service_ms),
        "M/D/1": ("one slot, equal lengths", LOAD / (1 - LOAD) / 2 * service_ms),
        f"M/M/{SERVERS}": (
            "one slot on each of 4 replicas, behind the gateway's queue",
            erlang_c(SERVERS, SERVERS * LOAD) / (SERVERS * (1 - LOAD)) * service_ms,
        ),
    }
    return [
        Case(
            name=f"{name}, load {LOAD:g}, {where}: mean wait",
            expected=Theory(wait_ms),
            experiments=(name,),
            value=figure_of("wait_ms"),
            form=",.0f",
            unit="ms",
            source=SOURCE,
            notes=(IN_INTERVAL,),
            confidence=CONFIDENCE,
        )
        for name, (where, wait_ms) in waits.items()
    ]


def erlang_c(servers: int, load: float) -> float:
    """Return the probability that an arrival of an M/M/k queue waits; ``load`` in servers."""
    busy = load**servers / factorial(servers) * servers / (servers - load)
    return busy / (busy + sum(load**n / factorial(n) for n in range(servers)))


def _experiment(name: str, *, servers: int, is_exponential: bool) -> Experiment:
    return Experiment(
        name=name,
        seeds=SEEDS,
        workload=partial(_workload, servers, is_exponential),
        fleet=partial(_fleet, servers),
        measure=_measure,
    )


def _workload(servers: int, is_exponential: bool, _: Opener, seed: int) -> StagedWorkload:
    requests = tuple(_requests(servers, is_exponential, seed))
    return StagedWorkload("queue", "generated", (Stage(name="all", requests=requests),))


def _requests(servers: int, is_exponential: bool, seed: int) -> Iterator[SimRequest]:
    gaps, services = Draws(seed, "gaps", servers), Draws(seed, "services", servers)
    gap_us = SERVICE_STEPS * STEP_US / (LOAD * servers)
    at_us = 0.0
    for index in range(REQUESTS):
        at_us += gaps.exponential(gap_us)
        steps = (
            max(1, round(services.exponential(SERVICE_STEPS))) if is_exponential else SERVICE_STEPS
        )
        yield SimRequest(
            request_id=f"request-{index}",
            segments=(Segment(1, 1),),
            output_tokens=steps + 1,  # the first one comes with the prompt
            output_id=2,
            arrival_us=round(at_us),
        )


def _fleet(servers: int, _: int) -> FleetSpec:
    replicas = ReplicaSpec(
        replica_id="replica",
        model="queue",
        engine=SchedulerConfig(
            num_blocks=2_000,
            block_size=16,
            max_num_seqs=1,
            max_model_len=30_000,
            enable_prefix_caching=False,
            enable_kv_events=False,
        ),
        step_time=FixedStepTime(prefill_us=0, decode_us=STEP_US),
        publishes_events=False,
        waiting_max=QUEUED_MAX,
    ).copies(servers)
    routing = RoutingConfig(
        queue_max=QUEUED_MAX, queue_timeout_s=PATIENCE_S, lease_ttl_s=PATIENCE_S
    )
    if servers > 1:
        routing = RoutingConfig(
            in_flight_max=1,
            queue_max=QUEUED_MAX,
            queue_timeout_s=PATIENCE_S,
            lease_ttl_s=PATIENCE_S,
        )
    return FleetSpec(
        replicas=replicas,
        policy=build_policy("least_loaded"),
        routing=routing,
        timing=Timing(report_interval_us=None),
    )


def _measure(run: FleetRun) -> Figures:
    number = {request.request_id: index for index, request in enumerate(run.stages[0].requests)}
    waits_us = []
    for outcome in run.outcomes:
        assert outcome.end is End.COMPLETE
        assert outcome.queue_us is not None
        if number[outcome.request.request_id] >= WARM_UP:
            waits_us.append(outcome.queue_us)
    return {"wait_ms": sum(waits_us) / len(waits_us) / 1_000}
