"""The queue of requests whose replicas are full."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from router.core.admission import AdmissionQueue, Ticket
from router.core.config import RoutingConfig
from router.core.decision import Decision
from router.core.health import AttemptOutcome
from router.core.reason import Reason
from tests.router.core.making import SECOND, chosen, lease_of, make_fleet, make_request

CONFIG = RoutingConfig(queue_max=4, queue_timeout_s=1.0)


def place_always(ticket: Ticket) -> Decision:
    return Decision(Reason.COLD, None, None, 0, {})


def place_never(ticket: Ticket) -> Decision:
    return Decision(Reason.QUEUED, None, None, 0, {})


class AnyQueue(RuleBasedStateMachine):
    """Against a plain list for each model, oldest first."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = AdmissionQueue(CONFIG)
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
    queue = AdmissionQueue(CONFIG)
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
    queue = AdmissionQueue(CONFIG)
    queue.offer(make_request("2", "p"), 0)
    fleet.remove("a")

    placed = queue.next_ready(lambda t: fleet.decide(t.request, 1, t.tried))

    assert placed is not None
    assert placed.decision.reason is Reason.NO_REPLICA
