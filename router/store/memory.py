"""The store of a gateway without Redis: nothing reports here unless this process puts it in.

Values are kept encoded, so that both stores hand over what went through the same codec.
"""

import asyncio
from collections.abc import Callable

from contract.kv_events import KvEventBatch, KvSnapshot, decode_batch, decode_snapshot
from contract.load_report import UNREADABLE, GatewayReport, encode_gateway_report
from contract.redis_layout import GATEWAY_TTL_MS, KV_STREAM_MAX_BATCHES, REPORT_TTL_MS
from router.store.config import StoreConfig
from router.store.inbox import ReportInbox, gateway_reports
from router.store.seam import KvArrival, KvArrivals, KvResync, StoreRead


class _Expiring:
    """Values by id, each for its time to live."""

    def __init__(self, ttl_ms: int) -> None:
        self._ttl_us = ttl_ms * 1000
        self._values: dict[str, bytes] = {}
        self._written_us: dict[str, int] = {}

    def put(self, key: str, value: bytes, now_us: int) -> None:
        self._values[key] = value
        self._written_us[key] = now_us

    def drop(self, key: str) -> None:
        self._values.pop(key, None)
        self._written_us.pop(key, None)

    def current(self, now_us: int) -> dict[str, bytes]:
        for key, written_us in list(self._written_us.items()):
            if now_us - written_us >= self._ttl_us:
                self.drop(key)
        return dict(self._values)


class MemoryStore:
    """See ``Store``. The ``put_`` methods are the replicas' side."""

    def __init__(self, config: StoreConfig, clock_us: Callable[[], int]) -> None:
        self._config = config
        self._clock_us = clock_us
        self._reports = _Expiring(REPORT_TTL_MS)
        self._gateways = _Expiring(GATEWAY_TTL_MS)
        self._inbox = ReportInbox()
        self._batches: dict[str, list[bytes]] = {}
        self._snapshots: dict[str, bytes] = {}
        self._dropped: dict[str, int] = {}  # batches that the cap has taken, by replica id
        self._positions: dict[str, int] = {}
        self._written = asyncio.Event()

    def put_report(self, replica_id: str, data: bytes) -> None:
        """Write an encoded load report."""
        self._reports.put(replica_id, data, self._clock_us())

    def put_batch(self, replica_id: str, data: bytes) -> None:
        """Append an encoded batch of KV events."""
        batches = self._batches.setdefault(replica_id, [])
        batches.append(data)
        if len(batches) > KV_STREAM_MAX_BATCHES:
            del batches[0]
            self._dropped[replica_id] = self._dropped.get(replica_id, 0) + 1
        self._written.set()

    def put_snapshot(self, replica_id: str, data: bytes) -> None:
        """Write an encoded snapshot."""
        self._snapshots[replica_id] = data

    async def read(self) -> StoreRead:
        now_us = self._clock_us()
        values = self._reports.current(now_us)
        of_gateways = self._gateways.current(now_us)
        sound = gateway_reports(of_gateways)
        reports = self._inbox.take(values, now_us)
        return StoreRead(reports, set(values), sound, len(of_gateways) - len(sound))

    async def publish_gateway(self, report: GatewayReport) -> None:
        self._gateways.put(report.gateway_id, encode_gateway_report(report), self._clock_us())

    async def retire_gateway(self, gateway_id: str) -> None:
        self._gateways.drop(gateway_id)

    async def read_events(self, replica_ids: list[str]) -> KvArrivals:
        arrivals = self._take(replica_ids)
        if arrivals.batches or arrivals.undecodable:
            return arrivals
        self._written.clear()
        try:
            async with asyncio.timeout(self._config.kv_block_s):
                await self._written.wait()
        except TimeoutError:
            return arrivals
        return self._take(replica_ids)

    async def resync(self, replica_id: str) -> KvResync:
        data = self._batches.get(replica_id, [])
        decoded = [_decoded(item) for item in data]
        self._positions[replica_id] = self._dropped.get(replica_id, 0) + len(data)
        raw = self._snapshots.get(replica_id)
        snapshot = _decoded_snapshot(raw)
        undecodable = decoded.count(None) + (snapshot is None and raw is not None)
        return KvResync(snapshot, [batch for batch in decoded if batch is not None], undecodable)

    async def close(self) -> None:
        """Nothing is held."""

    def _take(self, replica_ids: list[str]) -> KvArrivals:
        batches: list[KvArrival] = []
        undecodable = 0
        count = self._config.kv_batches_of_each(len(replica_ids))
        for replica_id in replica_ids:
            data = self._batches.get(replica_id, [])
            dropped = self._dropped.get(replica_id, 0)
            first = max(0, self._positions.get(replica_id, 0) - dropped)
            page = data[first : first + count]
            self._positions[replica_id] = dropped + first + len(page)
            for item in page:
                batch = _decoded(item)
                if batch is None:
                    undecodable += 1
                else:
                    batches.append(KvArrival(replica_id, batch))
        return KvArrivals(batches, undecodable)


def _decoded(data: bytes) -> KvEventBatch | None:
    try:
        return decode_batch(data)
    except UNREADABLE:
        return None


def _decoded_snapshot(data: bytes | None) -> KvSnapshot | None:
    try:
        return None if data is None else decode_snapshot(data)
    except UNREADABLE:
        return None
