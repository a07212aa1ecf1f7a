"""The store in Redis: one pipeline for all reports, one blocking XREAD for all KV events.

No SCAN, KEYS, INCR or pub/sub. Two links, so that the wait for events holds nothing up. A new
link after a failure may lead to another server, where stream positions mean nothing: whoever
reads events then resyncs.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from contract.kv_events import KvEventBatch, KvSnapshot, decode_batch, decode_snapshot
from contract.load_report import UNREADABLE, GatewayReport, encode_gateway_report
from contract.redis_layout import BATCH_FIELD, GATEWAY_TTL_MS, KV_STREAM_MAX_BATCHES, RedisLayout
from router.store.config import StoreConfig
from router.store.inbox import ReportInbox, gateway_reports
from router.store.link import Command, RedisLink
from router.store.report_set import ReportSet, odd_shape
from router.store.seam import (
    KvArrival,
    KvArrivals,
    KvResync,
    StoreFault,
    StoreRead,
    StoreUnavailableError,
)

BATCHES_PER_TURN = 64
"""KV batches decoded before requests get their turn of the event loop: about a millisecond."""

START = b"0-0"
"""The stream position before every entry."""


class RedisStore:
    """Reads and writes the keys of one fleet; see ``Store``."""

    def __init__(self, config: StoreConfig, clock_us: Callable[[], int]) -> None:
        assert config.redis_url
        self._config = config
        self._clock_us = clock_us
        self._layout = RedisLayout(config.fleet)
        self._reports = RedisLink(config.redis_url, config.command_timeout_s)
        self._events = RedisLink(config.redis_url, config.command_timeout_s)
        self._inbox = ReportInbox()
        layout, ids_max = self._layout, config.replicas_max
        self._replicas = ReportSet(layout.replicas, layout.replica, ids_max)
        self._gateways = ReportSet(layout.gateways, layout.gateway, ids_max)
        self._positions: dict[str, bytes] = {}  # of the last entry read, by replica id

    async def read(self) -> StoreRead:
        sets = (self._replicas, self._gateways)
        # Those who were there at the last read are read in the same trip.
        replies = await self._reports.call(
            [*(("SMEMBERS", each.set_key) for each in sets), *map(_mget, sets)]
        )
        changed = [each.take_members(reply) for each, reply in zip(sets, replies[:2], strict=True)]
        values = replies[2:]
        if any(changed):
            values = await self._reports.call([_mget(each) for each in sets])
        now_us = self._clock_us()
        of_replicas, of_gateways = (
            each.take_values(reply[1:] if isinstance(reply, list) else reply, now_us)
            for each, reply in zip(sets, values, strict=True)
        )
        sound = gateway_reports(of_gateways)
        reports = self._inbox.take(of_replicas, now_us)
        return StoreRead(reports, set(of_replicas), sound, len(of_gateways) - len(sound))

    async def publish_gateway(self, report: GatewayReport) -> None:
        layout, gateway_id = self._layout, report.gateway_id
        key, value = layout.gateway(gateway_id), encode_gateway_report(report)
        try:
            await self._reports.call(
                [
                    ("SADD", layout.gateways, gateway_id),
                    ("SET", key, value, "PX", GATEWAY_TTL_MS),
                    *self._forgetting(),
                ]
            )
        except StoreUnavailableError as error:
            if error.fault is StoreFault.READ_ONLY:
                self._events.mark_stale()  # it only reads, so it would never notice
                self._positions = {}
            raise

    async def retire_gateway(self, gateway_id: str) -> None:
        layout = self._layout
        await self._reports.call(
            [("SREM", layout.gateways, gateway_id), ("DEL", layout.gateway(gateway_id))]
        )

    async def read_events(self, replica_ids: list[str]) -> KvArrivals:
        # Of the link that is read now: those of a link that fails meanwhile are given up whole.
        positions = self._positions
        lost = [replica_id for replica_id in replica_ids if replica_id not in positions]
        if lost:
            raise StoreUnavailableError(StoreFault.LOST, f"{lost[0]!r} must be resynced")
        keys = [self._layout.kv_events(replica_id) for replica_id in replica_ids]
        wait_ms = max(1, round(self._config.kv_block_s * 1000))
        count = self._config.kv_batches_of_each(len(replica_ids))
        options = ("COUNT", count, "BLOCK", wait_ms)
        after = [positions[replica_id] for replica_id in replica_ids]
        command: Command = ("XREAD", *options, "STREAMS", *keys, *after)
        (reply,) = await self._call_events([command], self._config.kv_block_s)
        batches: list[KvArrival] = []
        undecodable = 0
        owners = dict(zip(map(str.encode, keys), replica_ids, strict=True))
        for stream, entries in _pairs(reply or []):
            replica_id = owners.get(stream)
            if replica_id is None:
                raise odd_shape("a stream that was not asked for")
            for position, fields in _pairs(entries):
                batch = _batch(fields)
                positions[replica_id] = position
                if batch is None:
                    undecodable += 1
                else:
                    batches.append(KvArrival(replica_id, batch))
                    if len(batches) % BATCHES_PER_TURN == 0:
                        await asyncio.sleep(0)
        return KvArrivals(batches, undecodable)

    async def resync(self, replica_id: str) -> KvResync:
        positions = self._positions
        # The snapshot first: then no batch between the two can be missed.
        (data,) = await self._call_events([("GET", self._layout.kv_snapshot(replica_id))])
        snapshot = _snapshot(data)
        undecodable = int(snapshot is None and data is not None)
        position = START
        batches: list[KvEventBatch] = []  # newest first, as they are read from the end
        end: str | bytes = "+"
        while len(batches) < KV_STREAM_MAX_BATCHES:
            entries = await self._page_before(replica_id, end)
            if not entries:
                break
            position = entries[0][0] if end == "+" else position
            end = b"(" + entries[-1][0]
            decoded = [_batch(fields) for _, fields in entries]
            undecodable += decoded.count(None)
            batches += [batch for batch in decoded if batch is not None]
            if _reaches_back(batches, snapshot):
                break
        positions[replica_id] = position
        return KvResync(snapshot, batches[::-1], undecodable)

    async def _page_before(self, replica_id: str, end: str | bytes) -> list[tuple[bytes, Any]]:
        key, count = self._layout.kv_events(replica_id), self._config.kv_batches_max
        (page,) = await self._call_events([("XREVRANGE", key, end, "-", "COUNT", count)])
        return _pairs(page)

    async def close(self) -> None:
        await self._reports.close()
        await self._events.close()

    def _forgetting(self) -> Iterator[Command]:
        """Yield what takes ids without a report out of the sets; with a write, as it is one."""
        now_us = self._clock_us()
        limit_us = round(self._config.forget_after_s * 1_000_000)
        for each in (self._replicas, self._gateways):
            ids = each.absent_for(limit_us, now_us)
            if ids:
                yield ("SREM", each.set_key, *ids)

    async def _call_events(self, commands: list[Command], waits_s: float = 0.0) -> list[Any]:
        try:
            return await self._events.call(commands, waits_s)
        except StoreUnavailableError as error:
            if error.fault is not StoreFault.REPLY:  # an error reply leaves the link as it was
                self._positions = {}
            raise


def _mget(reports: ReportSet) -> Command:
    """Return the command; the set's own key stands first, because MGET needs at least one."""
    return ("MGET", reports.set_key, *reports.keys)


