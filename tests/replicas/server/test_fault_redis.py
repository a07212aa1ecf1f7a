"""What a reader of a real Redis makes of a replica that restarts, or whose events go astray."""

import asyncio

import aiohttp
import pytest

from contract.kv_events import Continuity, decode_batch
from contract.redis_layout import BATCH_FIELD
from replicas.server.replica import Replica
from tests.redis_server import RedisServer
from tests.replicas.server.conftest import Start
from tests.replicas.server.test_reporter import KEYS, Reader, complete, report_where, settings
from tests.waiting import DEADLINE_S, until


async def read_all(reader: Reader, replica: Replica) -> None:
    """Read until equal to what all ranks have cached."""
    async with asyncio.timeout(DEADLINE_S):
        while set(replica.ranks.cached_hashes()) != reader.hashes:
            await asyncio.sleep(0.005)
            await reader.read()


async def wait_for_snapshot(replica: Replica) -> None:
    """Wait until one of now is in Redis: it is counted when it is sent, the next one after it."""
    seen = replica.metrics.snapshots
    await until(lambda: replica.metrics.snapshots > seen + 1, "a snapshot")


@pytest.mark.parametrize("num_ranks", [1, 2])
async def test_after_a_restart_a_reader_knows_the_new_cache_and_the_new_numbers(
    num_ranks: int, redis_server: RedisServer, start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start(**settings(redis_server), data_parallel_size=num_ranks)
    async with redis_server.client() as redis:
        reader = Reader(redis)
        for index in range(4):
            await complete(http, replica, f"before {index} " * 40)
        await read_all(reader, replica)
        computed = replica.ranks.stats().prompt_tokens_total
        before = await report_where(redis, "prompt_tokens_total", computed)

        replica.restart()
        report = await report_where(redis, "incarnation", replica.incarnation)
        for index in range(4):
            await complete(http, replica, f"after {index} " * 40)
        await read_all(reader, replica)
        entries = await reader.redis.xrange(KEYS.kv_events("r1"))

    batches = [decode_batch(fields[BATCH_FIELD]) for _, fields in entries]
    numbers = [each.sequence for each in batches if each.incarnation == replica.incarnation]
    assert before.prompt_tokens_total
    assert (report.prompt_tokens_total, report.cached_tokens_total) == (0, 0)
    assert report.incarnation != before.incarnation
    assert len(reader.hashes) >= 24
    assert numbers == list(range(len(numbers)))


@pytest.mark.parametrize("fault", ["lose_kv_events", "reorder_kv_events"])
async def test_a_reader_that_keeps_to_the_gap_rule_is_right_again_in_the_end(
    fault: str, redis_server: RedisServer, start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start(
        **settings(redis_server, snapshot_interval_ms=20), faults=(f"{fault}:share=0.5",)
    )
    async with redis_server.client() as redis:
        reader = Reader(redis)
        # A snapshot each time, so that what fills a gap is newer than the gap.
        for index in range(20):
            await complete(http, replica, f"prompt {index} " * 20)
            await wait_for_snapshot(replica)
            await reader.read()
        replica.faults.clear()
        await complete(http, replica, "the last one " * 20)

        assert await reader.catches_up(replica)
    assert Continuity.GAP in reader.continuities
    assert replica.metrics.faults[fault] > 0


async def test_reports_that_are_dropped_are_not_counted_as_published(
    redis_server: RedisServer, start: Start
) -> None:
    replica = await start(**settings(redis_server), faults=("drop_load_reports",))

    await until(lambda: replica.metrics.faults.get("drop_load_reports", 0) > 3)

    assert replica.metrics.reports == 0
    async with redis_server.client() as redis:
        replica.faults.clear()
        report = await report_where(redis, "running_requests", 0)
    assert report.sequence > 3
