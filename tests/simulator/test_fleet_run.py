"""Whole runs in virtual time: laws on random fleets, and theory where it is exact."""

from dataclasses import astuple, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import router.policies  # noqa: F401
from replicas.core.scheduler_config import SchedulerConfig
from replicas.core.step_time import FixedStepTime
from router.core.config import RoutingConfig
from router.core.policy import POLICIES, build_policy
from simulator.draws import Draws
from simulator.fleet_run import FleetRun
from simulator.fleet_spec import Fault, FaultKind, FleetSpec, ReplicaSpec, Timing
from simulator.laws import check_laws
from simulator.outcome import End, Outcome
from simulator.report_rounds import ReportRounds
from simulator.request import Segment, SimRequest, Workload
from simulator.workload.stages import Stage, StagedWorkload

ENGINE = SchedulerConfig(
    num_blocks=41, block_size=4, max_num_batched_tokens=32, max_num_seqs=4, max_model_len=160
)
STEP = FixedStepTime(prefill_us=1_000, decode_us=200)


def fleet(replicas: int = 2, policy: str = "prefix_load", **changes: object) -> FleetSpec:
    specs = [
        ReplicaSpec(replica_id=f"r{n}", model="m", engine=ENGINE, step_time=STEP)
        for n in range(replicas)
    ]
    spec = FleetSpec(replicas=specs, policy=build_policy(policy, {}))
    return replace(spec, **changes)  # type: ignore[arg-type]


def request(number: int, *segments: tuple[int, int], output: int = 3, **more: object) -> SimRequest:
    return SimRequest(
        request_id=f"q{number}",
        segments=tuple(Segment(*each) for each in segments),
        output_tokens=output,
        output_id=1_000 + number,
        **more,  # type: ignore[arg-type]
    )


def run(spec: FleetSpec, *requests: SimRequest) -> dict[str, Outcome]:
    fleet_run = FleetRun(spec, Workload("test", "", requests))
    fleet_run.run()
    check_laws(fleet_run)
    return {outcome.request.request_id: outcome for outcome in fleet_run.outcomes}


def test_the_time_of_a_lone_request_is_that_of_its_steps() -> None:
    outcomes = run(fleet(), request(0, (1, 40), output=3))

    # 40 prompt tokens at 32 a step are two steps; the second gives the first token.
    assert outcomes["q0"].ttft_us == 2_000
    assert outcomes["q0"].e2e_us == 2_000 + 2 * 200


def test_a_repeated_prompt_goes_where_it_is_cached() -> None:
    outcomes = run(fleet(4), request(0, (1, 42)), request(1, (1, 42), arrival_us=50_000))

    assert outcomes["q1"].replica_id == outcomes["q0"].replica_id
    assert outcomes["q1"].predicted_tokens == outcomes["q1"].cached_tokens == 40


def test_the_next_turn_finds_the_answer_before_it_in_cache() -> None:
    first = request(0, (1, 20), output=12)
    second = request(1, (1, 20), (1_000, 12), (2, 8), after="q0", think_us=7_000)

    outcomes = run(fleet(4), first, second)

    assert outcomes["q1"].arrival_us == (outcomes["q0"].e2e_us or 0) + 7_000
    assert outcomes["q1"].cached_tokens == 28  # the last token of an answer is never computed


def test_a_crash_breaks_begun_answers_and_moves_the_others() -> None:
    crash = Fault(at_us=1_500, kind=FaultKind.CRASH, replica_id="r0", duration_us=10_000)
    spec = fleet(2, "round_robin", faults=[crash])

    outcomes = run(spec, request(0, (1, 30), output=9), request(1, (2, 30)), request(2, (3, 40)))

    assert outcomes["q0"].end is End.BROKEN
    assert outcomes["q1"].end is End.COMPLETE
    assert (outcomes["q2"].end, outcomes["q2"].attempts) == (End.COMPLETE, 2)


def test_a_client_without_patience_leaves_and_its_blocks_are_free() -> None:
    outcomes = run(fleet(1), request(0, (1, 40), output=50, patience_us=3_000))

    assert outcomes["q0"].end is End.LEFT
    assert outcomes["q0"].e2e_us == 3_000


def test_a_request_that_no_replica_could_hold_is_refused() -> None:
    assert run(fleet(1), request(0, (1, 400)))["q0"].end is End.REFUSED


def test_a_fleet_without_replicas_fails_every_request() -> None:
    assert run(fleet(0), request(0, (1, 4)))["q0"].end is End.FAILED


