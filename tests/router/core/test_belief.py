"""Reports against our own ledger: others' load, unknown fields, age, restarts, reordering."""

import pytest

from contract.load_report import GatewayReport, InFlight
from router.core.belief import Freshness
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
    view_of,
    with_events,
)


def status_of(fleet: FleetState, replica_id: str) -> ReplicaStatus:
    return next(s for s in fleet.views() if s.view.replica_id == replica_id)


def others(fleet: FleetState, requests: int, ahead_tokens: int, gateway_id: str = "g2") -> None:
    in_flight = {"a": InFlight(requests, ahead_tokens)}
    fleet.on_gateway_reports([GatewayReport(gateway_id, "i", 1, in_flight)], 0)


def test_the_word_of_a_replica_that_drains_counts_as_long_as_its_report_is_believed() -> None:
    fleet = make_fleet()
    fleet.on_report(make_report("a", draining=True), 0, 0)

    fleet.tick(2 * SECOND)
    before = status_of(fleet, "a")
    fleet.tick(10 * SECOND)
    after = status_of(fleet, "a")

    assert (before.is_draining, before.standing) == (True, Ineligible.DRAINING)
    assert (after.is_draining, after.standing) == (False, Ineligible.NOT_REPORTING)
    assert fleet.decide(make_request("1", "p"), 10 * SECOND).lease is not None


def test_what_a_report_shows_beyond_our_own_is_foreign() -> None:
    fleet = make_fleet()
    fleet.on_report(make_report("a"), 0, 0)
    lease = lease_of(fleet.decide(make_request("1", "pp"), 0))

    report = make_report("a", 2, waiting_requests=1, running_requests=4, waiting_prefill_tokens=500)
    fleet.on_report(report, 0, 1)

    view = view_of(fleet, "a")
    assert (view.own_requests, view.foreign_requests, view.requests) == (1, 4, 5)
    assert lease.uncached_tokens == 128
    assert (view.foreign_ahead_tokens, view.ahead_tokens) == (372, 500)


def test_our_own_requests_in_an_old_report_are_not_counted_twice() -> None:
    fleet = make_fleet()
    fleet.on_report(make_report("a"), 0, 0)
    leases = [lease_of(fleet.decide(make_request(f"{n}", "p"), 0)) for n in range(3)]
    for lease in leases:
        lease.end(AttemptOutcome.OK, 1)

    for sequence in (2, 3):  # both counted while ours were still there
        fleet.on_report(make_report("a", sequence, running_requests=3), 0, 2)
        assert view_of(fleet, "a").requests == 0
    fleet.on_report(make_report("a", 4, running_requests=3), 0, 3)

    assert view_of(fleet, "a").requests == 3  # ours ended two reports ago, so these are not ours


def test_other_gateways_load_counts_before_the_replica_reports_it() -> None:
    fleet = make_fleet("a")

    others(fleet, 4, 900)

    view = view_of(fleet, "a")
    assert (view.foreign_requests, view.foreign_ahead_tokens) == (4, 900)


def test_other_gateways_load_is_not_added_to_the_same_load_in_the_report() -> None:
    fleet = make_fleet()
    fleet.on_report(make_report("a", running_requests=5), 0, 0)

    others(fleet, 4, 0)

    assert view_of(fleet, "a").foreign_requests == 5


def test_own_gateway_report_is_left_out() -> None:
    fleet = make_fleet("a")
    fleet.own_report("g1", "i", 1)

    others(fleet, 4, 900, gateway_id="g1")

    assert view_of(fleet, "a").foreign_requests == 0


def test_other_gateways_load_is_dropped_when_no_report_of_theirs_comes() -> None:
    fleet = make_fleet("a", gateway_report_ttl_s=1.5)
    others(fleet, 4, 900)

    fleet.tick(SECOND)
    before = view_of(fleet, "a").foreign_requests
    fleet.tick(2 * SECOND)

    assert (before, view_of(fleet, "a").foreign_requests) == (4, 0)


