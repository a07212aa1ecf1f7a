"""A stream has a clean end only if it said itself that it is whole, however its bytes were cut."""

import asyncio
import socket
import struct
import zlib
from collections.abc import Iterator

import pytest

from contract.failures import Failure
from router.core.reason import Outcome
from router.gateway.config import Failover
from tests.router.gateway.running import gateway_of
from tests.router.gateway.scripted_replica import ScriptedReplica, answering
from tests.router.gateway.test_flow_control import HEAD_END, Bench
from tests.router.gateway.wire import (
    DONE,
    LAST_CHUNK,
    STREAM_HEAD,
    chat,
    chunk,
    completion,
    event,
    ok,
    post,
)

TOKEN = chunk(event("t"))
WHOLE = TOKEN + chunk(DONE)
JSON_HEAD = STREAM_HEAD.replace(b"text/event-stream; charset=utf-8", b"application/json")
ENDS = [LAST_CHUNK, b"0;a=0\r\n\r\n", b"000\r\nX-T: 0\r\n0: 0\r\n\r\n"]


def cuts(data: bytes) -> Iterator[list[bytes]]:
    """Yield ``data`` in two pieces, cut everywhere, and in pieces of one byte."""
    for at in range(1, len(data)):
        yield [data[:at], data[at:]]
    yield [data[at : at + 1] for at in range(len(data))]


def relayed(head: bytes, pieces: list[bytes], *, stream: bool = True) -> tuple[bytes, bool, Bench]:
    """Return the body that a client gets, and whether its connection ends with a reset."""
    bench = Bench()
    bench.client.data_received(post(chat(stream=stream)))
    for piece in [head, *pieces]:
        bench.replica.data_received(piece)
    linger = bench.socket.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)
    bench.socket.close()
    bench.fleet.check()
    body = b"".join(bench.client_wire.written).partition(HEAD_END)[2]
    return body, struct.unpack("ii", linger)[0] == 1, bench


@pytest.mark.parametrize("end", ENDS, ids=repr)
def test_a_whole_stream_goes_through_as_it_came(end: bytes) -> None:
    for pieces in cuts(WHOLE + end):
        body, _, bench = relayed(STREAM_HEAD, pieces)

        assert body == WHOLE + end
        assert not bench.client_wire.is_closed
        assert [record.outcome for record in bench.records] == [Outcome.COMPLETE]


@pytest.mark.parametrize("end", ENDS, ids=repr)
def test_the_end_of_an_unfinished_stream_is_never_clean(end: bytes) -> None:
    """A client that has got a part of the last chunk may take it for the whole, so it is reset."""
    for pieces in cuts(TOKEN + end):
        body, is_reset, bench = relayed(STREAM_HEAD, pieces)

        assert body.startswith(TOKEN)
        rest = body.removeprefix(TOKEN)
        assert is_reset or b'"error"' in rest
        assert is_reset == (rest[:1] == b"0")
        assert end not in rest
        assert bench.client_wire.is_closed
        (record,) = bench.records
        assert (record.outcome, record.failure) == (Outcome.BROKEN, Failure.UPSTREAM_LOST)


def test_a_stream_lost_within_its_last_chunk_ends_with_a_reset() -> None:
    for at in range(1, len(LAST_CHUNK)):
        bench = Bench()
        bench.client.data_received(post(chat(stream=True)))
        bench.replica.data_received(STREAM_HEAD + WHOLE + LAST_CHUNK[:at])
        bench.replica.connection_lost(None)

        linger = bench.socket.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)
        bench.socket.close()
        assert struct.unpack("ii", linger)[0] == 1
        assert bench.records[0].outcome is Outcome.BROKEN


def test_the_last_chunk_of_another_answer_is_passed_on_whatever_it_says() -> None:
    body = chunk(b"[1, ") + chunk(b"0]")
    for pieces in cuts(body + ENDS[2]):
        got, _, bench = relayed(JSON_HEAD, pieces, stream=False)

        assert got == body + ENDS[2]
        assert bench.records[0].outcome is Outcome.COMPLETE


def test_the_end_of_a_stream_is_no_piece_of_it() -> None:
    _, _, bench = relayed(STREAM_HEAD, [TOKEN, chunk(DONE), LAST_CHUNK])

    assert bench.records[0].chunks == 2


