"""What a client sees of a stream is the same however it is cut, lost and continued.

An engine is modelled that, like a greedy one, gives the rest of a text for the prompt and its
beginning. Its stream is split anywhere, lost anywhere, and continued by the splice's own word.
"""

import json
import re
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.sse import DONE, DONE_PAYLOAD, SseReader
from router.core.reason import NotResumed
from router.gateway.http_head import AnswerHead, Framing
from router.gateway.relay import Relay
from router.gateway.splice import Splice

PROMPT_TOKENS = 7
WORDS = st.lists(st.sampled_from(["a", "be", "\n\n", "data: ", "é", "🙂", ""]), max_size=8)


class Reader:
    """A client of HTTP/1.0, which gets the body without chunks."""

    def __init__(self) -> None:
        self.body = b""
        self.relay = Relay(self.write, closes=True, is_http_1_0=True)
        self.relay.begin(AnswerHead(200, b""), None, Framing.CLOSE, b"")
        self.relay.flush()
        self.body = b""

    def write(self, data: bytes) -> None:
        self.body += data

    @property
    def events(self) -> list[dict[str, Any]]:
        payloads = SseReader().feed(self.body)
        assert payloads[-1:] == [DONE_PAYLOAD]
        return [json.loads(payload) for payload in payloads[:-1]]


class Shape(Enum):
    """How an engine writes its stream."""

    COMPLETION = "completion"
    CHAT = "chat"  # the role in an event of its own
    CHAT_AT_ONCE = "chat at once"  # the role beside the first text that is not empty


def engine(words: list[str], given_tokens: int, number: int, shape: Shape) -> bytes:
    """Return the stream of what follows the first ``given_tokens`` tokens."""

    def event(choices: list[dict[str, Any]], **more: Any) -> bytes:
        fields = {"id": f"id-{number}", "created": number, "choices": choices} | more
        return b"data: %b\n\n" % json.dumps(fields, ensure_ascii=False).encode()

    def choice(text: str, finish: str | None) -> dict[str, Any]:
        said = {"text": text} if shape is Shape.COMPLETION else {"delta": {"content": text}}
        return {"index": 0, "finish_reason": finish} | said

    role = {"role": "assistant", "content": ""}
    stream = event([choice("", None) | {"delta": role}]) if shape is Shape.CHAT else b""
    rest = words[given_tokens:]
    opening = next((index for index, word in enumerate(rest) if word), None)
    for index, word in enumerate(rest):
        written = choice(word, "length" if index == len(rest) - 1 else None)
        if shape is Shape.CHAT_AT_ONCE and index == opening:
            written["delta"] = role | {"content": word}
        stream += event([written])
    prompt = PROMPT_TOKENS + given_tokens
    usage = {"prompt_tokens": prompt, "completion_tokens": len(rest)}
    return stream + event([], usage=usage | {"total_tokens": prompt + len(rest)}) + DONE


def feed(splice: Splice, data: bytes, cuts: list[int]) -> None:
    start = 0
    for end in [*sorted(cut % (len(data) + 1) for cut in cuts), len(data)]:
        splice.take(data[start:end])
        start = end


CUTS = st.lists(st.integers(0, 10_000), max_size=6)


@given(WORDS.filter(len), st.sampled_from(Shape), CUTS)
def test_a_stream_that_is_not_lost_goes_on_byte_for_byte(
    words: list[str], shape: Shape, cuts: list[int]
) -> None:
    reader = Reader()
    stream = engine(words, 0, 1, shape)

    feed(splice_of(reader, words), stream, cuts)

    assert reader.body == stream


def splice_of(reader: Reader, words: list[str]) -> Splice:
    return Splice(reader.relay, tokens_max=len(words), bytes_max=10_000)


LOSSES = st.lists(
    st.tuples(st.integers(0, 12), st.sampled_from([-1, 0, 0, 1, 20])), min_size=1, max_size=3
)
"""Each behind one of the events, give or take some bytes."""


def beginning(stream: bytes, loss: tuple[int, int]) -> bytes:
    num_events, more = loss
    ends = [0, *(match.end() for match in re.finditer(b"\n\n", stream))]
    return stream[: max(0, ends[num_events % len(ends)] + more)]


