"""Takes the chunks off a request's body, strictly, and knows where the body ends.

The gateway needs the exact end, because another request may follow in the same read; a parser
that only calls back does not tell it. Trailers are checked and dropped.
"""

import re

from router.gateway.http_grammar import TRAILERS

SIZE_LINE_BYTES_MAX = 1024
CHUNKS_AT_ONCE_MAX = 4096
"""Read in one turn of the event loop: a read may bring tens of thousands of a byte each, and some
milliseconds are all that everybody else should wait for it."""

_SIZE_LINE = re.compile(rb"([0-9a-fA-F]{1,15}+)(?:;[\t\x20-\x7e\x80-\xff]*+)?\r\n")
_LINE_END = b"\r\n"
_FRAMING_FIELD = re.compile(
    rb"^(?:content-length|transfer-encoding|host):", re.IGNORECASE | re.MULTILINE
)
"""Not allowed in trailers (RFC 9110, 6.5.1): another hop could take it for that of the head."""


class BadChunkError(ValueError):
    """The body is not in chunks as its head says."""


class ChunkedBody:
    """Reads one body. ``is_whole`` after its end; it must not be fed again then."""

    def __init__(self, trailer_bytes_max: int) -> None:
        self._trailer_bytes_max = trailer_bytes_max
        self._missing = 0  # bytes of the chunk that is open
        self._in_chunk = False
        self._in_trailers = False
        self._rest = b""  # an unfinished line
        self.is_whole = False

    def feed(self, data: bytes) -> "tuple[list[bytes], bytes]":
        """Return the pieces of the body in ``data``, and what follows them: of the body, if there
        are more than ``CHUNKS_AT_ONCE_MAX``, which is to be fed again; else of the next request.

        Raises BadChunkError.
        """
        pieces: list[bytes] = []
        data = self._rest + data
        self._rest = b""
        at = 0
        while at < len(data) and not self.is_whole and len(pieces) < CHUNKS_AT_ONCE_MAX:
            if self._in_chunk:
                following = self._read_chunk(data, at, pieces)
            elif self._in_trailers:
                following = self._read_trailers(data, at)
            else:
                at = _read_whole(data, at, pieces)
                following = self._read_size(data, at)
            if following is None:
                self._rest = data[at:]
                return pieces, b""
            at = following
        return pieces, data[at:]

    def _read_size(self, data: bytes, at: int) -> int | None:
        match = _SIZE_LINE.match(data, at)
        if match is None:
            rest = len(data) - at
            if data.find(b"\n", at) >= 0 or rest > SIZE_LINE_BYTES_MAX:
                raise BadChunkError("a chunk does not begin with its size in hexadecimal digits")
            return None
        self._missing = int(match[1], 16)
        self._in_trailers = self._missing == 0
        self._in_chunk = not self._in_trailers
        return match.end()

    def _read_chunk(self, data: bytes, at: int, pieces: list[bytes]) -> int | None:
        if self._missing:
            piece = data[at : at + self._missing]
            self._missing -= len(piece)
            pieces.append(piece)
            return at + len(piece)
        line_end = data[at : at + 2]
        if line_end == _LINE_END:
            self._in_chunk = False
            return at + 2
        if line_end != b"\r":
            raise BadChunkError("a chunk is longer than its size")
        return None

    def _read_trailers(self, data: bytes, at: int) -> int | None:
        match = TRAILERS.match(data, at)
        if match is not None:
            if _FRAMING_FIELD.search(data, at, match.end()):
                raise BadChunkError("a trailer says how a message is framed, or for which host")
            self.is_whole = True
            return match.end()
        rest = data[at:]
        is_too_long = len(rest) > self._trailer_bytes_max
        if is_too_long or b"\r\n\r\n" in rest or rest.count(b"\n") != rest.count(b"\r\n"):
            raise BadChunkError("the trailers are not header lines, or too long")
        return None


def _read_whole(data: bytes, at: int, pieces: list[bytes]) -> int:
    """Take the chunks that came whole, the last excepted; return where the first other begins."""
    while len(pieces) < CHUNKS_AT_ONCE_MAX and (match := _SIZE_LINE.match(data, at)):
        start = match.end()
        end = start + int(match[1], 16)
        if start == end or not data.startswith(_LINE_END, end):
            break
        pieces.append(data[start:end])
        at = end + len(_LINE_END)
    return at
