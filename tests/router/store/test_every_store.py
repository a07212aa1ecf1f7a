"""What both stores must do alike: one suite, run over memory and over a real Redis.

Values are written as replicas write them; what comes back is compared with what was written.
"""

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from contract.kv_events import KvEventBatch
from contract.load_report import LoadReport, ReportSchemaError, encode_report
from contract.redis_layout import GATEWAY_TTL_MS, REPORT_TTL_MS
from router.store.config import StoreConfig
from router.store.memory import MemoryStore
from router.store.redis import RedisStore
from router.store.seam import Store
from tests.redis_server import RedisServer
from tests.router.store.reports import (
    LAYOUT,
    MemoryReplicas,
    RedisReplicas,
    Replicas,
    batch,
    gateway_report,
    redis_replicas,
    report,
    snapshot,
    write,
    write_events,
    write_snapshot,
)

READ_MAX = 300


class Clock:
    """Time stands still unless a test moves it."""

    def __init__(self) -> None:
        self.now_us = 1_000_000

    def __call__(self) -> int:
        return self.now_us


@dataclass
class Case:
    """One store with the replicas' side of it."""

    store: Store
    replicas: Replicas
    clock: Clock

    async def let_expire(self, ttl_ms: int) -> None:
        """Make everything that was written so long ago go."""
        self.clock.now_us += ttl_ms * 1000
        if isinstance(self.replicas, RedisReplicas):
            # Redis has a clock of its own: its keys are expired by hand, their sets stay.
            for key in await self.replicas.redis.keys("wr:*:replica:*"):
                await self.replicas.redis.delete(key)
            for key in await self.replicas.redis.keys("wr:*:gateway:*"):
                await self.replicas.redis.delete(key)

    async def batches(self, *replica_ids: str) -> list[KvEventBatch]:
        arrivals = await self.store.read_events(list(replica_ids))
        return [arrival.batch for arrival in arrivals.batches]


@pytest.fixture(params=["memory", "redis"])
async def case(request: pytest.FixtureRequest) -> AsyncIterator[Case]:
    clock = Clock()
    if request.param == "memory":
        memory = MemoryStore(StoreConfig(kv_batches_per_read_max=READ_MAX), clock)
        yield Case(memory, MemoryReplicas(memory), clock)
        return
    server: RedisServer = request.getfixturevalue("redis_stopped")
    await server.start()
    config = StoreConfig(
        redis_url=server.url, command_timeout_s=10.0, kv_batches_per_read_max=READ_MAX
    )
    store = RedisStore(config, clock)
    async with redis_replicas(server) as replicas:
        yield Case(store, replicas, clock)
    await store.close()


async def test_an_empty_store_is_an_empty_fleet(case: Case) -> None:
    read = await case.store.read()

    assert (read.reports, read.present, read.gateway_reports) == ([], set(), [])


async def test_a_report_is_read_as_it_was_written(case: Case) -> None:
    a, b = report("a", running_requests=3), report("b", kv_blocks_total=10, aliases=["x"])
    await write(case.replicas, a, b)

    read = await case.store.read()

    assert {seen.replica_id: seen.report for seen in read.reports} == {"a": a, "b": b}
    assert read.present == {"a", "b"}


async def test_a_report_ages_until_the_next_one_by_this_gateways_clock(case: Case) -> None:
    await write(case.replicas, report("a", sequence=1))
    ages = [(await case.store.read()).reports[0].age_us]
    case.clock.now_us += 700_000
    ages.append((await case.store.read()).reports[0].age_us)
    await write(case.replicas, report("a", sequence=2))

    ages.append((await case.store.read()).reports[0].age_us)

    assert ages == [0, 700_000, 0]


async def test_an_expired_report_is_absent(case: Case) -> None:
    await write(case.replicas, report("a"))
    await case.store.read()
    await case.let_expire(REPORT_TTL_MS)

    read = await case.store.read()

    assert (read.reports, read.present) == ([], set())


