"""Who is taken out of the fleet by what it does not answer, and how it comes back."""

from hypothesis import given
from hypothesis import strategies as st

from router.core.config import RoutingConfig
from router.core.fleet import FleetState
from router.core.health import AttemptOutcome, BreakerState
from router.core.probing import ProbeResult, ProbeRow
from router.core.reason import Ineligible
from tests.router.core.making import (
    MODEL,
    SECOND,
    chosen,
    lease_of,
    make_fleet,
    make_report,
    make_request,
    view_of,
    with_events,
)

FAILED, LATE, ANSWERED = ProbeResult.FAILED, ProbeResult.LATE, ProbeResult.ANSWERED


def standing(fleet: FleetState, replica_id: str) -> Ineligible | None:
    return next(s.standing for s in fleet.views() if s.view.replica_id == replica_id)


def probe(fleet: FleetState, replica_id: str, *results: ProbeResult, now_us: int = 0) -> None:
    for result in results:
        fleet.on_probe(replica_id, f"http://{replica_id}:1", result, now_us)


def eject(fleet: FleetState, replica_id: str, now_us: int = 0) -> None:
    """Let requests fail until the replica is out."""
    others = {s.view.replica_id for s in fleet.views()} - {replica_id}
    while standing(fleet, replica_id) is not Ineligible.EJECTED:
        decision = fleet.decide(make_request("r"), now_us, others)
        lease_of(decision).end(AttemptOutcome.TRANSPORT_ERROR, now_us)


# ---- probes


def test_a_replica_is_out_after_so_many_failed_probes_and_in_after_so_many_answers() -> None:
    fleet = make_fleet("ab", probe_failures=3, probe_answers=2)

    probe(fleet, "a", FAILED, FAILED)
    assert standing(fleet, "a") is None
    probe(fleet, "a", FAILED)
    assert standing(fleet, "a") is Ineligible.EJECTED
    probe(fleet, "a", ANSWERED)
    assert standing(fleet, "a") is Ineligible.EJECTED
    probe(fleet, "a", ANSWERED)
    assert standing(fleet, "a") is None


def test_an_answer_between_them_forgives_failed_probes() -> None:
    fleet = make_fleet("ab", probe_failures=2)

    probe(fleet, "a", FAILED, ANSWERED, FAILED, ANSWERED, FAILED)

    assert standing(fleet, "a") is None


def test_late_probes_never_take_out_a_busy_replica_whose_bytes_come() -> None:
    fleet = make_fleet("ab", probe_failures=2, probe_silence_s=30)
    lease = lease_of(fleet.decide(make_request("r"), 0, {"b"}))

    for second in range(0, 600, 10):
        lease.heard(second * SECOND)
        probe(fleet, "a", LATE, LATE, LATE, now_us=(second + 9) * SECOND)

    assert standing(fleet, "a") is None


def test_late_probes_take_out_a_replica_that_is_silent_for_long() -> None:
    fleet = make_fleet("ab", probe_failures=2, probe_silence_s=30)
    began_us = 500 * SECOND
    lease_of(fleet.decide(make_request("r"), began_us, {"b"}))

    probe(fleet, "a", LATE, LATE, LATE, now_us=began_us + 29 * SECOND)
    assert standing(fleet, "a") is None
    probe(fleet, "a", LATE, LATE, now_us=began_us + 30 * SECOND)
    assert standing(fleet, "a") is Ineligible.EJECTED


def test_late_probes_take_out_a_frozen_replica_whose_clients_leave_and_others_come() -> None:
    fleet = make_fleet("ab", probe_failures=3, probe_silence_s=30)
    began_us = 500 * SECOND
    probe(fleet, "a", ANSWERED, now_us=began_us)
    held = None

    for second in range(1, 40):
        now_us = began_us + second * SECOND
        if held is None or now_us - held.booked_us >= 10 * SECOND:
            if held is not None:
                held.end(AttemptOutcome.CANCELLED, now_us)
            held = lease_of(fleet.decide(make_request(f"{second}"), now_us, {"b"}))
        probe(fleet, "a", LATE, now_us=now_us)

    assert standing(fleet, "a") is Ineligible.EJECTED


def test_a_client_that_left_long_ago_is_no_silence_of_a_replica_that_answered_since() -> None:
    fleet = make_fleet("ab", probe_failures=1, probe_silence_s=30)
    lease_of(fleet.decide(make_request("r"), SECOND, {"b"})).end(AttemptOutcome.CANCELLED, SECOND)
    probe(fleet, "a", ANSWERED, now_us=500 * SECOND)
    lease_of(fleet.decide(make_request("s"), 600 * SECOND, {"b"}))

    probe(fleet, "a", LATE, now_us=610 * SECOND)

    assert standing(fleet, "a") is None


