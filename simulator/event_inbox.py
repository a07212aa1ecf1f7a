"""KV events on their way to gateways, which read them when they are to decide, and not before.

Nobody can see whether a gateway has read what nobody has asked it about. So a replica is not woken
for each block that it fills: it is asked for its events when a gateway reads, and by then many
steps have gone by, whose events are fewer together than one by one.
"""

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Generic, Protocol, TypeVar

from contract.kv_events import KvEventBatch


class Teller(Protocol):
    """A replica, as far as its events go."""

    asked_us: int | None  # the inbox's own note: when to ask it next

    def events_until(self, us: int) -> KvEventBatch | None:
        """Return the events of steps that began up to ``us`` and were not told."""

    def next_event_us(self) -> int | None:
        """Return a time before which there will be no more of them; None: until it is busy."""


T = TypeVar("T", bound=Teller)


class EventInbox(Generic[T]):
    """Who will have something to tell when. Events arrive after ``delay_us``."""

    def __init__(self, delay_us: int) -> None:
        # Steps begin after all else that happens at their time.
        self._delay_us = max(1, delay_us)
        self._order = 0
        self._heap: list[tuple[int, int, T]] = []  # when to ask whom; only its last note counts

    def expect(self, teller: T, now_us: int) -> None:
        """Take in that a replica has done something, or was given something to do."""
        asked_us = teller.asked_us
        if asked_us is not None and asked_us <= now_us:
            return
        next_us = teller.next_event_us()
        if next_us is None or (asked_us is not None and asked_us <= next_us):
            return
        teller.asked_us = next_us
        self._order += 1
        heappush(self._heap, (next_us, self._order, teller))

    def read(self, now_us: int) -> Iterator[tuple[T, KvEventBatch]]:
        """Yield what has arrived by now and was not read, all of a replica in one batch."""
        heap, until_us = self._heap, now_us - self._delay_us
        while heap and heap[0][0] <= until_us:
            due_us, _, teller = heappop(heap)
            if due_us != teller.asked_us:
                continue
            teller.asked_us = None
            batch = teller.events_until(until_us)
            self.expect(teller, until_us)
            if batch is not None:
                yield teller, batch
