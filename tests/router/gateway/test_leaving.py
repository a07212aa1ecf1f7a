"""A client that leaves takes its request with it, in every phase.

One that has only finished sending does not, although both look alike at first.
"""

import asyncio
from collections.abc import Callable

import pytest

from router.core.exchange import State
from router.core.reason import Outcome
from router.gateway.config import Failover
from router.gateway.exchange import Exchange
from tests.router.gateway.running import RawClient, RunningGateway, gateway_of
from tests.router.gateway.scripted_replica import (
    Script,
    ScriptedReplica,
    Turn,
    deaf_port,
    never_answering,
)
from tests.router.gateway.wire import DONE, LAST_CHUNK, STREAM_HEAD, chat, chunk, event, ok, post
from tests.waiting import until

LEAVING = pytest.mark.parametrize("leave", [RawClient.close, RawClient.reset], ids=["fin", "rst"])
Leave = Callable[[RawClient], None]


async def stall_in_head(turn: Turn) -> None:
    await turn.send(b"HTTP/1.1 200 OK\r\nX: ")
    await turn.until_closed()


async def stall_before_first_event(turn: Turn) -> None:
    await turn.send(STREAM_HEAD)
    await turn.until_closed()


async def stall_in_stream(turn: Turn) -> None:
    await turn.send(STREAM_HEAD + chunk(event("t")))
    await turn.until_closed()


async def stall_in_chunk(turn: Turn) -> None:
    await turn.send(STREAM_HEAD + chunk(event("t")) + b"1f4\r\ndata")
    await turn.until_closed()


async def stall_in_length(turn: Turn) -> None:
    await turn.send(ok(b"x" * 100)[:-50])
    await turn.until_closed()


async def stall_in_refusal(turn: Turn) -> None:
    await turn.send(ok(b"x" * 100, status="503 Busy")[:-50])
    await turn.until_closed()


async def trickle(turn: Turn) -> None:
    await turn.send(STREAM_HEAD)
    while True:
        await turn.send(chunk(event("t")))
        await asyncio.sleep(0.001)


def in_flight(gateway: RunningGateway) -> int:
    return sum(status.view.own_requests for status in gateway.fleet.views())


@LEAVING
@pytest.mark.parametrize(
    "script",
    [
        *(never_answering, stall_in_head, stall_before_first_event, stall_in_stream),
        *(stall_in_chunk, stall_in_length, stall_in_refusal, trickle),
    ],
)
@pytest.mark.parametrize("version", ["1.1", "1.0"])
async def test_the_replica_is_told_when_the_client_leaves(
    script: Script, leave: Leave, version: str
) -> None:
    async with (
        ScriptedReplica(script) as replica,
        gateway_of(replica, half_closed_within_s=0.0) as gateway,
    ):
        client = await gateway.connect()
        await client.send(post(chat(stream=True), version=version))
        await replica.arrived.wait()
        assert in_flight(gateway) == 1
        await asyncio.sleep(0.01)  # into the middle of the phase; any other moment is as good

        leave(client)
        await until(lambda: replica.num_open == 0, "the replica's connection is closed")
        record = await gateway.record()

    assert record.outcome is Outcome.CLIENT_LEFT
    assert in_flight(gateway) == 0
    assert len(replica.requests) == 1
    assert gateway.fleet.views()[0].standing is None  # it says nothing about the replica


@LEAVING
async def test_a_client_that_leaves_while_connecting_is_forgotten(leave: Leave) -> None:
    with deaf_port() as port:
        async with gateway_of(f"http://127.0.0.1:{port}", connect_timeout_s=30.0) as gateway:
            client = await gateway.connect()
            await client.send(post(chat()))
            await until(lambda: in_flight(gateway) == 1)

            leave(client)
            record = await gateway.record()

    assert record.outcome is Outcome.CLIENT_LEFT


@LEAVING
async def test_a_client_that_leaves_the_queue_is_forgotten(leave: Leave) -> None:
    async with (
        ScriptedReplica(never_answering) as replica,
        gateway_of(replica, routing={"in_flight_max": 1}) as gateway,
    ):
        running, waiting = await gateway.connect(), await gateway.connect()
        await running.send(post(chat("first")))
        await replica.arrived.wait()
        await waiting.send(post(chat("second")))
        await until(lambda: gateway.plane.stats().queued == 1)

        leave(waiting)
        await until(lambda: gateway.plane.stats().queued == 0)
        leave(running)
        await gateway.record()

    assert [record.outcome for record in gateway.records] == [Outcome.CLIENT_LEFT] * 2
    assert len(replica.requests) == 1


@LEAVING
async def test_a_client_that_leaves_while_a_retry_waits_is_forgotten(leave: Leave) -> None:
    async def close(turn: Turn) -> None:
        turn.close()

    backoff = {"retry_backoff_s": 30.0, "retry_backoff_max_s": 30.0}
    async with (
        ScriptedReplica(close) as replica,
        gateway_of(replica, "http://127.0.0.1:1", routing=backoff) as gateway,
    ):
        client = await gateway.connect()
        await client.send(post(chat()))
        await until(lambda: gateway.plane.stats().exchanges == 1 and in_flight(gateway) == 0)

        leave(client)
        record = await gateway.record()

    assert record.outcome is Outcome.CLIENT_LEFT


@LEAVING
async def test_a_client_that_leaves_within_its_request_leaves_nothing(leave: Leave) -> None:
    async with gateway_of() as gateway:
        client = await gateway.connect()
        await client.send(post(b"x" * 1000)[:-1])
        await until(lambda: gateway.plane.stats().buffered_bytes > 0)

        leave(client)
        await until(lambda: gateway.plane.stats().clients == 0)

    assert gateway.records == []


