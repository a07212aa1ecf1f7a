"""When the steps began that made the events of a block pool.

Who takes many steps at once tells of their events afterwards, and a reader may be entitled to
those of the first steps only.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from contract.kv_events import KvEvent
from replicas.core.block_pool import BlockPool


@dataclass(slots=True)
class Touch:
    """A step of a leap in which blocks changed."""

    index: int  # of the step in its leap, from 1
    num_events: int  # untaken ones, after it


class EventTimes:
    """The events of ``pool`` that were not taken yet, by the begins of their steps."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._num_noted = 0  # events
        self._marks: deque[tuple[int, int]] = deque()  # begin of a step, number of its events

    @property
    def first_us(self) -> int | None:
        """When the step began that made the oldest event; None where there is none."""
        return self._marks[0][0] if self._marks else None

    def note(self, began_us: int, num_events: int) -> None:
        """Take in that there were ``num_events`` once the step of ``began_us`` had begun."""
        if num_events > self._num_noted:
            self._marks.append((began_us, num_events - self._num_noted))
            self._num_noted = num_events

    def note_leap(self, touches: Iterable[Touch], began_us: int, ends_us: Sequence[int]) -> None:
        """Take in a leap that began at ``began_us``, and the ends of its steps."""
        for touch in touches:
            before = touch.index - 2  # the step that ended when this one began
            self.note(ends_us[before] if before >= 0 else began_us, touch.num_events)

    def take_until(self, began_us: int) -> list[KvEvent]:
        """Return the events of steps that began up to then, and forget them."""
        marks, num_events = self._marks, 0
        while marks and marks[0][0] <= began_us:
            num_events += marks.popleft()[1]
        self._num_noted -= num_events
        return self._pool.drain_events(num_events) if num_events else []
