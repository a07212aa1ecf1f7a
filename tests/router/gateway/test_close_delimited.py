"""Answers whose end is that of their connection: the FIN of a replica that was killed looks like
that of one which has finished, so the text itself must show that it is whole.
"""

import json

import pytest

from contract.failures import Failure
from router.core.reason import Outcome
from tests.router.gateway.running import gateway_of
from tests.router.gateway.scripted_replica import Script, ScriptedReplica, Turn, answering
from tests.router.gateway.wire import completion, event, ok, post

LONG = json.dumps({"data": [{"embedding": [0.25, 1.5], "text": 'a "}]" b'}] * 4000}).encode()


def closing(body: bytes, *headers: str, status: str = "200 OK", media: str = "json") -> Script:
    """Return a script that answers without a length, and closes."""
    kind = {"json": "application/json", "events": "text/event-stream"}.get(media, media)
    head = "\r\n".join([f"HTTP/1.1 {status}", f"Content-Type: {kind}", *headers, "", ""]).encode()

    async def script(turn: Turn) -> None:
        await turn.send(head + body)
        turn.close()

    return script


@pytest.mark.parametrize("body", [completion(), LONG, b" [1, {}]\r\n", b'"text"', b"12"])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_a_whole_text_without_a_length_is_a_whole_answer(body: bytes, version: str) -> None:
    async with ScriptedReplica(closing(body)) as replica, gateway_of(replica) as gateway:
        answer = await gateway.ask(post(b"{}", path="/v1/embeddings", version=version))
        record = await gateway.record()

    assert (answer.is_whole, answer.body) == (True, body)
    assert record.outcome is Outcome.COMPLETE


@pytest.mark.parametrize(
    "body",
    [completion()[:-1], completion()[:40], LONG[:-2], LONG[:100_000], b'{"a": "b\\"}', b"["],
    ids=len,
)
@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_a_text_that_was_cut_is_no_whole_answer(body: bytes, version: str) -> None:
    async with ScriptedReplica(closing(body)) as replica, gateway_of(replica) as gateway:
        answer = await gateway.ask(post(b"{}", path="/v1/embeddings", version=version))
        record = await gateway.record()

    assert not answer.is_whole
    assert body.startswith(answer.body)
    assert (record.outcome, record.failure) == (Outcome.BROKEN, Failure.UPSTREAM_LOST)


async def test_an_answer_without_a_byte_is_asked_for_elsewhere() -> None:
    async with (
        ScriptedReplica(closing(b"")) as killed,
        ScriptedReplica(answering(ok(completion())), "b") as well,
        gateway_of(killed, well) as gateway,
    ):
        answers = [await gateway.chat() for _ in range(2)]

    assert [(answer.status, answer.body) for answer in answers] == [(200, completion())] * 2
    assert killed.requests


@pytest.mark.parametrize("status", ["429 Too Many Requests", "500 Internal Server Error"])
async def test_an_error_is_relayed_if_it_is_whole_or_without_a_text(status: str) -> None:
    for body in (b'{"error": {}}', b"", b"overloaded"):
        async with (
            ScriptedReplica(closing(body, status=status)) as replica,
            gateway_of(replica) as gateway,
        ):
            answer = await gateway.chat()

        assert (answer.status, answer.is_whole, answer.body) == (int(status[:3]), True, body)


async def test_a_refusal_that_was_cut_is_not_kept_for_the_client() -> None:
    script = closing(b'{"error": {"mess', status="503 Service Unavailable")

    async with ScriptedReplica(script) as replica, gateway_of(replica) as gateway:
        answer = await gateway.chat()

    assert (answer.status, answer.code) == (502, "replica_connection_lost")


@pytest.mark.parametrize(
    ("body", "headers", "media"),
    [(b"{half", (), "text/plain"), (b"{half", ("Content-Encoding: br",), "json")],
)
async def test_what_shows_no_end_is_not_judged(
    body: bytes, headers: tuple[str, ...], media: str
) -> None:
    script = closing(body, *headers, media=media)

    async with ScriptedReplica(script) as replica, gateway_of(replica) as gateway:
        answer = await gateway.chat()

    assert (answer.is_whole, answer.body) == (True, body)


@pytest.mark.parametrize(
    ("path", "last", "is_whole"),
    [
        ("/v1/chat/completions", event("t", "stop"), True),
        ("/v1/chat/completions", b"data: [DONE]\n", True),
        ("/v1/chat/completions", event("t"), False),
        ("/v1/other", b"data: x\n\n", True),
        ("/v1/other", b"data: x\r\n\r\n", True),
        ("/v1/other", b"data: x\n", False),
        ("/v1/other", b"data: {half", False),
    ],
)
async def test_a_stream_without_a_last_chunk_ends_as_one_that_is_whole(
    path: str, last: bytes, is_whole: bool
) -> None:
    script = closing(event("t") + last, media="events")

    async with ScriptedReplica(script) as replica, gateway_of(replica) as gateway:
        answer = await gateway.ask(post(b'{"messages":[],"stream":true}', path=path))
        record = await gateway.record()

    assert answer.is_whole is is_whole
    assert (record.outcome is Outcome.COMPLETE) is is_whole
