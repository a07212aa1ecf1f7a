"""The text of answers as the index gets it: in whatever pieces a body comes, and what is left out.

The law is about any text in any pieces. Whether something was learned is what the index says.
"""

import asyncio
import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.sse import DONE
from router.core.answers import AnswerPlace
from router.core.fleet import FleetState
from router.core.health import AttemptOutcome
from router.gateway.answer_text import (
    SLICE_BYTES,
    AnswerText,
    AnswerTexts,
    NotTextError,
    TextReader,
)
from router.gateway.config import GatewayConfig
from tests.router.core.making import BLOCK, SECOND, lease_of, make_fleet
from tests.router.core.test_answers import chat, user

LIMIT = 100_000
PING = b": ping\n\n"
TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=9), max_size=12)
CUTS = st.lists(st.integers(0, 10_000), max_size=12)

Event = dict[str, Any]


def chunk(text: str | None, **more: Any) -> Event:
    return {"id": "c", "choices": [{"index": 0, "delta": {"content": text} | more}]}


def stream(*events: Event, end: bytes = b"\n\n", between: bytes = b"") -> bytes:
    encoded = [json.dumps(event, ensure_ascii=False).encode() for event in events]
    return b"".join(b"data: " + payload + end + between for payload in encoded)


def read(body: bytes, cuts: list[int] | None = None) -> str:
    reader = TextReader(LIMIT)
    ends = sorted({0, len(body)} | {cut % (len(body) + 1) for cut in cuts or []})
    for start, end in pairwise(ends):
        reader.feed(body[start:end])
    return reader.close().decode()


@given(
    texts=TEXTS,
    cuts=CUTS,
    end=st.sampled_from([b"\n\n", b"\r\n\r\n", b"\r\r"]),
    between=st.sampled_from([b"", PING]),
    done=st.sampled_from([DONE, b"", b"data: [DONE]"]),
)
def test_any_stream_in_any_pieces_gives_its_text(
    texts: list[str], cuts: list[int], end: bytes, between: bytes, done: bytes
) -> None:
    opening: Event = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": None}}]}
    usage: Event = {"choices": [], "usage": {"prompt_tokens": 1}}
    events = [opening, *map(chunk, texts), usage]

    body = stream(*events, end=end, between=between) + done

    assert read(body, cuts) == "".join(texts)


@given(text=st.text(st.characters(exclude_categories=["Cs"])), cuts=CUTS)
def test_any_json_in_any_pieces_gives_its_text(text: str, cuts: list[int]) -> None:
    message: Event = {"role": "assistant", "content": text, "tool_calls": [], "refusal": None}
    body = json.dumps({"choices": [{"index": 0, "message": message}]}).encode()

    assert read(b"\n " + body, cuts) == text


def test_completions_are_read_as_chats_are() -> None:
    one = {"choices": [{"index": 0, "text": "ab"}]}
    other = {"choices": [{"index": 0, "text": "cd", "finish_reason": "stop"}]}

    assert read(json.dumps(one).encode()) == "ab"
    assert read(stream(one, other) + DONE) == "abcd"


def test_an_event_of_several_lines_is_one_event() -> None:
    assert read(stream(chunk("a")) + b'data: {"choices":\ndata: []}\n\n' + DONE) == "a"


def test_a_body_of_nothing_is_no_text() -> None:
    assert read(b"") == read(b"  ") == read(DONE) == ""


@pytest.mark.parametrize(
    "event",
    [
        chunk(None, tool_calls=[{"index": 0, "function": {"name": "f"}}]),
        chunk(None, function_call={"name": "f"}),
        chunk(None, reasoning_content="hm"),
        chunk(None, reasoning="hm"),
        chunk(None, refusal="no"),
        chunk(None, audio={"id": "a"}),
        {"choices": [{"index": 1, "delta": {"content": "b"}}]},
        {"choices": [{"index": 0, "text": "a"}, {"index": 1, "text": "b"}]},
        {"choices": [{"index": 0, "delta": {"content": [{"type": "text", "text": "a"}]}}]},
    ],
    ids=["tool", "function", "reasoning", "thinking", "refusal", "audio", "2nd", "two", "parts"],
)
def test_an_answer_that_is_more_than_one_text_is_none(event: Event) -> None:
    with pytest.raises(NotTextError):
        read(stream(chunk("a"), event, chunk("b")) + DONE)
    with pytest.raises(NotTextError):
        read(stream(chunk("a"), event, between=PING))
    with pytest.raises(NotTextError):
        read(json.dumps(event).replace('"delta"', '"message"').encode())


@pytest.mark.parametrize(
    "body", [b"\x1f\x8b\x08 compressed", b"{", b"data: {]\n\n", b"[]", b"<html>\n\n", b"\xff"]
)
def test_bytes_that_are_no_answer_have_no_text(body: bytes) -> None:
    try:
        assert read(body) == ""
    except NotTextError:
        pass


