"""The loops between the store and the fleet's beliefs; the request path never waits for them.

    reports   store.read() -> on_report, on_mismatch, on_reports_read, on_gateway_reports
              own_report() -> store.publish_gateway()                       every read_interval_s
    events    store.read_events() -> on_kv_batch; a gap -> store.resync()   as they come
    time      tick()                                                        every TICK_S

A store that is away is a state, not an error: each loop tries again, ever less often up to a cap,
and the fleet lets its beliefs grow old meanwhile.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from contract.kv_events import KvEventBatch
from contract.load_report import GatewayReport, ReportSchemaError
from router.core.fleet import FleetState
from router.store.config import StoreConfig
from router.store.seam import (
    KvResync,
    Store,
    StoreFault,
    StoreRead,
    StoreState,
    StoreUnavailableError,
)

TICK_S = 0.1
BATCHES_PER_TURN = 32
"""KV batches applied before requests get their turn of the event loop."""

REPORTS_PER_TURN = 64
"""Likewise load reports, about 50 us each."""

RECONNECT_FIRST_S = 0.1

log = logging.getLogger(__name__)


@dataclass
class SyncCounts:
    """What the loops have seen since the start."""

    reads: int = 0
    faults: Counter[StoreFault] = field(default_factory=Counter)
    undecodable: int = 0  # reports, batches, snapshots
    kv_batches: int = 0
    kv_gaps: int = 0
    kv_resyncs: int = 0


class FleetSync:
    """Keeps one fleet's beliefs in step with one store, until it is cancelled.

    ``on_change`` is called after new reports were taken in: who waits for a replica may ask again.
    """

    def __init__(
        self,
        store: Store,
        fleet: FleetState,
        config: StoreConfig,
        gateway: GatewayReport,
        clock_us: Callable[[], int],
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.state = StoreState.DOWN  # until the first answer
        self.counts = SyncCounts()
        self._store = store
        self._fleet = fleet
        self._config = config
        self._gateway = gateway  # the last own report; its numbers go on
        self.num_gateways = 1  # of the fleet, this one included
        self._clock_us = clock_us
        self._on_change = on_change
        self._complaints: dict[str, str] = {}  # about reports, as logged, by replica id
        self._publishers: dict[str, str] = {}  # replica id -> incarnation, of those with events
        self._in_step: set[str] = set()  # publishers whose events follow on from what is known
        self._resync_due_us: dict[str, int] = {}
        self._has_changed_state = False

    async def run(self) -> None:
        """Run the loops. Returns only by cancellation, or by a bug in what it calls."""
        async with asyncio.TaskGroup() as loops:
            loops.create_task(self._reports(), name="store reports")
            loops.create_task(self._events(), name="store events")
            loops.create_task(self._time(), name="fleet time")

    async def retire(self) -> None:
        """Take this gateway's load out of the store, if the store lets us."""
        try:
            await self._store.retire_gateway(self._gateway.gateway_id)
        except StoreUnavailableError as error:
            self.counts.faults[error.fault] += 1  # it expires by itself

    async def _reports(self) -> None:
        failures = 0
        while True:
            began_us = self._clock_us()
            try:
                read = await self._store.read()
            except StoreUnavailableError as error:
                failures += 1
                self._down(error)
                await asyncio.sleep(self._pause_s(failures))
                continue
            failures = 0
            self._up()
            await self._take(read)
            await self._publish()
            elapsed_s = (self._clock_us() - began_us) / 1_000_000
            await asyncio.sleep(max(0.0, self._config.read_interval_s - elapsed_s))

    async def _publish(self) -> None:
        gateway = self._gateway
        self._gateway = self._fleet.own_report(
            gateway.gateway_id, gateway.incarnation, gateway.sequence + 1
        )
        try:
            await self._store.publish_gateway(self._gateway)
        except StoreUnavailableError as error:
            self.counts.faults[error.fault] += 1
            self._complain("", str(error))
        else:
            self._complaints.pop("", None)

    async def _take(self, read: StoreRead) -> None:
        now_us = self._clock_us()
        self.counts.reads += 1
        self.counts.undecodable += read.undecodable
        publishers: dict[str, str] = {}
        for number, seen in enumerate(read.reports, start=1):
            if number % REPORTS_PER_TURN == 0:
                await asyncio.sleep(0)
            if isinstance(seen.report, ReportSchemaError):
                self.counts.undecodable += 1
                self._complain(seen.replica_id, str(seen.report))
                self._fleet.on_mismatch(seen.replica_id, str(seen.report))
                continue
            self._complaints.pop(seen.replica_id, None)
            self._fleet.on_report(seen.report, seen.age_us, now_us)
            if seen.report.hash_scheme is not None:
                publishers[seen.replica_id] = seen.report.incarnation
        self._fleet.on_reports_read(read.present, now_us)
        self._fleet.on_gateway_reports(read.gateway_reports, now_us)
        own_id = self._gateway.gateway_id
        self.num_gateways = 1 + sum(r.gateway_id != own_id for r in read.gateway_reports)
        self._publishers = publishers
        for replica_id in self._complaints.keys() - read.present - {""}:
            del self._complaints[replica_id]
        self._on_change()

    async def _events(self) -> None:
        failures = 0
        while True:
            try:
                await self._resync_those_due()
                following = sorted(self._in_step & self._publishers.keys())
                if following:
                    await self._follow(following)
                    await asyncio.sleep(self._config.kv_pause_s)
                else:
                    await asyncio.sleep(self._config.kv_block_s)
                failures = 0
            except StoreUnavailableError as error:
                # What came meanwhile is unknown, and a new link may lead to another server.
                failures += 1
                self.counts.faults[error.fault] += 1
                self._in_step.clear()
                self._resync_due_us.clear()
                await asyncio.sleep(self._pause_s(failures))

    async def _follow(self, replica_ids: list[str]) -> None:
        arrivals = await self._store.read_events(replica_ids)
        self.counts.undecodable += arrivals.undecodable
        for number, arrival in enumerate(arrivals.batches, start=1):
            self._apply(arrival.replica_id, arrival.batch)
            if number % BATCHES_PER_TURN == 0:
                await asyncio.sleep(0)

    def _apply(self, replica_id: str, batch: KvEventBatch) -> None:
        self.counts.kv_batches += 1
        if self._fleet.on_kv_batch(replica_id, batch, self._clock_us()):
            return
        if replica_id in self._in_step:
            self._in_step.remove(replica_id)
            self.counts.kv_gaps += 1

    async def _resync_those_due(self) -> None:
        now_us = self._clock_us()
        publishers = self._publishers
        self._in_step &= publishers.keys()
        for gone in self._resync_due_us.keys() - publishers.keys():
            del self._resync_due_us[gone]
        for replica_id in sorted(publishers.keys() - self._in_step):
            if now_us >= self._resync_due_us.get(replica_id, 0):
                self._resync_due_us[replica_id] = now_us + round(self._config.kv_resync_s * 1e6)
                await self._resync(replica_id, publishers[replica_id])

    async def _resync(self, replica_id: str, incarnation: str) -> None:
        try:
            missed = await self._store.resync(replica_id)
        except StoreUnavailableError as error:
            if error.fault is not StoreFault.REPLY:
                raise
            self.counts.faults[error.fault] += 1  # this replica's own keys: no other may suffer
            return
        self.counts.kv_resyncs += 1
        self.counts.undecodable += missed.undecodable
        if await self._catch_up(replica_id, incarnation, missed):
            self._in_step.add(replica_id)

    async def _catch_up(self, replica_id: str, incarnation: str, missed: KvResync) -> bool:
        """Apply what was missed; say whether the replica's next batch will follow on from it."""
        fleet = self._fleet
        is_in_step = True
        # A snapshot that a former process left says nothing about this one's cache.
        if missed.snapshot is not None and missed.snapshot.incarnation == incarnation:
            now_us = self._clock_us()
            for is_loaded in fleet.load_kv_snapshot(replica_id, missed.snapshot, now_us):
                is_in_step = is_loaded
                await asyncio.sleep(0)  # requests go on meanwhile
        for batches in _slices(missed.batches):
            for batch in batches:
                self.counts.kv_batches += 1
                is_in_step = fleet.on_kv_batch(replica_id, batch, self._clock_us())
            await asyncio.sleep(0)
        return is_in_step

    async def _time(self) -> None:
        while True:
            for _ in self._fleet.ticking(self._clock_us()):
                await asyncio.sleep(0)
            await asyncio.sleep(TICK_S)

    def _down(self, error: StoreUnavailableError) -> None:
        self.counts.faults[error.fault] += 1
        if self.state is not error.state or not self._has_changed_state:
            self._has_changed_state = True
            self.state = error.state
            log.warning("store is %s: %s; routing by own load", error.state.value, error)

    def _up(self) -> None:
        if self.state is not StoreState.UP:
            self._has_changed_state = True
            self.state = StoreState.UP
            log.info("store is up")

    def _complain(self, replica_id: str, message: str) -> None:
        if self._complaints.get(replica_id) != message:
            self._complaints[replica_id] = message
            log.warning("%s", message)

    def _pause_s(self, failures: int) -> float:
        doubled = RECONNECT_FIRST_S * 2.0 ** min(failures - 1, 16)
        return min(doubled, self._config.reconnect_max_s)


def _slices(batches: Sequence[KvEventBatch]) -> list[Sequence[KvEventBatch]]:
    return [
        batches[start : start + BATCHES_PER_TURN]
        for start in range(0, len(batches), BATCHES_PER_TURN)
    ]
