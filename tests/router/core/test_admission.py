"""The queue of requests whose replicas are full."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from router.core.admission import AdmissionQueue, Ticket
from router.core.config import RoutingConfig
from router.core.decision import Decision
from router.core.health import AttemptOutcome
from router.core.reason import Reason
from tests.router.core.making import (
    MODEL,
    SECOND,
    chosen,
    lease_of,
    make_fleet,
    make_report,
    make_request,
)

CONFIG = RoutingConfig(queue_max=4, queue_timeout_s=1.0)


def place_always(ticket: Ticket) -> Decision:
    return Decision(Reason.COLD, None, None, 0, {})


def place_never(ticket: Ticket) -> Decision:
    return Decision(Reason.QUEUED, None, None, 0, {})


class AnyQueue(RuleBasedStateMachine):
    """Against a plain list for each model, oldest first."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = AdmissionQueue(CONFIG, line_of=lambda model: model)
        self.waiting: list[Ticket] = []
        self.now_us = 0

    @rule(model=st.sampled_from(["m", "n", None]))
    def offer(self, model: str | None) -> None:
        ticket = self.queue.offer(make_request("r", model=model), self.now_us)
        assert (ticket is None) == (len(self.waiting) == 4)
        if ticket is not None:
            self.waiting.append(ticket)

    @rule(free=st.sets(st.sampled_from(["m", "n", None])))
    def take(self, free: set[str | None]) -> None:
        placed = self.queue.next_ready(
            lambda t: place_always(t) if t.request.model in free else place_never(t)
        )
        ready = [ticket for ticket in self.waiting if ticket.request.model in free]
        assert (placed.ticket if placed else None) is (ready[0] if ready else None)
        if placed:
            self.waiting.remove(placed.ticket)

    @rule(data=st.data())
    def cancel(self, data: Any) -> None:
        if self.waiting:
            ticket = data.draw(st.sampled_from(self.waiting))
            assert self.queue.cancel(ticket)
            assert not self.queue.cancel(ticket)
            self.waiting.remove(ticket)

    @rule(elapsed_us=st.integers(1, SECOND))
    def time_passes(self, elapsed_us: int) -> None:
        self.now_us += elapsed_us
        old = [t for t in self.waiting if self.now_us - t.offered_us >= SECOND]
        assert self.queue.expired(self.now_us) == old
        self.waiting = [ticket for ticket in self.waiting if ticket not in old]

    @invariant()
    def size_and_models_are_those_waiting(self) -> None:
        assert len(self.queue) == len(self.waiting)
        models = {ticket.request.model for ticket in self.waiting}
        assert {m for m in ("m", "n", None) if self.queue.waits(m)} == models


TestAnyQueue = AnyQueue.TestCase


def test_queued_request_gets_the_slot_that_a_lease_gives_back() -> None:
    fleet = make_fleet("a", in_flight_max=1)
    queue = AdmissionQueue(CONFIG, fleet.line_of)
    running = lease_of(fleet.decide(make_request("1", "p"), 0))
    ticket = queue.offer(make_request("2", "p"), 0)
    early = queue.next_ready(lambda t: fleet.decide(t.request, 1, t.tried))

    running.end(AttemptOutcome.OK, 2)
    placed = queue.next_ready(lambda t: fleet.decide(t.request, 2, t.tried))

    assert early is None
    assert placed is not None
    assert placed.ticket is ticket
    assert chosen(placed.decision) == "a"


def test_request_whose_replicas_have_gone_leaves_the_queue_with_the_reason() -> None:
    fleet = make_fleet("a", in_flight_max=1)
    queue = AdmissionQueue(CONFIG, fleet.line_of)
    queue.offer(make_request("2", "p"), 0)
    fleet.remove("a")

    placed = queue.next_ready(lambda t: fleet.decide(t.request, 1, t.tried))

    assert placed is not None
    assert placed.decision.reason is Reason.NO_REPLICA


def test_names_that_nobody_has_given_and_aliases_wait_in_one_line() -> None:
    fleet = make_fleet("", in_flight_max=1)
    fleet.on_report(make_report("a", aliases=["alias"]), 0, 0)
    fleet.add_static("http://untold:1", "untold", now_us=0)
    queue = AdmissionQueue(RoutingConfig(), fleet.line_of)
    for model in (MODEL, "alias", *(f"invented {n}" for n in range(100))):
        queue.offer(make_request("r", model=model), 0)
    asked: list[Ticket] = []

    def place(ticket: Ticket) -> Decision:
        asked.append(ticket)
        return place_never(ticket)

    queue.next_ready(place)

    assert [ticket.request.model for ticket in asked] == [MODEL, "invented 0"]
    assert queue.waits("alias")
    assert queue.waits("another")


def test_an_adapter_that_one_replica_has_does_not_hold_up_the_others_of_its_model() -> None:
    fleet = make_fleet("", in_flight_max=1)
    fleet.on_report(make_report("a", aliases=["adapter"], adapters=["adapter"]), 0, 0)
    fleet.on_report(make_report("b"), 0, 0)
    queue = AdmissionQueue(CONFIG, fleet.line_of)
    fleet.decide(make_request("running", model="adapter"), 0)
    queue.offer(make_request("1", model="adapter"), 0)
    queue.offer(make_request("2"), 0)

    placed = queue.next_ready(lambda t: fleet.decide(t.request, 0, t.tried))

    assert placed is not None
    assert (placed.ticket.request.request_id, chosen(placed.decision)) == ("2", "b")
