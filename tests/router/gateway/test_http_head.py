"""Heads: what is accepted, what is cut out, what goes on untouched.

llhttp, the parser of Node, is the oracle: whatever is accepted here it accepts too and reads
alike. The other way round need not hold, where this gateway is stricter.
"""

from dataclasses import dataclass, field

import httptools
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from router.gateway.config import GatewayConfig
from router.gateway.http_head import (
    BadHeadError,
    Framing,
    Media,
    RequestHead,
    RequestHeads,
    read_answer_head,
    request_bytes,
)

HEADS = RequestHeads(GatewayConfig())
FIRST = b"POST /v1/x HTTP/1.1\r\n"


@dataclass
class Oracle:
    """What llhttp reads of a head."""

    target: bytes = b""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    is_complete: bool = False

    def on_url(self, part: bytes) -> None:
        self.target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self.is_complete = True


def read(*lines: bytes, first: bytes = FIRST) -> RequestHead:
    head, _ = HEADS.read(first + b"".join(line + b"\r\n" for line in lines))
    return head


def answer(*lines: bytes) -> bytes:
    return b"".join(line + b"\r\n" for line in lines)


# Pieces that meet in real attacks, so that random heads are near the edge of the grammar.
PIECES = st.sampled_from(
    [
        *(b"Host: a", b"host:b", b"Content-Length: 4", b"content-length:4", b"Content-Length: +4"),
        *(b"Content-Length: 4, 4", b"Content-Length : 4", b"Transfer-Encoding: chunked"),
        *(b"Transfer-Encoding:\tchunked", b"Transfer-Encoding: gzip, chunked", b" folded"),
        *(b"Transfer-Encoding: xchunked", b"X: a\0b", b"X: a\rb", b"X: a\nY: b", b"X:", b": x"),
        *(b"X: \xff\x80", b"Connection: close, X", b"Connection: upgrade", b"Upgrade: h2c"),
        *(b"X@: 1", b"X: 1", b"Expect: 100-continue", b"x-request-id: 7", b"TE: trailers"),
    ]
)
HEAD_LINES = st.lists(PIECES | st.binary(max_size=12), max_size=5)
FIRST_LINES = st.sampled_from(
    [
        *(FIRST, b"GET / HTTP/1.0\r\n", b"GET /a?b#c HTTP/1.1\r\n", b"GET / HTTP/1.1\n"),
        *(b"POST /a b HTTP/1.1\r\n", b"post / HTTP/1.1\r\n", b"GET / HTTP/2.0\r\n", b"GET /\r\n"),
        *(b"GET http://h/p HTTP/1.1\r\n", b"GET /\xc3 HTTP/1.1\r\n", b"GET  / HTTP/1.1\r\n"),
    ]
)


@settings(max_examples=400)
@given(FIRST_LINES, HEAD_LINES)
@example(FIRST, [b"Host: a", b"Content-Length: 4"])
def test_what_is_accepted_llhttp_accepts_and_reads_alike(first: bytes, lines: list[bytes]) -> None:
    head = first + b"".join(line + b"\r\n" for line in lines)
    try:
        read_head, length = HEADS.read(head)
    except BadHeadError:
        return
    oracle = Oracle()
    parser = httptools.HttpRequestParser(oracle)

    try:
        parser.feed_data(head + b"\r\n")
    except httptools.HttpParserUpgrade:
        pass  # this gateway declines, so what follows is a request of HTTP/1.1 as before

    names = [name.lower() for name, _ in oracle.headers]
    assert oracle.is_complete
    assert oracle.target.endswith(read_head.target)
    assert names.count(b"host") == 1 or read_head.is_http_1_0
    lengths = [int(value) for name, value in oracle.headers if name.lower() == b"content-length"]
    assert lengths == ([] if length is None else [length])
    assert (b"transfer-encoding" in names) == read_head.is_chunked
    kept = read_head.fields.removesuffix(b"\r\n").split(b"\r\n")[1:]
    assert [line.partition(b":")[0] for line in kept] == [
        name for name, _ in oracle.headers if is_passed_on(name.lower(), oracle.headers)
    ]


