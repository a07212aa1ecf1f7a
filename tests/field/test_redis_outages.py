"""Redis delayed, frozen, refusing, confused or replaced: no request feels it."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.field.harness import Fake, FieldGateway, gateway_of, listening, refusing
from tests.field.redis_side import RedisShim, Reporter, reporting
from tests.field.simulated import simulated
from tests.redis_server import RedisServer
from tests.router.gateway.wire import chat, post
from tests.waiting import until
from warmroute.demo.redis_server import find_redis

IMPATIENT = {"command_timeout_s": 0.1, "reconnect_max_s": 0.1}


@asynccontextmanager
async def behind_shim(
    server: RedisServer, *fakes: Fake, **settings: object
) -> AsyncIterator[tuple[RedisShim, Reporter, FieldGateway]]:
    """Run a gateway that reads the reports of ``fakes`` through a shim."""
    async with (
        RedisShim(server.port) as shim,
        reporting(server, *fakes) as say,
        gateway_of(redis_url=shim.url, **IMPATIENT | settings) as gateway,
    ):
        await gateway.knows(*(fake.replica_id for fake in fakes))
        yield shim, say, gateway


async def ask_many(gateway: FieldGateway, count: int) -> Counter[int]:
    """Send so many requests on one connection; return their statuses."""
    client = await gateway.connect()
    return Counter([(await client.ask(post(chat()))).status for _ in range(count)])


async def test_red_01_replies_are_never_swapped(redis_server: RedisServer) -> None:
    fakes = [Fake(replica_id=name) for name in "abc"]
    async with listening(fakes), behind_shim(redis_server, *fakes) as (shim, say, gw):
        for number, fake in enumerate(fakes, start=1):
            say.say(fake, running_requests=number)
        shim.delay_s = 0.05

        async def leave_after(delay_s: float) -> None:
            client = await gw.connect()
            await client.send(post(chat()))
            await asyncio.sleep(delay_s)
            client.close()

        await asyncio.gather(*(leave_after(index / 1000) for index in range(0, 150, 3)))
        shim.delay_s = 0.2  # beyond the time limit: commands are given up
        await until(lambda: gw.parts.sync.counts.faults.total() > 2)
        shim.delay_s = 0.0

        def reported() -> list[int | None]:
            reports = [gw.status_of(name).report for name in "abc"]
            return [None if report is None else report.running_requests for report in reports]

        await until(lambda: gw.parts.sync.state.value == "up")
        await until(lambda: reported() == [1, 2, 3], "each replica has its own load")
        assert gw.parts.sync.counts.undecodable == 0
        assert await ask_many(gw, 20) == {200: 20}


@pytest.mark.parametrize("how", ["shim", "server"])
async def test_red_02_a_frozen_redis_is_not_felt(redis_server: RedisServer, how: str) -> None:
    limits = {"report_stale_s": 0.1, "report_dead_s": 0.2}
    async with (
        Fake() as a,
        Fake(replica_id="b") as b,
        behind_shim(redis_server, a, b, policy="round_robin", **limits) as (shim, _, gateway),
    ):
        shim.freeze() if how == "shim" else redis_server.freeze()
        try:
            await until(lambda: gateway.parts.sync.state.value != "up")
            a.asked.clear()
            b.asked.clear()
            statuses = await ask_many(gateway, 50)
        finally:
            redis_server.thaw()
        longest_us = max(r.ended_us - r.received_us for r in gateway.records)

    assert statuses == {200: 50}
    assert (len(a.asked), len(b.asked)) == (25, 25)
    assert longest_us < 20_000_000


GARBAGE = {
    "loading": b"-LOADING Redis is loading the dataset in memory\r\n",
    "out_of_memory": b"-OOM command not allowed when used memory > 'maxmemory'.\r\n",
    "no_password": b"-NOAUTH Authentication required.\r\n",
    "moved": b"-MOVED 1234 127.0.0.1:1\r\n",
    "bytes": b"\x00\xff\xfe garbage \r\n\r\n",
    "half_a_bulk": b"$100\r\nabc",
    "wrong_type": b":42\r\n",
    "null": b"$-1\r\n",
}


@pytest.mark.parametrize("reply", GARBAGE)
async def test_red_04_what_redis_says_never_changes_a_status(
    redis_server: RedisServer, reply: str
) -> None:
    async with Fake() as a, behind_shim(redis_server, a) as (shim, _, gateway):
        counts = gateway.parts.sync.counts
        shim.reply = GARBAGE[reply]
        await until(lambda: counts.faults.total() + counts.undecodable > 0)
        statuses = await ask_many(gateway, 50)
        shim.reply = None
        await shim.cut()
        await until(lambda: gateway.parts.sync.state.value == "up")
        statuses += await ask_many(gateway, 10)

    assert statuses == {200: 60}
    assert "Traceback" not in gateway.log.getvalue()


@pytest.mark.parametrize("how", ["refused", "reset"])
async def test_red_04_a_link_that_breaks_never_changes_a_status(
    redis_server: RedisServer, how: str
) -> None:
    async with Fake() as a, behind_shim(redis_server, a) as (shim, _, gateway):
        if how == "refused":
            await shim.refuse()
        else:
            shim.resets = True
        await until(lambda: gateway.parts.sync.state.value != "up")
        statuses = await ask_many(gateway, 50)
        if how == "refused":
            await shim.listen()
        shim.resets = False
        await until(lambda: gateway.parts.sync.state.value == "up")

    assert statuses == {200: 50}


async def test_red_05_a_server_that_became_a_replica_is_left(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    settings = {"replica_id": "s", "report_interval_ms": 20, "redis_retry_ms": 20}
    second = RedisServer(find_redis().path, tmp_path)
    async with RedisShim(redis_server.port) as shim:
        redis = {"redis_url": shim.url}
        try:
            await second.start()
            async with (
                simulated(**settings, **redis),
                gateway_of(**redis, reconnect_max_s=0.1) as gateway,
            ):
                await gateway.knows("s")
                shim.target_port = second.port  # of new connections; the old ones stay open
                async with redis_server.client() as old:
                    await old.replicaof("127.0.0.1", second.port)
                await is_written(second, "replica:s", "gateway:*")
                faults = gateway.parts.sync.counts.faults.total()
                sequence = last_sequence(gateway)
                await until(lambda: last_sequence(gateway) > sequence + 3)

                assert gateway.parts.sync.counts.faults.total() == faults < 20
        finally:
            second.kill()


async def is_written(server: RedisServer, *patterns: str) -> None:
    """Wait until there is a key of each pattern."""
    async with asyncio.timeout(20), server.client() as redis:
        for pattern in patterns:
            while not await redis.keys(f"*{pattern}"):  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(0.02)


def last_sequence(gateway: FieldGateway) -> int:
    """Return the number of the last report that the gateway has read."""
    report = gateway.status_of("s").report
    assert report is not None
    return report.sequence


async def test_red_07_a_slow_redis_floods_no_log(redis_server: RedisServer) -> None:
    async with Fake() as a, behind_shim(redis_server, a) as (shim, _, gateway):
        gateway.parts.plane.context.log = gateway.records.append
        faults = gateway.parts.sync.counts.faults
        shim.delay_s = 0.17
        await until(lambda: faults.total() >= 8)
        await ask_many(gateway, 100)
        lines = gateway.logged()

    # A new state is told once; a link that is opened in time and then silent changes it.
    assert len(lines) < 8 <= faults.total()
    assert not any("traceback" in line for line in lines)


async def test_red_08_a_gateway_keeps_no_cooldown_in_redis(redis_server: RedisServer) -> None:
    """Cooldowns are each gateway's own: a new one starts with none, and so cannot prolong one."""
    settings = {"redis_url": redis_server.url, "breaker_failures": 1, "breaker_cooldown_s": 20.0}
    async with (
        Fake(refusing("500 No")) as a,
        reporting(redis_server, a),
        gateway_of(**settings) as first,
    ):
        await first.knows("a")
        await first.chat()
        assert first.status_of().breaker.value == "open"
        async with gateway_of(**settings) as second:
            await second.knows("a")

            assert second.status_of().breaker.value == "closed"


@pytest.mark.parametrize("who", ["gateway", "replica"])
async def test_red_10_a_frozen_redis_holds_up_no_stop(redis_server: RedisServer, who: str) -> None:
    began = time.monotonic()
    async with RedisShim(redis_server.port) as shim:
        if who == "gateway":
            async with Fake() as a, gateway_of(a, redis_url=shim.url, **IMPATIENT) as gateway:
                await until(lambda: gateway.parts.sync.state.value == "up")
                shim.freeze()
                gateway.signals.on_signal()
                assert await asyncio.wait_for(asyncio.shield(gateway.task), 20) == 0
        else:
            settings = {"redis_timeout_ms": 100, "drain_notice_ms": 0}
            async with simulated(redis_url=shim.url, **settings):
                shim.freeze()

    assert time.monotonic() - began < 20
