"""Chunked request bodies: any cut of the bytes gives the same body and the same end.

llhttp is the oracle for what is a chunk: what is read here, it reads alike.
"""

import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.gateway.chunked_body import BadChunkError, ChunkedBody

HEAD = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


class Oracle:
    """What llhttp reads of a body."""

    def __init__(self) -> None:
        self.body = b""
        self.is_whole = False

    def on_body(self, part: bytes) -> None:
        self.body += part

    def on_message_complete(self) -> None:
        self.is_whole = True


def read_in_cuts(data: bytes, cuts: list[int]) -> tuple[bytes, bytes, bool]:
    """Return the body, what follows it, and whether it is whole."""
    chunks = ChunkedBody(trailer_bytes_max=100)
    ends = sorted({cut % (len(data) + 1) for cut in cuts} | {len(data)})
    body, rest, start = b"", b"", 0
    for end in ends:
        if chunks.is_whole:
            rest += data[start:end]
        else:
            pieces, rest = chunks.feed(data[start:end])
            body += b"".join(pieces)
        start = end
    return body, rest, chunks.is_whole


@given(
    st.lists(st.binary(min_size=1, max_size=40), max_size=5),
    st.sampled_from([b"", b";ext", b';a="b c"']),
    st.sampled_from([b"", b"X: 1\r\n", b"X: 1\r\nY: 2\r\n"]),
    st.lists(st.integers(0, 400), max_size=8),
)
def test_any_cut_gives_the_same_body_and_leaves_what_follows(
    chunks: list[bytes], extension: bytes, trailers: bytes, cuts: list[int]
) -> None:
    framed = b"".join(b"%x%b\r\n%b\r\n" % (len(c), extension, c) for c in chunks)
    data = framed + b"0\r\n" + trailers + b"\r\n" + b"GET / HT"

    assert read_in_cuts(data, cuts) == (b"".join(chunks), b"GET / HT", True)


NEAR_CHUNKS = st.lists(
    st.sampled_from(
        [
            *(b"4\r\nabcd\r\n", b"0\r\n\r\n", b"0\r\n", b"\r\n", b"4\n", b"0x4\r\n", b"4 \r\n"),
            *(
                b"04\r\nabcd\r\n",
                b"A\r\n0123456789\r\n",
                b"4;e\r\nabcd\r\n",
                b"-1\r\n",
                b"X: 1\r\n",
            ),
            *(b"4\r\nabcdE\r\n", b"4\r\nabc\r\n", b"+4\r\n", b"4;\n\r\n", b"X : 1\r\n", b"\n"),
        ]
    )
    | st.binary(max_size=4),
    max_size=5,
)


@settings(max_examples=400)
@given(NEAR_CHUNKS)
def test_a_body_that_is_read_whole_llhttp_reads_alike(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    chunks = ChunkedBody(trailer_bytes_max=100)
    try:
        parts, rest = chunks.feed(data)
    except BadChunkError:
        return
    if not chunks.is_whole:
        return
    oracle = Oracle()

    httptools.HttpRequestParser(oracle).feed_data(HEAD + data[: len(data) - len(rest)])

    assert (oracle.body, oracle.is_whole) == (b"".join(parts), True)


@pytest.mark.parametrize(
    "data",
    [
        *(b"4\nabcd\n0\n\n", b"4 \r\nabcd\r\n", b"0x4\r\nabcd\r\n", b"+4\r\nabcd\r\n", b"\r\n"),
        *(b"4\r\nabcdX", b"4\r\nabcd\n", b"4\r\nabcd\r5", b"4;a\nb\r\nabcd\r\n", b"g\r\n"),
        *(b"0\r\nX : 1\r\n\r\n", b"0\r\n X: 1\r\n\r\n", b"0\r\nX: 1\n\r\n", b"1" * 16 + b"\r\n"),
        b"4" + b";" + b"x" * 2000,
        b"0\r\nX: " + b"y" * 200,
        # Names that another hop could take for the head's.
        *(b"0\r\nContent-Length: 3\r\n\r\n", b"0\r\nX: 1\r\ntransfer-encoding: chunked\r\n\r\n"),
        b"0\r\nHOST:a\r\n\r\n",
    ],
    ids=repr,
)
def test_what_is_not_a_chunk_is_refused(data: bytes) -> None:
    with pytest.raises(BadChunkError):
        ChunkedBody(trailer_bytes_max=100).feed(data)
