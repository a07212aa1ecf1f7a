"""A replica that breaks: its client can always tell, and the gateway keeps nothing of it."""

import asyncio
import json

import pytest

from contract.failures import Failure
from router.core.reason import Outcome
from tests.router.gateway.running import RunningGateway, gateway_of
from tests.router.gateway.scripted_replica import Script, ScriptedReplica, Turn, answering
from tests.router.gateway.wire import DONE, LAST_CHUNK, STREAM_HEAD, chat, chunk, event, ok, post
from tests.waiting import until

TOKENS = [event(f"t{index}") for index in range(3)]


def breaking_after(*pieces: bytes) -> Script:
    """Return a script that sends ``pieces`` and closes the connection."""

    async def script(turn: Turn) -> None:
        await turn.send_pieces(*pieces)
        turn.close()

    return script


async def test_a_stream_that_breaks_between_events_ends_with_an_error_event() -> None:
    script = breaking_after(STREAM_HEAD, *map(chunk, TOKENS))

    async with ScriptedReplica(script) as replica, gateway_of(replica) as gateway:
        answer = await gateway.chat(stream=True)
        record = await gateway.record()

    assert not answer.is_whole  # no last chunk
    *tokens, last = answer.body.split(b"\n\n")[:-1]
    assert tokens == [token.removesuffix(b"\n\n") for token in TOKENS]
    error = json.loads(last.removeprefix(b"data: "))["error"]
    assert error["code"] == "replica_connection_lost"
    assert (record.outcome, record.failure) == (Outcome.BROKEN, Failure.UPSTREAM_LOST)


async def stream_until(last: bytes) -> tuple[bytes, RunningGateway]:
    """Return what a client gets of a stream that sends one event, then ``last``, and breaks."""
    begun = asyncio.Event()

    async def script(turn: Turn) -> None:
        await turn.send(STREAM_HEAD + chunk(TOKENS[0]))
        await begun.wait()
        await turn.send(last)
        turn.close()

    async with ScriptedReplica(script) as replica, gateway_of(replica) as gateway:
        client = await gateway.connect()
        await client.send(post(chat(stream=True)))
        while b"data:" not in (line := await client.line()):
            pass
        begun.set()
        rest = await client.rest()
        await gateway.record()
    return line + rest, gateway


@pytest.mark.parametrize(
    "last", [b"1f4\r\nabc", b"1f4\r\n", b"1f", chunk(b"data: {half"), chunk(b"data: x\n")], ids=repr
)
async def test_a_stream_that_breaks_within_an_event_is_cut_there(last: bytes) -> None:
    got, gateway = await stream_until(last)

    assert got == TOKENS[0] + b"\r\n" + last
    assert gateway.records[0].outcome is Outcome.BROKEN


@pytest.mark.parametrize("last", [b"zz\r\n", b"5\r\nabcdeXX", b"5\r\nabcde\r\nzz"], ids=repr)
async def test_bytes_that_are_no_chunks_are_not_passed_on(last: bytes) -> None:
    got, gateway = await stream_until(last)

    assert got == TOKENS[0] + b"\r\n"
    assert gateway.records[0].failure is Failure.UPSTREAM_PROTOCOL


async def test_half_a_chunk_and_a_reset_fifty_times_leave_no_load_behind() -> None:
    async def script(turn: Turn) -> None:
        await turn.send(STREAM_HEAD + b"1f4\r\nabc")
        turn.reset()

    async with (
        ScriptedReplica(script) as replica,
        gateway_of(replica, routing={"breaker_failures": 1000}) as gateway,
    ):
        for _ in range(50):
            await gateway.chat(stream=True)
        await until(lambda: gateway.is_at_rest)

    assert len(gateway.records) == 50
    assert {record.outcome for record in gateway.records} <= {Outcome.BROKEN, Outcome.REFUSED}


async def test_an_answer_shorter_than_its_length_is_cut_and_named() -> None:
    script = breaking_after(ok(b"x" * 160)[:-1])

    async with ScriptedReplica(script) as replica, gateway_of(replica) as gateway:
        answer = await gateway.chat()
        record = await gateway.record()

    assert (answer.status, answer.is_whole, len(answer.body)) == (200, False, 159)
    assert (record.outcome, record.failure) == (Outcome.BROKEN, Failure.UPSTREAM_LOST)
    assert "before its answer was whole" in record.detail


