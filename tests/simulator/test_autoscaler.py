"""The rule as a table, and fleets that grow and shrink under it without breaking a law."""

from dataclasses import replace

import pytest

from simulator.autoscaler import Autoscaler, AutoscaleRule
from simulator.fleet_run import FleetRun
from simulator.fleet_spec import Fault, FaultKind, FleetSpec, Timing
from simulator.laws import check_laws
from simulator.outcome import End
from simulator.request import SimRequest, Workload
from tests.simulator.test_fleet_run import fleet, request

RULE = AutoscaleRule(
    target_in_flight=2,
    replicas_max=5,
    interval_s=0.002,
    cold_start_s=0.005,
    scale_down_delay_s=0.01,
)


@pytest.mark.parametrize(
    ("in_flight", "desired"), [(0, 1), (1, 1), (2, 1), (3, 2), (8, 4), (10, 5), (99, 5)]
)
def test_replicas_are_what_is_under_way_over_the_target(in_flight: int, desired: int) -> None:
    assert Autoscaler(RULE, 1).desired(0, in_flight) == desired


def test_fewer_are_wanted_only_when_none_wanted_more_for_the_delay() -> None:
    scaler = Autoscaler(RULE, 1)

    wanted = [scaler.desired(at_us, n) for at_us, n in ((0, 8), (5_000, 4), (10_000, 0))]
    later = [scaler.desired(at_us, 0) for at_us in (10_001, 15_001)]

    assert wanted == [4, 4, 4]
    assert later == [2, 1]


@pytest.mark.parametrize(
    "changes",
    [
        {"target_in_flight": 0},
        {"target_in_flight": float("nan")},
        {"replicas_min": 0},
        {"replicas_min": 6},
        {"interval_s": 0},
        {"cold_start_s": -1},
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(changes: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        replace(RULE, **changes)  # type: ignore[arg-type]


def scaled(**changes: object) -> FleetSpec:
    return replace(fleet(1, autoscale=RULE), **changes)  # type: ignore[arg-type]


def burst(count: int = 20) -> list[SimRequest]:
    return [request(n, (n + 1, 30), output=40) for n in range(count)]


def run(spec: FleetSpec, requests: list[SimRequest]) -> FleetRun:
    fleet_run = FleetRun(spec, Workload("test", "", tuple(requests)))
    fleet_run.run()
    check_laws(fleet_run)
    return fleet_run


# The burst, then one request after all of it has ended and one after the fleet has shrunk.
LATER = [request(90, (90, 30), arrival_us=60_000), request(91, (91, 30), arrival_us=200_000)]


def test_replicas_join_after_the_cold_start_and_serve() -> None:
    # Two sequences at a time: what the burst leaves over must wait for the replicas that join.
    later = [replace(each, arrival_us=10_000, request_id=f"l{each.request_id}") for each in burst()]

    fleet_run = run(scaled(), [*burst(), *later])

    first = fleet_run.scale_steps[0]
    assert (first.at_us, first.joining) == (2_000, tuple(f"replica-{n}" for n in range(1, 5)))
    served = {each.replica_id for each in fleet_run.outcomes}
    assert served == {"r0", *first.joining}
    for each in fleet_run.outcomes:
        if each.replica_id in first.joining:
            assert each.arrival_us + (each.queue_us or 0) >= first.at_us + 5_000


def test_replicas_drain_before_they_leave_and_the_first_one_stays() -> None:
    fleet_run = run(scaled(), [*burst(), *LATER])

    left = [name for step in fleet_run.scale_steps for name in step.leaving]
    assert sorted(left) == [f"replica-{n}" for n in range(1, 5)]
    assert {each.end for each in fleet_run.outcomes} == {End.COMPLETE}
    assert fleet_run.replicas["r0"].left_us is None
    assert all(fleet_run.replicas[name].left_us is not None for name in left)


def test_no_replica_leaves_with_a_request_on_it() -> None:
    slow = [request(n, (n + 1, 30), output=100) for n in range(12)]
    spec = scaled(routing=replace(fleet().routing, in_flight_max=3))

    fleet_run = run(spec, [*slow, *LATER])

    for each in fleet_run.outcomes:
        left_us = fleet_run.replicas[each.replica_id or ""].left_us
        assert left_us is None or each.arrival_us + (each.e2e_us or 0) <= left_us


def test_a_replica_that_crashes_while_it_leaves_does_not_come_back() -> None:
    crash = Fault(at_us=8_000, kind=FaultKind.CRASH, replica_id="r1", duration_us=50_000)
    # It is told to leave at 6 ms, with what it has still under way.
    rule = replace(RULE, target_in_flight=100, interval_s=0.006, scale_down_delay_s=0)
    spec = replace(fleet(2, faults=[crash]), autoscale=rule)

    fleet_run = run(spec, [*burst(8), *LATER])

    assert [(each.at_us, each.leaving) for each in fleet_run.scale_steps] == [(6_000, ("r1",))]
    assert fleet_run.replicas["r1"].left_us == 8_000
    assert not fleet_run.replicas["r1"].is_up
    assert fleet_run.outcomes[-1].replica_id == "r0"


def test_replicas_that_join_are_known_even_where_nothing_else_is_reported() -> None:
    later = [replace(each, arrival_us=20_000, request_id=f"l{each.request_id}") for each in burst()]

    fleet_run = run(scaled(timing=Timing(report_interval_us=None)), [*burst(), *later])

    assert len({each.replica_id for each in fleet_run.outcomes}) > 1
