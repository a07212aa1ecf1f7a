"""The client's half of an answer: the replica's head rewritten, its body framed for the client.

The body itself is never changed. Where both sides frame alike the replica's bytes go through as
they came, chunk sizes included, but the last chunk waits until the answer has been judged; a body
that ends with its connection gets chunks for HTTP/1.1, and one in chunks loses them for HTTP/1.0.
"""

from collections.abc import Callable
from enum import Enum

from router.gateway.http_head import AnswerHead, Framing

LAST_CHUNK = b"0\r\n\r\n"


class _Mode(Enum):
    RAW = "raw"
    CHUNKS = "chunks"
    PAYLOAD = "payload"


# To look a member up is a call of its own (until Python 3.12).
_RAW, _CHUNKS, _PAYLOAD = _Mode
_NONE, _LENGTH = Framing.NONE, Framing.LENGTH


class Relay:
    """Writes one answer to one client."""

    # Class attributes, so that a relay sets only what it changes.
    _mode = _RAW
    _is_chunked = False  # towards the client
    write_raw: Callable[[bytes], None] | None  # of pieces behind the head, that go as they come
    _head = b""  # not yet written: it goes out with the first bytes of the body

    def __init__(
        self, write: Callable[[bytes], None], *, closes: bool, is_http_1_0: bool = False
    ) -> None:
        self.write = self.write_raw = write
        self._is_http_1_0 = is_http_1_0
        self.closes = closes  # the client's connection, after this answer

    def begin(
        self, head: AnswerHead, length: int | None, framing: Framing, extra_lines: bytes
    ) -> None:
        """Make the head; ``pass_on``, ``flush`` or ``finish`` writes it, as every write is a call
        of the kernel. ``framing`` is the replica's, ``extra_lines`` are the gateway's own.
        """
        framing_line = b""
        if framing is _LENGTH or framing is _NONE:
            if length is not None:
                framing_line = b"Content-Length: %d\r\n" % length
        elif self._is_http_1_0:
            self._mode = _PAYLOAD
            self.write_raw = None
            self.closes = True
        else:
            framing_line = b"Transfer-Encoding: chunked\r\n"
            self._is_chunked = True
            if framing is Framing.CLOSE:
                self._mode = _CHUNKS
                self.write_raw = None
        if self.closes:
            framing_line += b"Connection: close\r\n"
        elif self._is_http_1_0:
            framing_line += b"Connection: keep-alive\r\n"
        self._head = b"%b%b%b\r\n" % (head.lines, extra_lines, framing_line)

    def pass_on(self, raw: bytes, payload: bytes) -> None:
        """Write the next piece of the body."""
        if self._mode is _PAYLOAD:
            raw = payload
        elif self._mode is _CHUNKS:
            raw = b"%x\r\n%b\r\n" % (len(payload), payload) if payload else b""
        if self._head:
            raw = self._head + raw
            self._head = b""
        if raw:
            self.write(raw)

    @property
    def holds_head(self) -> bool:
        """Whether the client has got nothing yet."""
        return bool(self._head)

    def flush(self) -> None:
        """Write the head, if it is still here."""
        if self._head:
            head, self._head = self._head, b""
            self.write(head)

    def finish(self, last_chunk: bytes = b"") -> None:
        """Write what ends the body: the replica's ``last_chunk``, where its chunks went through."""
        if self._mode is not _RAW:
            last_chunk = LAST_CHUNK if self._mode is _CHUNKS else b""
        last = self._head + last_chunk
        if last:
            self._head = b""
            self.write(last)

    def can_add_chunk(self, is_between_chunks: bool) -> bool:
        """Say whether a chunk could be written now; ``is_between_chunks``: of the replica's."""
        return self._is_chunked and (self._mode is _CHUNKS or is_between_chunks)

    def add_chunk(self, payload: bytes) -> None:
        """Write a chunk of the gateway's own, behind what the client has to get before it."""
        self.flush()
        self.write(b"%x\r\n%b\r\n" % (len(payload), payload))

    @property
    def end_is_visible(self) -> bool:
        """Whether a client can tell from a closed connection that the body is not whole."""
        return self._mode is not _PAYLOAD