def is_passed_on(name: bytes, headers: list[tuple[bytes, bytes]]) -> bool:
    connection = b",".join(value for key, value in headers if key.lower() == b"connection")
    listed = {token.strip().lower() for token in connection.split(b",")} - {b"close", b"upgrade"}
    cut = {b"host", b"connection", b"content-length", b"transfer-encoding", b"expect", b"te"}
    return name not in cut | {b"upgrade"} | listed


@pytest.mark.parametrize(
    "lines",
    [
        [b"Host: a", b"Content-Length: 4", b"Content-Length: 4"],
        [b"Host: a", b"Content-Length: 4", b"content-length: 5"],
        [b"Host: a", b"Content-Length: 4", b"Transfer-Encoding: chunked"],
        [b"Host: a", b"Content-Length: 4, 4"],
        [b"Host: a", b"Content-Length: +4"],
        [b"Host: a", b"Content-Length: 4_0"],
        [b"Host: a", b"Content-Length: "],
        [b"Host: a", b"Content-Length: " + b"9" * 19],
        [b"Host: a", b"Content-Length : 4"],
        [b"Host: a", b"Transfer-Encoding: xchunked"],
        [b"Host: a", b"Transfer-Encoding: gzip, chunked"],
        [b"Host: a", b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"],
        [b"Host: a", b"Transfer-Encoding : chunked"],
        [b"Host: a", b"X: 1", b" folded"],
        [b"Host: a", b"X: 1\nY: 2"],
        [b"Host: a", b"X: a\rb"],
        [b"Host: a", b"X: a\0b"],
        [b"Host: a", b"X@: 1"],
        [b"Host: a", b": 1"],
        [b"Host: a", b"Host: a"],
        [],
    ],
    ids=repr,
)
def test_a_head_that_two_hops_could_read_apart_is_refused(lines: list[bytes]) -> None:
    with pytest.raises(BadHeadError):
        read(*lines)


@pytest.mark.parametrize(
    "first",
    [
        *(b"POST /v1/x HTTP/1.1\n", b"POST /v1/x HTTP/2.0\r\n", b"POST /v1/x\r\n"),
        *(b"post /v1/x HTTP/1.1\r\n", b"POST  /v1/x HTTP/1.1\r\n", b"POST /a b HTTP/1.1\r\n"),
        *(b"POST /\xff HTTP/1.1\r\n", b"POST host:80 HTTP/1.1\r\n", b"POST ftp://a/ HTTP/1.1\r\n"),
    ],
    ids=repr,
)
def test_a_first_line_outside_the_grammar_is_refused(first: bytes) -> None:
    with pytest.raises(BadHeadError):
        read(b"Host: a", first=first)


def test_a_refused_head_is_refused_again_although_a_like_one_was_accepted() -> None:
    read(b"Host: a", b"Content-Length: 4")

    for length in (b"4x", b"-4", b"", b"4, 4", b"9" * 19):
        with pytest.raises(BadHeadError):
            read(b"Host: a", b"Content-Length: " + length)


@pytest.mark.parametrize("before", [b"GET / HTTP/1.0\r\n", FIRST + b"Host: a\r\n"])
def test_a_head_that_ends_where_another_goes_on_is_not_taken_for_it(before: bytes) -> None:
    HEADS.read(before)

    with pytest.raises(BadHeadError):
        HEADS.read(before + b"\r\nContent-Length: 4\r\n")


def test_heads_that_are_alike_keep_their_own_lengths() -> None:
    lengths = [HEADS.read(FIRST + b"Host: a\r\nContent-Length: %d\r\n" % n)[1] for n in (4, 70, 0)]
    without = HEADS.read(FIRST + b"Host: a\r\n")[1]

    assert lengths == [4, 70, 0]
    assert without is None


@pytest.mark.parametrize(
    "line",
    [b"content-length:%d", b"Content-length: %d", b"CONTENT-LENGTH:\t%d", b"Content-Length:%d "],
)
def test_heads_that_are_alike_keep_their_lengths_however_those_are_written(line: bytes) -> None:
    heads = [FIRST + b"Host: a\r\n" + line % n + b"\r\n" for n in (4, 4, 7)]
    answers = [b"HTTP/1.1 200 OK\r\n" + line % n + b"\r\n" for n in (4, 4, 7)]

    assert [HEADS.read(head)[1] for head in heads] == [4, 4, 7]
    assert [read_answer_head(head)[1] for head in answers] == [4, 4, 7]


def test_headers_keep_their_order_case_spacing_and_duplicates() -> None:
    head = read(b"X-b:  2 ", b"HOST: a", b"x-A:1", b"Content-Length: 3", b"X-b: 3", b"Expect: x")

    assert head.fields == b"\r\nX-b:  2 \r\nx-A:1\r\nX-b: 3\r\n"


def test_hop_by_hop_headers_and_those_that_connection_lists_end_here() -> None:
    head = read(
        *(b"Host: a", b"Connection: close, X-Secret-Hop", b"x-secret-hop: 1", b"TE: trailers"),
        *(b"Upgrade: h2c", b"HTTP2-Settings: x", b"Proxy-Authorization: Basic x"),
        *(b"Keep-Alive: timeout=1", b"Trailer: X", b"traceparent: 00-1", b"X-Custom: 1"),
    )

    assert head.fields == b"\r\ntraceparent: 00-1\r\nX-Custom: 1\r\n"
    assert not head.keep_alive


@pytest.mark.parametrize(
    ("first", "connection", "keeps"),
    [
        (FIRST, b"X: 1", True),
        (FIRST, b"Connection: Close", False),
        (FIRST, b"Connection: keep-alive, close", False),
        (b"POST / HTTP/1.0\r\n", b"X: 1", False),
        (b"POST / HTTP/1.0\r\n", b"Connection: Keep-Alive", True),
    ],
)
def test_a_connection_is_kept_as_its_version_and_header_say(
    first: bytes, connection: bytes, keeps: bool
) -> None:
    assert read(b"Host: a", connection, first=first).keep_alive is keeps


@pytest.mark.parametrize(
    ("target", "origin", "path"),
    [
        (b"/v1/x?a=b", b"/v1/x?a=b", "/v1/x"),
        (b"http://host:80/v1/x?a=b", b"/v1/x?a=b", "/v1/x"),
        (b"HTTPS://host", b"/", "/"),
        (b"*", b"*", "*"),
    ],
)
def test_a_target_is_brought_into_origin_form(target: bytes, origin: bytes, path: str) -> None:
    head = read(b"Host: a", first=b"GET " + target + b" HTTP/1.1\r\n")

    assert (head.target, head.path) == (origin, path)


def test_the_first_request_id_and_the_session_are_noted_and_passed_on() -> None:
    lines = (b"X-Request-Id: one", b"x-request-id: two", b"X-Session-Id: s")

    head = read(b"Host: a", *lines)

    assert (head.request_id, head.session_key) == ("one", "s")
    assert head.fields == b"\r\n" + b"\r\n".join(lines) + b"\r\n"


def test_an_empty_request_id_counts_for_none() -> None:
    head = read(b"Host: a", b"x-request-id: ")

    assert head.request_id is None
    assert head.fields == b"\r\n"


def test_authorization_ends_here_if_it_is_not_to_be_forwarded() -> None:
    heads = RequestHeads(GatewayConfig(forward_authorization=False))

    head, _ = heads.read(FIRST + b"Host: a\r\nAUTHORIZATION: Bearer sk-1\r\nX: 1\r\n")

    assert head.fields == b"\r\nX: 1\r\n"


def test_a_replica_gets_its_own_host_and_the_prefix_of_its_url() -> None:
    head = read(b"Host: public.example", b"X: 1")

    sent = request_bytes(head, b"replica:9000", b"/base", b"Content-Length: 0\r\n")

    assert sent == (
        b"POST /base/v1/x HTTP/1.1\r\nHost: replica:9000\r\nX: 1\r\nContent-Length: 0\r\n\r\n"
    )


@pytest.mark.parametrize(
    "lines",
    [
        [b"HTTP/1.1 200 OK", b"Content-Length: 4", b"content-length: 4"],
        [b"HTTP/1.1 200 OK", b"Content-Length: 4", b"Transfer-Encoding: chunked"],
        [b"HTTP/1.1 200 OK", b"Transfer-Encoding: gzip, chunked"],
        [b"HTTP/1.1 200 OK", b"Content-Length: -4"],
        [b"HTTP/1.1 200 OK", b"X: a\rY: b"],
        [b"HTTP/1.1 200 OK", b" X: a"],
        [b"HTTP/1.1 99 OK"],
        [b"HTTP/1.1 0200 OK"],
        [b"HTTP/2 200 OK"],
        [b"ICY 200 OK"],
    ],
    ids=repr,
)
def test_an_ambiguous_answer_is_refused(lines: list[bytes]) -> None:
    with pytest.raises(BadHeadError):
        read_answer_head(answer(*lines))


@pytest.mark.parametrize(
    ("lines", "framing", "length", "keeps"),
    [
        ([b"HTTP/1.1 200 OK", b"content-length: 4"], Framing.LENGTH, 4, True),
        ([b"HTTP/1.1 200 OK", b"Transfer-Encoding: Chunked"], Framing.CHUNKED, None, True),
        ([b"HTTP/1.1 200 OK"], Framing.CLOSE, None, False),
        ([b"HTTP/1.1 204 No Content"], Framing.NONE, None, True),
        ([b"HTTP/1.1 304", b"Content-Length: 9"], Framing.NONE, 9, True),
        ([b"HTTP/1.0 200 OK", b"Content-Length: 4"], Framing.LENGTH, 4, False),
        (
            [b"HTTP/1.1 200 OK", b"Content-Length: 4", b"Connection: close"],
            Framing.LENGTH,
            4,
            False,
        ),
    ],
    ids=repr,
)
def test_an_answer_is_framed_as_it_says(
    lines: list[bytes], framing: Framing, length: int | None, keeps: bool
) -> None:
    head, found = read_answer_head(answer(*lines))

    assert (head.framing, found, head.keep_alive) == (framing, length, keeps)


def test_an_answers_headers_go_on_without_framing_and_hop_by_hop() -> None:
    head, _ = read_answer_head(
        answer(
            *(b"HTTP/1.0 418 I'm a teapot", b"Server: a", b"server: b", b"Set-Cookie: 1"),
            *(b"Set-Cookie: 2", b"Connection: X-B, keep-alive", b"X-b: 1", b"Keep-Alive: t=1"),
            *(b"Content-Length: 4", b"x-warmroute-replica: inner", b"X-Err:  7"),
        )
    )

    assert head.status == 418
    assert head.lines == (
        b"HTTP/1.1 418 I'm a teapot\r\nServer: a\r\nserver: b\r\nSet-Cookie: 1\r\n"
        b"Set-Cookie: 2\r\nX-Err:  7\r\n"
    )


@pytest.mark.parametrize(
    ("value", "media"),
    [
        (b"application/json", Media.JSON),
        (b"Application/JSON; charset=utf-8", Media.JSON),
        (b"text/event-stream;charset=utf-8", Media.STREAM),
        (b"text/plain", Media.OTHER),
    ],
)
def test_the_media_type_is_read_whatever_its_case_and_parameters(
    value: bytes, media: Media
) -> None:
    head, _ = read_answer_head(answer(b"HTTP/1.1 200 OK", b"content-type: " + value))

    assert head.media is media
