"""Streams: what counts as a token, as the end, as an error, and what the books say of it."""

import json

import pytest

from contract.openai_api import PromptTokensDetails, Usage
from router.core.reason import Outcome
from tests.router.gateway.running import gateway_of
from tests.router.gateway.scripted_replica import Script, ScriptedReplica, Turn, answering
from tests.router.gateway.wire import (
    DONE,
    LAST_CHUNK,
    STREAM_HEAD,
    USAGE,
    chat,
    chunk,
    completion,
    event,
    ok,
    post,
)

PING = b": ping\n\n"
USAGE_SEEN = Usage(10, 3, 13, PromptTokensDetails(8))


def streaming(*events: bytes) -> Script:
    """Return a script that sends each event as a chunk, and ends the stream in order."""

    async def script(turn: Turn) -> None:
        await turn.send_pieces(STREAM_HEAD, *map(chunk, events), LAST_CHUNK)

    return script


async def test_comments_go_through_and_are_no_token() -> None:
    events = [PING, b":\n\n", event("t"), PING, event("", "stop"), DONE]
    late: list[int] = []

    async with gateway_of() as gateway:

        async def script(turn: Turn) -> None:
            await turn.send(STREAM_HEAD + chunk(PING[:3]))
            await turn.send(chunk(PING[3:]) + chunk(b":\n\n"))
            while gateway.plane.stats().exchanges and not late:
                late.append(gateway.fleet.views()[0].view.own_ahead_tokens)
            await turn.send_pieces(*map(chunk, events[2:]), LAST_CHUNK)

        async with ScriptedReplica(script) as replica:
            gateway.fleet.add_static(replica.url, "a", "m", now_us=0)
            answer = await gateway.chat(stream=True)
            record = await gateway.record()

    assert answer.body == b"".join(events)
    assert record.outcome is Outcome.COMPLETE
    assert late > [0]  # its prefill was still ahead although comments had come
    assert record.first_byte_us is not None


@pytest.mark.parametrize(
    ("events", "outcome"),
    [
        ([event("t"), event("", "stop"), DONE], Outcome.COMPLETE),
        ([event("t"), event("", "stop")], Outcome.COMPLETE),
        ([event("t"), DONE], Outcome.COMPLETE),
        ([event("t")], Outcome.BROKEN),
        ([event("data: [DONE]")], Outcome.BROKEN),
        ([event('"finish_reason":"stop"')], Outcome.BROKEN),
        ([event("t"), b'data: {"error":{"message":"boom"}}\n\n', DONE], Outcome.REPLICA_ERROR),
    ],
    ids=["finish and done", "finish", "done", "none", "said done", "said finish", "error"],
)
async def test_a_stream_is_complete_only_if_it_says_so(
    events: list[bytes], outcome: Outcome
) -> None:
    async with ScriptedReplica(streaming(*events)) as replica, gateway_of(replica) as gateway:
        answer = await gateway.chat(stream=True)
        record = await gateway.record()

    assert answer.body.startswith(b"".join(events))
    assert answer.is_whole is (outcome is not Outcome.BROKEN)
    assert record.outcome is outcome


async def test_a_stream_of_another_api_needs_no_mark_of_this_one() -> None:
    async with (
        ScriptedReplica(streaming(b"event: message_stop\ndata: {}\n\n")) as replica,
        gateway_of(replica) as gateway,
    ):
        await gateway.ask(post(chat(stream=True), path="/v1/messages"))
        record = await gateway.record()

    assert record.outcome is Outcome.COMPLETE


@pytest.mark.parametrize(
    "events",
    [
        [event("t"), event("", "stop"), event("", usage=USAGE), DONE],
        [event("t"), event("", "stop", usage=USAGE), DONE],
        [event("a", usage={"prompt_tokens": 1}), event("", "stop", usage=USAGE), DONE],
        [event("a", usage=USAGE), event("", "stop", usage=None), DONE],
    ],
    ids=["of its own", "with choices", "cumulative", "null after"],
)
async def test_usage_is_counted_once_wherever_it_stands(events: list[bytes]) -> None:
    async with ScriptedReplica(streaming(*events)) as replica, gateway_of(replica) as gateway:
        await gateway.chat(stream=True)
        record = await gateway.record()

    assert record.usage == USAGE_SEEN


