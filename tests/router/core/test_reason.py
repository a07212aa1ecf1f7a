"""Every Reason and every Ineligible, each produced by the test that bears its name."""

from router.core.admission import AdmissionQueue
from router.core.config import RoutingConfig
from router.core.fleet import FleetState
from router.core.health import AttemptOutcome
from router.core.reason import Ineligible, Reason
from tests.router.core.making import (
    SECOND,
    chosen,
    lease_of,
    make_fleet,
    make_report,
    make_request,
    with_events,
)


def excluded_from(fleet: FleetState, now_us: int = 0, tried: tuple[str, ...] = ()) -> object:
    return dict(fleet.decide(make_request("any", "z"), now_us, tried).ineligible)


def fail(fleet: FleetState, replica_id: str, times: int, outcome: AttemptOutcome) -> None:
    others = [s.view.replica_id for s in fleet.views() if s.view.replica_id != replica_id]
    for n in range(times):
        decision = fleet.decide(make_request(f"fail {n}", ""), 0, others)
        lease_of(decision).end(outcome, 0)


def test_warm() -> None:
    fleet = make_fleet("ab")
    lease_of(fleet.decide(make_request("1", "pppp"), 0)).end(AttemptOutcome.OK, 1)

    assert fleet.decide(make_request("2", "ppppq"), 2).reason is Reason.WARM


def test_spread() -> None:
    fleet = make_fleet("ab", "prefix_capped")
    for n in range(2):
        fleet.decide(make_request(f"{n}", "p"), 0)

    assert fleet.decide(make_request("3", "p"), 0).reason is Reason.SPREAD


def test_cold() -> None:
    fleet = make_fleet("ab")

    assert fleet.decide(make_request("1", "p"), 0).reason is Reason.COLD


def test_no_prompt() -> None:
    assert make_fleet("ab").decide(make_request("1"), 0).reason is Reason.NO_PROMPT


def test_only_one() -> None:
    assert make_fleet("a").decide(make_request("1", "p"), 0).reason is Reason.ONLY_ONE


def test_queued() -> None:
    fleet = make_fleet("ab", in_flight_max=1)
    for n in range(2):
        fleet.decide(make_request(f"{n}", "p"), 0)

    decision = fleet.decide(make_request("3", "p"), 0)

    assert decision.reason is Reason.QUEUED
    assert decision.lease is None


def test_model_not_found() -> None:
    fleet = make_fleet("ab")

    assert fleet.decide(make_request("1", model="n"), 0).reason is Reason.MODEL_NOT_FOUND


def test_model_that_a_replica_may_serve_is_not_not_found() -> None:
    fleet = make_fleet("a")
    fleet.add_static("http://b", "b", now_us=0)  # has not told its model
    fleet.on_report(make_report("c", aliases=["alias"]), 0, 0)

    by_unknown = fleet.decide(make_request("1", model="n"), 0)
    by_alias = fleet.decide(make_request("2", model="alias"), 0, ["b"])

    assert chosen(by_unknown) == "b"
    assert chosen(by_alias) == "c"


def test_no_replica() -> None:
    assert make_fleet("").decide(make_request("1", "p"), 0).reason is Reason.NO_REPLICA


def test_all_excluded() -> None:
    decision = make_fleet("a").decide(make_request("1", "p"), 0, ["a"])

    assert decision.reason is Reason.ALL_EXCLUDED
    assert dict(decision.ineligible) == {"a": Ineligible.ALREADY_TRIED}


def test_queue_full() -> None:
    """The queue says so itself; the shell answers Reason.QUEUE_FULL where there is no ticket."""
    queue = AdmissionQueue(RoutingConfig(queue_max=1), line_of=lambda model: model)
    queue.offer(make_request("1", "p"), 0)

    ticket = queue.offer(make_request("2", "p"), 0)

    assert (Reason.QUEUE_FULL if ticket is None else Reason.QUEUED) is Reason.QUEUE_FULL


def test_other_model() -> None:
    fleet = make_fleet("a")
    fleet.add_static("http://b", "b", "n", now_us=0)

    assert excluded_from(fleet) == {"b": Ineligible.OTHER_MODEL}


def test_draining() -> None:
    fleet = make_fleet("ab")
    fleet.on_report(make_report("c", draining=True), 0, 0)
    fleet.drain("a", True)

    assert excluded_from(fleet) == {"a": Ineligible.DRAINING, "c": Ineligible.DRAINING}


def test_ejected() -> None:
    fleet = make_fleet("ab")

    fail(fleet, "a", 5, AttemptOutcome.TRANSPORT_ERROR)

    assert excluded_from(fleet) == {"a": Ineligible.EJECTED}


def test_contract_mismatch() -> None:
    fleet = make_fleet("a")
    fleet.on_report(with_events("b", hash_scheme="sha256-chain/7"), 0, 0)
    fleet.on_report(with_events("c", schema=99), 0, 0)
    fleet.on_report(with_events("d", block_bytes=None), 0, 0)
    fleet.on_report(make_report("e"), 0, 0)
    fleet.on_mismatch("e", "does not decode")

    assert excluded_from(fleet) == dict.fromkeys("bcde", Ineligible.CONTRACT_MISMATCH)


def test_already_tried() -> None:
    assert excluded_from(make_fleet("ab"), tried=("a",)) == {"a": Ineligible.ALREADY_TRIED}


def test_a_retry_reaches_a_replica_that_pushes_back_where_the_others_have_failed() -> None:
    fleet = make_fleet("ab")
    fail(fleet, "a", 1, AttemptOutcome.BACK_PRESSURE)

    first = fleet.decide(make_request("1", "p"), 0)
    second = fleet.decide(make_request("1", "p"), 0, ["b"])

    assert chosen(first) == "b"
    assert chosen(second) == "a"


def test_at_limit() -> None:
    fleet = make_fleet("ab", in_flight_max=1)
    first = chosen(fleet.decide(make_request("1", "p"), 0))

    assert excluded_from(fleet) == {first: Ineligible.AT_LIMIT}


def test_not_reporting() -> None:
    fleet = make_fleet("a")
    fleet.on_report(make_report("b"), 0, 0)

    fleet.tick(3 * SECOND)

    assert excluded_from(fleet) == {"b": Ineligible.NOT_REPORTING}


def test_backing_off() -> None:
    fleet = make_fleet("ab")

    fail(fleet, "a", 1, AttemptOutcome.BACK_PRESSURE)

    assert excluded_from(fleet) == {"a": Ineligible.BACKING_OFF}
