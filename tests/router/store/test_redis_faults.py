"""A Redis that is away, frozen, garbled or read-only: every call ends, and says why.

A real server for what a server can do; a scripted one, which sends given bytes, for the rest.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import Redis

from contract.load_report import encode_report
from router.store.config import StoreConfig
from router.store.link import RedisLink, safe_url
from router.store.redis import RedisStore
from router.store.seam import StoreFault, StoreState, StoreUnavailableError
from tests.redis_server import RedisServer
from tests.router.store.reports import (
    LAYOUT,
    batch,
    gateway_report,
    redis_replicas,
    report,
    write,
    write_events,
)

SHORT_S = 0.15
Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def store_at(url: str, timeout_s: float = 10.0, **settings: float) -> RedisStore:
    config = StoreConfig(redis_url=url, command_timeout_s=timeout_s, **settings)  # type: ignore[arg-type]
    return RedisStore(config, lambda: 0)


@asynccontextmanager
async def scripted(answer: Answer) -> AsyncIterator[str]:
    """Yield the URL of a server that treats every connection with ``answer``."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"redis://user:LEAKED@127.0.0.1:{port}/0"
    finally:
        server.close()
        await server.wait_closed()


def saying(data: bytes) -> Answer:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65536):
            writer.write(data)
            await writer.drain()

    return answer


async def fault_of(call: Awaitable[object]) -> StoreUnavailableError:
    with pytest.raises(StoreUnavailableError) as caught:
        await call
    return caught.value


async def test_nobody_listens(redis_stopped: RedisServer) -> None:
    store = store_at(redis_stopped.url)

    error = await fault_of(store.read())

    assert (error.fault, error.state) == (StoreFault.REFUSED, StoreState.DOWN)


async def test_a_frozen_server_costs_the_timeout_and_no_more(redis_server: RedisServer) -> None:
    store = store_at(redis_server.url, timeout_s=1.0)
    await store.read()
    await store.resync("a")
    redis_server.freeze()

    errors = await asyncio.gather(
        fault_of(store.read()),
        fault_of(store.read_events(["a"])),
    )

    assert [error.fault for error in errors] == [StoreFault.TIMEOUT] * 2
    assert errors[0].state is StoreState.FROZEN
    again = await fault_of(store.publish_gateway(gateway_report("g")))
    assert again.fault is StoreFault.TIMEOUT
    redis_server.thaw()
    await store.close()


async def test_a_thawed_server_is_read_again(redis_server: RedisServer) -> None:
    store = store_at(redis_server.url, SHORT_S)
    redis_server.freeze()
    await fault_of(store.read())
    redis_server.thaw()
    async with redis_replicas(redis_server) as replicas:
        await write(replicas, report("a"))

    store = store_at(redis_server.url)
    read = await store.read()

    assert read.present == {"a"}
    await store.close()


async def test_a_restarted_server_is_used_without_a_new_store(redis_server: RedisServer) -> None:
    store = store_at(redis_server.url)
    await store.read()
    redis_server.kill()
    lost = await fault_of(store.read())
    await redis_server.start()
    async with redis_replicas(redis_server) as replicas:
        await write(replicas, report("a"))

    read = await store.read()

    assert lost.fault in (StoreFault.LOST, StoreFault.REFUSED)
    assert read.present == {"a"}
    await store.close()


async def test_a_new_link_makes_stream_positions_worthless(redis_server: RedisServer) -> None:
    store = store_at(redis_server.url)
    await store.resync("a")
    async with redis_server.client() as redis:
        await redis.client_kill_filter(_type="normal", skipme=True)
    await fault_of(store.read_events(["a"]))

    error = await fault_of(store.read_events(["a"]))

    assert "must be resynced" in str(error)
    await store.close()


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"-LOADING Redis is loading the dataset in memory\r\n", StoreFault.LOADING),
        (b"-NOAUTH Authentication required.\r\n", StoreFault.AUTH),
        (b"-WRONGPASS invalid username-password pair\r\n", StoreFault.AUTH),
        (b"?\x00\x01 these are no bytes of Redis\r\n", StoreFault.PROTOCOL),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", StoreFault.PROTOCOL),
    ],
)
async def test_a_greeting_that_is_none_is_told_apart(data: bytes, fault: StoreFault) -> None:
    async with scripted(saying(data)) as url:
        store = store_at(url)

        error = await fault_of(store.read())

        assert error.fault is fault
        assert "LEAKED" not in str(error)
        await store.close()


@pytest.mark.parametrize(
    "reply",
    [b"+OK\r\n", b":1\r\n", b"$-1\r\n", b"*0\r\n", b"*1\r\n$1\r\nx\r\n", b"*-1\r\n", b"_\r\n"],
)
async def test_replies_of_another_shape_end_in_an_error_or_an_empty_read(reply: bytes) -> None:
    """The handshake takes any reply; then every command gets this one."""
    async with scripted(saying(reply * 10)) as url:
        store = store_at(url.replace("user:LEAKED@", ""), SHORT_S)

        calls = (store.read(), store.resync("a"), store.read_events(["a"]))
        results = [await asyncio.gather(call, return_exceptions=True) for call in calls]

        errors = [result for (result,) in results if isinstance(result, BaseException)]
        assert all(isinstance(error, StoreUnavailableError) for error in errors)
        await store.close()


async def test_a_connection_that_breaks_in_a_reply_is_lost() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        greeted = 0
        while await reader.read(65536):
            greeted += 1
            writer.write(b"+OK\r\n+OK\r\n" if greeted < 3 else b"*2\r\n$5\r\nab")
            await writer.drain()
            if greeted >= 3:
                return

    async with scripted(answer) as url:
        store = store_at(url, SHORT_S)

        error = await fault_of(store.read())

        assert error.fault in (StoreFault.LOST, StoreFault.REPLY, StoreFault.TIMEOUT)
        await store.close()