async def test_usage_is_found_whatever_cuts_it() -> None:
    body = event("", "stop", usage=USAGE) + DONE

    async def script(turn: Turn) -> None:
        await turn.send(STREAM_HEAD)
        await turn.send_pieces(*[chunk(body[i : i + 1]) for i in range(len(body))], LAST_CHUNK)

    async with ScriptedReplica(script) as replica, gateway_of(replica) as gateway:
        await gateway.chat(stream=True)
        record = await gateway.record()

    assert record.usage == USAGE_SEEN


async def test_usage_at_the_end_of_a_long_answer_is_found() -> None:
    async with (
        ScriptedReplica(answering(ok(completion("x" * 300_000)))) as replica,
        gateway_of(replica) as gateway,
    ):
        await gateway.chat()
        record = await gateway.record()

    assert record.usage == USAGE_SEEN
    assert record.outcome is Outcome.COMPLETE


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": 10, "completion_tokens": -5},
        {"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 11}},
        {"prompt_tokens": "10"},
        {"prompt_tokens": 1e20},
        {"prompt_tokens": 2**60},
    ],
    ids=str,
)
async def test_a_usage_that_cannot_be_true_is_not_believed(usage: dict[str, object]) -> None:
    async with (
        ScriptedReplica(answering(ok(completion(usage=usage)))) as replica,
        gateway_of(replica) as gateway,
    ):
        answer = await gateway.chat()
        record = await gateway.record()

    assert json.loads(answer.body)["usage"] == usage
    assert record.usage is None
    assert record.usage_unreadable
    assert record.outcome is Outcome.COMPLETE


@pytest.mark.parametrize("usage", [None, [], "none"])
async def test_a_usage_that_is_none_is_no_error(usage: object) -> None:
    async with (
        ScriptedReplica(answering(ok(completion(usage=usage)))) as replica,
        gateway_of(replica) as gateway,
    ):
        await gateway.chat()
        record = await gateway.record()

    assert (record.usage, record.usage_unreadable) == (None, False)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_an_error_under_status_200_is_relayed_and_counted_as_one(is_stream: bool) -> None:
    body = b'{"error":{"message":"boom","code":500}}'

    async with ScriptedReplica(answering(ok(body))) as replica, gateway_of(replica) as gateway:
        answer = await gateway.chat(stream=is_stream)
        record = await gateway.record()

    assert (answer.status, answer.body) == (200, body)
    assert answer.value("content-type") == "application/json"
    assert record.outcome is Outcome.REPLICA_ERROR


async def test_a_stream_answered_in_one_piece_is_relayed_as_it_is() -> None:
    async with (
        ScriptedReplica(answering(ok(completion()))) as replica,
        gateway_of(replica) as gateway,
    ):
        answer = await gateway.chat(stream=True)
        record = await gateway.record()

    assert answer.body == completion()
    assert record.outcome is Outcome.COMPLETE


async def test_the_books_say_what_a_stream_was() -> None:
    events = [event("a"), event("b"), event("", "stop", usage=USAGE), DONE]

    async with ScriptedReplica(streaming(*events)) as replica, gateway_of(replica) as gateway:
        await gateway.chat(stream=True)
        record = await gateway.record()

    assert record.received_us <= (record.decided_us or 0) <= (record.sent_us or 0)
    assert (record.sent_us or 0) <= (record.first_byte_us or 0) <= record.ended_us
    assert (record.path, record.model, record.stream) == ("/v1/chat/completions", "m", True)
    assert (record.status, record.attempts, record.replica_id) == (200, 1, "a")
    assert record.body_bytes == len(chat(stream=True))
    assert record.answer_bytes == sum(map(len, events))
    assert 1 <= record.chunks <= len(events) + 1
