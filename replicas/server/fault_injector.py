"""Which faults are set, whom they strike, how often they did, and those of the engine as a whole.

Whether a fault strikes is drawn by a hash of what it would strike (a request id, a number), of its
name and of a seed, never by chance: the same run again has the same faults. Replicas with other
ids draw differently, so a request that one replica fails can succeed on another.

With no fault set, a caller pays one look into an empty dictionary.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol
from weakref import WeakSet

from xxhash import xxh3_64_intdigest

from replicas.server.driver import Disturbance
from replicas.server.faults import F, Fault, Freeze, Restart, SlowStart
from replicas.server.metrics import ReplicaMetrics

HASH_VALUES = 2**64


class Held(Protocol):
    """Something that a fault holds back until its time is over or the fault is cleared."""

    def release(self) -> None:
        """Let it go on; once more changes nothing."""


@dataclass
class _Active:
    """A fault that is set, and what is to be ended with it."""

    fault: Fault
    cleared: asyncio.Event = field(default_factory=asyncio.Event)
    # Weak, because a client that leaves takes with it what is held for it.
    held: WeakSet[Held] = field(default_factory=WeakSet)
    timer: asyncio.TimerHandle | None = None


class FaultInjector:
    """The faults of one replica, at most one of each kind. Needs the running loop's timers."""

    def __init__(self, metrics: ReplicaMetrics, seed: int, replica_id: str) -> None:
        self.on_restart: Callable[[], None] = lambda: None
        self.is_ready = True  # false while slow_start lets nobody in
        self.disturbance = Disturbance()
        self._metrics = metrics
        self._seed = xxh3_64_intdigest(replica_id.encode(), seed)
        self._active: dict[type[Fault], _Active] = {}

    @property
    def any_set(self) -> bool:
        """Whether there is any fault to ask for."""
        return bool(self._active)

    def get(self, kind: type[F]) -> F | None:
        """Return the fault of this kind if it is set."""
        active = self._active.get(kind)
        if active is None:
            return None
        assert isinstance(active.fault, kind)
        return active.fault

    def draw(self, kind: type[F], key: str) -> F | None:
        """Return the fault of this kind if it is set and ``key`` is in its share.

        Whoever goes on to strike counts it.
        """
        fault = self.get(kind)
        share = getattr(fault, "share", 1.0)
        if fault is None or self._hash(kind, key) >= share * HASH_VALUES:
            return None
        return fault

    def strike(self, kind: type[F], key: str) -> F | None:
        """Draw, and count what is struck."""
        fault = self.draw(kind, key)
        if fault is not None:
            self.count(kind)
        return fault

    def count(self, kind: type[Fault]) -> None:
        """Count one strike."""
        self._metrics.faults[kind.name] = self.num_struck(kind) + 1

    def num_struck(self, kind: type[Fault]) -> int:
        """Return how often a fault of this kind has struck since the process began."""
        return self._metrics.faults.get(kind.name, 0)

    async def wait(self, kind: type[Fault], duration_s: float | None) -> None:
        """Return when the time is over or the fault, which must be set, is cleared."""
        cleared = self._active[kind].cleared
        try:
            async with asyncio.timeout(duration_s):
                await cleared.wait()
        except TimeoutError:
            pass  # its time is over

    def hold(self, kind: type[Fault], held: Held, duration_s: float | None) -> None:
        """Have ``held`` released when the time is over or the fault is cleared, as it may be."""
        active = self._active.get(kind)
        if active is None:
            held.release()
            return
        active.held.add(held)
        if duration_s is not None:
            asyncio.get_running_loop().call_later(duration_s, held.release)

    def set(self, faults: Iterable[Fault]) -> None:
        """Set faults; each replaces one of its kind."""
        for fault in faults:
            self.clear([type(fault)])
            self._active[type(fault)] = _Active(fault)
            self._begin(fault)

    def clear(self, kinds: Iterable[type[Fault]] | None = None) -> None:
        """End the faults of these kinds, or all."""
        for kind in list(self._active) if kinds is None else kinds:
            active = self._active.pop(kind, None)
            if active is None:
                continue
            if active.timer is not None:
                active.timer.cancel()
            active.cleared.set()
            for held in list(active.held):
                held.release()
            self._end(active.fault)

    def _begin(self, fault: Fault) -> None:
        match fault:
            case Freeze(duration_s=duration_s):
                self.count(Freeze)
                self.disturbance.thawed = self._active[Freeze].cleared
                if duration_s is not None:
                    self._later(duration_s, Freeze, lambda: self.clear([Freeze]))
            case SlowStart(ready_after_s=ready_after_s):
                self.count(SlowStart)
                self.is_ready = False
                self.disturbance.slowdown = fault.slowdown
                self._later(ready_after_s, SlowStart, lambda: self._be_ready(fault))
            case Restart(after_s=after_s):
                self._later(after_s, Restart, self._restart)

    def _end(self, fault: Fault) -> None:
        match fault:
            case Freeze():
                self.disturbance.thawed = None
            case SlowStart():
                self.is_ready = True
                self.disturbance.slowdown = 1.0

    def _be_ready(self, fault: SlowStart) -> None:
        self.is_ready = True
        self._later(fault.slow_for_s, SlowStart, lambda: self.clear([SlowStart]))

    def _restart(self) -> None:
        self.clear([Restart])
        self.count(Restart)
        self.on_restart()

    def _later(self, delay_s: float, kind: type[Fault], act: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self._active[kind].timer = loop.call_later(delay_s, act)

    def _hash(self, kind: type[Fault], key: str) -> int:
        return xxh3_64_intdigest(f"{kind.name} {key}".encode(), self._seed)