def test_full_replicas_make_requests_wait_at_the_gateway() -> None:
    spec = fleet(1, routing=RoutingConfig(in_flight_max=1))

    outcomes = run(spec, *(request(n, (n + 1, 8), output=1) for n in range(3)))

    assert [outcomes[f"q{n}"].ttft_us for n in range(3)] == [1_000, 2_000, 3_000]


def test_a_stage_begins_when_the_one_before_has_ended() -> None:
    stages = (
        Stage(name="first", requests=(request(0, (1, 8), output=6),)),
        Stage(name="none", requests=()),
        Stage(name="second", requests=(request(1, (2, 8), arrival_us=300),)),
    )
    fleet_run = FleetRun(fleet(2), StagedWorkload("test", "", stages))

    first, second = fleet_run.run()

    check_laws(fleet_run)
    assert (first.stage_index, second.stage_index) == (0, 2)
    assert second.arrival_us == (first.e2e_us or 0) + 300


def test_a_client_with_a_limit_holds_requests_back_and_counts_from_sending_them() -> None:
    stage = Stage(
        name="", requests=tuple(request(n, (n + 1, 8), output=1) for n in range(3)), in_flight_max=1
    )
    fleet_run = FleetRun(fleet(1), StagedWorkload("test", "", (stage,)))

    outcomes = fleet_run.run()

    check_laws(fleet_run)
    assert [each.arrival_us for each in outcomes] == [0, 1_000, 2_000]
    assert {each.ttft_us for each in outcomes} == {1_000}