async def test_a_cancelled_call_never_leaves_its_reply_to_the_next(
    redis_server: RedisServer,
) -> None:
    """Cut a call at many moments; each next call on the link must get its own reply."""
    link = RedisLink(redis_server.url, 10.0)
    async with redis_server.client() as redis:
        await redis.set("late", "wrong")
        await redis.set("mine", "right")

        for turns in range(40):
            late = asyncio.ensure_future(link.call([("GET", "late")] * 3))
            for _ in range(turns):
                await asyncio.sleep(0)
            late.cancel()
            await asyncio.wait([late])

            assert await link.call([("GET", "mine")]) == [b"right"]
    await link.close()


async def test_a_former_master_is_left_for_the_address_asked_again(
    redis_server: RedisServer,
) -> None:
    """A proxy leads new connections elsewhere, as a name would after a failover."""
    store = store_at(redis_server.url)
    await store.publish_gateway(gateway_report("g"))
    await store.resync("a")
    connections = await clients_of(redis_server)
    async with redis_server.client() as redis:
        await redis.replicaof("127.0.0.1", "1")
        error = await fault_of(store.publish_gateway(gateway_report("g")))
        await redis.replicaof("NO", "ONE")

    await store.publish_gateway(gateway_report("g"))
    await store.resync("a")

    assert error.fault is StoreFault.READ_ONLY
    assert len(connections) == 2
    assert not connections & await clients_of(redis_server)
    await store.close()


async def clients_of(server: RedisServer) -> set[str]:
    async with server.client() as redis:
        listed = await redis.client_list()
        own = str(await redis.client_id())
    return {client["id"] for client in listed if client["id"] != own}


async def test_one_replicas_broken_stream_leaves_the_others_readable(
    redis_server: RedisServer,
) -> None:
    store = store_at(redis_server.url)
    async with redis_replicas(redis_server) as replicas:
        await replicas.redis.set(LAYOUT.kv_events("broken"), "no stream")
        await write_events(replicas, "sound", batch(0))

        error = await fault_of(store.resync("broken"))
        sound = await store.resync("sound")

    assert error.fault is StoreFault.REPLY
    assert sound.batches == [batch(0)]
    await store.close()


async def test_a_report_of_another_redis_type_is_absent(redis_server: RedisServer) -> None:
    store = store_at(redis_server.url)
    async with redis_replicas(redis_server) as replicas:
        await replicas.redis.lpush(LAYOUT.replica("list"), "x")
        await replicas.redis.sadd(LAYOUT.replicas, "list", b"\xff\xfe")
        await write(replicas, report("a"))

        read = await store.read()

    assert read.present == {"a"}
    await store.close()


async def test_ids_whose_reports_stay_away_leave_the_set(redis_server: RedisServer) -> None:
    now_us = 0
    config = StoreConfig(redis_url=redis_server.url, command_timeout_s=10.0, forget_after_s=60.0)
    store = RedisStore(config, lambda: now_us)
    async with redis_replicas(redis_server) as replicas:
        redis = replicas.redis
        await redis.sadd(LAYOUT.replicas, "dead")
        await redis.sadd(LAYOUT.gateways, "dead gateway")
        await write(replicas, report("alive"))
        await redis.persist(LAYOUT.replica("alive"))
        await store.read()
        now_us = 59_999_999
        await store.read()
        await store.publish_gateway(gateway_report("own"))
        before = await members(redis)
        now_us = 60_000_000

        await store.publish_gateway(gateway_report("own"))

        assert before == {b"dead", b"alive", b"dead gateway", b"own"}
        assert await members(redis) == {b"alive", b"own"}
    await store.close()


async def members(redis: Redis) -> set[bytes | str]:
    return {*await redis.smembers(LAYOUT.replicas), *await redis.smembers(LAYOUT.gateways)}


async def test_a_returning_replicas_absence_is_counted_anew(redis_server: RedisServer) -> None:
    now_us = 0
    config = StoreConfig(redis_url=redis_server.url, command_timeout_s=10.0, forget_after_s=60.0)
    store = RedisStore(config, lambda: now_us)
    async with redis_replicas(redis_server) as replicas:
        await replicas.redis.sadd(LAYOUT.replicas, "a")
        await store.read()
        now_us = 50_000_000
        await replicas.write_report("a", encode_report(report("a")))
        await store.read()
        await replicas.redis.delete(LAYOUT.replica("a"))
        now_us = 70_000_000
        await store.read()

        await store.publish_gateway(gateway_report("own"))

        assert await members(replicas.redis) == {b"a", b"own"}
    await store.close()


async def test_a_huge_set_of_ids_is_cut(redis_server: RedisServer) -> None:
    store = store_at(redis_server.url, replicas_max=3)
    async with redis_replicas(redis_server) as replicas:
        await write(replicas, *[report(f"r{number}") for number in range(9)])

        read = await store.read()

    assert len(read.present) == 3
    await store.close()


@pytest.mark.parametrize(
    "url",
    [
        "redis://user:LEAKED@127.0.0.1:1/0",
        "redis://:LEAKED@127.0.0.1:1/0",
        "redis://127.0.0.1:1/0?password=LEAKED",
    ],
)
async def test_a_password_is_in_no_message(url: str) -> None:
    error = await fault_of(store_at(url).read())

    assert "LEAKED" not in str(error)
    assert "127.0.0.1:1" in str(error)
    assert "LEAKED" not in safe_url(url)