async def test_a_replica_that_comes_back_is_present_with_a_fresh_age(case: Case) -> None:
    await write(case.replicas, report("a"))
    await case.store.read()
    await case.let_expire(REPORT_TTL_MS)
    await case.store.read()
    await write(case.replicas, report("a"))

    read = await case.store.read()

    assert [seen.age_us for seen in read.reports] == [0]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00\xff garbage",
        encode_report(report("someone else")),
        encode_report(report("a", schema=99)),
        encode_report(report("a", kv_blocks_total=-1)),
        encode_report(report("a", waiting_requests=-5)),
        encode_report(report("a", prefill_tokens_per_s=float("nan"))),
        encode_report(report("a", prefill_tokens_per_s=float("inf"))),
        encode_report(report("a", url="http://user:LEAKED@127.0.0.1:1")),
        encode_report(report("a", url="file:///etc/passwd")),
        encode_report(report("a", url="http://127.0.0.1")),
        encode_report(report("a", model="m" * 10_000)),
        encode_report(report("a", model="line\nbreak")),
        encode_report(report("a", aliases=[str(n) for n in range(2000)])),
    ],
)
async def test_an_unsound_report_is_an_error_of_its_replica_only(case: Case, data: bytes) -> None:
    await case.replicas.write_report("a", data)
    await write(case.replicas, report("b"))

    read = await case.store.read()

    by_id = {seen.replica_id: seen.report for seen in read.reports}
    assert isinstance(by_id["a"], ReportSchemaError)
    assert by_id["b"] == report("b")
    assert read.present == {"a", "b"}
    assert "LEAKED" not in str(by_id["a"])


async def test_gateways_read_each_others_load(case: Case) -> None:
    await case.store.publish_gateway(gateway_report("g1", requests=3))
    await case.store.publish_gateway(gateway_report("g2", requests=5))

    read = await case.store.read()

    assert {r.gateway_id: r.in_flight["a"].requests for r in read.gateway_reports} == {
        "g1": 3,
        "g2": 5,
    }


async def test_a_dead_gateways_load_goes(case: Case) -> None:
    await case.store.publish_gateway(gateway_report("g1"))
    await case.store.read()
    await case.let_expire(GATEWAY_TTL_MS)

    read = await case.store.read()

    assert read.gateway_reports == []


async def test_a_stopping_gateway_takes_its_load_away(case: Case) -> None:
    await case.store.publish_gateway(gateway_report("g1"))
    await case.store.publish_gateway(gateway_report("g2"))

    await case.store.retire_gateway("g1")

    read = await case.store.read()
    assert [r.gateway_id for r in read.gateway_reports] == ["g2"]


async def test_impossible_loads_of_a_gateway_are_left_out_and_counted(case: Case) -> None:
    await case.store.publish_gateway(gateway_report("g1", requests=-7))
    await case.store.publish_gateway(gateway_report("g2"))

    read = await case.store.read()

    assert [r.gateway_id for r in read.gateway_reports] == ["g2"]
    assert read.undecodable == 1


async def test_events_come_in_order_and_once(case: Case) -> None:
    await case.store.resync("a")
    await write_events(case.replicas, "a", batch(0, [1]), batch(1, [2]))

    first = await case.batches("a")
    await write_events(case.replicas, "a", batch(2, [3]))
    second = await case.batches("a")

    assert first == [batch(0, [1]), batch(1, [2])]
    assert second == [batch(2, [3])]


