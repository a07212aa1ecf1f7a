"""What a replica writes to a real Redis, read back with the contract's own decoders.

The law: a set that applies the batches, or a snapshot and the batches after it, equals the set
of blocks that the engine can share.
"""

import asyncio
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from contract.blocks import HASH_SCHEME, BlockHash, chain_bytes, root_hash
from contract.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Continuity,
    KvEventBatch,
    KvSnapshot,
    continuity,
    decode_batch,
    decode_snapshot,
)
from contract.load_report import LoadReport, decode_report
from contract.openai_api import CompletionFields, render_completion
from contract.redis_layout import BATCH_FIELD, RedisLayout
from replicas.server.replica import Replica, running_replica
from tests.redis_server import RedisServer
from tests.replicas.server.conftest import CONFIG, FOREVER_MS, MODEL, Start
from tests.waiting import DEADLINE_S, until

KEYS = RedisLayout("tests")


def settings(server: RedisServer, **more: Any) -> dict[str, Any]:
    fast = {"report_interval_ms": 10, "redis_retry_ms": 10, "redis_timeout_ms": 10_000}
    names = {"redis_url": server.url, "fleet": "tests", "replica_id": "r1"}
    return {**fast, **names, **more}


class Reader:
    """A gateway's half: a mirror of one replica's blocks that keeps to the gap rule."""

    def __init__(self, redis: Any) -> None:  # its stubs do not know that all answers are bytes
        self.hashes: set[BlockHash] = set()
        self.continuities: list[Continuity] = []
        self.redis = redis
        self._incarnation: str | None = None
        self._sequence = -1
        self._last_id = b"0"

    async def read(self) -> None:
        stream = KEYS.kv_events("r1")
        for _, entries in await self.redis.xread({stream: self._last_id}) or []:
            for entry_id, fields in entries:
                self._last_id = entry_id
                await self._apply(decode_batch(fields[BATCH_FIELD]))

    async def join_late(self) -> None:
        snapshot = await self.redis.get(KEYS.kv_snapshot("r1"))
        self._take(decode_snapshot(snapshot))
        await self.read()

    async def _apply(self, batch: KvEventBatch) -> None:
        found = continuity(self._incarnation, self._sequence, batch)
        self.continuities.append(found)
        if found is Continuity.RESTART and batch.sequence > 0:
            found = Continuity.GAP
        if found is Continuity.GAP:
            self._take(decode_snapshot(await self.redis.get(KEYS.kv_snapshot("r1"))))
            found = continuity(self._incarnation, self._sequence, batch)
        if found is Continuity.OLD:
            return
        if found is Continuity.RESTART:
            self.hashes.clear()
        for event in batch.events:
            match event:
                case BlockStored():
                    assert not self.hashes & set(event.block_hashes)
                    assert event.parent_hash is None or event.parent_hash in self.hashes
                    self.hashes |= set(event.block_hashes)
                case BlockRemoved():
                    assert self.hashes >= set(event.block_hashes)
                    self.hashes -= set(event.block_hashes)
                case AllBlocksCleared():
                    self.hashes.clear()
        self._incarnation, self._sequence = batch.incarnation, batch.sequence

    def _take(self, snapshot: KvSnapshot) -> None:
        self.hashes = set(snapshot.block_hashes)
        assert sum(snapshot.run_lengths) == len(snapshot.block_hashes)
        assert self.hashes.issuperset(snapshot.run_parents) or None in snapshot.run_parents
        self._incarnation, self._sequence = snapshot.incarnation, snapshot.sequence

    async def catches_up(self, replica: Replica) -> bool:
        """Read until equal to the engines together, or the deadline."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + DEADLINE_S
        engines = [driver.engine for driver in replica.ranks.drivers]
        while self.hashes != {each for engine in engines for each in engine.cached_hashes()}:
            if loop.time() > deadline:
                return False
            await asyncio.sleep(0.005)
            await self.read()
        return True


async def complete(http: aiohttp.ClientSession, replica: Replica, prompt: str, **more: Any) -> None:
    body = {"prompt": prompt, "max_tokens": 20} | more
    async with http.post(f"{replica.url}/v1/completions", json=body) as response:
        assert response.status == 200, await response.text()
        await response.read()


async def report_where(redis: Any, field: str, value: Any) -> LoadReport:
    """Wait for a report in which ``field`` is ``value``."""
    seen: Any = None
    try:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                data = await redis.get(KEYS.replica("r1"))
                report = None if data is None else decode_report(data)
                seen = report and getattr(report, field)
                if report is not None and seen == value:
                    return report
                await asyncio.sleep(0.005)
    except TimeoutError:
        pytest.fail(f"{field} is {seen}, not {value}")


async def test_the_report_says_who_and_how_busy(
    redis_server: RedisServer, start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start(
        **settings(redis_server, aliases=("other",), speedup=2.0), fixed_prefill_ms=10.0
    )
    prompt = "a prompt of some blocks " * 20
    await complete(http, replica, prompt)
    await complete(http, replica, prompt)
    async with redis_server.client() as redis:
        await report_where(redis, "prompt_tokens_total", 240)
        report = await report_where(redis, "running_requests", 0)
        members = await redis.smembers(KEYS.replicas)
        ttl_ms = await redis.pttl(KEYS.replica("r1"))

    assert members == {b"r1"}
    assert 0 < ttl_ms <= 3_000
    assert (report.replica_id, report.url, report.model) == ("r1", replica.url, MODEL)
    assert report.aliases == ["other"]
    assert report.incarnation == replica.incarnation
    assert report.hash_scheme == HASH_SCHEME
    assert (report.block_size, report.block_bytes) == (16, 64)
    assert (report.kv_blocks_total, report.kv_blocks_used) == (1_000, 0)
    assert (report.waiting_requests, report.running_requests) == (0, 0)
    assert report.cached_tokens_total == 112
    assert report.step_time_us is not None
    # A step takes 10 ms for 8,192 tokens, at twice the speed.
    assert report.prefill_tokens_per_s == pytest.approx(8_192 / 0.010 * 2)
    assert report.draining is False


async def test_reports_go_on_and_are_numbered_when_idle(
    redis_server: RedisServer, start: Start
) -> None:
    await start(**settings(redis_server))
    async with redis_server.client() as redis:
        first = await report_where(redis, "draining", False)
        numbers = {first.sequence}
        async with asyncio.timeout(DEADLINE_S):
            while len(numbers) < 4:
                numbers.add((await report_where(redis, "draining", False)).sequence)

    assert min(numbers) == first.sequence


async def test_the_report_is_empty_again_when_all_clients_left_at_once(
    redis_server: RedisServer, start: Start
) -> None:
    replica = await start(**settings(redis_server), fixed_prefill_ms=FOREVER_MS, max_num_seqs=15)
    async with redis_server.client() as redis:
        async with aiohttp.ClientSession() as http:
            prompts = [f"{index} " + "many blocks " * 20 for index in range(20)]
            tasks = [asyncio.create_task(complete(http, replica, each)) for each in prompts]
            busy = await report_where(redis, "running_requests", 15)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

        idle = await report_where(redis, "running_requests", 0)

    assert (busy.waiting_requests, busy.kv_blocks_used) == (5, 15 * 4)
    assert busy.waiting_prefill_tokens is not None
    assert busy.waiting_prefill_tokens > 0
    assert (idle.waiting_requests, idle.kv_blocks_used, idle.waiting_prefill_tokens) == (0, 0, 0)


async def test_events_rebuild_the_cached_set_exactly(
    redis_server: RedisServer, start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start(**settings(redis_server), kv_blocks=40)
    async with redis_server.client() as redis:
        reader = Reader(redis)
        for index in range(30):  # far more than 40 blocks: evictions
            await complete(http, replica, f"prompt {index % 7} " * (10 + index), n=1 + index % 3)
            if index == 15:
                assert await reader.catches_up(replica)

        assert await reader.catches_up(replica)
        assert len(reader.hashes) > 10
        replica.driver.engine.scheduler.check()

        assert replica.driver.reset_prefix_cache()
        assert await reader.catches_up(replica)
        assert reader.hashes == set()
    assert set(reader.continuities) == {Continuity.RESTART, Continuity.NEXT}
    assert replica.driver.engine.stats().steps_total > 0


async def test_events_of_several_engines_rebuild_their_union(
    redis_server: RedisServer, start: Start, http: aiohttp.ClientSession
) -> None:
    fast = settings(redis_server, snapshot_interval_ms=20)
    replica = await start(**fast, kv_blocks=40, data_parallel_size=2)
    async with redis_server.client() as redis:
        reader = Reader(redis)
        for index in range(20):
            await complete(http, replica, f"prompt {index % 5} " * (10 + index), n=1 + index % 3)
            assert await reader.catches_up(replica)

        shared = {*replica.ranks.drivers[0].engine.cached_hashes()}
        shared &= {*replica.ranks.drivers[1].engine.cached_hashes()}
        assert shared, "nothing that both ranks hold"
        assert replica.ranks.reset_prefix_cache()
        assert await reader.catches_up(replica)
        report = await report_where(
            redis, "prompt_tokens_total", replica.ranks.stats().prompt_tokens_total
        )

    assert set(reader.continuities) <= {Continuity.RESTART, Continuity.NEXT, Continuity.OLD}
    assert report.kv_blocks_total == 80
    assert report.cached_tokens_total == replica.ranks.stats().cached_tokens_total


async def test_adapters_are_names_of_the_replica(
    redis_server: RedisServer, start: Start, http: aiohttp.ClientSession
) -> None:
    slow = settings(redis_server, report_interval_ms=3_600_000)
    replica = await start(**slow, aliases=("other",), lora=("sql",))
    async with redis_server.client() as redis:
        await report_where(redis, "aliases", ["other", "sql"])

        body = {"lora_name": "chat", "lora_path": "/x"}
        async with http.post(f"{replica.url}/v1/load_lora_adapter", json=body) as response:
            assert response.status == 200

        await report_where(redis, "aliases", ["other", "sql", "chat"])


async def test_a_late_reader_gets_the_same_set_from_a_snapshot(
    redis_server: RedisServer, start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start(**settings(redis_server, snapshot_interval_ms=1), kv_blocks=60)
    for index in range(10):
        await complete(http, replica, f"prompt {index} " * 20)
    seen = replica.metrics.snapshots
    await until(lambda: replica.metrics.snapshots > seen + 1, "a snapshot")

    async with redis_server.client() as redis:
        reader = Reader(redis)
        await reader.join_late()
        assert reader.hashes == set(replica.driver.engine.cached_hashes())
        await complete(http, replica, "one more " * 20)
        assert await reader.catches_up(replica)

    assert set(reader.continuities) <= {Continuity.OLD, Continuity.NEXT}


async def test_a_snapshot_during_a_step_is_of_the_batch_that_it_names(
    redis_server: RedisServer, start: Start, http: aiohttp.ClientSession
) -> None:
    """The engine shares a block from the plan of the step on that computes it."""
    fast = settings(redis_server, snapshot_interval_ms=1)
    replica = await start(**fast, fixed_prefill_ms=FOREVER_MS)
    asking = asyncio.create_task(complete(http, replica, "some blocks " * 20))
    await until(lambda: replica.driver.engine.stats().running_requests == 1)
    seen = replica.metrics.snapshots
    await until(lambda: replica.metrics.snapshots > seen + 1, "a snapshot")

    async with redis_server.client() as redis:
        early, late = Reader(redis), Reader(redis)
        await late.join_late()
        await early.read()
        asking.cancel()

    assert early.hashes == late.hashes == set(replica.driver.engine.cached_hashes())
    assert len(early.hashes) == 3


async def test_a_gateway_that_hashes_bytes_finds_the_engines_blocks(
    redis_server: RedisServer, start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start(**settings(redis_server), block_size=8)
    prompt = "the words of a prompt, 北京🙂, are bytes to a gateway " * 9

    await complete(http, replica, prompt, cache_salt="tenant", max_tokens=1)

    async with redis_server.client() as redis:
        reader = Reader(redis)
        assert await reader.catches_up(replica)
        report = await report_where(redis, "draining", False)
    (rendered,) = render_completion(CompletionFields(prompt=prompt))
    assert report.block_bytes is not None
    root = root_hash(MODEL, cache_salt="tenant")
    chain = chain_bytes(rendered, report.block_bytes, root)
    assert len(chain) > 10
    assert reader.hashes == set(chain)


async def test_redis_that_was_away_costs_a_gap_and_no_truth(
    redis_server: RedisServer, start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start(**settings(redis_server, redis_timeout_ms=200), kv_blocks=60)
    async with redis_server.client() as redis:
        reader = Reader(redis)
        await complete(http, replica, "before " * 40)
        assert await reader.catches_up(replica)

    redis_server.freeze()
    for index in range(5):
        await complete(http, replica, f"meanwhile {index} " * 30)
    await until(lambda: replica.metrics.redis_failures > 0, "the failure")
    redis_server.thaw()

    async with redis_server.client() as redis:
        reader.redis = redis
        assert await reader.catches_up(replica)
        await complete(http, replica, "after " * 40)
        assert await reader.catches_up(replica)
    assert Continuity.GAP in reader.continuities


async def test_a_redis_that_lost_everything_is_told_everything(
    redis_server: RedisServer, start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start(**settings(redis_server))
    await complete(http, replica, "before " * 40)
    redis_server.kill()
    await complete(http, replica, "meanwhile " * 40)
    await until(lambda: replica.metrics.redis_failures > 0, "the failure")

    await redis_server.start()

    async with redis_server.client() as redis:
        await report_where(redis, "running_requests", 0)
        reader = Reader(redis)
        await reader.join_late()
        assert await reader.catches_up(replica)
    assert len(reader.hashes) >= 12


async def test_too_many_unpublished_events_become_a_snapshot(
    redis_server: RedisServer, start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start(
        **settings(redis_server, pending_events_max=2, event_interval_ms=50), kv_blocks=30
    )
    async with redis_server.client() as redis:
        reader = Reader(redis)
        for index in range(12):
            await complete(http, replica, f"prompt {index} " * 20, max_tokens=70)

        assert await reader.catches_up(replica)
        assert replica.metrics.snapshots > 1


async def test_a_replica_serves_without_redis(
    redis_stopped: RedisServer, start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start(**settings(redis_stopped))

    await complete(http, replica, "hello")

    await until(lambda: replica.metrics.redis_failures > 1, "two tries")
    await complete(http, replica, "hello")


async def test_a_drain_is_reported_and_the_end_leaves_no_key(redis_server: RedisServer) -> None:
    # Reports on time alone would not show the drain.
    more = settings(redis_server, report_interval_ms=3_600_000)
    config = replace(CONFIG, **more, drain_notice_ms=200)
    async with redis_server.client() as redis:
        async with running_replica(config) as replica:
            await report_where(redis, "draining", False)
            async with aiohttp.ClientSession() as http:
                await complete(http, replica, "some blocks " * 20)
            await replica.drain()
            report = await report_where(redis, "draining", True)

        assert report.incarnation == replica.incarnation
        assert await redis.keys("*") == []


async def test_without_prefix_caching_no_hash_scheme_is_promised(
    redis_server: RedisServer, start: Start
) -> None:
    await start(**settings(redis_server), enable_prefix_caching=False)

    async with redis_server.client() as redis:
        report = await report_where(redis, "running_requests", 0)

    assert report.hash_scheme is None