def test_late_probes_take_out_a_replica_that_has_nothing_to_do() -> None:
    fleet = make_fleet("ab", probe_failures=2)

    probe(fleet, "a", LATE, LATE)

    assert standing(fleet, "a") is Ineligible.EJECTED


def test_late_probes_say_nothing_of_a_replica_that_answers_requests() -> None:
    fleet = make_fleet("ab", probe_failures=2)

    for second in range(1, 20):
        lease_of(fleet.decide(make_request("r"), second, {"b"})).end(AttemptOutcome.OK, second)
        probe(fleet, "a", LATE, now_us=second)

    assert standing(fleet, "a") is None


def test_late_probes_say_nothing_of_a_replica_that_reports() -> None:
    fleet = make_fleet(probe_failures=2)
    fleet.on_report(make_report("a"), 0, 0)

    probe(fleet, "a", LATE, LATE, LATE)

    assert standing(fleet, "a") is None


def test_a_probe_of_another_url_than_the_replicas_says_nothing() -> None:
    fleet = make_fleet("a", probe_failures=1)

    assert not fleet.on_probe("a", "http://elsewhere:1", FAILED, 0)
    assert not fleet.on_probe("nobody", "http://a:1", FAILED, 0)

    assert standing(fleet, "a") is None


def test_what_comes_back_after_failed_probes_is_taken_for_cold() -> None:
    fleet = make_fleet("ab", probe_failures=1, probe_answers=1, slow_start_s=0)
    request = make_request("r", "xxxx")
    lease_of(fleet.decide(request, 0, {"b"})).end(AttemptOutcome.OK, 0)
    assert fleet.decide(make_request("s", "xxxx"), 0, {"b"}).matched_tokens > 0

    probe(fleet, "a", FAILED, ANSWERED)

    assert fleet.decide(make_request("t", "xxxx"), 0, {"b"}).matched_tokens == 0


@given(st.lists(st.tuples(st.sampled_from(ProbeResult), st.booleans())))
def test_the_state_changes_only_after_its_row_of_equal_results(
    results: list[tuple[ProbeResult, bool]],
) -> None:
    row = ProbeRow(RoutingConfig(probe_failures=3, probe_answers=2))
    counted: list[bool] = []  # failures, as far as they count

    for result, is_idle in results:
        before = row.is_out
        changed = row.take(result, is_idle=is_idle, silent_us=0)
        if result is not LATE or is_idle:
            counted.append(result is not ANSWERED)

        assert changed == (row.is_out != before)
        if changed:
            length = 3 if row.is_out else 2
            assert counted[-length:] == [row.is_out] * length


def test_a_probe_is_passed_when_its_answer_begins_however_long_that_is() -> None:
    fleet = make_fleet("ab", slow_start_s=0)
    eject(fleet, "a")
    fleet.tick(6 * SECOND)
    lease = lease_of(fleet.decide(make_request("r"), 6 * SECOND, {"b"}))
    assert lease.is_probe
    assert standing(fleet, "a") is Ineligible.EJECTED

    lease.first_byte(7 * SECOND)
    lease.pass_probe(7 * SECOND)

    assert standing(fleet, "a") is None
    lease.end(AttemptOutcome.TRANSPORT_ERROR, 9 * SECOND)  # which counts as that of any other
    assert standing(fleet, "a") is None


# ---- how many may be out


def test_all_but_one_may_be_ejected() -> None:
    fleet = make_fleet("abc")

    eject(fleet, "a")
    eject(fleet, "b")

    assert {chosen(fleet.decide(make_request(f"r{i}"), 0)) for i in range(20)} == {"c"}


def test_where_more_than_the_share_are_out_all_are_used() -> None:
    fleet = make_fleet("abcd", "random", max_ejected=0.5)

    eject(fleet, "a")
    eject(fleet, "b")
    assert {chosen(fleet.decide(make_request(f"r{i}"), 0)) for i in range(99)} == {"c", "d"}
    eject(fleet, "c")

    assert {chosen(fleet.decide(make_request(f"r{i}"), 0)) for i in range(99)} == set("abcd")


# ---- slow start


def share_of(fleet: FleetState, replica_id: str, now_us: int, num_requests: int = 2_000) -> float:
    """Return the share of requests that go to a replica at one moment."""
    hits = 0
    for index in range(num_requests):
        decision = fleet.decide(make_request(f"{now_us}-{index}"), now_us)
        hits += chosen(decision) == replica_id
        lease_of(decision).end(AttemptOutcome.CANCELLED, now_us)
    return hits / num_requests


