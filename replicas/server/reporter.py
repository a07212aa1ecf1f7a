"""Tells Redis what the replica holds and how busy it is; never waited for by a step or request.

Rules:

1. Load goes out every report interval, from live counts, also when idle.
2. KV events go out right after the step that caused them, as numbered batches, in order. All that
   came while the write before was under way go in one batch.
3. After a failed write nobody knows what arrived. The batch is not sent again: a number is left
   out, and a snapshot takes its place, so that every reader sees the gap and what closes it.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from contract.kv_events import (
    BlockStored,
    KvEvent,
    KvEventBatch,
    KvSnapshot,
    encode_batch,
    encode_snapshot,
)
from contract.load_report import LoadReport, encode_report
from contract.redis_layout import BATCH_FIELD, KV_STREAM_MAX_BATCHES, REPORT_TTL_MS, RedisLayout
from replicas.redis_client import drop_connections, redis_client
from replicas.server.config import ReplicaConfig
from replicas.server.metrics import ReplicaMetrics

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ReportSource:
    """Where the reporter reads the replica's state; each call is of this very moment."""

    load_report: Callable[[int], LoadReport | None]  # of this sequence number; None: say nothing
    take_events: Callable[[], list[KvEvent]]
    cached_runs: Callable[[], list[BlockStored]]
    sent_as: Callable[[KvEventBatch], list[KvEventBatch]] = lambda batch: [batch]


def connect_redis(config: ReplicaConfig) -> "Redis | None":
    """Return a client that connects when it is first used, None where Redis is not wanted.

    Raises SettingError for a URL that cannot be one.
    """
    if config.redis_url is None:
        return None
    return redis_client(config.redis_url, config.redis_timeout_ms, "replica")