@pytest.mark.parametrize("begin", [b'{"a": "', b'data: {"a": "', b': \n\ndata: {"a": "'])
def test_a_body_or_an_event_longer_than_the_limit_is_not_held(begin: bytes) -> None:
    reader = TextReader(1_000)
    reader.feed(begin + b"x" * 900)

    with pytest.raises(NotTextError):
        reader.feed(b"x" * 100)


# ---- answers under way


class World:
    """A fleet of one replica that tells nothing, and a request of it."""

    def __init__(self, **settings: Any) -> None:
        self.fleet: FleetState = make_fleet("a")
        self.texts = AnswerTexts(GatewayConfig(**settings), lambda: 2 * SECOND)
        self.texts.start(asyncio.get_running_loop())

    def begin(self, name: str = "x") -> AnswerText:
        """Begin the answer to a prompt of one block."""
        text = name.ljust(BLOCK - len("<|user|><|assistant|>000"))
        lease = lease_of(self.fleet.decide(chat([user(text)]), SECOND))
        place = lease.answer_place
        assert isinstance(place, AnswerPlace)
        lease.end(AttemptOutcome.OK, SECOND)  # of which the text is told by the test
        return AnswerText(self.texts, place)

    @property
    def num_blocks(self) -> int:
        return self.fleet.index.num_blocks(0)


async def turns(number: int = 1) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def test_an_answer_is_learned_after_its_end_and_not_in_its_turn() -> None:
    world = World()
    answer = world.begin()
    for _ in range(100):
        answer.take(stream(chunk("y" * 50)))
    answer.end(True)
    at_its_end = world.num_blocks

    await turns()

    assert at_its_end == 1
    assert world.num_blocks == 1 + 5_000 // BLOCK
    assert world.texts.held_bytes == 0


async def test_an_answer_that_is_not_whole_is_forgotten() -> None:
    world = World()
    answer = world.begin()
    answer.take(stream(chunk("y" * 5_000)))

    answer.end(False)
    await turns()

    assert world.num_blocks == 1
    assert world.texts.held_bytes == 0


async def test_a_long_stream_is_read_while_it_comes() -> None:
    world = World()
    answer = world.begin()
    event = stream(chunk("y"), chunk("z"))
    held_bytes_max = 0
    for _ in range(20 * SLICE_BYTES // len(event)):
        answer.take(event)
        held_bytes_max = max(held_bytes_max, world.texts.held_bytes)
        await turns()

    answer.end(True)
    await turns(3)

    assert held_bytes_max < 2 * SLICE_BYTES
    assert world.num_blocks > 20
    assert world.texts.held_bytes == 0


async def test_a_long_stream_that_came_at_once_is_read_in_slices() -> None:
    world = World()
    answer = world.begin()
    events = stream(*[chunk("y" * 10)] * 20)
    for _ in range(6 * SLICE_BYTES // len(events)):
        answer.take(events)
    answer.end(True)

    await turns(4)
    after_some = world.num_blocks
    await turns(5)

    assert after_some == 1
    assert world.num_blocks > 20
    assert world.texts.held_bytes == 0


async def test_an_answer_over_its_limit_is_given_up() -> None:
    world = World(index_answer_bytes_max=10_000)
    answer = world.begin()

    for _ in range(200):
        answer.take(stream(chunk("y" * 1_000)))
        await turns()
    answer.end(True)
    await turns()

    assert world.num_blocks == 1
    assert world.texts.held_bytes == 0


async def test_all_answers_together_are_bounded() -> None:
    world = World(index_answers_bytes_max=10_000)
    first, second = world.begin("x"), world.begin("z")

    first.take(stream(chunk("y" * 6_000)))
    second.take(stream(chunk("y" * 6_000)))
    second.take(stream(chunk("y" * 6_000)))
    held_bytes = world.texts.held_bytes
    first.end(True)
    second.end(True)
    await turns(2)

    assert 6_000 < held_bytes <= 10_000
    assert world.num_blocks == 2 + 6_000 // BLOCK
    assert world.texts.held_bytes == 0


async def test_many_that_end_at_once_are_learned_one_slice_in_a_turn() -> None:
    world = World()
    answers = [world.begin(f"{number}") for number in range(40)]
    for answer in answers:
        answer.take(stream(chunk("y" * 1_000)))
        answer.end(True)
    before = world.num_blocks

    await turns()
    after_one = world.num_blocks
    await turns(20)

    assert before < after_one < world.num_blocks
    assert world.num_blocks - before == 40 * (1_000 // BLOCK)


async def test_one_that_cannot_be_learned_does_not_keep_the_others_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    faulty, sound = world.begin("x"), world.begin("z")
    caught: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: caught.append(context))

    def fail(*_: Any) -> int:
        raise RuntimeError("a fault")

    for answer in (faulty, sound):
        answer.take(stream(chunk("y" * 1_000)))
        answer.end(True)
    with monkeypatch.context() as patched:
        patched.setattr(AnswerText, "read", _first(fail, AnswerText.read))
        await turns(3)

    assert len(caught) == 1
    assert world.num_blocks == 2 + 1_000 // BLOCK


def _first(once: Callable[..., int], then: Callable[..., int]) -> Callable[..., int]:
    calls = iter([once])
    return lambda *given: next(calls, then)(*given)
