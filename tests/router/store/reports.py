"""Reports, events and gateways' loads as replicas and gateways write them, for any store."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

import msgspec
from redis.asyncio import Redis

from contract.blocks import HASH_SCHEME, BlockHash
from contract.kv_events import (
    BlockStored,
    KvEventBatch,
    KvSnapshot,
    encode_batch,
    encode_snapshot,
)
from contract.load_report import GatewayReport, InFlight, LoadReport, encode_report
from contract.redis_layout import BATCH_FIELD, REPORT_TTL_MS, RedisLayout
from router.store.memory import MemoryStore
from tests.redis_server import RedisServer

LAYOUT = RedisLayout("default")


def report(replica_id: str, sequence: int = 0, **changes: object) -> LoadReport:
    """Return a sound report; ``changes`` may make it unsound."""
    plain = LoadReport(
        replica_id=replica_id,
        url="http://127.0.0.1:9000",
        model="m",
        incarnation="first",
        sequence=sequence,
        waiting_requests=0,
        running_requests=1,
    )
    return msgspec.structs.replace(plain, **changes)


def publisher(replica_id: str, sequence: int = 0, incarnation: str = "first") -> LoadReport:
    """Return the report of a replica that publishes KV events of 4-byte blocks."""
    scheme = {"hash_scheme": HASH_SCHEME, "block_bytes": 4, "block_size": 1}
    return report(replica_id, sequence, incarnation=incarnation, **scheme)


def batch(sequence: int, blocks: Sequence[int] = (), incarnation: str = "first") -> KvEventBatch:
    return KvEventBatch(incarnation, sequence, [BlockStored([BlockHash(b) for b in blocks])])


def snapshot(sequence: int, blocks: Sequence[int], incarnation: str = "first") -> KvSnapshot:
    return KvSnapshot(incarnation, sequence, [BlockHash(b) for b in blocks])


def gateway_report(gateway_id: str, requests: int = 1, sequence: int = 0) -> GatewayReport:
    return GatewayReport(gateway_id, "first", sequence, {"a": InFlight(requests, 0)})


class Replicas(Protocol):
    """The replicas' side of a store."""

    async def write_report(self, replica_id: str, data: bytes) -> None: ...

    async def write_batch(self, replica_id: str, data: bytes) -> None: ...

    async def write_snapshot(self, replica_id: str, data: bytes) -> None: ...


class RedisReplicas:
    """Writes as ``contract.redis_layout`` says."""

    def __init__(self, redis: Redis) -> None:
        self.redis = redis

    async def write_report(self, replica_id: str, data: bytes) -> None:
        await self.redis.set(LAYOUT.replica(replica_id), data, px=REPORT_TTL_MS)
        await self.redis.sadd(LAYOUT.replicas, replica_id)

    async def write_batch(self, replica_id: str, data: bytes) -> None:
        await self.redis.xadd(LAYOUT.kv_events(replica_id), {BATCH_FIELD: data})

    async def write_snapshot(self, replica_id: str, data: bytes) -> None:
        await self.redis.set(LAYOUT.kv_snapshot(replica_id), data)


class MemoryReplicas:
    """The same for the store in memory."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def write_report(self, replica_id: str, data: bytes) -> None:
        self._store.put_report(replica_id, data)

    async def write_batch(self, replica_id: str, data: bytes) -> None:
        self._store.put_batch(replica_id, data)

    async def write_snapshot(self, replica_id: str, data: bytes) -> None:
        self._store.put_snapshot(replica_id, data)


@asynccontextmanager
async def redis_replicas(server: RedisServer) -> AsyncIterator[RedisReplicas]:
    async with server.client() as redis:
        yield RedisReplicas(redis)


async def write(replicas: Replicas, *reports: LoadReport) -> None:
    for one in reports:
        await replicas.write_report(one.replica_id, encode_report(one))


async def write_events(replicas: Replicas, replica_id: str, *batches: KvEventBatch) -> None:
    for one in batches:
        await replicas.write_batch(replica_id, encode_batch(one))


async def write_snapshot(replicas: Replicas, replica_id: str, one: KvSnapshot) -> None:
    await replicas.write_snapshot(replica_id, encode_snapshot(one))
