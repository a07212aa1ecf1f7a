"""What may be tried again, how often, and how soon."""

import pytest

from contract.failures import Failure
from router.core.config import RoutingConfig
from router.core.decision import Decision
from router.core.fleet import FleetState
from router.core.health import AttemptOutcome
from router.core.retry import RetryBudget, backoff_us, may_retry
from tests.router.core.making import SECOND, lease_of, make_fleet, make_request

CONFIG = RoutingConfig(retry_max=2)


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_answer_that_began_nothing_may_be_tried_elsewhere(status: int) -> None:
    assert may_retry(status, 1, CONFIG)


@pytest.mark.parametrize("status", [200, 400, 401, 403, 404, 408, 413, 422, 500])
def test_answer_that_would_be_the_same_elsewhere_is_relayed(status: int) -> None:
    assert not may_retry(status, 1, CONFIG)


def test_failures_may_be_tried_elsewhere_as_the_contract_says() -> None:
    allowed = {failure for failure in Failure if may_retry(failure, 1, CONFIG)}

    assert allowed == {failure for failure in Failure if failure.kind.retry_elsewhere}


def test_attempts_end_with_the_limit() -> None:
    """RTY-05: one request that kills its replica reaches three at most."""
    allowed = [may_retry(Failure.UPSTREAM_LOST, attempts, CONFIG) for attempts in (1, 2, 3)]

    assert allowed == [True, True, False]
    assert not may_retry(503, 1, RoutingConfig(retry_max=0))


def test_budget_allows_the_set_share_of_requests() -> None:
    budget = RetryBudget(RoutingConfig(retry_budget=0.2, retry_floor_per_s=0), 0)
    granted = 0

    for _ in range(1000):
        budget.on_request(0)
        granted += budget.take(0)

    assert granted == pytest.approx(200, abs=1)
    assert budget.refused_total == 1000 - granted


def test_quiet_fleet_may_retry_from_the_start_and_again_later() -> None:
    budget = RetryBudget(RoutingConfig(retry_floor_per_s=2.0), 0)
    at_once = sum(budget.take(0) for _ in range(100))

    later = sum(budget.take(5 * SECOND) for _ in range(100))

    assert (at_once, later) == (20, 10)


def test_what_traffic_paid_in_is_there_for_a_burst_and_gone_a_while_later() -> None:
    config = RoutingConfig(retry_budget=0.2, retry_floor_per_s=0)
    saved = RetryBudget(config, 0)
    expired = RetryBudget(config, 0)
    for budget in (saved, expired):
        for number in range(100_000):  # 1,000 a second
            budget.on_request(number * SECOND // 1000)

    at_once = sum(saved.take(100 * SECOND) for _ in range(10_000))
    later = sum(expired.take(130 * SECOND) for _ in range(10_000))

    assert 2000 <= at_once <= 4000  # of ten to twenty seconds
    assert later <= 1


def waiting_on(fleet: FleetState, replica_id: str, number: int, now_us: int = 0) -> list[Decision]:
    """Send so many requests there."""
    others = {status.view.replica_id for status in fleet.views()} - {replica_id}
    for other in others:
        fleet.drain(other, True)
    decisions = [fleet.decide(make_request(f"{now_us} {n}"), now_us) for n in range(number)]
    for other in others:
        fleet.drain(other, False)
    return decisions


def lost(fleet: FleetState, decision: Decision, outcome: AttemptOutcome, now_us: int) -> bool:
    """End an attempt so; return whether the next one costs nothing."""
    lease_of(decision).end(outcome, now_us)
    return fleet.is_moved(decision, is_lost=outcome is AttemptOutcome.TRANSPORT_ERROR)


def test_all_that_wait_on_a_replica_that_is_lost_are_moved_and_who_comes_after_pays() -> None:
    fleet = make_fleet("ab", breaker_failures=99)
    waiting = waiting_on(fleet, "a", 9)

    moved = [lost(fleet, each, AttemptOutcome.TRANSPORT_ERROR, 1) for each in waiting]
    (later,) = waiting_on(fleet, "a", 1, now_us=2)
    after = lost(fleet, later, AttemptOutcome.TRANSPORT_ERROR, 3)

    assert all(moved)
    assert not after


def test_refusals_and_time_outs_pay_until_their_replica_is_out() -> None:
    fleet = make_fleet("ab", breaker_failures=3)
    waiting = waiting_on(fleet, "a", 5)

    moved = [lost(fleet, each, AttemptOutcome.TIMEOUT, 1) for each in waiting]

    assert moved == [False, False, True, True, True]


def test_where_nobody_else_is_well_nothing_is_moved() -> None:
    fleet = make_fleet("ab", breaker_failures=1)
    on_a, on_b = waiting_on(fleet, "a", 2), waiting_on(fleet, "b", 1)

    assert lost(fleet, on_a[0], AttemptOutcome.TRANSPORT_ERROR, 1)
    assert not lost(fleet, on_b[0], AttemptOutcome.TRANSPORT_ERROR, 2)
    assert not lost(fleet, on_a[1], AttemptOutcome.TRANSPORT_ERROR, 3)


def test_who_has_tried_all_that_are_well_is_not_moved() -> None:
    fleet = make_fleet("ab")
    decision = fleet.decide(make_request("r"), 0, {"b"})

    assert not lost(fleet, decision, AttemptOutcome.TRANSPORT_ERROR, 1)


def test_a_move_uses_up_what_the_budget_has_and_never_fails() -> None:
    budget = RetryBudget(RoutingConfig(retry_floor_per_s=0.1), 0)

    assert all(budget.take(0, is_moved=True) for _ in range(100))
    assert not budget.take(0)
    assert budget.take(10 * SECOND)


def test_wait_doubles_within_its_range_and_stops_at_the_cap() -> None:
    config = RoutingConfig(retry_backoff_s=0.1, retry_backoff_max_s=0.3)

    for attempts, longest_us in ((1, 100_000), (2, 200_000), (3, 300_000), (9, 300_000)):
        waits = [backoff_us(attempts, f"r{n}", config) for n in range(100)]
        assert all(longest_us / 2 <= wait <= longest_us for wait in waits)
        assert len(set(waits)) > 90  # a burst does not come back as a burst


def test_wait_is_fixed_by_the_request() -> None:
    assert backoff_us(1, "r", CONFIG) == backoff_us(1, "r", CONFIG)