def test_unknown_load_is_not_taken_for_none_and_other_gateways_still_count() -> None:
    fleet = make_fleet()
    report = make_report(
        "a", waiting_requests=None, running_requests=None, waiting_prefill_tokens=None
    )
    fleet.on_report(report, 0, 0)

    others(fleet, 4, 900)

    view = view_of(fleet, "a")
    assert (view.requests, view.ahead_tokens, view.kv_usage) == (4, 900, None)


def test_what_a_policy_sees_of_a_report_is_as_reported_and_unknown_until_then() -> None:
    fleet = make_fleet()
    view = fleet.add_static("http://a", "a", now_us=0)
    names = ["kv_blocks_used", "kv_blocks_total", "kv_block_tokens"]
    names += ["running_requests", "waiting_requests"]
    before = [getattr(view, name) for name in names]

    fields = {"kv_blocks_used": 30, "kv_blocks_total": 90, "block_size": 16}
    fleet.on_report(make_report("a", 1, **fields, running_requests=2, waiting_requests=5), 0, 0)
    told = [getattr(view_of(fleet, "a"), name) for name in names]
    fleet.on_report(make_report("a", 2, kv_blocks_used=31, running_requests=None), 0, 1)

    assert before == [None] * 5
    assert told == [30, 90, 16, 2, 5]
    assert view_of(fleet, "a").kv_blocks_used == 31
    assert view_of(fleet, "a").running_requests is None


def test_prefill_speed_is_the_reported_one_else_the_prior() -> None:
    fleet = make_fleet(prefill_tokens_per_s=5000.0)
    fleet.on_report(make_report("a", prefill_tokens_per_s=1234.0), 0, 0)
    fleet.on_report(make_report("b"), 0, 0)
    fleet.on_report(make_report("c", prefill_tokens_per_s=0.0), 0, 0)

    speeds = [status.view.prefill_tokens_per_s for status in fleet.views()]

    assert speeds == [1234.0, 5000.0, 5000.0]


def test_a_replica_of_unknown_prefill_speed_is_tried_as_if_it_were_the_fastest() -> None:
    """Else the first to be measured would get every prompt that no other has cached."""
    fleet = make_fleet(prefill_tokens_per_s=5000.0)
    fleet.on_report(make_report("a", prefill_tokens_per_s=20_000.0), 0, 0)
    fleet.on_report(make_report("b", prefill_tokens_per_s=9_000.0), 0, 0)
    fleet.on_report(make_report("c"), 0, 0)
    fleet.on_report(make_report("d", model="other"), 0, 0)

    fleet.tick(0)

    speeds = [status.view.prefill_tokens_per_s for status in fleet.views()]
    assert speeds == [20_000.0, 9_000.0, 20_000.0, 5_000.0]


def test_a_lent_prefill_speed_ends_with_its_lender() -> None:
    fleet = make_fleet(prefill_tokens_per_s=5000.0)
    fleet.on_report(make_report("a", prefill_tokens_per_s=20_000.0), 0, 0)
    fleet.on_report(make_report("b"), 0, 0)
    fleet.tick(0)

    fleet.on_report(make_report("a", incarnation="second"), 0, 1)
    fleet.tick(1)

    assert [s.view.prefill_tokens_per_s for s in fleet.views()] == [5_000.0, 5_000.0]


