"""Measures how late the event loop runs: what every request waits besides all else."""

import asyncio

INTERVAL_S = 0.05
WINDOW_S = 10.0
_WEIGHT = 0.05  # of the newest sample: the average looks back over about one second


class LoopLag:
    """Lag of a timer: an average, and the worst of the last one to two windows. Seconds."""

    def __init__(self) -> None:
        self.ewma_s = 0.0
        self._worst_s = 0.0
        self._worst_before_s = 0.0
        self._turned_s = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def num_tasks(self) -> int:
        """Tasks of the loop that is measured, the measuring one included; 0 before it began."""
        return 0 if self._loop is None else len(asyncio.all_tasks(self._loop))

    @property
    def max_s(self) -> float:
        """The worst lag of the last ``WINDOW_S`` to twice that."""
        return max(self._worst_s, self._worst_before_s)

    def observe(self, lag_s: float, now_s: float) -> None:
        """Take in one sample."""
        if now_s - self._turned_s >= WINDOW_S:
            # After a stall longer than a window both halves would be older than they say.
            stale = now_s - self._turned_s >= 2 * WINDOW_S
            self._worst_before_s = 0.0 if stale else self._worst_s
            self._worst_s = 0.0
            self._turned_s = now_s
        self._worst_s = max(self._worst_s, lag_s)
        self.ewma_s += _WEIGHT * (lag_s - self.ewma_s)

    async def run(self) -> None:
        """Sample until cancelled."""
        self._loop = loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + INTERVAL_S
            await asyncio.sleep(INTERVAL_S)
            now_s = loop.time()
            self.observe(max(0.0, now_s - due_s), now_s)