@pytest.mark.parametrize(
    ("path", "last", "is_whole"),
    [
        ("/v1/messages", b"event: message_stop\ndata: {}\n\n", True),
        ("/v1/messages", b'event: error\ndata: {"type":"error","error":{}}\n\n', True),
        ("/v1/messages", b'data: {"text":"\\"type\\":\\"message_stop\\""}\n\n', False),
        ("/v1/responses", b"event: response.completed\ndata: {}\n\n", True),
        ("/v1/responses", b'data: {"a":1,"type":"response.incomplete"}\n\n', True),
        (
            "/v1/responses",
            b"event: response.completed\ndata: {%b}\n\n" % (b" " * 60_000),
            True,
        ),
        ("/v1/responses", b"event: response.output_text.done\ndata: {}\n\n", False),
        ("/v1/other", b"data: x\n\n", True),
        ("/v1/completions", b"data: {}\n\n", False),
    ],
)
async def test_each_api_ends_by_its_own_mark_and_others_are_not_judged(
    path: str, last: bytes, is_whole: bool
) -> None:
    answer_bytes = STREAM_HEAD + chunk(b"data: {}\n\n") + chunk(last) + LAST_CHUNK

    async with (
        ScriptedReplica(answering(answer_bytes)) as replica,
        gateway_of(replica) as gateway,
    ):
        answer = await gateway.ask(post(chat(stream=True), path=path))
        record = await gateway.record()

    assert answer.is_whole is is_whole
    assert (record.outcome is Outcome.BROKEN) is not is_whole


async def test_a_compressed_stream_is_not_judged() -> None:
    head = STREAM_HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: deflate\r\n\r\n")
    body = zlib.compress(event("t"))

    async with (
        ScriptedReplica(answering(head + chunk(body) + LAST_CHUNK)) as replica,
        gateway_of(replica) as gateway,
    ):
        answer = await gateway.chat(stream=True)

    assert answer.is_whole
    assert answer.body == body
    assert answer.value("content-encoding") == "deflate"


@pytest.mark.parametrize("end", [event("", "stop"), b""], ids=["finished", "unfinished"])
async def test_a_stream_of_known_length_is_whole_only_if_it_says_so(end: bytes) -> None:
    answer_bytes = ok(event("t") + end).replace(b"application/json", b"text/event-stream")

    async with (
        ScriptedReplica(answering(answer_bytes)) as replica,
        gateway_of(replica) as gateway,
    ):
        answer = await gateway.chat(stream=True)

    assert answer.is_whole is bool(end)
    assert answer.body.startswith(event("t") + end)


@pytest.mark.parametrize("failover", list(Failover))
async def test_a_stream_without_a_byte_is_asked_for_elsewhere(failover: Failover) -> None:
    empty = answering(STREAM_HEAD + LAST_CHUNK)
    async with (
        ScriptedReplica(empty, "a") as a,
        ScriptedReplica(answering(STREAM_HEAD + WHOLE + LAST_CHUNK), "b") as b,
        gateway_of(a, b, failover=failover) as gateway,
    ):
        answers = await asyncio.gather(*(gateway.chat(stream=True) for _ in range(2)))
        await gateway.record()

    assert [answer.body for answer in answers] == [event("t") + DONE] * 2
    assert all(answer.is_whole for answer in answers)
    assert len(a.requests) == 1
    assert {record.outcome for record in gateway.records} == {Outcome.COMPLETE}


async def test_a_stream_without_a_byte_and_without_another_replica_is_an_error() -> None:
    async with (
        ScriptedReplica(answering(STREAM_HEAD + LAST_CHUNK)) as replica,
        gateway_of(replica) as gateway,
    ):
        answer = await gateway.chat(stream=True)

    assert (answer.status, answer.code) == (502, "replica_connection_lost")


async def test_a_stream_that_cannot_be_continued_ends_as_it_would_without_failover() -> None:
    call = {"index": 0, "delta": {"tool_calls": []}, "finish_reason": None}
    events = [event("", choices=[call]), event("", "tool_calls"), DONE]
    stream = b"".join(map(chunk, events))

    async with (
        ScriptedReplica(answering(STREAM_HEAD + stream + LAST_CHUNK)) as replica,
        gateway_of(replica, failover=Failover.RESUME) as gateway,
    ):
        answer = await gateway.chat(stream=True)
        record = await gateway.record()

    assert answer.body == b"".join(events)
    assert answer.is_whole
    assert record.outcome is Outcome.COMPLETE


def test_a_refusal_in_chunks_is_passed_on_to_its_last_chunk() -> None:
    head = JSON_HEAD.replace(b"200 OK", b"400 Bad Request")
    body, _, bench = relayed(head, [chunk(completion()) + ENDS[1]], stream=False)

    assert body == chunk(completion()) + ENDS[1]
    assert bench.records[0].outcome is Outcome.REPLICA_ERROR
