"""Requests that wait because every replica of their model is at its in-flight limit.

First in, first out for all that compete for the same replicas, whatever names they use for their
model; one model's full replicas do not hold up another's requests. The shell offers what
``decide()`` answered with QUEUED, and asks for the next whenever a lease ends or a report arrives.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass

from router.core.config import RoutingConfig, micros
from router.core.decision import Decision
from router.core.reason import Reason
from router.core.view import RouteRequest


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """One request's place in the queue."""

    request: RouteRequest
    tried: Collection[str]  # replicas that have failed it
    offered_us: int
    number: int  # in order of arrival
    line: Hashable  # those in the same one compete for the same replicas


@dataclass(frozen=True, slots=True)
class Placed:
    """A request that left the queue, with the decision on it: a replica, or none any more."""

    ticket: Ticket
    decision: Decision


Place = Callable[[Ticket], Decision]
LineOf = Callable[[str | None], Hashable]


class AdmissionQueue:
    """A bounded queue of requests with a longest wait."""

    def __init__(self, config: RoutingConfig, line_of: LineOf) -> None:
        """``line_of`` says by a model's name who competes with whom (``FleetState.line_of``).

        Who has queued up stays in his line; so after a change of the fleet a newcomer may stand in
        another one, beside him.
        """
        self._line_of = line_of
        self._size_max = config.queue_max
        self._timeout_us = micros(config.queue_timeout_s)
        self._size = 0
        self._offered_total = 0
        # Lines only while a request waits in them, so that they cannot pile up.
        self._waiting: dict[Hashable, OrderedDict[Ticket, None]] = {}

    def __len__(self) -> int:
        return self._size

    def waits(self, model: str | None) -> bool:
        """Say whether a newcomer would overtake someone; then it is offered without a decision."""
        return bool(self._waiting) and self._line_of(model) in self._waiting

    def offer(
        self, request: RouteRequest, now_us: int, tried: Collection[str] = ()
    ) -> Ticket | None:
        """Queue ``request``; None if the queue is full (``Reason.QUEUE_FULL``)."""
        if self._size >= self._size_max:
            return None
        line = self._line_of(request.model)
        ticket = Ticket(request, tried, now_us, self._offered_total, line)
        self._offered_total += 1
        self._waiting.setdefault(line, OrderedDict())[ticket] = None
        self._size += 1
        return ticket

    def next_ready(self, place: Place) -> Placed | None:
        """Take out the oldest request that ``place`` (`decide()`) does not answer with QUEUED.

        Call it until it returns None. Only the first of each line is asked for.
        """
        heads = [next(iter(line)) for line in self._waiting.values()]
        for ticket in sorted(heads, key=lambda ticket: ticket.number):
            decision = place(ticket)
            if decision.reason is not Reason.QUEUED:
                self.cancel(ticket)
                return Placed(ticket, decision)
        return None

    def expired(self, now_us: int) -> list[Ticket]:
        """Take out, oldest first, all that have waited for the longest wait."""
        old: list[Ticket] = []
        for line in self._waiting.values():
            for ticket in line:  # oldest first, so the rest of the line is younger
                if now_us - ticket.offered_us < self._timeout_us:
                    break
                old.append(ticket)
        for ticket in old:
            self.cancel(ticket)
        return sorted(old, key=lambda ticket: ticket.number)

    def cancel(self, ticket: Ticket) -> bool:
        """Take one out, because its client left. False if it is not in the queue any more."""
        line = self._waiting.get(ticket.line)
        if line is None or ticket not in line:
            return False
        del line[ticket]
        if not line:
            del self._waiting[ticket.line]
        self._size -= 1
        return True
