"""The next turn of a conversation is warm where a replica tells nothing of its cache: end to end.

What is known of the prompt is what the answer to the next turn says that was matched.
"""

import json
from typing import Any

import pytest

from router.gateway.config import Failover
from tests.router.core.making import with_events
from tests.router.gateway.running import MODEL, RunningGateway, clock_us, gateway_of
from tests.router.gateway.scripted_replica import Script, ScriptedReplica, Turn, answering
from tests.router.gateway.wire import (
    DONE,
    LAST_CHUNK,
    STREAM_HEAD,
    Answer,
    chunk,
    completion,
    event,
    ok,
    post,
)
from tests.waiting import until

BLOCK_TOKENS = 128  # 512 bytes
QUESTION = "q" * (1024 - len("<|user|><|assistant|>000"))  # its prompt has two blocks
REPLY = "Grüße, " * 650  # more than ten blocks
REPLY_BLOCKS = len(REPLY.encode()) // 512
PATH = "/v1/completions"

Messages = list[dict[str, Any]]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def body(messages: Messages, **more: Any) -> bytes:
    return json.dumps({"model": MODEL, "messages": messages} | more).encode()


def events_of(text: str, **more: Any) -> list[bytes]:
    words = [text[at : at + 7] for at in range(0, len(text), 7)]
    return [*map(event, words), event("", finish="stop", **more)]


def streaming(*pieces: bytes, end: bytes = LAST_CHUNK) -> Script:
    async def script(turn: Turn) -> None:
        await turn.send(STREAM_HEAD + b"".join(map(chunk, pieces)) + end)
        if end != LAST_CHUNK:
            turn.close()

    return script


def pieces_of(data: bytes) -> list[bytes]:
    return [data[at : at + 999] for at in range(0, len(data), 999)]


async def following(gateway: RunningGateway, *turns: str) -> Answer:
    """Ask the next question after a first one and its answers."""
    answers = [{"role": "assistant", "content": text} for text in turns]
    return await gateway.ask(post(body([user(QUESTION), *answers, user("and then?")])))


def matched_blocks(answer: Answer) -> float:
    return int(answer.value("x-warmroute-matched-tokens")) / BLOCK_TOKENS


