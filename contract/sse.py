"""Server-sent events: an encoder, and an incremental reader that survives any split of bytes.

The reader works on bytes and never decodes a partial line, so a character cut in two by the
network stays whole. It accepts LF, CRLF and CR line ends, as the HTML standard asks
(https://html.spec.whatwg.org/multipage/server-sent-events.html).
"""

import re

DONE = b"data: [DONE]\n\n"
DONE_PAYLOAD = b"[DONE]"

_LINE_END = re.compile(rb"\r\n|\n|\r")


class EventTooLargeError(ValueError):
    """One event is larger than the reader's limit; the reader must not be fed again."""


def encode_event(payload: bytes) -> bytes:
    """Return one event with ``payload`` (no line ends in it) as its data."""
    assert b"\n" not in payload
    return b"data: " + payload + b"\n\n"


class SseReader:
    """Cuts a byte stream into the data payloads of its events.

    Comments and fields other than ``data`` are skipped; several data lines of one event are
    joined by a line feed. ``event_bytes_max`` bounds one unfinished event.
    """

    def __init__(self, event_bytes_max: int = 16 * 1024 * 1024) -> None:
        self._event_bytes_max = event_bytes_max
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the payloads of the events that ``chunk`` completes. Raises EventTooLargeError."""
        text = self._rest + chunk
        payloads: list[bytes] = []
        start = 0
        for match in _LINE_END.finditer(text):
            if match.group() == b"\r" and match.end() == len(text):
                break  # the LF of a CRLF may be in the next chunk
            self._take_line(text[start : match.start()], payloads)
            start = match.end()
        self._rest = text[start:]
        pending = len(self._rest) + sum(map(len, self._data))
        if pending > self._event_bytes_max:
            raise EventTooLargeError(
                f"an event of more than {self._event_bytes_max} bytes has no end"
            )
        return payloads

    def _take_line(self, line: bytes, payloads: list[bytes]) -> None:
        if not line:
            if self._data:
                payloads.append(b"\n".join(self._data))
                self._data = []
            return
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