async def test_after_a_pause_one_read_brings_no_more_than_it_may_and_of_each_replica(
    case: Case,
) -> None:
    ids = [f"r{number}" for number in range(8)]
    batches = [batch(number) for number in range(50)]
    for replica_id in ids:
        await case.store.resync(replica_id)
        await write_events(case.replicas, replica_id, *batches)

    first, second = [await case.store.read_events(ids) for _ in range(2)]

    assert Counter(each.replica_id for each in first.batches) == dict.fromkeys(ids, READ_MAX // 8)
    for replica_id in ids:
        both = [*first.batches, *second.batches]
        assert [each.batch for each in both if each.replica_id == replica_id] == batches


async def test_no_events_are_an_answer_too(case: Case) -> None:
    await case.store.resync("a")

    assert await case.batches("a") == []


async def test_events_of_all_replicas_come_in_one_read(case: Case) -> None:
    for replica_id in ("a", "b", "c"):
        await case.store.resync(replica_id)
        await write_events(case.replicas, replica_id, batch(0, [1]))

    arrivals = await case.store.read_events(["a", "b", "c"])

    assert [arrival.replica_id for arrival in arrivals.batches] == ["a", "b", "c"]


async def test_a_backlog_larger_than_one_read_comes_whole(case: Case) -> None:
    await case.store.resync("a")
    batches = [batch(number) for number in range(700)]
    await write_events(case.replicas, "a", *batches)

    read: list[KvEventBatch] = []
    while len(read) < len(batches):
        more = await case.batches("a")
        assert more
        read += more

    assert read == batches


async def test_a_resync_gives_the_snapshot_and_at_least_all_batches_since(case: Case) -> None:
    await write_events(case.replicas, "a", *[batch(number) for number in range(600)])
    await write_snapshot(case.replicas, "a", snapshot(590, [7, 8]))

    missed = await case.store.resync("a")

    assert missed.snapshot == snapshot(590, [7, 8])
    assert [b.sequence for b in missed.batches][-9:] == list(range(591, 600))


async def test_events_go_on_behind_a_resync(case: Case) -> None:
    await write_events(case.replicas, "a", batch(0), batch(1))
    await case.store.resync("a")
    await write_events(case.replicas, "a", batch(2))

    assert await case.batches("a") == [batch(2)]


async def test_a_resync_without_a_snapshot_goes_back_to_the_first_batch(case: Case) -> None:
    batches = [batch(number) for number in range(600)]
    await write_events(case.replicas, "a", *batches)

    missed = await case.store.resync("a")

    assert missed.snapshot is None
    assert missed.batches == batches


async def test_a_resync_has_all_batches_of_a_process_newer_than_the_snapshot(case: Case) -> None:
    await write_snapshot(case.replicas, "a", snapshot(5, [1], incarnation="old"))
    await write_events(case.replicas, "a", batch(6, incarnation="old"))
    new = [batch(number, incarnation="new") for number in range(300)]
    await write_events(case.replicas, "a", *new)

    missed = await case.store.resync("a")

    assert missed.batches[-300:] == new


async def test_garbage_among_events_is_counted_and_passed_over(case: Case) -> None:
    await case.store.resync("a")
    await case.replicas.write_batch("a", b"\xc1 no batch")
    await write_events(case.replicas, "a", batch(0))

    arrivals = await case.store.read_events(["a"])

    assert [arrival.batch for arrival in arrivals.batches] == [batch(0)]
    assert arrivals.undecodable == 1


async def test_garbage_for_a_snapshot_is_none_and_counted(case: Case) -> None:
    await case.replicas.write_snapshot("a", b"\xc1 no snapshot")

    missed = await case.store.resync("a")

    assert (missed.snapshot, missed.undecodable) == (None, 1)


def test_the_layout_of_these_tests_is_the_default_fleets() -> None:
    assert LAYOUT.fleet == StoreConfig().fleet


async def test_a_cache_that_is_said_to_be_more_than_full_is_taken_for_full(case: Case) -> None:
    await write(case.replicas, report("a", kv_blocks_used=1500, kv_blocks_total=1000))

    (seen,) = (await case.store.read()).reports

    assert isinstance(seen.report, LoadReport)
    assert seen.report.kv_usage == 1.0
