"""`python -m bench.reliability.watchdog FILE`: an event loop that is idle, and how it stands still.

A watchdog writes FILE, a line of JSON every second. Of a timer's lag the part in which the kernel
let somebody else run (the thread's run delay, /proc/thread-self/schedstat) is no stop of the loop's
own: on a machine of which all cores are in use it is most of it. It is subtracted. What is left in
an idle process at the same time is the machine's doing too: a hypervisor that takes the core away
tells nobody. So the stop of a process is what it has more than an idle one.
"""

import asyncio
import gc
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import msgspec

from router.loop_lag import LoopLag

INTERVAL_S = 0.005
"""A stop is seen at its length less at most this."""

LINE_S = 1.0
_SCHEDSTAT = Path("/proc/thread-self/schedstat")


class Line(msgspec.Struct):
    """What was seen in one second."""

    ended_s: float  # by the machine's monotonic clock
    tasks: int = 0
    lag_s: float = 0.0  # the longest
    stop_s: float = 0.0  # the longest, without the time in which others ran
    stop_cpu_s: float = 0.0  # CPU time of that stop: little of it means a wait for a device
    collection_s: float = 0.0  # the longest run of the garbage collector, waits for a core included


class Collections:
    """Times the garbage collector, the first to be suspected of a stop that nobody asked for."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._began_s = 0.0

    def on_gc(self, phase: str, _: dict[str, int]) -> None:
        """Be told of a beginning or an end."""
        now_s = time.monotonic()
        if phase == "start":
            self._began_s = now_s
        else:
            self.longest_s = max(self.longest_s, now_s - self._began_s)


class WatchedLag(LoopLag):
    """Measures as the gateway does, more often, and tells stops from waits for a core."""

    output: TextIO

    async def run(self) -> None:
        line = Line(time.monotonic() + LINE_S)
        collections = Collections()
        gc.callbacks.append(collections.on_gc)
        cpu_s, delay_s = _scheduled()
        while True:
            due_s = time.monotonic() + INTERVAL_S
            await asyncio.sleep(INTERVAL_S)
            now_s = time.monotonic()
            cpu_before_s, delay_before_s = cpu_s, delay_s
            cpu_s, delay_s = _scheduled()
            lag_s = max(0.0, now_s - due_s)
            self.observe(lag_s, now_s)
            stop_s = lag_s - (delay_s - delay_before_s)
            line.lag_s = max(line.lag_s, lag_s)
            if stop_s > line.stop_s:
                line.stop_s, line.stop_cpu_s = stop_s, cpu_s - cpu_before_s
            if now_s >= line.ended_s:
                line.ended_s, line.tasks = now_s, len(asyncio.all_tasks())
                line.collection_s, collections.longest_s = collections.longest_s, 0.0
                self.output.write(msgspec.json.encode(line).decode() + "\n")
                self.output.flush()
                line = Line(now_s + LINE_S)


def _scheduled() -> tuple[float, float]:
    """Return the CPU time of this thread, and how long it was runnable without a core; seconds."""
    cpu_ns, delay_ns, _ = _SCHEDSTAT.read_text().split()
    return int(cpu_ns) / 1e9, int(delay_ns) / 1e9


def read_lines(path: Path) -> list[Line]:
    """Return what a watchdog has written so far."""
    whole = path.read_bytes().rpartition(b"\n")[0].splitlines()
    return [msgspec.json.decode(line, type=Line) for line in whole]


def longest_stop(watched: Sequence[Line], idle: Sequence[Line]) -> Line:
    """Return the longest stop that ``watched`` has more than ``idle`` about the same second."""
    worst = Line(0.0)
    for line in watched:
        near = [each.stop_s for each in idle if abs(each.ended_s - line.ended_s) < 2 * LINE_S]
        stop_s = line.stop_s - max(near, default=0.0)
        if stop_s >= worst.stop_s:
            worst = msgspec.structs.replace(line, stop_s=stop_s)
    return worst


if __name__ == "__main__":
    with Path(sys.argv[1]).open("w") as WatchedLag.output:
        print("ready: idle", flush=True)
        asyncio.run(WatchedLag().run())
