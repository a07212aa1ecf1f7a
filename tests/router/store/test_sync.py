"""The loops between store and fleet: what is written comes to be believed, whatever happens.

A real fleet of beliefs and a real Redis; time is the process's own, as the loops see it.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

import router.policies  # noqa: F401  # fills the register
from contract.blocks import root_hash
from contract.load_report import GatewayReport
from router.core.belief import Freshness
from router.core.config import RoutingConfig
from router.core.fleet import FleetState
from router.core.policy import build_policy
from router.core.reason import Ineligible
from router.core.status import ReplicaStatus
from router.core.view import RouteRequest
from router.store.config import StoreConfig
from router.store.memory import MemoryStore
from router.store.redis import RedisStore
from router.store.seam import Store, StoreFault, StoreRead, StoreState
from router.store.sync import REPORTS_PER_TURN, FleetSync
from tests.redis_server import RedisServer
from tests.router.store.reports import (
    LAYOUT,
    MemoryReplicas,
    Replicas,
    batch,
    publisher,
    redis_replicas,
    report,
    snapshot,
    write,
    write_events,
    write_snapshot,
)
from tests.waiting import until

FAST = {"read_interval_s": 0.01, "kv_block_s": 0.01, "kv_pause_s": 0.001, "kv_resync_s": 0.02}
PATIENT = FAST | {"command_timeout_s": 10.0, "reconnect_max_s": 0.1}
IMPATIENT = FAST | {"command_timeout_s": 0.1, "reconnect_max_s": 0.1}


def clock_us() -> int:
    return time.monotonic_ns() // 1000


class World:
    """One gateway's fleet and loops."""

    def __init__(
        self,
        store: Store,
        config: StoreConfig,
        gateway_id: str = "own",
        routing: RoutingConfig = RoutingConfig(),  # noqa: B008  # frozen
    ) -> None:
        self.fleet = FleetState(routing, build_policy("prefix_load"))
        self.changes = 0
        gateway = GatewayReport(gateway_id, "first", 0, {})
        self.sync = FleetSync(store, self.fleet, config, gateway, clock_us, self._changed)

    def _changed(self) -> None:
        self.changes += 1

    @property
    def replicas(self) -> dict[str, ReplicaStatus]:
        return {status.view.replica_id: status for status in self.fleet.views()}

    @asynccontextmanager
    async def running(self) -> AsyncIterator["World"]:
        task = asyncio.create_task(self.sync.run())
        try:
            yield self
            assert not task.done(), task
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def knows(self, *replica_ids: str) -> None:
        await until(lambda: self.replicas.keys() == set(replica_ids), f"knowing {replica_ids}")

    async def believes(self, replica_id: str, blocks: int) -> None:
        await until(
            lambda: self.replicas[replica_id].believed_blocks == blocks,
            f"{blocks} blocks on {replica_id}",
        )

    def book(self) -> None:
        """Send one request into the fleet."""
        request = RouteRequest("id", None, 100, root=root_hash("m"))
        assert self.fleet.decide(request, clock_us()).lease is not None


@asynccontextmanager
async def on_redis(
    server: RedisServer,
    settings: dict[str, float] = PATIENT,
    gateway_id: str = "own",
    routing: RoutingConfig = RoutingConfig(),  # noqa: B008  # frozen
) -> AsyncIterator[World]:
    config = StoreConfig(redis_url=server.url, **settings)  # type: ignore[arg-type]
    store = RedisStore(config, clock_us)
    try:
        async with World(store, config, gateway_id, routing).running() as world:
            yield world
    finally:
        await store.close()


async def keep_reporting(replicas: Replicas, *replica_ids: str) -> None:
    """Report as a replica does, until cancelled."""
    sequence = 0
    while True:
        sequence += 1
        idle = [report(replica_id, sequence, running_requests=0) for replica_id in replica_ids]
        await write(replicas, *idle)
        await asyncio.sleep(0.02)


@asynccontextmanager
async def reporting(replicas: Replicas, *replica_ids: str) -> AsyncIterator[None]:
    task = asyncio.create_task(keep_reporting(replicas, *replica_ids))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # the server may have been killed under it


