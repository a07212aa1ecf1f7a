"""What stands behind a chunked answer, empty lines or trailers: it is no part of the next one."""

import asyncio
from typing import cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from router.gateway.http_head import AnswerHead, Framing
from router.gateway.replica_connection import ReplicaConnection
from tests.router.gateway.fake_wire import Wire

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Sink:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.raw = b""
        self.is_whole = False
        self.message = ""

    def on_head(
        self, head: AnswerHead, length: int | None, framing: Framing, *, is_followed: bool
    ) -> None:
        pass

    def on_body(self, raw: bytes, payload: bytes) -> None:
        self.raw += raw

    def on_body_end(self, last_chunk: bytes = b"") -> None:
        self.raw += last_chunk
        self.is_whole = True

    def on_bad_answer(self, message: str) -> None:
        self.message = message

    def on_upstream_lost(self, cause: str) -> None:
        self.message = cause


class Home:
    """Takes no connection back."""

    def put(self, connection: ReplicaConnection) -> None:
        raise AssertionError("a connection of which more may come was kept")

    def forget(self, connection: ReplicaConnection) -> None:
        pass


BODIES = [
    b"3\r\nabc\r\n0\r\n\r\n",
    b"0\r\nX-T: 1\r\n\r\n",
    b"4\r\n\r\n\r\n\r\n0\r\n\r\n",
    b"0;a\r\n\r\n",
]


@pytest.mark.parametrize("body", BODIES)
@given(
    empty=st.sampled_from([b"\r\n", b"\n", b"\r\n" * 5]),
    cuts=st.lists(st.integers(0, 40), max_size=6),
)
@example(empty=b"\r\n", cuts=list(range(40)))
def test_they_are_not_passed_on_and_end_the_connection(
    body: bytes, empty: bytes, cuts: list[int]
) -> None:
    connection, wire, sink = ReplicaConnection(Home(), 1000), Wire(), Sink()
    connection.connection_made(cast(asyncio.Transport, wire))
    connection.send(sink, b"", b"", bodiless=False)
    # The last piece has the end of the body and what is behind it: later it is nobody's answer.
    data, last = body[:-1], body[-1:] + empty
    ends = sorted({min(cut, len(data)) for cut in cuts} | {len(data)})

    connection.data_received(HEAD)
    for start, end in zip([0, *ends], ends, strict=False):
        if data[start:end]:
            connection.data_received(data[start:end])
    connection.data_received(last)
    connection.release(0)

    assert (sink.raw, sink.is_whole, sink.message) == (body, True, "")
    assert wire.is_closed


class Pool:
    """Takes connections back."""

    def __init__(self) -> None:
        self.num_put = 0

    def put(self, connection: ReplicaConnection) -> None:
        self.num_put += 1

    def forget(self, connection: ReplicaConnection) -> None:
        pass


@pytest.mark.parametrize(
    ("trailer", "is_whole"),
    [
        (b"X-T: 1\r\n", True),
        (b"Connection: close\r\n", False),
        (b"transfer-Encoding: identity\r\n", False),
    ],
)
@given(cuts=st.lists(st.integers(0, 60), max_size=4))
@example(cuts=[])
def test_an_answer_whose_trailer_says_what_only_a_head_may_is_broken(
    trailer: bytes, is_whole: bool, cuts: list[int]
) -> None:
    sink = Sink()
    connection = ReplicaConnection(Pool(), 1000)
    connection.connection_made(cast(asyncio.Transport, Wire()))
    connection.send(sink, b"", b"", bodiless=False)
    data = b"3\r\nabc\r\n0\r\n" + trailer + b"\r\n"
    ends = sorted({min(cut, len(data)) for cut in cuts} | {len(data)})

    connection.data_received(HEAD)
    for start, end in zip([0, *ends], ends, strict=False):
        if data[start:end] and not sink.message:
            connection.data_received(data[start:end])

    assert sink.is_whole is is_whole
    assert ("trailer" in sink.message) is not is_whole
    if is_whole:
        assert sink.raw == data
