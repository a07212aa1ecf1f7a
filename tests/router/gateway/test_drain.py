"""Draining and the queue: what runs may finish, what is new is refused, what is left is cut."""

import asyncio
import json
from functools import partial

import pytest

from contract.failures import Failure
from router.core.reason import Outcome, Reason
from tests.router.gateway.running import RunningGateway, gateway_of
from tests.router.gateway.scripted_replica import (
    ScriptedReplica,
    Turn,
    answering,
    never_answering,
)
from tests.router.gateway.wire import (
    DONE,
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

GOOD = answering(ok(completion()))


def runs(gateway: RunningGateway, num_exchanges: int) -> bool:
    return gateway.plane.stats().exchanges == num_exchanges


async def test_a_draining_gateway_refuses_what_is_new_and_closes_its_connection() -> None:
    async with ScriptedReplica(GOOD) as replica, gateway_of(replica) as gateway:
        kept = await gateway.connect()
        before = await kept.ask(post(chat()))
        gateway.plane.drain()
        refused = await kept.ask(post(chat()))
        rest = await kept.rest()
        ready = await gateway.ask(get("/ready"))
        health = await gateway.ask(get("/health"))

    assert before.status == 200
    assert (refused.status, refused.code) == (503, "draining")
    assert (refused.value("retry-after"), refused.value("connection")) == ("1", "close")
    assert rest == b""
    assert (ready.status, ready.code, health.status) == (503, "draining", 200)


@pytest.mark.parametrize("part", [30, 200])
async def test_a_request_that_is_on_its_way_at_the_end_is_answered(part: int) -> None:
    request = post(chat("x" * 1000))
    async with ScriptedReplica(GOOD) as replica, gateway_of(replica) as gateway:
        client = await gateway.connect()
        await client.send(request[:part])
        await until(lambda: gateway.plane.stats().clients == 1)
        stopping = asyncio.create_task(gateway.plane.stop(1))
        answer = await client.answer()
        client.close()
        await stopping

    assert (answer.status, answer.code, answer.value("connection")) == (503, "draining", "close")
    assert not replica.requests


async def test_what_runs_may_finish_and_its_connection_then_closes() -> None:
    go_on = asyncio.Event()

    async def script(turn: Turn) -> None:
        await go_on.wait()
        await turn.send(ok(completion()))

    async with ScriptedReplica(script) as replica, gateway_of(replica) as gateway:
        client = await gateway.connect()
        await client.send(post(chat()))
        await replica.arrived.wait()
        stopping = asyncio.create_task(gateway.plane.stop(20.0))
        await until(lambda: gateway.plane.stats().is_draining)
        go_on.set()
        answer = await client.answer()
        rest = await client.rest()
        await stopping

    assert (answer.status, answer.body) == (200, completion())
    assert (answer.value("connection"), rest) == ("close", b"")


@pytest.mark.parametrize("is_stream", [True, False])
async def test_what_outlasts_the_drain_is_cut_so_that_its_client_sees_it(is_stream: bool) -> None:
    async def stream(turn: Turn) -> None:
        if is_stream:
            await turn.send(STREAM_HEAD + chunk(event("t")))
        await turn.until_closed()

    async with ScriptedReplica(stream) as replica, gateway_of(replica) as gateway:
        client = await gateway.connect()
        await client.send(post(chat(stream=is_stream)))
        reading = asyncio.create_task(client.answer())
        await replica.arrived.wait()
        if is_stream:  # until its first event has been passed on
            await until(lambda: gateway.fleet.views()[0].view.own_ahead_tokens == 0)
        await gateway.plane.stop(0.05)
        answer = await reading
        record = await gateway.record()
        await until(lambda: replica.num_open == 0)

    assert record.failure is Failure.DRAINING
    if is_stream:
        assert not answer.is_whole
        error = json.loads(answer.body.split(b"\n\n")[1].removeprefix(b"data: "))["error"]
        assert error["code"] == "draining"
        assert record.outcome is Outcome.BROKEN
    else:
        assert (answer.status, answer.code) == (503, "draining")
        assert record.outcome is Outcome.REFUSED


async def test_a_stopped_gateway_refuses_connections_and_leaves_none_open() -> None:
    async with ScriptedReplica(GOOD) as replica, gateway_of(replica) as gateway:
        client = await gateway.connect()
        await client.ask(post(chat()))
        await gateway.plane.stop(1.0)
        rest = await client.rest()
        with pytest.raises(ConnectionRefusedError):
            await gateway.connect()
        await until(lambda: replica.num_open == 0)

    assert rest == b""


async def test_requests_beyond_a_replicas_limit_wait_and_are_served_in_order() -> None:
    go_on = asyncio.Event()

    async def script(turn: Turn) -> None:
        await go_on.wait()
        await turn.send(ok(turn.request.body))

    async with (
        ScriptedReplica(script) as replica,
        gateway_of(replica, routing={"in_flight_max": 1}) as gateway,
    ):
        clients = [await gateway.connect() for _ in range(4)]
        for index, client in enumerate(clients):
            await client.send(post(chat(f"{index}")))
            await until(partial(runs, gateway, index + 1))
        queued = gateway.plane.stats().queued
        go_on.set()
        answers = [await client.answer() for client in clients]

    assert queued == 3
    assert [answer.status for answer in answers] == [200] * 4
    assert [request.body for request in replica.requests] == [chat(f"{i}") for i in range(4)]


async def test_a_full_queue_refuses_and_a_long_wait_ends() -> None:
    routing = {"in_flight_max": 1, "queue_max": 1, "queue_timeout_s": 1.0}
    async with (
        ScriptedReplica(never_answering) as replica,
        gateway_of(replica, routing=routing) as gateway,
    ):
        running = await gateway.connect()
        await running.send(post(chat("running")))
        await replica.arrived.wait()
        waiting = asyncio.create_task(gateway.chat("waiting"))
        await until(lambda: gateway.plane.stats().queued == 1)
        refused = await gateway.chat("refused")
        late = await waiting
        running.close()

    assert (refused.status, refused.code, refused.value("retry-after")) == (503, "overloaded", "1")
    assert (late.status, late.code) == (503, "overloaded")
    assert [record.reason for record in gateway.records[:2]] == [Reason.QUEUE_FULL, Reason.QUEUED]


async def test_a_queued_request_ends_with_the_drain() -> None:
    async with (
        ScriptedReplica(never_answering) as replica,
        gateway_of(replica, routing={"in_flight_max": 1}) as gateway,
    ):
        running = await gateway.connect()
        await running.send(post(chat("running")))
        await replica.arrived.wait()
        waiting = asyncio.create_task(gateway.chat("waiting"))
        await until(lambda: gateway.plane.stats().queued == 1)
        await gateway.plane.stop(0.0)
        answer = await waiting

    assert (answer.status, answer.code) == (503, "draining")


async def test_a_stream_may_end_in_order_within_the_drain() -> None:
    go_on = asyncio.Event()
    events = [event("a"), event("b", "stop"), DONE]

    async def script(turn: Turn) -> None:
        await turn.send(STREAM_HEAD + chunk(events[0]))
        await go_on.wait()
        await turn.send_pieces(*map(chunk, events[1:]), LAST_CHUNK)

    async with ScriptedReplica(script) as replica, gateway_of(replica) as gateway:
        client = await gateway.connect()
        await client.send(post(chat(stream=True)))
        await replica.arrived.wait()
        stopping = asyncio.create_task(gateway.plane.stop(20.0))
        await until(lambda: gateway.plane.stats().is_draining)
        go_on.set()
        answer = await client.answer()
        await stopping

    assert answer.is_whole
    assert answer.body == b"".join(events)
