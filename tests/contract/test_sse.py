"""Server-sent events over any split of the bytes, and with any of the three line ends."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.sse import DONE, DONE_PAYLOAD, EventTooLargeError, SseReader, encode_event

# Few bytes, with those that mean something among them.
PAYLOADS = st.lists(
    st.lists(st.sampled_from([b"a", b":", b" ", b"\xc3\xa9", b"data", b"[DONE]"]), min_size=1).map(
        b"".join
    ),
    max_size=6,
)


def read_in_pieces(stream: bytes, cuts: list[int]) -> list[bytes]:
    reader = SseReader()
    payloads = []
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    for start, end in pairwise(edges):
        payloads += reader.feed(stream[start:end])
    return payloads


@given(payloads=PAYLOADS, cuts=st.lists(st.integers(0, 200)))
def test_what_was_encoded_is_read_whatever_the_split(
    payloads: list[bytes], cuts: list[int]
) -> None:
    stream = b"".join(map(encode_event, payloads))

    assert read_in_pieces(stream, cuts) == payloads


@given(
    payloads=PAYLOADS,
    ends=st.sampled_from([b"\n", b"\r\n", b"\r"]),
    cuts=st.lists(st.integers(0, 300)),
)
def test_line_ends_of_all_three_kinds_are_read_alike(
    payloads: list[bytes], ends: bytes, cuts: list[int]
) -> None:
    stream = b"".join(map(encode_event, payloads)).replace(b"\n", ends)
    stream += b": a comment shows that the last line has ended" + ends

    assert read_in_pieces(stream, cuts) == payloads


@given(ends=st.sampled_from([b"\n", b"\r\n"]), cuts=st.lists(st.integers(0, 100)))
def test_comments_and_other_fields_are_skipped_and_data_lines_joined(
    ends: bytes, cuts: list[int]
) -> None:
    stream = b": ping\n\nevent: x\nid: 7\ndata: one\ndata:two\nretry: 5\n\ndata\n\n" + DONE

    payloads = read_in_pieces(stream.replace(b"\n", ends), cuts)

    assert payloads == [b"one\ntwo", b"", DONE_PAYLOAD]


def test_event_without_its_empty_line_is_not_given_out() -> None:
    assert SseReader().feed(b"data: half\n") == []


def test_event_without_end_is_refused_at_the_limit() -> None:
    reader = SseReader(event_bytes_max=10)
    reader.feed(b"data: 5678")

    with pytest.raises(EventTooLargeError, match="10 bytes"):
        reader.feed(b"9")


def test_lines_of_one_event_count_together() -> None:
    reader = SseReader(event_bytes_max=10)
    reader.feed(b"data: 123456\n")

    with pytest.raises(EventTooLargeError):
        reader.feed(b"data: 123456\n")


def test_payload_with_a_line_end_cannot_be_encoded() -> None:
    with pytest.raises(AssertionError):
        encode_event(b"two\nlines")
