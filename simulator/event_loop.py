"""Virtual time: what is to happen, in the order in which it happens.

Rule: at one moment, what ends comes before what arrives, and what begins comes last, so a step
that begins sees every request of its moment and the room that ended steps have left. Within one
kind the order is that of being asked for; nothing depends on the order of a set or on chance.
"""

from collections.abc import Callable
from enum import IntEnum
from heapq import heappop, heappush
from typing import Any


class Phase(IntEnum):
    """What comes first at one moment."""

    END = 0
    ARRIVE = 1
    BEGIN = 2


class EventLoop:
    """Calls functions at their time; ``now_us`` never goes back."""

    def __init__(self) -> None:
        self.now_us = 0
        self.num_calls = 0
        self._order = 0
        self._is_stopped = False
        self._heap: list[tuple[int, int, int, Callable[..., None], tuple[Any, ...]]] = []

    def at(self, at_us: int, phase: Phase, call: Callable[..., None], *args: Any) -> None:
        """Call ``call(*args)`` at ``at_us``, which is not in the past."""
        assert at_us >= self.now_us, f"{at_us} is before {self.now_us}"
        self._order += 1
        heappush(self._heap, (at_us, phase, self._order, call, args))

    def run(self) -> None:
        """Go on until ``stop()`` or until nothing is left to happen."""
        heap, self._is_stopped = self._heap, False
        while heap and not self._is_stopped:
            at_us, _, _, call, args = heappop(heap)
            self.now_us = at_us
            self.num_calls += 1
            call(*args)

    def stop(self) -> None:
        """Let ``run()`` return after the call that it is in."""
        self._is_stopped = True
