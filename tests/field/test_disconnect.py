"""Clients that leave: the replica learns of it at once, in every phase, and nothing is left."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from replicas.core.sequence import FinishReason
from replicas.server.replica import Replica
from tests.field.harness import Fake, FieldGateway, gateway_of, saying, silent, streaming, tok
from tests.field.simulated import is_empty, simulated, stats_of
from tests.redis_server import RedisServer
from tests.router.gateway.running import RawClient
from tests.router.gateway.scripted_replica import Turn, deaf_port
from tests.router.gateway.wire import STREAM_HEAD, chat, chunk, post
from tests.waiting import until

SLOW_STEPS = {"fixed_decode_ms": 20.0}


async def stalling(turn: Turn) -> None:
    """Send one token, and nothing more."""
    await streaming(tok(1), ends=False)(turn)
    await turn.until_closed()


async def head_only(turn: Turn) -> None:
    """Send a stream's head, and nothing more."""
    await turn.send(STREAM_HEAD)
    await turn.until_closed()


async def leave(client: RawClient, how: str) -> None:
    """Close the connection in this way."""
    client.reset() if how == "reset" else client.close()


async def all_is_closed(a: Fake, gateway: FieldGateway) -> None:
    """Wait until the replica has seen the end, and the gateway holds nothing."""
    await until(lambda: a.num_open == 0, "the replica's connection is closed")
    await gateway.rests()
    assert gateway.load_of() == 0
    assert gateway.outcomes() == ["client_left"]
    assert gateway.status_of().breaker.value == "closed"


@pytest.mark.parametrize("how", ["fin", "reset"])
@pytest.mark.parametrize("stream", [False, True])
async def test_dis_01_the_replica_is_told_while_it_has_not_answered(how: str, stream: bool) -> None:
    async with Fake(silent) as a, gateway_of(a) as gateway:
        client = await gateway.connect()
        await client.send(post(chat(stream=stream)))
        await a.is_asked()
        await leave(client, how)

        await all_is_closed(a, gateway)


@pytest.mark.parametrize("how", ["fin", "reset"])
async def test_dis_01_nothing_is_sent_for_a_client_that_left_while_connecting(how: str) -> None:
    with deaf_port() as port:
        async with gateway_of(f"http://127.0.0.1:{port}", connect_timeout_s=20.0) as gateway:
            client = await gateway.connect()
            await client.send(post(chat()))
            await until(lambda: gateway.load_of("r0") == 1)
            await leave(client, how)
            await gateway.rests()

            assert gateway.outcomes() == ["client_left"]


async def test_dis_01_a_client_that_leaves_the_queue_is_never_sent() -> None:
    async with Fake(silent) as a, gateway_of(a, in_flight_max=1) as gateway:
        first, second = await gateway.connect(), await gateway.connect()
        await first.send(post(chat("first")))
        await a.is_asked()
        await second.send(post(chat("second")))
        await until(lambda: gateway.plane.stats().queued == 1)
        second.close()
        await until(lambda: gateway.plane.stats().queued == 0)
        first.close()
        await gateway.rests()

    assert len(a.asked) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_dis_01_the_engine_stops_and_frees_its_blocks(stream: bool) -> None:
    async with simulated(**SLOW_STEPS) as s, gateway_of(s.url) as gateway:
        client = await gateway.connect()
        await client.send(post(chat("word " * 200, stream=stream, max_tokens=2000)))
        await until(lambda: stats_of(s).kv_blocks_used > 0)
        client.close()

        await is_empty(s)
        assert stats_of(s).aborted_total == 1
        await gateway.rests()


async def test_dis_01_a_client_that_only_finished_sending_gets_its_answer() -> None:
    go_on = asyncio.Event()

    async def later(turn: Turn) -> None:
        await go_on.wait()
        await saying("a")(turn)

    async with Fake(later) as a, gateway_of(a) as gateway:
        client = await gateway.connect()
        await client.send(post(chat()))
        client.finish_sending()
        await a.is_asked()
        go_on.set()

        assert (await client.answer()).status == 200


@pytest.mark.parametrize("how", ["fin", "reset"])
@pytest.mark.parametrize("play", [stalling, head_only])
async def test_dis_02_the_replica_is_told_while_it_stalls(how: str, play: object) -> None:
    async with Fake(stalling if play is stalling else head_only) as a, gateway_of(a) as gateway:
        client = await gateway.connect()
        await client.send(post(chat(stream=True)))
        await a.is_asked()
        if play is stalling:
            await client.reader.readuntil(b"t1")
        await leave(client, how)

        await all_is_closed(a, gateway)


@pytest.mark.parametrize("wreck", [b"1f4\r\nabc", b"1f", b"zz\r\n", b""])
async def test_dis_04_a_connection_that_breaks_in_its_framing_leaves_no_load(wreck: bytes) -> None:
    async def broken(turn: Turn) -> None:
        await turn.send(STREAM_HEAD + chunk(tok(1)) + wreck)
        turn.reset()

    tolerant = {"breaker_failures": 1000, "breaker_window_requests": 1000}
    async with (
        Fake(broken, "a") as a,
        Fake(replica_id="b") as b,
        gateway_of(a, b, policy="round_robin", **tolerant) as gateway,
    ):
        for _ in range(50):
            client = await gateway.connect()
            await client.send(post(chat(stream=True), "Connection: close"))
            await client.rest()
        await gateway.rests()
        assert gateway.load_of("a") == gateway.load_of("b") == 0
        a.play, before = b.play, (len(a.asked), len(b.asked))
        for _ in range(10):
            assert (await gateway.chat()).status == 200

    assert (len(a.asked) - before[0], len(b.asked) - before[1]) == (5, 5)


async def test_dis_05_leaving_frees_all_choices_of_a_request() -> None:
    async with simulated(fixed_decode_ms=5.0, kv_blocks=600) as s, gateway_of(s.url) as gateway:
        for _ in range(10):
            client = await gateway.connect()
            await client.send(post(chat("w " * 500, stream=True, n=4, max_tokens=2000)))
            await client.reader.readuntil(b"data: ")
            client.close()
            await is_empty(s)
        aborted = s.driver.metrics.finished[FinishReason.ABORT]
        whole = await gateway.chat("v " * 500, n=4, max_tokens=4)

    assert aborted == stats_of(s).aborted_total == 40
    assert whole.status == 200
    assert s.driver.num_live == 0


@asynccontextmanager
async def filled(replica: Replica, gateway: FieldGateway, count: int) -> AsyncIterator[None]:
    """Have ``count`` clients wait for answers; at the end they all leave at once."""
    clients = [await gateway.connect() for _ in range(count)]
    for client in clients:
        await client.send(post(chat("w " * 300, max_tokens=2000)))
    await until(lambda: stats_of(replica).running_requests > 0)
    yield
    for client in clients:
        client.close()


async def test_dis_07_the_report_is_empty_when_all_have_left_at_once(
    redis_server: RedisServer,
) -> None:
    settings = {"redis_url": redis_server.url, "report_interval_ms": 20, "replica_id": "s"}
    async with (
        simulated(**settings, **SLOW_STEPS, max_num_seqs=10) as s,
        gateway_of(redis_url=redis_server.url) as gateway,
    ):

        def reported() -> tuple[int | None, int | None, int | None]:
            report = gateway.status_of("s").report
            assert report is not None
            return report.running_requests, report.waiting_requests, report.kv_blocks_used

        await gateway.knows("s")
        async with filled(s, gateway, 20):
            await until(lambda: reported()[:2] == (10, 10), "the load is reported")

        await until(lambda: reported() == (0, 0, 0), "the report is empty")
