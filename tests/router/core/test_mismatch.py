"""A replica that speaks another contract gets nothing, for as long as it says so and no longer."""

from typing import Any

import pytest

from router.core.belief import Freshness
from router.core.config import RoutingConfig
from router.core.fleet import FleetState
from router.core.health import AttemptOutcome
from router.core.reason import Ineligible
from router.core.status import ReplicaStatus
from tests.router.core.making import (
    SECOND,
    chosen,
    lease_of,
    make_fleet,
    make_report,
    make_request,
    with_events,
)

DEAD_US = round(RoutingConfig().report_dead_s * SECOND)
FOREIGN: dict[str, Any] = {
    "hash_scheme": "sha256-chain/7",
    "kv_blocks_total": 10,
    "kv_blocks_used": 9,
}


def status_of(fleet: FleetState, replica_id: str = "a") -> ReplicaStatus:
    return next(s for s in fleet.views() if s.view.replica_id == replica_id)


def fleet_with_a_foreigner(*, undecodable: bool = False) -> FleetState:
    """Return a static ``a`` that cannot be understood, beside ``b`` that reports."""
    fleet = make_fleet("a", slow_start_s=0)
    fleet.on_report(make_report("b"), 0, 0)
    if undecodable:
        fleet.on_mismatch("a", "does not decode")
    else:
        fleet.on_report(with_events("a", **FOREIGN), 0, 0)
    assert status_of(fleet).standing is Ineligible.CONTRACT_MISMATCH
    return fleet


def read_without_it(fleet: FleetState, now_us: int, step_us: int = SECOND // 2) -> int:
    """Let the store answer without ``a`` until it is given up; return when that is."""
    for later_us in range(now_us, now_us + DEAD_US + step_us, step_us):
        fleet.on_report(make_report("b", later_us + 2), 0, later_us)
        fleet.on_reports_read({"b"}, later_us)
        fleet.tick(later_us)
    return later_us


@pytest.mark.parametrize("undecodable", [False, True])
def test_a_static_replica_that_no_longer_reports_another_contract_is_judged_by_its_answers(
    undecodable: bool,
) -> None:
    fleet = fleet_with_a_foreigner(undecodable=undecodable)

    now_us = read_without_it(fleet, SECOND)

    status = status_of(fleet)
    assert (status.standing, status.freshness) == (None, Freshness.SILENT)
    assert (status.mismatch, status.report, status.view.kv_usage) == (None, None, None)
    assert chosen(fleet.decide(make_request("r"), now_us, {"b"})) == "a"
    fleet.check()


def test_what_it_is_sent_from_then_on_is_learned_as_of_any_replica_without_events() -> None:
    fleet = fleet_with_a_foreigner()
    now_us = read_without_it(fleet, SECOND)

    lease_of(fleet.decide(make_request("r", "xxxx"), now_us, {"b"})).end(AttemptOutcome.OK, now_us)

    long_after_us = now_us + 600 * SECOND  # a mere prediction has expired by then
    fleet.tick(long_after_us)
    assert fleet.decide(make_request("s", "xxxx"), long_after_us, {"b"}).matched_tokens > 0


def test_a_moment_without_a_report_forgives_nothing() -> None:
    fleet = fleet_with_a_foreigner(undecodable=True)

    fleet.on_reports_read({"b"}, SECOND)
    fleet.on_mismatch("a", "does not decode")
    fleet.on_reports_read({"a", "b"}, 2 * SECOND)
    fleet.on_reports_read({"b"}, SECOND + DEAD_US)
    fleet.on_report(make_report("b", 2), 0, SECOND + 2 * DEAD_US - 1)
    fleet.on_reports_read({"b"}, SECOND + 2 * DEAD_US - 1)

    assert status_of(fleet).standing is Ineligible.NOT_REPORTING
    assert chosen(fleet.decide(make_request("r"), SECOND + DEAD_US)) == "b"


def test_undecodable_reports_that_keep_coming_keep_it_out() -> None:
    fleet = fleet_with_a_foreigner(undecodable=True)

    for now_us in range(0, 5 * DEAD_US, SECOND // 10):
        fleet.on_mismatch("a", "does not decode")
        fleet.on_reports_read({"a", "b"}, now_us)
        fleet.tick(now_us)

        assert status_of(fleet).standing is Ineligible.CONTRACT_MISMATCH


@pytest.mark.parametrize("undecodable", [False, True])
def test_while_the_store_is_away_it_counts_no_more_than_all_others(undecodable: bool) -> None:
    fleet = fleet_with_a_foreigner(undecodable=undecodable)

    fleet.tick(10 * DEAD_US)

    standings = {s.view.replica_id: s.standing for s in fleet.views()}
    assert standings == dict.fromkeys("ab", Ineligible.NOT_REPORTING)


def test_its_next_process_is_judged_by_its_own_reports() -> None:
    fleet = fleet_with_a_foreigner()

    fleet.on_report(with_events("a", incarnation="second"), 0, SECOND)

    assert status_of(fleet).standing is None
    assert status_of(fleet).mismatch is None


def test_one_that_has_gone_stays_out_by_its_breaker_not_by_what_it_once_said() -> None:
    fleet = make_fleet("a", breaker_failures=1)
    fleet.on_report(make_report("b"), 0, 0)
    lease = lease_of(fleet.decide(make_request("r"), 0, {"b"}))
    fleet.on_mismatch("a", "does not decode")
    lease.end(AttemptOutcome.TRANSPORT_ERROR, 0)

    read_without_it(fleet, 0)

    assert status_of(fleet).mismatch is None
    assert status_of(fleet).breaker.value != "closed"


def test_one_that_is_known_by_its_reports_alone_is_forgotten_with_them() -> None:
    fleet = make_fleet()
    fleet.on_report(with_events("a", **FOREIGN), 0, 0)

    fleet.on_reports_read(set(), SECOND)
    assert status_of(fleet).standing is Ineligible.NOT_REPORTING
    fleet.on_reports_read(set(), 100 * SECOND)

    assert fleet.views() == []
