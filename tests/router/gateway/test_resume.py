"""A stream whose replica is lost in the middle goes on from another one, byte for byte."""

import asyncio
import json
from typing import Any

import pytest

from contract.openai_api import CompletionFields, render_completion
from contract.sse import DONE_PAYLOAD, SseReader
from replicas.core.text import expected_text
from router.core.reason import NotResumed, Outcome
from router.gateway.config import Failover
from tests.router.gateway.running import RunningGateway, gateway_of
from tests.router.gateway.scripted_replica import Script, ScriptedReplica, Turn, answering
from tests.router.gateway.wire import (
    DONE,
    LAST_CHUNK,
    STREAM_HEAD,
    Answer,
    chat,
    chunk,
    ok,
    post,
)

ROLE = {"role": "assistant", "content": ""}


def chat_event(number: int, delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
    """Return an event as vLLM writes it; ``number`` tells the replicas apart."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    fields = {"id": f"chatcmpl-{number}", "object": "chat.completion.chunk", "created": number}
    body = fields | {"model": f"m-{number}", "choices": [choice]} | more
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


def usage_event(number: int, prompt: int, completion: int, cached: int | None = 0) -> bytes:
    usage: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": completion}
    usage["total_tokens"] = prompt + completion
    if cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
    fields = {"id": f"chatcmpl-{number}", "object": "chat.completion.chunk", "created": number}
    body = fields | {"model": f"m-{number}", "choices": [], "usage": usage}
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


def texts(number: int, *words: str) -> list[bytes]:
    return [chat_event(number, {"content": word}) for word in words]


def stream_of(*events: bytes, cut: bytes | None = None) -> Script:
    """Return a script that streams ``events``; with ``cut`` it breaks off behind these bytes."""

    async def script(turn: Turn) -> None:
        await turn.send(STREAM_HEAD)
        await turn.send_pieces(*map(chunk, events))
        if cut is not None:
            await turn.send(cut)
            turn.close()
        else:
            await turn.send(LAST_CHUNK)

    return script


BEGINNING = [chat_event(1, ROLE), *texts(1, "one ", "two ")]
REST = [chat_event(2, ROLE), *texts(2, "three "), chat_event(2, {"content": "four"}, "stop")]


def payloads(answer: Answer) -> list[dict[str, Any]]:
    """Return the events but the last, which must be the mark of the end."""
    found = SseReader().feed(answer.body)
    assert found[-1:] == [DONE_PAYLOAD]
    assert found.count(DONE_PAYLOAD) == 1
    return [json.loads(payload) for payload in found[:-1]]


def text_of(events: list[dict[str, Any]]) -> str:
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


async def resumed(
    first: Script, second: Script, *, body: bytes = b"", **settings: Any
) -> tuple[Answer, ScriptedReplica, RunningGateway]:
    """Return what the client got, the replica that continued, and the gateway."""
    async with (
        ScriptedReplica(first, "a") as a,
        ScriptedReplica(second, "b") as b,
        gateway_of(a, b, **{"failover": Failover.RESUME} | settings) as gateway,
    ):
        answer = await gateway.ask(post(body or chat(stream=True, max_tokens=9)))
        await gateway.record()
    return answer, b, gateway


async def test_the_client_sees_one_stream_with_every_byte_once() -> None:
    answer, _, gateway = await resumed(
        stream_of(*BEGINNING, cut=chunk(b'data: {"id"')), stream_of(*REST, DONE)
    )

    events = payloads(answer)
    assert answer.is_whole
    assert text_of(events) == "one two three four"
    assert {(e["id"], e["created"], e["model"]) for e in events} == {("chatcmpl-1", 1, "m-1")}
    assert sum("role" in c["delta"] for e in events for c in e["choices"]) == 1
    assert [c["finish_reason"] for e in events for c in e["choices"]][-2:] == [None, "stop"]
    record = gateway.records[0]
    assert (record.outcome, record.attempts, record.resumes) == (Outcome.COMPLETE, 2, 1)
    assert answer.value("x-warmroute-replica") == "a"


async def test_the_next_replica_is_asked_for_the_rest_and_for_no_more() -> None:
    _, replica, _ = await resumed(
        stream_of(*BEGINNING, cut=b""),
        stream_of(*REST, DONE),
        body=chat(stream=True, max_tokens=9, min_tokens=3, temperature=0.5),
    )

    (request,) = replica.requests
    asked = json.loads(request.body)
    assert asked["messages"][-1] == {"role": "assistant", "content": "one two "}
    assert (asked["continue_final_message"], asked["add_generation_prompt"]) == (True, False)
    assert (asked["max_tokens"], asked["min_tokens"], asked["temperature"]) == (7, 1, 0.5)
    assert request.values("content-length") == [str(len(request.body))]


async def test_usage_adds_up_over_both_replicas() -> None:
    body = chat(stream=True, max_tokens=9, stream_options={"include_usage": True})
    rest = [*REST, usage_event(2, 12, 2, cached=11), DONE]

    answer, _, gateway = await resumed(stream_of(*BEGINNING, cut=b""), stream_of(*rest), body=body)

    usage = payloads(answer)[-1]["usage"]
    assert usage == {
        "prompt_tokens": 10,  # 12 of the longer prompt less the two that were generated
        "completion_tokens": 4,
        "total_tokens": 14,
        "prompt_tokens_details": {"cached_tokens": 10},  # never more than there were
    }
    recorded = gateway.records[0].usage
    assert recorded is not None
    assert (recorded.prompt_tokens, recorded.completion_tokens) == (10, 4)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"n": 2}, NotResumed.FIELD),
        ({"seed": 0}, NotResumed.FIELD),
        ({"tools": [{"type": "function"}]}, NotResumed.FIELD),
        ({"frequency_penalty": 0.5}, NotResumed.FIELD),
        ({"nobody_knows_this": 1}, NotResumed.FIELD),
    ],
    ids=repr,
)
async def test_a_stream_that_could_not_go_on_exactly_breaks_visibly(
    more: dict[str, Any], why: NotResumed
) -> None:
    body = chat(stream=True, max_tokens=9, **more)

    answer, replica, gateway = await resumed(
        stream_of(*BEGINNING, cut=b""), answering(ok(b"{}")), body=body
    )

    assert not answer.is_whole
    assert answer.body.startswith(b"".join(BEGINNING))
    assert b'"replica_connection_lost"' in answer.body
    assert not replica.requests
    assert gateway.records[0].outcome is Outcome.BROKEN
    line = f'warmroute_resumes_refused_total{{reason="{why.value}"}} 1.0'
    assert line in gateway.metrics.render().decode()


async def test_what_is_not_read_in_turn_is_not_continued_in_turn() -> None:
    body = chat(stream=True, max_tokens=9, stop=[[]] * 50)

    answer, replica, gateway = await resumed(
        stream_of(*BEGINNING, cut=b""), stream_of(*REST, DONE), body_items_in_turn_max=40, body=body
    )

    assert not answer.is_whole
    assert not replica.requests
    page = gateway.metrics.render().decode()
    assert 'warmroute_resumes_refused_total{reason="too_large"} 1.0' in page


async def test_off_holds_nothing_and_asks_nobody() -> None:
    answer, replica, gateway = await resumed(
        stream_of(*BEGINNING, cut=b""), stream_of(*REST, DONE), failover=Failover.OFF
    )

    assert not answer.is_whole
    assert not replica.requests
    assert gateway.records[0].resumes == 0


@pytest.mark.parametrize("status", ["400 Bad Request", "503 Service Unavailable"])
async def test_a_replica_that_cannot_continue_leaves_the_break_visible(status: str) -> None:
    answer, replica, gateway = await resumed(
        stream_of(*BEGINNING, cut=b""), answering(ok(b'{"error": {}}', status=status))
    )

    assert not answer.is_whole
    assert len(replica.requests) == 1
    assert answer.body.count(b'"error"') == 1
    page = gateway.metrics.render().decode()
    assert 'warmroute_resumes_refused_total{reason="not_continued"} 1.0' in page


async def test_a_stream_that_nobody_is_left_to_continue_is_counted_once() -> None:
    async with (
        ScriptedReplica(stream_of(*BEGINNING, cut=b""), "a") as only,
        gateway_of(only, failover=Failover.RESUME) as gateway,
    ):
        answer = await gateway.ask(post(chat(stream=True, max_tokens=9)))
        await gateway.record()

    assert not answer.is_whole
    page = gateway.metrics.render().decode()
    counts = [line for line in page.splitlines() if line.startswith("warmroute_resumes_refused")]
    assert sum(float(line.split()[-1]) for line in counts if not line.startswith("#")) == 1


async def test_an_error_within_a_stream_is_a_loss_too() -> None:
    failed = b'data: {"error": {"message": "engine died", "code": 500}}\n\n'

    answer, _, gateway = await resumed(stream_of(*BEGINNING, failed, DONE), stream_of(*REST, DONE))

    assert text_of(payloads(answer)) == "one two three four"
    assert gateway.records[0].resumes == 1


async def test_an_error_that_nobody_can_mend_is_the_replicas_own() -> None:
    failed = b'data: {"error": {"message": "engine died", "code": 500}}\n\n'

    answer, _, _ = await resumed(
        stream_of(*BEGINNING, failed, DONE), answering(ok(b"{}", status="400 Bad Request"))
    )

    assert answer.body == b"".join(BEGINNING) + failed
    assert not answer.is_whole


async def test_an_error_of_the_clients_own_making_is_passed_on() -> None:
    failed = b'data: {"error": {"message": "too long", "code": 400}}\n\n'

    answer, replica, gateway = await resumed(
        stream_of(*BEGINNING, failed, DONE), stream_of(*REST, DONE)
    )

    assert answer.is_whole
    assert answer.body == b"".join([*BEGINNING, failed, DONE])
    assert not replica.requests
    assert gateway.records[0].outcome is Outcome.REPLICA_ERROR


async def test_a_stalled_replica_is_lost_as_well() -> None:
    async def stalls(turn: Turn) -> None:
        await turn.send(STREAM_HEAD)
        await turn.send_pieces(*map(chunk, BEGINNING))
        await turn.until_closed()

    answer, _, gateway = await resumed(stalls, stream_of(*REST, DONE), between_bytes_timeout_s=0.1)

    assert text_of(payloads(answer)) == "one two three four"
    assert 'reason="replica_stalled"} 1.0' in gateway.metrics.render().decode()


async def test_a_stream_that_ends_without_a_finish_goes_on() -> None:
    answer, _, _ = await resumed(stream_of(*BEGINNING), stream_of(*REST, DONE))

    assert text_of(payloads(answer)) == "one two three four"


async def test_only_the_mark_was_missing_and_no_replica_is_asked_for_it() -> None:
    last = chat_event(1, {"content": "end"}, "stop")

    answer, replica, gateway = await resumed(
        stream_of(*BEGINNING, last, cut=b""), stream_of(*REST, DONE)
    )

    assert answer.body == b"".join([*BEGINNING, last, DONE])
    assert answer.is_whole
    assert not replica.requests
    assert gateway.records[0].outcome is Outcome.COMPLETE


async def test_where_only_the_usage_is_missing_it_alone_is_taken_from_the_next_replica() -> None:
    body = chat(stream=True, max_tokens=3, stream_options={"include_usage": True})
    last = chat_event(1, {"content": "end"}, "length")
    rest = [chat_event(2, ROLE), chat_event(2, {"content": "more"}, "length")]

    answer, replica, _ = await resumed(
        stream_of(*BEGINNING, last, cut=b""),
        stream_of(*rest, usage_event(2, 13, 1), DONE),
        body=body,
    )

    *events, usage = payloads(answer)
    assert text_of(events) == "one two end"
    assert [usage["usage"][name] for name in ("prompt_tokens", "completion_tokens")] == [10, 3]
    assert json.loads(replica.requests[0].body)["max_tokens"] == 1


async def test_a_lost_stream_of_which_nothing_was_passed_on_is_asked_for_as_it_was() -> None:
    comment = b": ping\n\n"

    answer, replica, _ = await resumed(
        stream_of(comment, cut=chunk(BEGINNING[0][:9])), stream_of(*REST, DONE)
    )

    assert json.loads(replica.requests[0].body) == json.loads(chat(stream=True, max_tokens=9))
    assert answer.body == comment + b"".join([*REST, DONE])


async def test_a_stream_goes_on_as_often_as_allowed_and_no_more() -> None:
    def script(number: int) -> Script:
        return stream_of(chat_event(number, ROLE), *texts(number, f"{number} "), cut=b"")

    async with (
        ScriptedReplica(script(1), "a") as a,
        ScriptedReplica(script(2), "b") as b,
        ScriptedReplica(script(3), "c") as c,
        ScriptedReplica(script(4), "d") as d,
        gateway_of(a, b, c, d, failover=Failover.RESUME, resume_max=2) as gateway,
    ):
        answer = await gateway.ask(post(chat(stream=True, max_tokens=9)))
        record = await gateway.record()

    assert not answer.is_whole
    assert (record.attempts, record.resumes, record.outcome) == (3, 2, Outcome.BROKEN)
    told = [json.loads(p) for p in SseReader().feed(answer.body)][:-1]
    words = text_of(told).split()
    assert len(words) == len(set(words)) == 3


async def test_each_attempt_has_a_request_id_of_its_own_and_the_client_sees_one() -> None:
    async def echoing(turn: Turn) -> None:
        (given,) = turn.request.values("x-request-id")
        head = STREAM_HEAD.replace(b"\r\n\r\n", f"\r\nX-Request-Id: {given}\r\n\r\n".encode())
        await turn.send(head + b"".join(map(chunk, REST)) + chunk(DONE) + LAST_CHUNK)

    async with (
        ScriptedReplica(stream_of(*BEGINNING, cut=b""), "a") as a,
        ScriptedReplica(echoing, "b") as b,
        gateway_of(a, b, failover=Failover.RESUME) as gateway,
    ):
        answer = await gateway.ask(post(chat(stream=True, max_tokens=9), "X-Request-Id: mine"))

    assert [r.values("x-request-id") for r in (*a.requests, *b.requests)] == [["mine"], ["mine-2"]]
    assert answer.is_whole


async def test_a_client_that_leaves_between_two_replicas_ends_all_of_it() -> None:
    asked = asyncio.Event()

    async def waits(turn: Turn) -> None:
        asked.set()
        await turn.until_closed()

    async with (
        ScriptedReplica(stream_of(*BEGINNING, cut=b""), "a") as a,
        ScriptedReplica(waits, "b") as b,
        gateway_of(a, b, failover=Failover.RESUME) as gateway,
    ):
        client = await gateway.connect()
        await client.send(post(chat(stream=True, max_tokens=9)))
        await asked.wait()
        client.reset()
        record = await gateway.record()

    assert record.outcome is Outcome.CLIENT_LEFT


async def test_a_completion_goes_on_behind_its_prompt() -> None:
    def completion(number: int, text: str, finish: str | None = None) -> bytes:
        choice = {"index": 0, "text": text, "finish_reason": finish}
        body = {"id": f"cmpl-{number}", "object": "text_completion", "choices": [choice]}
        return b"data: " + json.dumps(body).encode() + b"\n\n"

    (words,) = render_completion(CompletionFields(prompt="hello"))
    whole = expected_text(words, 4)
    body = json.dumps({"model": "m", "prompt": "hello", "stream": True, "max_tokens": 4}).encode()
    async with (
        ScriptedReplica(stream_of(completion(1, whole[:8]), cut=b""), "a") as a,
        ScriptedReplica(stream_of(completion(2, whole[8:], "length"), DONE), "b") as b,
        gateway_of(a, b, failover=Failover.RESUME) as gateway,
    ):
        answer = await gateway.ask(post(body, path="/v1/completions"))

    asked = json.loads(b.requests[0].body)
    assert asked["prompt"] == "hello" + whole[:8]
    assert "".join(c["text"] for e in payloads(answer) for c in e["choices"]) == whole
    assert {event["id"] for event in payloads(answer)} == {"cmpl-1"}


async def test_a_broken_stream_of_http_1_0_goes_on_too() -> None:
    async with (
        ScriptedReplica(stream_of(*BEGINNING, cut=b""), "a") as a,
        ScriptedReplica(stream_of(*REST, DONE), "b") as b,
        gateway_of(a, b, failover=Failover.RESUME) as gateway,
    ):
        answer = await gateway.ask(post(chat(stream=True, max_tokens=9), version="1.0"))

    assert text_of(payloads(answer)) == "one two three four"


async def test_resumptions_are_retries_and_share_their_budget() -> None:
    none_left = {"retry_budget": 0.0, "retry_floor_per_s": 0.0}
    not_lost = b"no size of a chunk\r\n"

    answer, replica, gateway = await resumed(
        stream_of(*BEGINNING, cut=not_lost), stream_of(*REST, DONE), routing=none_left
    )

    assert not answer.is_whole
    assert not replica.requests
    page = gateway.metrics.render().decode()
    assert 'warmroute_resumes_refused_total{reason="budget"} 1.0' in page


@pytest.mark.parametrize("failover", Failover)
async def test_the_body_of_a_stream_that_could_be_continued_counts_as_held(
    failover: Failover,
) -> None:
    goes_on = asyncio.Event()

    async def waits(turn: Turn) -> None:
        await turn.send(STREAM_HEAD + b"".join(map(chunk, BEGINNING)))
        await goes_on.wait()
        await turn.send(b"".join(map(chunk, [*REST, DONE])) + LAST_CHUNK)

    body = chat(stream=True, max_tokens=9)
    async with ScriptedReplica(waits) as replica, gateway_of(replica, failover=failover) as gateway:
        client = await gateway.connect()
        await client.send(post(body))
        while b"two" not in await client.line():
            pass
        held = gateway.plane.stats().buffered_bytes
        goes_on.set()
        await gateway.record()

    assert held == (len(body) if failover is Failover.RESUME else 0)