@given(WORDS.filter(len), st.sampled_from(Shape), LOSSES, CUTS)
def test_a_stream_that_is_lost_anywhere_and_continued_is_the_undisturbed_one(
    words: list[str], shape: Shape, losses: list[tuple[int, int]], cuts: list[int]
) -> None:
    reader, undisturbed = Reader(), Reader()
    splice = splice_of(reader, words)
    feed(splice_of(undisturbed, words), engine(words, 0, 1, shape), [])
    stream = engine(words, 0, 1, shape)
    for number, loss in enumerate(losses, 2):
        feed(splice, beginning(stream, loss), cuts)
        if splice.misses_only_the_mark(wants_usage=True):
            splice.write_done()
            break
        assert splice.text == "".join(words)[: len(splice.text)]
        splice.begin_rest()
        limit = max(1, len(words) - splice.text_tokens)
        asked = [*words, "x"][: splice.text_tokens + limit]  # one more where all were there
        stream = engine(asked, splice.text_tokens, number, shape)
    else:
        feed(splice, stream, cuts)

    seen, expected = reader.events, undisturbed.events

    assert facts(seen) == facts(expected)
    assert {event["id"] for event in seen} == {seen[0]["id"]}


def facts(events: list[dict[str, Any]]) -> dict[str, Any]:
    choices = [choice for event in events for choice in event["choices"]]
    said = [choice.get("delta", choice) for choice in choices]
    return {
        "text": "".join(s.get("text", "") + s.get("content", "") for s in said),
        "roles": [s["role"] for s in said if s.get("role")],
        "finishes": [c["finish_reason"] for c in choices if c["finish_reason"]],
        "usages": [event["usage"] for event in events if event.get("usage")],
    }


def chat_event(delta: dict[str, Any], **more: Any) -> bytes:
    body = {"choices": [{"index": 0, "delta": delta}]} | more
    return b"data: %b\n\n" % json.dumps(body).encode()


@given(
    st.sampled_from(
        [
            chat_event({"tool_calls": [{"index": 0}]}),
            chat_event({"reasoning_content": "hm"}),
            b'data: {"choices": [{"index": 1, "text": "a"}]}\n\n',
            b'data: {"choices": [{"index": 0, "text": "a"}, {"index": 1, "text": "b"}]}\n\n',
            b"data: no json\n\n",
            b"data: 1\ndata: 2\n\n",
            b'data: {"skipped": "\xff", "choices": [{"index": 0, "text": "a"}]}\n\n',
            b'data: {"skipped": 1e999, "choices": [{"index": 0, "text": "a"}]}\n\n',
        ]
    )
)
def test_what_cannot_be_continued_after_is_passed_on_and_remembered(event: bytes) -> None:
    reader = Reader()
    splice = splice_of(reader, ["a", "b"])

    splice.take(event + DONE)

    assert reader.body == event + DONE
    assert splice.why_unfit in (NotResumed.CONTENT, NotResumed.UNREADABLE)


@pytest.mark.parametrize("alive", [b": ping\n", b"\n", b":\r\n", b"\r\n: a\n: b\n"])
def test_what_keeps_a_connection_alive_waits_for_no_event(alive: bytes) -> None:
    client = Reader()
    splice = splice_of(client, ["a"])

    splice.take(alive)
    assert client.body == alive
    splice.take(b'data: {"choices":[]}\n\n' + alive + b": not yet who")
    assert client.body.endswith(alive)
    splice.take(b"le\n")
    assert client.body.endswith(b": not yet whole\n")


def test_tokens_are_counted_by_the_streams_own_usage_where_it_has_one() -> None:
    reader = Reader()
    splice = splice_of(reader, ["a", "b", "c", "d"])
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}

    splice.take(chat_event({"content": "a b c"}, usage=usage))

    assert splice.text_tokens == 3


def test_tokens_behind_the_last_text_do_not_count() -> None:
    reader = Reader()
    splice = splice_of(reader, ["a", "b", "c", "d"])

    splice.take(chat_event({"content": "a"}) + chat_event({"content": ""}))

    assert splice.text_tokens == 1


def test_an_event_without_end_is_not_held_for_ever() -> None:
    reader = Reader()
    splice = Splice(reader.relay, tokens_max=None, bytes_max=10)

    splice.take(b"data: " + b"x" * 20)
    splice.take(b"y")

    assert reader.body == b"data: " + b"x" * 20
    assert splice.why_unfit is NotResumed.TOO_LARGE


def test_an_answer_that_grows_too_large_is_no_longer_held() -> None:
    reader = Reader()
    splice = Splice(reader.relay, tokens_max=None, bytes_max=100)
    event = chat_event({"content": "x" * 60})

    splice.take(event)
    splice.take(event)

    assert reader.body == event * 2
    assert splice.why_unfit is NotResumed.TOO_LARGE
    assert splice.text == ""
