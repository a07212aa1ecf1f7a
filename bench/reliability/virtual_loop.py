"""An event loop without sockets whose time jumps to the next timer, for code written for asyncio.

It is asyncio's own loop: only its clock, its wait for sockets and the opening of connections are
replaced. Equal inputs give equal runs, for nothing depends on the machine.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

TURNS_MAX = 200_000
"""Turns of one run; more is a loop that never rests."""

Connect = Callable[[asyncio.Protocol, str, int], Awaitable[asyncio.Transport]]


class EndlessTurnsError(Exception):
    """Callbacks went on asking for callbacks."""


class _NoSockets:
    """What asyncio takes for a selector: it waits by moving the clock on."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.num_turns = 0

    def select(self, timeout: float | None) -> list[object]:
        """Let ``timeout`` pass. Raises EndlessTurnsError."""
        self.num_turns += 1
        if self.num_turns > TURNS_MAX:
            raise EndlessTurnsError(f"{TURNS_MAX} turns by {self.now_s} s")
        self.now_s += timeout or 0.0
        return []


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs tasks, timers and protocols; connections are opened by ``connect``."""

    _scheduled: list[asyncio.TimerHandle]  # of asyncio's; its type stubs do not tell

    def __init__(self, connect: Connect) -> None:
        super().__init__()
        self._selector = _NoSockets()
        self._connect = connect
        self.tasks: list[asyncio.Task[Any]] = []
        self.faults: list[str] = []
        """What callbacks and tasks raised."""

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self._selector.now_s

    def now_us(self) -> int:
        """Return the virtual time in microseconds."""
        return round(self._selector.now_s * 1_000_000)

    @property
    def num_timers(self) -> int:
        """Timers that are still to come."""
        return sum(not timer.cancelled() for timer in self._scheduled)

    def run_until(self, end_s: float) -> None:
        """Run everything that is due until ``end_s``. Raises EndlessTurnsError."""
        self.call_at(end_s, self.stop)
        self.run_forever()

    def create_task(self, *args: Any, **named: Any) -> "asyncio.Task[Any]":
        """Begin a task, and keep it for the judge."""
        task = super().create_task(*args, **named)
        self.tasks.append(task)
        return task

    async def create_connection(  # type: ignore[override]  # TCP to an address, nothing else
        self, protocol_factory: Callable[[], asyncio.Protocol], host: str, port: int, **_: Any
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """Open a connection as ``connect`` does."""
        protocol = protocol_factory()
        return await self._connect(protocol, host, port), protocol

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep for the judge what a callback raised."""
        self.faults.append(f"{context.get('message')}: {context.get('exception')!r}")

    def _process_events(self, _: list[object]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nobody is waiting in another thread."""