SCRIPTS = {
    "json": answering(ok(completion(REPLY))),
    "stream": streaming(*events_of(REPLY), DONE),
    "stream in odd pieces": streaming(*pieces_of(b"".join(events_of(REPLY)) + DONE)),
    "stream with comments": streaming(*(b": ping\n\n" + e for e in events_of(REPLY)), DONE),
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
async def test_the_next_turn_finds_the_answer(script: Script) -> None:
    async with (
        ScriptedReplica(script, "a") as a,
        ScriptedReplica(script, "b") as b,
        gateway_of(a, b, policy="prefix_load") as gateway,
    ):
        first = await gateway.ask(post(body([user(QUESTION)], stream=True)))
        await until(lambda: gateway.is_at_rest, "the first turn is over")
        second = await following(gateway, REPLY)

        assert matched_blocks(first) == 0
        assert matched_blocks(second) == 2 + REPLY_BLOCKS
        name = "x-warmroute-replica"
        assert first.value(name) == second.value(name)


async def test_a_longer_completion_finds_the_answer() -> None:
    answer = json.dumps({"choices": [{"index": 0, "text": REPLY}]}).encode()
    async with (
        ScriptedReplica(answering(ok(answer))) as replica,
        gateway_of(replica, policy="prefix_load") as gateway,
    ):
        prompt = "p" * 1023  # padded to two blocks, of which the second will go on
        await gateway.ask(post(json.dumps({"model": MODEL, "prompt": prompt}).encode(), path=PATH))
        longer = json.dumps({"model": MODEL, "prompt": prompt + REPLY + "!"}).encode()
        second = await gateway.ask(post(longer, path=PATH))

    assert matched_blocks(second) == len((prompt + REPLY).encode()) // 512


CALL = {"index": 0, "message": {"content": REPLY, "tool_calls": [{"id": "1"}]}}
NOT_LEARNED = {
    "tool call": answering(ok(json.dumps({"choices": [CALL]}).encode())),
    "error": answering(ok(b'{"error": {"message": "no", "code": 400}}')),
    "refused": answering(ok(completion(REPLY), status="400 Bad Request")),
    "cut": streaming(*events_of(REPLY)[:-1], end=b"1"),
    "two choices": answering(ok(json.dumps({"choices": [CALL, CALL]}).encode())),
}


@pytest.mark.parametrize("script", NOT_LEARNED.values(), ids=NOT_LEARNED)
async def test_what_was_no_whole_text_is_not_found(script: Script) -> None:
    async with (
        ScriptedReplica(script) as replica,
        gateway_of(replica, policy="prefix_load") as gateway,
    ):
        await gateway.ask(post(body([user(QUESTION)])))
        await until(lambda: gateway.is_at_rest, "the first turn is over")
        replica.script = answering(ok(completion()))
        second = await following(gateway, REPLY)

    assert matched_blocks(second) <= 2


async def test_nothing_is_learned_of_an_answer_whose_client_left() -> None:
    async def silent(turn: Turn) -> None:
        await turn.send(STREAM_HEAD + b"".join(map(chunk, events_of(REPLY)[:50])))
        await turn.until_closed()

    async with (
        ScriptedReplica(silent) as replica,
        gateway_of(replica, policy="prefix_load") as gateway,
    ):
        client = await gateway.connect()
        await client.send(post(body([user(QUESTION)], stream=True)))
        await until(lambda: gateway.plane.stats().exchanges == 1, "the stream runs")
        client.close()
        await until(lambda: gateway.is_at_rest, "the gateway has noticed")
        replica.script = answering(ok(completion()))
        second = await following(gateway, REPLY)

    assert matched_blocks(second) == 2


async def test_replicas_that_tell_of_their_blocks_are_believed() -> None:
    async with (
        ScriptedReplica(answering(ok(completion(REPLY)))) as replica,
        gateway_of(replica, policy="prefix_load") as gateway,
    ):
        report = with_events("a", url=replica.url, model=MODEL, block_bytes=512)
        gateway.fleet.on_report(report, 0, clock_us())
        await gateway.ask(post(body([user(QUESTION)])))
        second = await following(gateway, REPLY)

    assert matched_blocks(second) == 2  # as was sent, and is not told of yet


async def test_nothing_is_learned_where_the_setting_is_off() -> None:
    async with (
        ScriptedReplica(answering(ok(completion(REPLY)))) as replica,
        gateway_of(replica, policy="prefix_load", routing={"index_answers": False}) as gateway,
    ):
        await gateway.ask(post(body([user(QUESTION)])))
        second = await following(gateway, REPLY)

    assert matched_blocks(second) == 2


async def test_a_stream_that_two_replicas_wrote_is_found_on_the_second() -> None:
    """The prompt that asks for the rest has the beginning: together they are the answer."""
    events = events_of(REPLY)
    half = len(events) // 2
    streams = [streaming(*events[:half], end=b""), streaming(*events[half:], DONE)]

    async def script(turn: Turn) -> None:
        is_rest = b"continue_final_message" in turn.request.body
        await streams[is_rest](turn)

    async with (
        ScriptedReplica(script, "a") as a,
        ScriptedReplica(script, "b") as b,
        gateway_of(a, b, policy="prefix_load", failover=Failover.RESUME) as gateway,
    ):
        await gateway.ask(post(body([user(QUESTION)], stream=True)))
        await until(lambda: gateway.is_at_rest, "the first turn is over")
        a.script = b.script = answering(ok(completion()))
        second = await following(gateway, REPLY)

    assert gateway.records[0].resumes == 1
    assert matched_blocks(second) == 2 + REPLY_BLOCKS
