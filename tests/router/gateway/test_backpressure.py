"""A slow client slows its replica down; the gateway holds a bounded part of what is between."""

import asyncio

import pytest

from router.core.reason import Outcome
from tests.router.gateway.running import gateway_of
from tests.router.gateway.scripted_replica import ScriptedReplica, Turn
from tests.router.gateway.wire import (
    LAST_CHUNK,
    STREAM_HEAD,
    chat,
    chunk,
    completion,
    event,
    get,
    ok,
    post,
)
from tests.waiting import until

BLOCK = b"data: " + b"x" * 65_000 + b"\n\n"
NUM_BLOCKS = 800  # 52 MB: far more than all buffers of two sockets


class Flood:
    """Sends until it is held up; ``sent`` counts the blocks that went off."""

    def __init__(self) -> None:
        self.sent = 0

    async def __call__(self, turn: Turn) -> None:
        await turn.send(STREAM_HEAD)
        for _ in range(NUM_BLOCKS):
            await turn.send(chunk(BLOCK))
            self.sent += 1
        await turn.send(chunk(event("", "stop")) + LAST_CHUNK)


async def is_held_up(flood: Flood) -> None:
    """Wait until the replica has not got rid of anything for a while."""
    before = -1
    while flood.sent != before or not flood.sent:
        before = flood.sent
        await asyncio.sleep(0.2)


async def test_a_client_that_does_not_read_stops_its_replica_and_then_gets_everything() -> None:
    flood = Flood()
    async with (
        ScriptedReplica(flood) as replica,
        gateway_of(replica, write_buffer_bytes_max=100_000) as gateway,
    ):
        client = await gateway.connect(limit=1000)
        await client.send(post(chat(stream=True)))
        await is_held_up(flood)
        sent_while_stopped = flood.sent
        answer = await client.answer()
        record = await gateway.record()

    assert sent_while_stopped < NUM_BLOCKS / 2
    assert answer.is_whole
    assert len(answer.body) == NUM_BLOCKS * len(BLOCK) + len(event("", "stop"))
    assert record.outcome is Outcome.COMPLETE


async def test_a_client_that_takes_nothing_is_cut_off() -> None:
    flood = Flood()
    async with (
        ScriptedReplica(flood) as replica,
        gateway_of(replica, client_write_timeout_s=1.5, between_bytes_timeout_s=1.0) as gateway,
    ):
        client = await gateway.connect(limit=1000)
        await client.send(post(chat(stream=True)))
        record = await gateway.record()
        await until(lambda: replica.num_open == 0)

    assert record.outcome is Outcome.CLIENT_LEFT
    assert flood.sent < NUM_BLOCKS


async def test_a_paused_stream_is_not_taken_for_a_stalled_replica() -> None:
    flood = Flood()
    async with (
        ScriptedReplica(flood) as replica,
        gateway_of(replica, between_bytes_timeout_s=1.0) as gateway,
    ):
        client = await gateway.connect(limit=1000)
        await client.send(post(chat(stream=True)))
        await is_held_up(flood)
        await asyncio.sleep(1.2)  # longer than the limit between bytes
        answer = await client.answer()

    assert answer.is_whole


async def test_a_client_that_leaves_while_its_stream_is_paused_is_noticed() -> None:
    flood = Flood()
    async with ScriptedReplica(flood) as replica, gateway_of(replica) as gateway:
        client = await gateway.connect(limit=1000)
        await client.send(post(chat(stream=True)))
        await is_held_up(flood)

        client.reset()
        await until(lambda: replica.num_open == 0)
        record = await gateway.record()

    assert record.outcome is Outcome.CLIENT_LEFT


async def test_slow_clients_are_cut_when_all_together_are_too_far_behind() -> None:
    flood = Flood()
    async with (
        ScriptedReplica(flood) as replica,
        gateway_of(replica, write_buffer_bytes_max=100_000, unsent_bytes_max=1) as gateway,
    ):
        slow, quick = await gateway.connect(limit=1000), await gateway.connect()
        await slow.send(post(chat(stream=True)))
        await until(lambda: len(gateway.records) == 1)
        answer = await quick.ask(get("/health"))

    assert gateway.records[0].outcome is Outcome.CLIENT_LEFT
    assert answer.status == 200


async def test_a_connection_that_was_paused_serves_the_next_request() -> None:
    large = ok(completion("x" * 30_000_000))

    async def script(turn: Turn) -> None:
        await turn.send(large if turn.index == 0 else ok(b"{}"))

    async with ScriptedReplica(script) as replica, gateway_of(replica) as gateway:
        client = await gateway.connect(limit=1000)
        await client.send(post(chat("one")))
        await asyncio.sleep(0.1)
        first = await client.answer()
        second = await client.ask(post(chat("two")))

    assert len(first.body) > 30_000_000
    assert second.body == b"{}"
    assert replica.num_connections == 1


async def test_a_large_body_reaches_a_replica_that_reads_slowly() -> None:
    body = chat("x" * 5_000_000)

    async with gateway_of() as gateway:

        async def script(turn: Turn) -> None:
            await turn.send(ok(b"%d" % len(turn.request.body)))

        async with ScriptedReplica(script) as replica:
            gateway.fleet.add_static(replica.url, "a", "m", now_us=0)
            answer = await gateway.ask(post(body))

    assert answer.body == b"%d" % len(body)


async def test_a_client_of_http_1_0_that_was_cut_off_does_not_take_its_part_for_the_whole() -> None:
    body = b"x" * 8_000_000

    async def script(turn: Turn) -> None:
        await turn.send(b"HTTP/1.1 200 OK\r\n\r\n" + body)
        turn.close()

    async with (
        ScriptedReplica(script) as replica,
        # The whole answer is in the gateway's own buffer, so the exchange ends before the client.
        gateway_of(
            replica, client_write_timeout_s=1.5, write_buffer_bytes_max=100_000_000
        ) as gateway,
    ):
        client = await gateway.connect(limit=1000)
        await client.send(post(chat(), version="1.0"))
        record = await gateway.record()
        await until(lambda: gateway.plane.stats().clients == 0, "the client is cut off")

        with pytest.raises(ConnectionResetError):
            await client.reader.read(-1)

    assert record.outcome is Outcome.COMPLETE