class Reporter:
    """Publishes under one replica id and incarnation from its making to ``remove()``."""

    def __init__(
        self,
        config: ReplicaConfig,
        redis: "Redis",
        replica_id: str,
        incarnation: str,
        source: ReportSource,
        metrics: ReplicaMetrics,
    ) -> None:
        self._config = config
        self._redis = redis
        self._replica_id = replica_id
        self._incarnation = incarnation
        self._source = source
        self._metrics = metrics
        self._layout = RedisLayout(config.fleet)
        self._wake = asyncio.Event()
        self._stopping = asyncio.Event()
        self._pending: list[KvEvent] = []
        self._gap = False  # readers have missed something and need the next snapshot
        self._is_away = False
        self._report_sequence = 0
        self._batch_sequence = -1  # of the last batch that was sent or given up
        self._report_due_s = 0.0  # on the monotonic clock; 0 is now
        self._snapshot_due_s = 0.0

    def add_events(self, events: Sequence[KvEvent]) -> None:
        """Queue events for the next write."""
        self._pending += events
        if len(self._pending) > self._config.pending_events_max:
            self._pending.clear()
            self._leave_gap()
        self._wake.set()

    def report_now(self) -> None:
        """Send the next load report without waiting for its time."""
        self._report_due_s = 0.0
        self._wake.set()

    def begin_again(self, incarnation: str) -> None:
        """Go on as the reporter of a new process would: nothing was sent, all numbers are first."""
        self._incarnation = incarnation
        self._pending.clear()
        self._gap = False
        self._report_sequence = 0
        self._batch_sequence = -1
        self._report_due_s = self._snapshot_due_s = 0.0
        self._wake.set()

    async def run(self) -> None:
        """Publish until ``stop()``.

        Not to be ended by cancelling: redis-py loses a cancellation now and then.
        """
        while not self._stopping.is_set():
            await self._wait_until_due()
            try:
                async with asyncio.timeout(self._config.redis_timeout_ms / 1e3):
                    await self._publish()
            except Exception as error:  # redis-py answers to garbage with many types
                await self._lose(error)
                await self._pause(self._config.redis_retry_ms)
            else:
                self._note_presence()
                await self._pause(self._config.event_interval_ms)

    def stop(self) -> None:
        """Let ``run()`` return; a write under way ends first, or runs into its time limit."""
        self._stopping.set()
        self._wake.set()

    async def remove(self) -> None:
        """Take the replica out of the fleet: no key of it is left."""
        layout, replica_id = self._layout, self._replica_id
        keys = [
            layout.replica(replica_id),
            layout.kv_events(replica_id),
            layout.kv_snapshot(replica_id),
        ]
        try:
            async with asyncio.timeout(self._config.redis_timeout_ms / 1e3):
                pipe = self._redis.pipeline(transaction=False)
                pipe.srem(layout.replicas, replica_id)
                pipe.delete(*keys)
                await pipe.execute()
        except Exception as error:
            log.warning("keys of %s stay until they expire: %r", replica_id, error)

    async def _wait_until_due(self) -> None:
        if self._gap:
            return
        due_s = min(self._report_due_s, self._snapshot_due_s)
        try:
            async with asyncio.timeout(max(0.0, due_s - time.monotonic())):
                await self._wake.wait()
        except TimeoutError:
            pass  # a report or snapshot is due

    async def _pause(self, duration_ms: int) -> None:
        try:
            async with asyncio.timeout(duration_ms / 1e3):
                await self._stopping.wait()
        except TimeoutError:
            pass  # the pause is over

    async def _publish(self) -> None:
        self._wake.clear()
        now_s = time.monotonic()
        pipe = self._redis.pipeline(transaction=False)
        if self._gap or now_s >= self._snapshot_due_s:
            self._add_snapshot(pipe)
            self._snapshot_due_s = now_s + self._config.snapshot_interval_ms / 1e3
        if self._pending or self._gap:
            self._add_batch(pipe)
            self._gap = False
        if now_s >= self._report_due_s:
            self._add_report(pipe)
            self._report_due_s = now_s + self._config.report_interval_ms / 1e3
        if len(pipe):
            await pipe.execute()

    def _add_snapshot(self, pipe: Any) -> None:
        """All of this in one turn of the loop: the runs are those after ``_batch_sequence``."""
        layout, replica_id = self._layout, self._replica_id
        ttl_ms = self._config.kv_keys_ttl_ms
        self._pending += self._source.take_events()
        if self._pending and not self._gap:
            self._add_batch(pipe)
        # After a gap the events are in the snapshot already.
        self._pending.clear()
        runs = self._source.cached_runs()
        snapshot = KvSnapshot.of_runs(self._incarnation, self._batch_sequence, runs)
        pipe.set(layout.kv_snapshot(replica_id), encode_snapshot(snapshot), px=ttl_ms)
        pipe.pexpire(layout.kv_events(replica_id), ttl_ms)
        self._metrics.snapshots += 1

    def _add_batch(self, pipe: Any) -> None:
        self._batch_sequence += 1
        batch = KvEventBatch(self._incarnation, self._batch_sequence, self._pending)
        for sent in self._source.sent_as(batch):
            pipe.xadd(
                self._layout.kv_events(self._replica_id),
                {BATCH_FIELD: encode_batch(sent)},
                maxlen=KV_STREAM_MAX_BATCHES,
                approximate=True,
            )
            self._metrics.event_batches += 1
        self._pending = []

    def _add_report(self, pipe: Any) -> None:
        report = self._source.load_report(self._report_sequence)
        self._report_sequence += 1
        if report is None:
            return
        key = self._layout.replica(self._replica_id)
        pipe.set(key, encode_report(report), px=REPORT_TTL_MS)
        pipe.sadd(self._layout.replicas, self._replica_id)
        self._metrics.reports += 1

    def _leave_gap(self) -> None:
        self._batch_sequence += 1
        self._gap = True

    async def _lose(self, error: Exception) -> None:
        if not self._is_away:
            log.warning("Redis is away, serving without it: %r", error)
        self._is_away = True
        self._metrics.redis_failures += 1
        self._leave_gap()
        self._report_due_s = self._snapshot_due_s = 0.0
        await drop_connections(self._redis, self._config.redis_timeout_ms)

    def _note_presence(self) -> None:
        if self._is_away:
            log.warning("Redis is back")
            self._is_away = False
