"""What is noticed in an answer must not depend on how its bytes were cut."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.openai_api import Usage
from router.gateway.answer_watch import AnswerWatch, finish_of
from router.gateway.http_head import Media
from tests.router.gateway.wire import DONE, completion, event

LIMIT = 2048
FINISH = finish_of("/v1/chat/completions", 1) or re.compile(b"")
COMMENTS = b": ping\n\n:\r\n\r\n: caf\xc3\xa9\n\n"


def watch(body: bytes, cuts: list[int], media: Media = Media.STREAM) -> AnswerWatch:
    watched = AnswerWatch(media, LIMIT)
    ends = sorted({cut % (len(body) + 1) for cut in cuts} | {len(body)})
    for start, end in zip([0, *ends], ends, strict=False):
        watched.take(body[start:end])
    return watched


CUTS = st.lists(st.integers(0, 20_000), max_size=12)


@given(CUTS, st.integers(0, 40), st.booleans(), st.booleans())
def test_any_cut_of_a_stream_gives_the_same_verdict(
    cuts: list[int], num_events: int, finishes: bool, has_usage: bool
) -> None:
    events = [event(f"t{index}") for index in range(num_events)]
    if has_usage:
        usage = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
        events.append(event("", usage=usage))
    if finishes:
        events.append(DONE)

    watched = watch(COMMENTS + b"".join(events), cuts)

    assert watched.is_whole_stream(FINISH) is finishes
    assert watched.usage() == (Usage(7, 2, 9) if has_usage else None)
    assert watched.error_status() is None
    assert watched.has_event is bool(events)
    assert watched.is_between_events


@given(CUTS)
def test_any_cut_leaves_a_comment_a_comment(cuts: list[int]) -> None:
    assert not watch(COMMENTS * 3 + b": unfinished", cuts).has_event


@given(CUTS)
def test_the_first_event_is_seen_in_the_piece_in_which_it_begins(cuts: list[int]) -> None:
    watched = AnswerWatch(Media.STREAM, LIMIT)
    ends = sorted({cut % len(COMMENTS) for cut in cuts} | {len(COMMENTS)})
    for start, end in zip([0, *ends], ends, strict=False):
        watched.take(COMMENTS[start:end])
        assert not watched.has_event

    watched.take(b"d")

    assert watched.has_event


@given(CUTS, st.sampled_from([0, 3 * LIMIT]))
def test_an_error_in_a_json_answer_is_seen_whatever_its_length(cuts: list[int], size: int) -> None:
    body = b'{ "error" : {"message":"' + b"x" * size + b'","code":"429"}}'

    assert watch(body, cuts, Media.JSON).error_status() == 429


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"error":{"message":"boom"}}', 500),
        (b'{"error":{"message":"boom","code":400}}', 400),
        (b'{"error":{"message":"boom","code":503}}', 500),
        (b'{"error":null,"choices":[]}', None),
        (completion('"error":{'), None),
        (b"", None),
    ],
)
def test_an_error_under_status_200_has_the_weight_of_its_code(
    body: bytes, status: int | None
) -> None:
    assert watch(body, [], Media.JSON).error_status() == status


@pytest.mark.parametrize(
    ("end", "is_between"),
    [
        *((b"", True), (event("t"), True), (b"data: x\r\n\r\n", True), (b"data: x\r\r", True)),
        *((b"data: x", False), (b"data: x\n", False)),
    ],
)
def test_another_event_fits_only_behind_an_empty_line(end: bytes, is_between: bool) -> None:
    assert watch(end, []).is_between_events is is_between


def test_a_word_of_the_protocol_inside_a_text_is_a_text() -> None:
    watched = watch(event('data: [DONE] "usage":{"prompt_tokens":1} "finish_reason":"stop"'), [])

    assert not watched.is_whole_stream(FINISH)
    assert watched.usage() is None


def test_no_more_is_kept_than_twice_the_limit() -> None:
    watched = AnswerWatch(Media.STREAM, LIMIT)

    for _ in range(1000):
        watched.take(event("t"))

    assert len(watched.tail()) <= 2 * LIMIT
