"""What may be tried again, how often, and how soon."""

import pytest

from contract.failures import Failure
from router.core.config import RoutingConfig
from router.core.retry import RetryBudget, backoff_us, may_retry
from tests.router.core.making import SECOND

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
        budget.on_request()
        granted += budget.take(0)

    assert granted == pytest.approx(200, abs=1)
    assert budget.refused_total == 1000 - granted


def test_quiet_fleet_may_retry_from_the_start_and_again_later() -> None:
    budget = RetryBudget(RoutingConfig(retry_floor_per_s=2.0), 0)
    at_once = sum(budget.take(0) for _ in range(100))

    later = sum(budget.take(5 * SECOND) for _ in range(100))

    assert (at_once, later) == (20, 10)


def test_wait_doubles_within_its_range_and_stops_at_the_cap() -> None:
    config = RoutingConfig(retry_backoff_s=0.1, retry_backoff_max_s=0.3)

    for attempts, longest_us in ((1, 100_000), (2, 200_000), (3, 300_000), (9, 300_000)):
        waits = [backoff_us(attempts, f"r{n}", config) for n in range(100)]
        assert all(longest_us / 2 <= wait <= longest_us for wait in waits)
        assert len(set(waits)) > 90  # a burst does not come back as a burst


def test_wait_is_fixed_by_the_request() -> None:
    assert backoff_us(1, "r", CONFIG) == backoff_us(1, "r", CONFIG)