async def test_a_stream_that_breaks_for_a_client_of_http_1_0_ends_with_a_reset() -> None:
    async def script(turn: Turn) -> None:
        await turn.send(STREAM_HEAD + chunk(TOKENS[0]))
        await seen.wait()
        turn.close()

    seen = asyncio.Event()
    async with ScriptedReplica(script) as replica, gateway_of(replica) as gateway:
        client = await gateway.connect()
        await client.send(post(chat(stream=True), version="1.0"))
        while await client.line() != b"\r\n":
            pass
        seen.set()
        with pytest.raises(ConnectionResetError):
            await client.reader.readuntil(b"no such bytes")
        record = await gateway.record()

    assert record.outcome is Outcome.BROKEN


@pytest.mark.parametrize(
    "answer_bytes",
    [
        b"hello\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nX: a\rSet-Cookie: injected\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 40_000,
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 40_000 + b"\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    ],
    ids=lambda data: repr(data[:60]),
)
async def test_an_answer_that_is_not_http_becomes_a_502(answer_bytes: bytes) -> None:
    async def script(turn: Turn) -> None:
        await turn.send(answer_bytes)
        await turn.until_closed()

    async with ScriptedReplica(script) as replica, gateway_of(replica) as gateway:
        answer = await gateway.chat()
        record = await gateway.record()

    assert (answer.status, answer.code) == (502, "replica_protocol_error")
    assert (record.outcome, record.failure) == (Outcome.REFUSED, Failure.UPSTREAM_PROTOCOL)
    assert b"injected" not in answer.body


async def test_bytes_after_an_answer_of_known_length_do_not_reach_the_client() -> None:
    async def script(turn: Turn) -> None:
        await turn.send(ok(b"{}") + b"HTTP/1.1 200 OK\r\nX-Injected: 1\r\n\r\n")

    async with ScriptedReplica(script) as replica, gateway_of(replica) as gateway:
        client = await gateway.connect()
        answers = [await client.ask(post(chat())) for _ in range(2)]

    assert [answer.body for answer in answers] == [b"{}", b"{}"]
    assert not any(answer.values("x-injected") for answer in answers)
    assert replica.num_connections == 2  # such a connection is not used again


async def test_bytes_after_the_last_chunk_do_not_reach_the_client() -> None:
    begun = asyncio.Event()

    async def script(turn: Turn) -> None:
        await turn.send(STREAM_HEAD + chunk(event("t")))
        await begun.wait()
        await turn.send(chunk(DONE) + LAST_CHUNK + b"HTTP/1.1 200 OK\r\nX-Injected: 1\r\n\r\n")

    async with ScriptedReplica(script) as replica, gateway_of(replica) as gateway:
        client = await gateway.connect()
        await client.send(post(chat(stream=True)))
        while b"data:" not in await client.line():
            pass
        begun.set()
        data = await client.rest()

    assert b"X-Injected" not in data
    assert not data.endswith(LAST_CHUNK)


async def test_bytes_on_an_idle_connection_close_it() -> None:
    async def script(turn: Turn) -> None:
        await turn.send(ok(b"{}"))
        await until(lambda: gateway.plane.stats().idle_replica_connections == 1)
        await turn.send(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")

    async with ScriptedReplica(script) as replica, gateway_of(replica) as gateway:
        first = await gateway.chat()
        await until(lambda: replica.num_open == 0)
        second = await gateway.chat()

    assert [first.status, second.status] == [200, 200]
    assert replica.num_connections == 2


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://127.0.0.1:99999", "127.0.0.1:80"])
async def test_a_url_that_cannot_be_used_is_a_502_without_the_url(url: str) -> None:
    async with gateway_of(url) as gateway:
        answer = await gateway.chat()

    assert (answer.status, answer.code) == (502, "replica_connect_failed")


async def test_secrets_in_a_replicas_url_are_shown_to_nobody() -> None:
    url = "http://user:LEAKPW@127.0.0.1:1/"

    async with gateway_of() as gateway:
        gateway.fleet.add_static(url, None, "m", now_us=0)
        answer = await gateway.chat("hi", "Authorization: Bearer sk-LEAKPW")
        record = await gateway.record()

    assert answer.status == 502
    assert b"LEAKPW" not in answer.body
    assert "LEAKPW" not in repr(answer.headers)
    assert "LEAKPW" not in record.detail


async def test_a_fault_of_the_gateway_is_a_500_and_the_next_request_is_served(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    async with (
        ScriptedReplica(answering(ok(b"{}"))) as replica,
        gateway_of(replica) as gateway,
    ):
        client = await gateway.connect()
        with monkeypatch.context() as patch:
            patch.setattr(gateway.fleet, "decide", fail)
            failed = await client.ask(post(chat()))
        served = await client.ask(post(chat()))
        record = await gateway.record(0)

    assert (failed.status, failed.code, served.status) == (500, "internal_error", 200)
    assert (record.outcome, record.failure) == (Outcome.REFUSED, Failure.INTERNAL)
    assert "ZeroDivisionError" in caplog.text