def _pairs(reply: Any) -> list[tuple[bytes, Any]]:
    """Return a list of two-element lists whose first is bytes, as streams are answered."""
    if not isinstance(reply, list):
        raise odd_shape("no list")
    pairs = []
    for item in reply:
        if not isinstance(item, list | tuple) or len(item) != 2 or not isinstance(item[0], bytes):
            raise odd_shape("no pair in a stream")
        pairs.append((item[0], item[1]))
    return pairs


def _batch(fields: Any) -> KvEventBatch | None:
    if not isinstance(fields, list) or len(fields) < 2 or fields[0] != BATCH_FIELD:
        return None
    try:
        return decode_batch(fields[1])
    except (*UNREADABLE, TypeError):
        return None


def _snapshot(data: Any) -> KvSnapshot | None:
    try:
        return decode_snapshot(data) if isinstance(data, bytes) else None
    except UNREADABLE:
        return None


def _reaches_back(batches: list[KvEventBatch], snapshot: KvSnapshot | None) -> bool:
    """Say whether ``batches`` (newest first) hold all since the snapshot, or since the start."""
    if not batches:
        return False
    process = batches[0].incarnation
    of_process = snapshot is not None and snapshot.incarnation == process
    known = snapshot.sequence if snapshot is not None and of_process else -1
    return any(b.incarnation != process or b.sequence <= known + 1 for b in batches)