async def test_reports_become_replicas_that_can_be_chosen(redis_server: RedisServer) -> None:
    async with redis_replicas(redis_server) as replicas, on_redis(redis_server) as world:
        await write(replicas, report("a"), report("b", model="other"))

        await world.knows("a", "b")

        assert world.fleet.models() == ["m", "other"]
        assert world.sync.state is StoreState.UP
        await until(lambda: world.changes > 1)


async def test_a_report_that_cannot_be_used_takes_its_replica_out(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with redis_replicas(redis_server) as replicas, on_redis(redis_server) as world:
        await write(replicas, report("a"))
        await world.knows("a")

        await replicas.write_report("a", b"garbage")

        await until(lambda: world.replicas["a"].mismatch is not None)
        await until(lambda: world.sync.counts.undecodable > 5)
    lines = [r for r in caplog.records if "not a load report" in r.getMessage()]
    assert len(lines) == 1, "said once, not at every read"


async def test_a_static_replica_whose_unusable_reports_have_ended_is_used_again(
    redis_server: RedisServer,
) -> None:
    quick = RoutingConfig(report_stale_s=0.1, report_dead_s=0.2)
    async with (
        redis_replicas(redis_server) as replicas,
        on_redis(redis_server, routing=quick) as world,
    ):
        world.fleet.add_static("http://a:1", "a", "m", now_us=clock_us())
        await replicas.write_report("a", b"garbage")
        await until(lambda: world.replicas["a"].standing is Ineligible.CONTRACT_MISMATCH)

        await replicas.redis.delete(LAYOUT.replica("a"))

        await until(lambda: world.replicas["a"].standing is None)


async def test_a_replica_that_stops_reporting_is_dead_while_the_store_lives(
    redis_server: RedisServer,
) -> None:
    """By its absence: no report ever grows too old here."""
    patient = RoutingConfig(report_stale_s=1000.0, report_dead_s=1000.0)
    async with (
        redis_replicas(redis_server) as replicas,
        on_redis(redis_server, routing=patient) as world,
    ):
        await write(replicas, report("a"))
        await world.knows("a")
        await replicas.redis.delete(LAYOUT.replica("a"))

        await until(lambda: world.replicas["a"].freshness is Freshness.DEAD)


async def test_gateways_see_each_others_load_and_it_goes_with_them(
    redis_server: RedisServer,
) -> None:
    async with (
        redis_replicas(redis_server) as replicas,
        on_redis(redis_server) as first,
        reporting(replicas, "a"),
    ):
        async with on_redis(redis_server, gateway_id="second") as second:
            await second.knows("a")
            second.book()

            await until(lambda: _foreign(first) == 1)
        # The second has died: nobody writes its load any more, so it expires.
        await until(lambda: _foreign(first) == 0)


def _foreign(world: World) -> int | None:
    status = world.replicas.get("a")
    return None if status is None else status.view.foreign_requests


async def test_a_retired_gateways_load_goes_at_once(redis_server: RedisServer) -> None:
    async with redis_replicas(redis_server) as replicas:
        async with on_redis(redis_server, gateway_id="second") as second:
            await until(lambda: second.sync.counts.reads > 1)
        config = StoreConfig(redis_url=redis_server.url, command_timeout_s=10.0)
        store = RedisStore(config, clock_us)
        stopping = World(store, config, "second")

        await stopping.sync.retire()
        await store.close()

        assert await replicas.redis.exists(LAYOUT.gateway("second")) == 0
        assert await replicas.redis.smembers(LAYOUT.gateways) == set()


async def test_events_become_believed_blocks(redis_server: RedisServer) -> None:
    async with redis_replicas(redis_server) as replicas, on_redis(redis_server) as world:
        await write(replicas, publisher("a"))
        await world.knows("a")

        await write_events(replicas, "a", batch(0, [1, 2]), batch(1, [3]))

        await world.believes("a", 3)
        assert world.sync.counts.kv_gaps == 0


async def test_a_gateway_that_comes_late_catches_up_from_the_snapshot(
    redis_server: RedisServer,
) -> None:
    async with redis_replicas(redis_server) as replicas:
        await write(replicas, publisher("a"))
        await write_snapshot(replicas, "a", snapshot(7, [1, 2, 3, 4]))
        await write_events(replicas, "a", batch(7, [99]), batch(8, [5]))

        async with on_redis(redis_server) as world:
            await world.knows("a")
            await world.believes("a", 5)
            await write_events(replicas, "a", batch(9, [6]))
            await world.believes("a", 6)


async def test_a_gap_is_closed_by_the_snapshot(redis_server: RedisServer) -> None:
    async with redis_replicas(redis_server) as replicas, on_redis(redis_server) as world:
        await write(replicas, publisher("a"))
        await world.knows("a")
        await write_events(replicas, "a", batch(0, [1]))
        await world.believes("a", 1)

        await write_events(replicas, "a", batch(5, [6]))
        await until(lambda: world.sync.counts.kv_gaps == 1)
        await world.believes("a", 0)
        await write_snapshot(replicas, "a", snapshot(4, [1, 2, 3]))

        await world.believes("a", 4)


async def test_a_snapshot_of_the_process_before_is_not_believed(
    redis_server: RedisServer,
) -> None:
    async with redis_replicas(redis_server) as replicas:
        await write_snapshot(replicas, "a", snapshot(7, [1, 2, 3, 4], incarnation="before"))
        await write(replicas, publisher("a", incarnation="now"))
        async with on_redis(redis_server) as world:
            await world.knows("a")
            await until(lambda: world.sync.counts.kv_resyncs > 0)
            assert world.replicas["a"].believed_blocks == 0
            await write_events(replicas, "a", batch(0, [9], incarnation="now"))

            await world.believes("a", 1)


async def test_a_restarted_replica_is_followed_from_its_first_batch(
    redis_server: RedisServer,
) -> None:
    async with redis_replicas(redis_server) as replicas, on_redis(redis_server) as world:
        await write(replicas, publisher("a"))
        await world.knows("a")
        await write_events(replicas, "a", batch(0, [1, 2, 3]))
        await world.believes("a", 3)

        await write_events(replicas, "a", batch(0, [7], incarnation="second"))
        await write(replicas, publisher("a", incarnation="second"))

        await world.believes("a", 1)


async def test_a_broken_stream_of_one_replica_holds_up_no_other(
    redis_server: RedisServer,
) -> None:
    async with redis_replicas(redis_server) as replicas, on_redis(redis_server) as world:
        await replicas.redis.set(LAYOUT.kv_events("a"), "no stream")
        await write(replicas, publisher("a"), publisher("b"))
        await world.knows("a", "b")

        await write_events(replicas, "b", batch(0, [1]))

        await world.believes("b", 1)
        assert world.sync.counts.faults[StoreFault.REPLY] > 0


async def test_a_gateway_starts_without_redis_and_notices_when_it_comes(
    redis_stopped: RedisServer,
) -> None:
    async with on_redis(redis_stopped) as world:
        world.fleet.add_static("http://127.0.0.1:1", now_us=clock_us())
        await until(lambda: world.sync.counts.faults[StoreFault.REFUSED] > 1)
        world.book()

        await redis_stopped.start()
        async with redis_replicas(redis_stopped) as replicas:
            await write(replicas, report("a"))

            await world.knows("a", "http://127.0.0.1:1")
        assert world.sync.state is StoreState.UP


async def test_a_frozen_redis_is_said_once_and_survived(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with (
        redis_replicas(redis_server) as replicas,
        on_redis(redis_server, IMPATIENT) as world,
    ):
        await write(replicas, report("a"))
        await world.knows("a")
        redis_server.freeze()
        try:
            await until(lambda: world.sync.counts.faults[StoreFault.TIMEOUT] > 4)
            assert world.sync.state is StoreState.FROZEN
            world.book()
            # A report stops at the age at which nobody refreshes it; it is not taken for absent.
            await until(lambda: world.replicas["a"].freshness is Freshness.STALE)
            world.book()
        finally:
            redis_server.thaw()

        async with reporting(replicas, "a"):
            await until(lambda: world.sync.state is StoreState.UP)
            await until(lambda: world.replicas["a"].freshness is Freshness.FRESH)
    said = [r.getMessage() for r in caplog.records if r.name == "router.store.sync"]
    assert sum("frozen" in line for line in said) == 1, said


async def test_a_killed_and_restarted_redis_is_read_again(redis_server: RedisServer) -> None:
    async with on_redis(redis_server) as world:
        async with redis_replicas(redis_server) as replicas:
            await write(replicas, publisher("a"))
            await world.knows("a")
            await write_events(replicas, "a", batch(0, [1]), batch(1, [2]))
            await world.believes("a", 2)
        redis_server.kill()
        await until(lambda: world.sync.state is StoreState.DOWN)

        await redis_server.start()
        async with redis_replicas(redis_server) as replicas:
            await write(replicas, publisher("a", sequence=1))
            await write_snapshot(replicas, "a", snapshot(5, [1, 2, 3, 4]))
            await write_events(replicas, "a", batch(6, [5]))

            await world.believes("a", 5)


async def test_events_are_followed_again_when_only_their_link_broke(
    redis_server: RedisServer,
) -> None:
    async with redis_replicas(redis_server) as replicas, on_redis(redis_server) as world:
        await write(replicas, publisher("a"))
        await world.knows("a")
        await write_events(replicas, "a", batch(0, [1]))
        await world.believes("a", 1)
        resyncs = world.sync.counts.kv_resyncs

        await replicas.redis.client_kill_filter(_type="normal", skipme=True)
        await write_events(replicas, "a", batch(1, [2]))

        await until(lambda: world.sync.counts.kv_resyncs > resyncs)
        await world.believes("a", 2)


async def test_a_full_redis_costs_the_publication_and_not_the_reports(
    redis_server: RedisServer,
) -> None:
    async with redis_replicas(redis_server) as replicas, on_redis(redis_server) as world:
        await write(replicas, report("a"))
        await world.knows("a")
        await replicas.redis.config_set("maxmemory", "1")
        await until(lambda: world.sync.counts.faults[StoreFault.REPLY] > 0)
        reads = world.sync.counts.reads

        await until(lambda: world.sync.counts.reads > reads + 3)

        assert world.sync.state is StoreState.UP


async def test_a_gateway_without_redis_is_its_own_world() -> None:
    config = StoreConfig(**FAST)  # type: ignore[arg-type]
    store = MemoryStore(config, clock_us)
    replicas = MemoryReplicas(store)
    async with World(store, config).running() as world:
        await write(replicas, publisher("a"))
        await world.knows("a")
        await write_events(replicas, "a", batch(0, [1]))
        await world.believes("a", 1)

        assert world.sync.state is StoreState.UP
        assert world.replicas["a"].view.foreign_requests == 1, "its own load is not counted twice"


class HangingStore(MemoryStore):
    """Answers nothing: worse than any store that keeps its promise to be bounded."""

    async def read(self) -> StoreRead:
        await asyncio.Event().wait()
        raise AssertionError


async def test_the_loops_end_when_cancelled_even_if_the_store_hangs() -> None:
    config = StoreConfig(**FAST)  # type: ignore[arg-type]
    world = World(HangingStore(config, clock_us), config)
    task = asyncio.create_task(world.sync.run())
    await asyncio.sleep(0)

    task.cancel()

    _, pending = await asyncio.wait([task], timeout=10)
    assert not pending


async def test_the_loops_end_wherever_they_are_cancelled(redis_server: RedisServer) -> None:
    """In the middle of a connection, a reply, a pause: no place loses a cancellation."""
    config = StoreConfig(redis_url=redis_server.url, **PATIENT)  # type: ignore[arg-type]
    for turns in range(60):
        store = RedisStore(config, clock_us)
        task = asyncio.create_task(World(store, config).sync.run())
        for _ in range(turns):
            await asyncio.sleep(0)

        task.cancel()

        _, pending = await asyncio.wait([task], timeout=10)
        await store.close()
        assert not pending, turns


async def test_many_reports_are_taken_in_a_few_at_a_time() -> None:
    config = StoreConfig(**FAST)  # type: ignore[arg-type]
    store = MemoryStore(config, clock_us)
    await write(MemoryReplicas(store), *(report(f"r{number}") for number in range(300)))
    world = World(store, config)
    known = [0]

    async with world.running():
        while known[-1] < 300:
            await asyncio.sleep(0)
            known.append(len(world.fleet.views()))

    assert max(after - before for before, after in pairwise(known)) <= REPORTS_PER_TURN