def test_stale_replica_earns_no_credit_for_a_cache_of_events_and_keeps_its_load() -> None:
    fleet = make_fleet()
    for replica_id in "ab":
        fleet.on_report(with_events(replica_id, running_requests=2), 0, 0)
    lease_of(fleet.decide(make_request("1", "pppp"), 0, ["b"])).end(AttemptOutcome.OK, 0)
    fleet.on_report(with_events("b", 2, running_requests=2), 0, SECOND)
    fleet.tick(SECOND + SECOND // 2)

    again = make_request("2", "pppp")
    fleet.decide(again, SECOND + SECOND // 2)

    assert status_of(fleet, "a").freshness is Freshness.STALE
    assert again.matched_tokens == {}
    assert view_of(fleet, "a").foreign_requests == 2


def test_stale_replica_keeps_the_credit_for_what_was_sent_to_it() -> None:
    """An engine without events that computes a long prompt may be slow to tell its load."""
    fleet = make_fleet()
    for replica_id in "ab":
        fleet.on_report(make_report(replica_id), 0, 0)
    first = fleet.decide(make_request("1", "pppp"), 0, ["b"])
    lease_of(first).end(AttemptOutcome.OK, 0)
    fleet.on_report(make_report("b", 2), 0, SECOND)
    fleet.tick(SECOND + SECOND // 2)

    again = fleet.decide(make_request("2", "pppp"), SECOND + SECOND // 2)

    assert status_of(fleet, "a").freshness is Freshness.STALE
    assert chosen(again) == "a"
    assert again.matched_tokens == 255


def test_replica_that_stopped_reporting_never_looks_idle() -> None:
    """STL-02: its last report said idle, the other's says three."""
    fleet = make_fleet("", "least_loaded")
    fleet.on_report(make_report("a"), 0, 0)
    fleet.on_report(make_report("b", running_requests=3), 0, 0)
    fleet.on_report(make_report("b", 2, running_requests=3), 0, 4 * SECOND)
    fleet.on_report(make_report("a"), 0, 4 * SECOND)  # the store still holds the old one
    fleet.tick(4 * SECOND)

    picks = {chosen(fleet.decide(make_request(f"{n}", "p"), 4 * SECOND)) for n in range(20)}

    assert picks == {"b"}


def test_replica_that_stopped_reporting_is_used_when_nothing_else_is_left() -> None:
    fleet = make_fleet()
    fleet.on_report(make_report("a"), 0, 0)
    fleet.tick(10 * SECOND)

    assert chosen(fleet.decide(make_request("1", "p"), 10 * SECOND)) == "a"


def test_when_all_reports_are_old_our_own_count_alone_balances() -> None:
    fleet = make_fleet("", "least_loaded")
    fleet.on_report(make_report("a", running_requests=9), 0, 0)
    fleet.on_report(make_report("b"), 0, 0)
    fleet.tick(10 * SECOND)

    picks = [chosen(fleet.decide(make_request(f"{n}", "p"), 10 * SECOND)) for n in range(8)]

    assert picks.count("a") == picks.count("b") == 4


def test_when_all_reports_are_old_a_warm_cache_still_counts() -> None:
    fleet = make_fleet()
    for replica_id in "ab":
        fleet.on_report(make_report(replica_id), 0, 0)
    first = fleet.decide(make_request("1", "pppp"), 0)
    lease_of(first).end(AttemptOutcome.OK, 0)
    fleet.tick(10 * SECOND)

    again = fleet.decide(make_request("2", "pppp"), 10 * SECOND)

    assert chosen(again) == chosen(first)
    assert again.matched_tokens == 255


def test_static_replica_that_never_reports_is_never_old() -> None:
    fleet = make_fleet("a")

    fleet.tick(1000 * SECOND)

    assert status_of(fleet, "a").freshness is Freshness.SILENT
    assert status_of(fleet, "a").standing is None


def test_report_counts_from_when_it_was_written_not_read() -> None:
    fleet = make_fleet()

    fleet.on_report(make_report("a"), age_us=2 * SECOND, now_us=5 * SECOND)

    assert status_of(fleet, "a").freshness is Freshness.STALE
    assert status_of(fleet, "a").report_age_us == 2 * SECOND


def test_replica_missing_from_the_store_is_out_at_once_and_forgotten_later() -> None:
    fleet = make_fleet(report_forget_s=60.0)
    for replica_id in "ab":
        fleet.on_report(make_report(replica_id), 0, 0)

    fleet.on_reports_read({"b"}, 1000)
    soon = status_of(fleet, "a").standing
    fleet.on_reports_read({"b"}, 61 * SECOND)

    assert soon is Ineligible.NOT_REPORTING
    assert [status.view.replica_id for status in fleet.views()] == ["b"]
    assert fleet.index.num_entries == 0


def test_report_that_was_overtaken_is_ignored() -> None:
    fleet = make_fleet()
    fleet.on_report(make_report("a", 5, running_requests=1), 0, 0)

    fleet.on_report(make_report("a", 4, running_requests=9), 0, 1)

    assert view_of(fleet, "a").requests == 1


def test_restarted_replica_is_cold_idle_and_healthy() -> None:
    """PFX-12: same id, same url, new incarnation, numbers from the beginning."""
    fleet = make_fleet()
    fleet.on_report(make_report("a", 900, running_requests=3), 0, 0)
    fleet.on_report(make_report("b"), 0, 0)
    for n in range(5):
        lease = lease_of(fleet.decide(make_request(f"{n}", "pppp"), 0, ["b"]))
        lease.end(AttemptOutcome.TIMEOUT, 0)

    fleet.on_report(make_report("a", 1, incarnation="second"), 0, 1)

    status = status_of(fleet, "a")
    assert (status.believed_blocks, status.view.requests, status.standing) == (0, 0, None)
    fleet.check()


def test_late_report_of_the_process_before_is_ignored() -> None:
    fleet = make_fleet()
    fleet.on_report(make_report("a", 5), 0, 0)
    fleet.on_report(make_report("a", 1, incarnation="second"), 0, 1)

    fleet.on_report(make_report("a", 6, running_requests=9), 0, 2)

    assert view_of(fleet, "a").requests == 0


def test_ends_of_leases_on_the_process_before_do_not_touch_the_new_one() -> None:
    """STL-04: five open when it restarts, two more after; then the five end, failing."""
    fleet = make_fleet()
    fleet.on_report(make_report("a"), 0, 0)
    old = [lease_of(fleet.decide(make_request(f"{n}", "p"), 0)) for n in range(5)]
    fleet.on_report(make_report("a", 1, incarnation="second"), 0, 1)
    new = [lease_of(fleet.decide(make_request(f"new {n}", "p"), 1)) for n in range(2)]

    for lease in old:
        lease.first_byte(2)
        lease.end(AttemptOutcome.TRANSPORT_ERROR, 2)
    between = view_of(fleet, "a").own_requests
    for lease in new:
        lease.end(AttemptOutcome.OK, 3)

    assert (between, view_of(fleet, "a").own_requests) == (2, 0)
    assert status_of(fleet, "a").standing is None
    fleet.check()


@pytest.mark.parametrize("flaps", [1, 100])
def test_leases_outlive_a_replica_that_leaves_and_comes_back(flaps: int) -> None:
    fleet = make_fleet("a")
    leases = []
    for n in range(flaps):
        leases.append(lease_of(fleet.decide(make_request(f"{n}", "p"), 0)))
        fleet.remove("a")
        fleet.add_static("http://a:1", "a", "m", now_us=0)

    loads = []
    for lease in leases:
        lease.end(AttemptOutcome.OK, 1)
        loads.append(view_of(fleet, "a").own_requests)

    assert set(loads) == {0}
    fleet.check()


def test_static_replica_that_begins_to_report_is_the_same_replica() -> None:
    fleet = make_fleet()
    fleet.add_static("http://a:1/", now_us=0)
    lease = lease_of(fleet.decide(make_request("1", "p"), 0))

    fleet.on_report(make_report("a"), 0, 1)

    assert [status.view.replica_id for status in fleet.views()] == ["a"]
    assert view_of(fleet, "a") is lease.replica


def test_learned_cache_is_bounded_by_the_capacity_that_the_replica_reports() -> None:
    fleet = make_fleet()
    fleet.on_report(make_report("a", kv_blocks_total=16, block_size=16), 0, 0)  # 1,024 bytes

    fleet.decide(make_request("1", "abcdefgh"), 0)

    assert status_of(fleet, "a").believed_blocks == 4


def test_drained_replica_stays_drained_when_it_restarts() -> None:
    fleet = make_fleet()
    fleet.on_report(make_report("a"), 0, 0)
    fleet.drain("a", True)

    fleet.on_report(with_events("a", incarnation="second"), 0, 1)

    assert status_of(fleet, "a").standing is Ineligible.DRAINING
