"""How one answer is framed for clients of either version of HTTP."""

import pytest

from router.gateway.http_head import AnswerHead, Framing
from router.gateway.relay import Relay

HEAD = AnswerHead(200, b"HTTP/1.1 200 OK\r\nX: 1\r\n")


def begun(
    framing: Framing, length: int | None = None, *, is_http_1_0: bool = False, closes: bool = False
) -> tuple[Relay, list[bytes]]:
    written: list[bytes] = []
    relay = Relay(written.append, closes=closes, is_http_1_0=is_http_1_0)
    relay.begin(HEAD, length, framing, b"Y: 2\r\n")
    return relay, written


@pytest.mark.parametrize(
    ("framing", "length", "version", "lines", "closes"),
    [
        (Framing.LENGTH, 4, "1.1", b"Content-Length: 4\r\n", False),
        (Framing.LENGTH, 4, "1.0", b"Content-Length: 4\r\nConnection: keep-alive\r\n", False),
        (Framing.CHUNKED, None, "1.1", b"Transfer-Encoding: chunked\r\n", False),
        (Framing.CHUNKED, None, "1.0", b"Connection: close\r\n", True),
        (Framing.CLOSE, None, "1.1", b"Transfer-Encoding: chunked\r\n", False),
        (Framing.CLOSE, None, "1.0", b"Connection: close\r\n", True),
        (Framing.NONE, None, "1.1", b"", False),
        (Framing.NONE, 4, "1.1", b"Content-Length: 4\r\n", False),
    ],
)
def test_a_head_has_one_framing_that_its_client_understands(
    framing: Framing, length: int | None, version: str, lines: bytes, closes: bool
) -> None:
    relay, written = begun(framing, length, is_http_1_0=version == "1.0")
    relay.flush()

    assert written == [HEAD.lines + b"Y: 2\r\n" + lines + b"\r\n"]
    assert relay.closes is closes


@pytest.mark.parametrize(
    ("framing", "is_http_1_0", "body"),
    [
        (Framing.CHUNKED, False, b"RAW1RAW2"),
        (Framing.CHUNKED, True, b"onetwo"),
        (Framing.LENGTH, False, b"RAW1RAW2"),
        (Framing.CLOSE, False, b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"),
        (Framing.CLOSE, True, b"onetwo"),
    ],
)
def test_a_body_is_passed_on_in_the_clients_framing(
    framing: Framing, is_http_1_0: bool, body: bytes
) -> None:
    relay, written = begun(framing, 8, is_http_1_0=is_http_1_0)
    relay.pass_on(b"RAW1", b"one")
    relay.pass_on(b"RAW2", b"two")
    relay.finish()

    assert b"".join(written).partition(b"\r\n\r\n")[2] == body


def test_a_piece_without_payload_never_becomes_the_last_chunk() -> None:
    relay, written = begun(Framing.CLOSE)
    relay.flush()
    relay.pass_on(b"", b"")

    assert len(written) == 1


@pytest.mark.parametrize(
    ("framing", "is_between_chunks", "can"),
    [
        (Framing.CHUNKED, True, True),
        (Framing.CHUNKED, False, False),
        (Framing.CLOSE, False, True),
        (Framing.LENGTH, True, False),
    ],
)
def test_a_chunk_of_the_gateway_fits_only_between_two_of_the_replica(
    framing: Framing, is_between_chunks: bool, can: bool
) -> None:
    relay, _ = begun(framing)

    assert relay.can_add_chunk(is_between_chunks) is can


def test_a_chunk_of_the_gateway_comes_after_a_head_that_was_still_held_back() -> None:
    relay, written = begun(Framing.CHUNKED)

    relay.add_chunk(b"data: 1\n\n")

    head, _, body = b"".join(written).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert body == b"9\r\ndata: 1\n\n\r\n"