def test_a_replica_that_recovers_gets_its_share_by_and_by() -> None:
    fleet = make_fleet("ab", "random", slow_start_s=10.0, slow_start_share=0.1)
    eject(fleet, "a")
    fleet.tick(5 * SECOND)
    lease = lease_of(fleet.decide(make_request("probe"), 5 * SECOND, {"b"}))
    lease.end(AttemptOutcome.OK, 5 * SECOND)

    shares = []
    for second in (5, 10, 15):
        fleet.tick(second * SECOND)
        shares.append(share_of(fleet, "a", second * SECOND))

    assert abs(shares[0] - 0.05) < 0.02  # a tenth of the half that it draws
    assert abs(shares[1] - 0.25) < 0.03
    assert abs(shares[2] - 0.50) < 0.04


def test_a_replica_that_recovers_is_used_where_it_is_the_only_one() -> None:
    fleet = make_fleet("a", probe_failures=1, probe_answers=1)

    probe(fleet, "a", FAILED, ANSWERED)

    assert all(chosen(fleet.decide(make_request(f"r{i}"), 0)) == "a" for i in range(50))


def test_a_replica_that_recovers_is_used_where_all_others_are_full() -> None:
    fleet = make_fleet("ab", in_flight_max=1, probe_failures=1, probe_answers=1)
    probe(fleet, "a", FAILED, ANSWERED)

    first = [chosen(fleet.decide(make_request(f"r{index}"), 0)) for index in range(2)]

    assert sorted(first) == ["a", "b"]


def test_a_replica_that_restarts_under_its_id_starts_slowly_cold_and_idle() -> None:
    fleet = make_fleet(policy="random", slow_start_s=10.0)
    for replica_id in "ab":
        fleet.on_report(with_events(replica_id), 0, 0)
    lease = lease_of(fleet.decide(make_request("r", "xxxx"), 0, {"b"}))

    fleet.on_report(with_events("a", incarnation="second"), 0, 0)
    lease.end(AttemptOutcome.TRANSPORT_ERROR, 0)

    assert view_of(fleet, "a").own_requests == 0
    assert share_of(fleet, "a", 0) < 0.1
    fleet.check()


def test_without_slow_start_a_replica_is_back_at_once() -> None:
    fleet = make_fleet("ab", "random", slow_start_s=0, probe_failures=1, probe_answers=1)

    probe(fleet, "a", FAILED, ANSWERED)

    assert abs(share_of(fleet, "a", 0) - 0.5) < 0.04


# ---- a model that is gone


def lose_model(fleet: FleetState, replica_id: str, model: str, now_us: int = 0) -> None:
    others = {s.view.replica_id for s in fleet.views()} - {replica_id}
    decision = fleet.decide(make_request("r", model=model), now_us, others)
    lease_of(decision).end(AttemptOutcome.NOT_FOUND, now_us)


def test_a_replica_that_lost_a_model_gets_no_request_for_it_for_a_while() -> None:
    fleet = make_fleet("ab", model_missing_s=10.0, slow_start_s=0)

    lose_model(fleet, "a", MODEL)

    assert {chosen(fleet.decide(make_request(f"r{i}"), 0)) for i in range(20)} == {"b"}
    fleet.tick(10 * SECOND)
    assert share_of(fleet, "a", 10 * SECOND, 50) > 0


def test_a_model_that_is_gone_leaves_the_replicas_others_alone() -> None:
    fleet = make_fleet()
    for replica_id in "ab":
        fleet.on_report(make_report(replica_id, adapters=["tuned"], aliases=["tuned"]), 0, 0)

    lose_model(fleet, "a", "tuned")

    asked = {chosen(fleet.decide(make_request(f"r{i}", model="tuned"), 0)) for i in range(20)}
    assert asked == {"b"}
    assert chosen(fleet.decide(make_request("r", model=MODEL), 0, {"b"})) == "a"
    assert standing(fleet, "a") is None


def test_a_replica_that_lost_a_model_is_asked_where_no_other_serves_it() -> None:
    fleet = make_fleet("a")

    lose_model(fleet, "a", MODEL)

    assert chosen(fleet.decide(make_request("r"), 0)) == "a"


def test_no_404_ever_opens_a_breaker() -> None:
    fleet = make_fleet("ab", breaker_failures=2, breaker_window_requests=4)

    for _ in range(50):
        lose_model(fleet, "a", MODEL)

    assert fleet.views()[0].breaker is BreakerState.CLOSED


def test_a_name_that_nobody_gave_is_the_clients_own() -> None:
    fleet = make_fleet()
    fleet.add_static("http://a:1", "a", None, now_us=0)

    lose_model(fleet, "a", "a typo")

    assert not fleet.knows_model("a typo")
    assert standing(fleet, "a") is None
