"""What happens to a fleet while it serves: drawn from a seed, one well replica always left.

Which accident comes after which, for how long and how often is the seed's; when exactly a process
has come back is the machine's, so the choice of the next victim waits for it.
"""

import asyncio
import math
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from random import Random
from typing import Any

from bench.reliability.ledger import Trouble
from bench.reliability.real_fleet import RealFleet

GAP_S = 0.8
"""Between the beginnings of two accidents, on average; each lasts a few seconds."""

DISCOVERY_S = 0.5
"""Between a replica's return and the time when it counts as well: reports take 0.1 s."""

RETRYABLE_FAULTS: tuple[tuple[str, dict[str, object]], ...] = (
    ("error_status", {"status": 502, "share": 0.5}),
    ("error_status", {"status": 503, "share": 0.5}),
    ("error_status", {"status": 429, "share": 0.5, "retry_after_s": 1}),
    ("admission_503", {"share": 0.7}),
    ("close_mid_stream", {"after_tokens": 0, "share": 0.5}),
    ("slow_start", {"slow_for_s": 3, "slowdown": 5}),
)
BREAKING_FAULTS: tuple[tuple[str, dict[str, object]], ...] = (
    ("reset_mid_stream", {"after_tokens": 3, "share": 0.5}),
    ("reset_mid_stream", {"after_tokens": 0, "share": 0.3}),
    ("close_mid_stream", {"after_tokens": 4, "share": 0.5}),
    ("stall", {"after_tokens": 2, "share": 0.3}),
    ("freeze", {"duration_s": 2.0}),
)
REPORTING_FAULTS: tuple[tuple[str, dict[str, object]], ...] = (
    ("drop_load_reports", {"share": 0.7}),
    ("stale_load", {}),
    ("absurd_load", {"figures": "huge"}),
    ("lose_kv_events", {"share": 0.5}),
    ("reorder_kv_events", {"share": 0.5}),
    ("slow_health", {"delay_s": 5}),
)


class Accidents:
    """Lets accidents happen until it is cancelled; then ``mend`` puts everything right."""

    def __init__(self, fleet: RealFleet, rng: Random, gap_s: float = GAP_S) -> None:
        self.troubles: list[Trouble] = []
        self.counts: Counter[str] = Counter()
        self._fleet = fleet
        self._rng = rng
        self._gap_s = gap_s
        self._well = list(fleet.replica_ids)
        self._redis_is_well = True
        self._begun: list[asyncio.Task[None]] = []
        self._kinds: list[tuple[Callable[[], Coroutine[Any, Any, None]], int]] = [
            (self._kill, 3),
            (self._freeze, 3),
            (self._stop, 1),
            (self._restart_engine, 1),
            (self._fault_that_breaks, 3),
            (self._fault_before_the_first_byte, 2),
            (self._fault_of_reports, 1),
            (self._drain, 1),
            (self._kill_redis, 1),
            (self._freeze_redis, 1),
        ]

    async def run(self) -> None:
        """Begin one accident after the other, for ever."""
        kinds, weights = zip(*self._kinds, strict=True)
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / self._gap_s))
            (kind,) = self._rng.choices(kinds, weights)
            self._begun.append(asyncio.create_task(kind()))

    async def mend(self) -> None:
        """Wait until what is under way is over. Raises what an accident raised."""
        await asyncio.gather(*self._begun)

    def forget_past_troubles(self) -> None:
        """Forget those that are over: no request that begins now can have met them."""
        self.troubles = [trouble for trouble in self.troubles if trouble.ended_s == math.inf]

    # ---- the accidents; each ends with everything as it was

    async def _kill(self) -> None:
        async def deed(replica_id: str) -> None:
            await self._fleet.end(replica_id, signal.SIGKILL)
            await asyncio.sleep(self._rng.uniform(0.0, 3.0))
            await self._fleet.start(replica_id)

        await self._to_a_replica("kill -9", deed, may_break=True)

    async def _stop(self) -> None:
        async def deed(replica_id: str) -> None:
            await self._fleet.end(replica_id, signal.SIGTERM)
            await self._fleet.start(replica_id)

        await self._to_a_replica("SIGTERM", deed, may_break=False)

    async def _freeze(self) -> None:
        async def deed(replica_id: str) -> None:
            self._fleet.freeze(replica_id)
            await asyncio.sleep(self._rng.choice((0.3, 1.0, 3.0, 7.0)))
            self._fleet.thaw(replica_id)

        await self._to_a_replica("SIGSTOP", deed, may_break=True)

    async def _restart_engine(self) -> None:
        async def deed(replica_id: str) -> None:
            await self._fleet.set_fault(replica_id, "restart", {})
            await asyncio.sleep(0.5)

        await self._to_a_replica("engine restart", deed, may_break=True)

    async def _fault_that_breaks(self) -> None:
        await self._fault(BREAKING_FAULTS, may_break=True)

    async def _fault_before_the_first_byte(self) -> None:
        await self._fault(RETRYABLE_FAULTS, may_break=False)

    async def _fault_of_reports(self) -> None:
        await self._fault(REPORTING_FAULTS, may_break=False)

    async def _fault(
        self, faults: tuple[tuple[str, dict[str, object]], ...], *, may_break: bool
    ) -> None:
        name, parameters = self._rng.choice(faults)

        async def deed(replica_id: str) -> None:
            await self._fleet.set_fault(replica_id, name, parameters)
            await asyncio.sleep(self._rng.uniform(1.0, 4.0))
            await self._fleet.clear_faults(replica_id)

        await self._to_a_replica(name, deed, may_break=may_break)

    async def _drain(self) -> None:
        async def deed(replica_id: str) -> None:
            await self._fleet.set_draining(replica_id, draining=True)
            await asyncio.sleep(self._rng.uniform(0.5, 3.0))
            await self._fleet.set_draining(replica_id, draining=False)

        await self._to_a_replica("drain", deed, may_break=False)

    async def _kill_redis(self) -> None:
        async def deed() -> None:
            await self._fleet.end("redis", signal.SIGKILL)
            await asyncio.sleep(self._rng.uniform(0.0, 4.0))
            await self._fleet.start("redis")

        await self._to_redis("kill -9 of Redis", deed)

    async def _freeze_redis(self) -> None:
        async def deed() -> None:
            self._fleet.freeze("redis")
            await asyncio.sleep(self._rng.uniform(0.5, 6.0))
            self._fleet.thaw("redis")

        await self._to_redis("SIGSTOP of Redis", deed)

    async def _to_redis(self, kind: str, deed: Callable[[], Awaitable[None]]) -> None:
        if self._redis_is_well:
            self._redis_is_well = False
            self.counts[kind] += 1
            await deed()
            self._redis_is_well = True

    async def _to_a_replica(
        self, kind: str, deed: Callable[[str], Awaitable[None]], *, may_break: bool
    ) -> None:
        """Do it to a well replica, unless it is the only one."""
        if len(self._well) < 2:
            return
        replica_id = self._rng.choice(self._well)
        self._well.remove(replica_id)
        self.counts[kind] += 1
        trouble = Trouble(replica_id, kind, may_break, self._fleet.clock())
        self.troubles.append(trouble)
        await deed(replica_id)
        await self._fleet.until_healthy(replica_id)
        await asyncio.sleep(DISCOVERY_S)
        trouble.ended_s = self._fleet.clock()
        self._well.append(replica_id)