@pytest.mark.parametrize("gateways", [1, 3])
def test_reports_that_are_left_out_change_nothing(
    gateways: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws = Draws("rounds", gateways)
    requests = [
        request(
            number,
            (1 + draws.below(5), 30),
            (10 + number, 1 + draws.below(20)),
            output=1 + draws.below(30),
            arrival_us=draws.below(20) * 300_000 + draws.below(20_000),  # in bursts
        )
        for number in range(150)
    ]
    timing = Timing(report_interval_us=10_000, report_delay_us=2_000)
    runs = []
    for next_us in (ReportRounds.next_us, lambda _, now_us: now_us + 10_000):
        monkeypatch.setattr(ReportRounds, "next_us", next_us)
        fleet_run = FleetRun(
            fleet(3, num_gateways=gateways, timing=timing), Workload("", "", tuple(requests))
        )
        fleet_run.run()
        runs.append(fleet_run)

    lean, full = runs

    assert [(o.request.request_id, o.replica_id, o.e2e_us) for o in lean.outcomes] == [
        (o.request.request_id, o.replica_id, o.e2e_us) for o in full.outcomes
    ]
    assert lean._num_rounds < full._num_rounds / 3


REQUESTS: st.SearchStrategy[list[dict[str, Any]]] = st.lists(
    st.builds(
        dict,
        gap_us=st.integers(0, 4_000),
        prefix=st.integers(1, 3),
        prefix_tokens=st.integers(1, 60),
        own_tokens=st.integers(1, 20),
        output=st.integers(1, 40),
        patience_us=st.none() | st.integers(0, 20_000),
        follows=st.booleans(),
    ),
    min_size=1,
    max_size=25,
)
FAULTS = st.lists(
    st.builds(
        Fault,
        at_us=st.integers(0, 40_000),
        kind=st.sampled_from(FaultKind),
        replica_id=st.sampled_from(["r0", "r1", "r2"]),
        duration_us=st.integers(1, 30_000),
        factor=st.floats(0.5, 5),
    ),
    max_size=4,
)
TIMINGS = st.builds(
    Timing,
    send_delay_us=st.sampled_from([0, 300]),
    report_interval_us=st.sampled_from([None, 1_000, 10_000]),
    report_delay_us=st.sampled_from([0, 500]),
    report_loss=st.sampled_from([0.0, 0.5]),
    event_delay_us=st.sampled_from([0, 700]),
    event_loss=st.sampled_from([0.0, 0.0, 0.3]),
    snapshot_delay_us=st.sampled_from([0, 2_000]),
)


def requests_of(rows: list[dict[str, Any]]) -> list[SimRequest]:
    now_us, requests = 0, []
    for number, row in enumerate(rows):
        now_us += row["gap_us"]
        after = f"q{number - 1}" if row["follows"] and number else None
        requests.append(
            request(
                number,
                (row["prefix"], row["prefix_tokens"]),
                (10 + number, row["own_tokens"]),
                output=row["output"],
                arrival_us=now_us,
                after=after,
                patience_us=row["patience_us"],
            )
        )
    return requests


@given(
    rows=REQUESTS,
    faults=FAULTS,
    timing=TIMINGS,
    policy=st.sampled_from(sorted(POLICIES)),
    gateways=st.integers(1, 3),
    in_flight_max=st.sampled_from([0, 1, 3]),
)
@settings(deadline=None)
def test_laws_hold_whatever_happens(
    rows: list[dict[str, Any]],
    faults: list[Fault],
    timing: Timing,
    policy: str,
    gateways: int,
    in_flight_max: int,
) -> None:
    spec = fleet(
        3,
        policy,
        faults=faults,
        timing=timing,
        num_gateways=gateways,
        routing=RoutingConfig(in_flight_max=in_flight_max),
    )

    run(spec, *requests_of(rows))


@given(
    rows=REQUESTS,
    timing=TIMINGS,
    policy=st.sampled_from(sorted(POLICIES)),
    gateways=st.integers(1, 3),
    in_flight_max=st.sampled_from([0, 1, 3]),
)
@settings(deadline=None)
def test_events_that_are_read_late_change_nothing(
    rows: list[dict[str, Any]], timing: Timing, policy: str, gateways: int, in_flight_max: int
) -> None:
    # An event that takes no time may come before or after a decision of the same microsecond.
    event_delay_us = max(1, timing.event_delay_us)
    timing = replace(timing, report_loss=0.0, event_loss=0.0, event_delay_us=event_delay_us)
    routing = RoutingConfig(in_flight_max=in_flight_max)
    spec = fleet(3, policy, timing=timing, num_gateways=gateways, routing=routing)
    # Where anything can go wrong every batch is told in its time. This changes nothing else.
    no_fault = Fault(at_us=0, kind=FaultKind.SLOW, replica_id="r0", duration_us=1, factor=1.0)

    late = run(spec, *requests_of(rows))
    in_time = run(replace(spec, faults=[no_fault]), *requests_of(rows))

    assert {name: astuple(each) for name, each in late.items()} == {
        name: astuple(each) for name, each in in_time.items()
    }


def test_those_that_end_at_one_moment_are_in_the_order_of_their_ids() -> None:
    requests = [request(n, (n, 8), output=2) for n in (3, 1, 2)]
    fleet_run = FleetRun(fleet(3, "round_robin"), Workload("test", "", tuple(requests)))

    ids = [outcome.request.request_id for outcome in fleet_run.run()]

    assert ids == ["q1", "q2", "q3"]


@pytest.mark.long
@pytest.mark.parametrize("servers", [1, 3])
def test_waiting_times_are_those_of_queueing_theory(servers: int) -> None:
    """M/G/1 by Pollaczek and Khinchine; M/M/k by Erlang's C, with service geometric in steps."""
    step_us, steps_mean, load, count = 1_000, 20, 0.7, 8_000
    draws = Draws("queueing", servers)
    engine = SchedulerConfig(num_blocks=400, block_size=16, max_num_seqs=1)
    spec = FleetSpec(
        replicas=[
            ReplicaSpec(
                replica_id=f"r{n}",
                model="m",
                engine=engine,
                step_time=FixedStepTime(step_us, step_us),
            )
            for n in range(servers)
        ],
        policy=build_policy("least_loaded", {}),
        routing=RoutingConfig(in_flight_max=1, queue_max=count, queue_timeout_s=1e6),
        timing=Timing(report_interval_us=None),
    )
    gap_us = step_us * steps_mean / load / servers
    now_us, requests = 0.0, []
    for number in range(count):
        now_us += draws.exponential(gap_us)
        steps = 1 + int(draws.exponential(steps_mean - 0.5))
        requests.append(request(number, (number + 1, 1), output=steps, arrival_us=round(now_us)))

    outcomes = run(spec, *requests)

    waits = [(outcome.queue_us or 0) for outcome in outcomes.values()]
    services = [each.output_tokens * step_us for each in requests]
    assert sum(waits) / count == pytest.approx(
        expected_wait_us(servers, services, now_us), rel=0.15
    )


def expected_wait_us(servers: int, services: list[int], span_us: float) -> float:
    rate = len(services) / span_us
    mean = sum(services) / len(services)
    second = sum(each * each for each in services) / len(services)
    if servers == 1:
        return rate * second / (2 * (1 - rate * mean))
    offered = rate * mean
    terms = [1.0]
    for k in range(1, servers + 1):
        terms.append(terms[-1] * offered / k)
    waiting = terms[-1] / (1 - offered / servers)
    erlang_c = waiting / (sum(terms[:-1]) + waiting)
    return erlang_c * mean / (servers - offered)
