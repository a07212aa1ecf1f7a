"""The reader of requests by itself: what it hands out, what it holds, and where it stops."""

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.failures import Failure
from router.gateway.config import GatewayConfig
from router.gateway.http_head import RequestHeads
from router.gateway.request_reader import Phase, Request, RequestReader
from router.gateway.verdict import Refusal
from tests.router.gateway.wire import chunk, get, post

CHUNKED = b"POST /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


class Room:
    """Grants bytes up to a limit, and counts them."""

    def __init__(self, size: int = 10**9) -> None:
        self.left = size

    def reserve(self, num_bytes: int) -> bool:
        if num_bytes > self.left:
            return False
        self.left -= num_bytes
        return True


def reader_of(room: Room | None = None, **settings: Any) -> RequestReader:
    heads = RequestHeads(GatewayConfig())
    return RequestReader(GatewayConfig(**settings), heads, (room or Room()).reserve)


def bodies(reader: RequestReader) -> list[bytes | Failure]:
    return [item.body if isinstance(item, Request) else item.failure for item in reader.ready]


STREAM = (
    post(b"one", path="/v1/a")
    + b"\r\n"
    + get("/health")
    + CHUNKED
    + chunk(b"tw")
    + chunk(b"o")
    + b"0\r\nX: 1\r\n\r\n"
    + post(b"", path="/v1/b")
    + post(b"three", "Connection: close")
)


@given(st.lists(st.integers(0, len(STREAM)), max_size=30))
def test_any_cut_of_a_connection_gives_the_same_requests(cuts: list[int]) -> None:
    room = Room(1000)
    reader = reader_of(room)
    ends = sorted({*cuts, len(STREAM)})

    for start, end in zip([0, *ends], ends, strict=False):
        reader.feed(STREAM[start:end])

    assert bodies(reader) == [b"one", b"", b"two", b"", b"three"]
    assert (reader.phase, reader.held_bytes) == (Phase.OVER, 0)
    assert room.left == 1000 - len(b"onetwothree")


HEADS = (b"\r\n", b"Connection: close\r\n\r\n", b"A: b\r\n" * 9 + b"\r\n", b"bad\r\n\r\n")


@given(
    st.sampled_from(HEADS),
    st.sampled_from([b"", *(b"Content-Length: %d\r\n" % size for size in (3, 12))])
    | st.just(b"Transfer-Encoding: chunked\r\n"),
    st.sampled_from([b"", b"one", b"twelve bytes", b"0\r\n\r\n"]),
    st.sampled_from([0, 3, 100]),
)
def test_what_is_read_as_a_whole_is_what_would_be_read_piece_by_piece(
    rest: bytes, framing: bytes, body: bytes, room_bytes: int
) -> None:
    data = b"POST /v1/a HTTP/1.1\r\nHost: a\r\n" + framing + rest + body
    settings = {"header_count_max": 8, "max_body_bytes": 10}
    room, other_room = Room(room_bytes), Room(room_bytes)
    reader, other = reader_of(room, **settings), reader_of(other_room, **settings)

    whole = reader.read_whole(data)
    other.feed(data)

    if whole is None:
        reader.feed(data)  # as if nothing had been done
    assert list(other.ready) == (list(reader.ready) if whole is None else [whole])
    assert (reader.phase, room.left) == (other.phase, other_room.left)


def test_a_request_alone_is_read_as_a_whole_unless_another_is_under_way() -> None:
    reader, late = reader_of(), reader_of()
    late.feed(post(b"first")[:-2])

    assert reader.read_whole(post(b"one")) is not None
    reader.feed(post(b"two"))
    assert reader.read_whole(post(b"three")) is None
    assert late.read_whole(post(b"three")) is None


@given(st.lists(st.integers(0, 400), max_size=20), st.binary(max_size=30))
def test_any_bytes_end_in_requests_or_one_refusal_that_is_last(
    cuts: list[int], garbage: bytes
) -> None:
    data = post(b"one") + garbage + post(b"two")
    reader = reader_of()
    ends = sorted({cut % (len(data) + 1) for cut in cuts} | {len(data)})

    for start, end in zip([0, *ends], ends, strict=False):
        reader.feed(data[start:end])

    assert bodies(reader)[:1] == [b"one"]
    refusals = [index for index, item in enumerate(reader.ready) if isinstance(item, Refusal)]
    assert refusals in ([], [len(reader.ready) - 1])
    assert (reader.phase is Phase.OVER) or not refusals


def test_nothing_is_read_behind_a_request_that_closes_its_connection() -> None:
    reader = reader_of()

    reader.feed(post(b"last", "Connection: close") + post(b"after"))
    reader.feed(post(b"later"))

    assert bodies(reader) == [b"last"]
    assert reader._rest == b""  # nor kept


@pytest.mark.parametrize("bad", [b"bad\r\n\r\n", CHUNKED + b"zz\r\n", b"GET / HTTP/1.1\n\n"])
def test_nothing_is_read_behind_a_refusal(bad: bytes) -> None:
    reader = reader_of()

    reader.feed(post(b"first") + bad + post(b"after"))
    reader.feed(post(b"later"))

    assert bodies(reader) == [b"first", Failure.BAD_HTTP]


def test_no_more_is_read_ahead_than_the_limit_and_the_rest_is_kept() -> None:
    reader = reader_of(pipelined_max=2)

    reader.feed(b"".join(post(b"%d" % index) for index in range(10)))
    ahead = len(reader.ready)
    served: list[bytes | Failure] = []
    while reader.ready:
        served += bodies(reader)
        reader.ready.clear()
        reader.read_on()

    assert ahead == 3
    assert served == [b"%d" % index for index in range(10)]


@pytest.mark.parametrize("framed", [post(b"x" * 100), CHUNKED + chunk(b"x" * 100) + b"0\r\n\r\n"])
def test_a_body_needs_room(framed: bytes) -> None:
    fits, does_not = reader_of(Room(100)), reader_of(Room(99))

    fits.feed(framed)
    does_not.feed(framed)

    assert bodies(fits) == [b"x" * 100]
    assert bodies(does_not) == [Failure.OVERLOADED]


def test_what_is_held_for_an_unfinished_body_is_known() -> None:
    room = Room(1000)
    reader = reader_of(room)

    reader.feed(post(b"x" * 100)[:-30])

    assert (reader.phase, reader.held_bytes, room.left) == (Phase.BODY, 70, 930)


def test_small_chunks_are_not_kept_apart() -> None:
    reader = reader_of()

    reader.feed(CHUNKED + chunk(b"x") * 10_000)
    turns = 1
    while reader.has_more:  # so many at once would hold up everybody else
        reader.feed(b"")
        turns += 1

    assert turns == 3
    assert reader.held_bytes == 10_000
    assert sys.getsizeof(reader._body) < 2 * 10_000