@LEAVING
async def test_requests_behind_that_of_a_client_who_left_are_not_served(leave: Leave) -> None:
    async with ScriptedReplica(never_answering) as replica, gateway_of(replica) as gateway:
        client = await gateway.connect()
        await client.send(post(chat("first")) + post(chat("second")))
        await replica.arrived.wait()

        leave(client)
        await gateway.record()

    assert len(replica.requests) == 1


async def test_fifty_clients_that_leave_at_once_leave_nothing() -> None:
    async with ScriptedReplica(stall_in_stream) as replica, gateway_of(replica) as gateway:
        clients = [await gateway.connect() for _ in range(50)]
        for client in clients:
            await client.send(post(chat(stream=True)))
        await until(lambda: len(replica.requests) == 50)

        for client in clients:
            client.close()
        await until(lambda: replica.num_open == 0)

    assert [record.outcome for record in gateway.records] == [Outcome.CLIENT_LEFT] * 50


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_client_that_has_only_finished_sending_gets_its_answer(is_stream: bool) -> None:
    go_on = asyncio.Event()
    events = [event("a"), event("b", "stop"), DONE]

    async def script(turn: Turn) -> None:
        if is_stream:
            await turn.send(STREAM_HEAD + chunk(events[0]))
            await go_on.wait()
            await turn.send_pieces(*map(chunk, events[1:]), LAST_CHUNK)
        else:
            await go_on.wait()
            await turn.send(ok(b"{}"))

    async with ScriptedReplica(script) as replica, gateway_of(replica) as gateway:
        client = await gateway.connect()
        await client.send(post(chat(stream=is_stream)))
        await replica.arrived.wait()
        await asyncio.sleep(0.01)
        client.finish_sending()
        await asyncio.sleep(0.1)  # long enough for two sweeps and a probe to find it gone
        go_on.set()
        answer = await client.answer()
        rest = await client.rest()
        record = await gateway.record()

    assert answer.is_whole
    assert answer.body == (b"".join(events) if is_stream else b"{}")
    assert rest == b""
    assert record.outcome is Outcome.COMPLETE


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_client_of_http_1_0_that_has_only_finished_sending_gets_its_answer(
    is_stream: bool,
) -> None:
    async def script(turn: Turn) -> None:
        await asyncio.sleep(0.1)  # long enough for some sweeps to find the client gone
        await turn.send(STREAM_HEAD + chunk(DONE) + LAST_CHUNK if is_stream else ok(b"{}"))

    async with (
        ScriptedReplica(script) as replica,
        gateway_of(replica, half_closed_within_s=30.0) as gateway,
    ):
        client = await gateway.connect()
        await client.send(post(chat(stream=is_stream), version="1.0"))
        client.finish_sending()
        answer = await client.answer()

    assert answer.is_whole
    assert answer.body == (DONE if is_stream else b"{}")


async def test_a_client_of_http_1_0_that_left_at_once_is_noticed_by_the_next_bytes() -> None:
    async with (
        ScriptedReplica(trickle) as replica,
        gateway_of(replica, half_closed_within_s=30.0) as gateway,
    ):
        client = await gateway.connect()
        await client.send(post(chat(stream=True), version="1.0"))
        client.close()
        await until(lambda: bool(replica.requests) and replica.num_open == 0)
        record = await gateway.record()

    assert record.outcome is Outcome.CLIENT_LEFT


async def test_pipelined_requests_of_a_client_that_has_finished_sending_are_all_answered() -> None:
    async def script(turn: Turn) -> None:
        await asyncio.sleep(0.03)
        await turn.send(ok(turn.request.body))

    bodies = [chat(text) for text in ("a", "b", "c")]
    async with ScriptedReplica(script) as replica, gateway_of(replica) as gateway:
        client = await gateway.connect()
        await client.send(b"".join(map(post, bodies)))
        client.finish_sending()
        answers = [await client.answer() for _ in bodies]
        rest = await client.rest()

    assert [answer.body for answer in answers] == bodies
    assert rest == b""


async def test_a_client_that_has_finished_sending_is_still_noticed_when_it_leaves() -> None:
    async with ScriptedReplica(stall_in_stream) as replica, gateway_of(replica) as gateway:
        client = await gateway.connect()
        await client.send(post(chat(stream=True)))
        await replica.arrived.wait()
        client.finish_sending()
        await asyncio.sleep(0.1)
        assert in_flight(gateway) == 1

        client.reset()
        await until(lambda: in_flight(gateway) == 0)
        record = await gateway.record()

    assert record.outcome is Outcome.CLIENT_LEFT


def began_to_answer(gateway: RunningGateway) -> bool:
    (client,) = gateway.plane._clients
    exchange = client._exchange
    return isinstance(exchange, Exchange) and exchange.state is State.STREAMING


async def test_a_client_that_has_finished_sending_gets_no_byte_before_the_head() -> None:
    """With failover the head waits for the first whole event."""

    async def script(turn: Turn) -> None:
        await turn.send(STREAM_HEAD + chunk(b"data: {"))
        await turn.until_closed()

    async with (
        ScriptedReplica(script) as replica,
        gateway_of(replica, failover=Failover.RESUME) as gateway,
    ):
        client = await gateway.connect()
        await client.send(post(chat(stream=True, max_tokens=9)))
        await until(lambda: began_to_answer(gateway))
        client.finish_sending()
        line = await client.line()
        client.reset()

    assert line == b"HTTP/1.1 100 Continue\r\n"
