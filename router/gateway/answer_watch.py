"""What a gateway notices in an answer that it passes on untouched.

It keeps the last bytes of the body, never decodes a part of one, and looks at them once, when the
body has ended: for the usage, for the mark of a whole stream, for an error under status 200. Only
the beginning of a stream is looked at as it comes, because the first event is the first token and
a comment is not.
"""

import re

import msgspec

from contract.openai_api import Usage, decode_usage
from router.core.request import CHAT_PATH, COMPLETION_PATH
from router.gateway.http_head import Framing, Media

USAGES_LOOKED_AT_MAX = 8  # null ones, from the end; engines put one on every chunk
USAGE_DEPTH_MAX = 5  # objects in it, each within the one before; engines go two deep

_OBJECT = rb"\{[^{}]*+\}"
for _ in range(USAGE_DEPTH_MAX - 1):
    _OBJECT = rb"\{[^{}]*+(?:" + _OBJECT + rb"[^{}]*+)*+\}"
_USAGE = re.compile(rb'"usage"\s*+:\s*+(' + _OBJECT + rb")")
_STREAM = Media.STREAM  # to look it up is a call of its own (until Python 3.12)
_ERROR, _ERROR_EVENT = b'"error"', b"event: error"
_FINISH_REASON = re.compile(rb'"finish_reason"\s*:\s*"')
_NONE_BUT_DONE = re.compile(rb"(?!)")  # matches nothing
_EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
_WHOLE_EVENT = re.compile(rb"(?:\A|" + b"|".join(_EVENT_ENDS) + rb")\Z")
_FINISHES = {
    CHAT_PATH: _FINISH_REASON,
    COMPLETION_PATH: _FINISH_REASON,
    "/v1/responses": re.compile(
        rb'(?:(?:\A|[\r\n])event: ?|"type"\s*:\s*")'
        rb"(?:response\.(?:completed|incomplete|failed|cancelled)|error)\b"
    ),
    "/v1/messages": re.compile(
        rb'(?:(?:\A|[\r\n])event: ?|"type"\s*:\s*")(?:message_stop|error)\b'
    ),
}
"""By path, what a stream has near its end if it is whole. Quotes within a text are escaped, so no
text can look like it. Streams of other paths have no mark that is known here: if they end with
their connection, their last event must be whole; others are not judged.
"""

_JSON_ERROR = re.compile(rb'\s*\{\s*"error"\s*:\s*\{')
_STREAM_ERROR = re.compile(
    rb'(?:\A|[\r\n])data:\s*\{\s*(?:"type"\s*:\s*"error"\s*,\s*)?"error"\s*:\s*\{'
    rb'|(?:\A|[\r\n])event: error[\r\n]|"finish_reason"\s*:\s*"error"'
)
_ERROR_CODE = re.compile(rb'"code"\s*:\s*"?(4\d\d)\b')
_DONE_FIELD = b"\ndata: "
_BEFORE_DONE = re.compile(rb"(?:\A|[\r\n])data: ?\Z")
_BEGINNING_BYTES = 64
_COUNT_MAX = 2**53  # beyond it a JSON number is not exact
_NO_EVENT = re.compile(rb"(?::[^\r\n]*+[\r\n]++|[\r\n]++)*+")
_EVENT_START = re.compile(rb"[\r\n](?:event|data):")


def finish_of(
    path: str, num_choices: int, framing: Framing = Framing.CHUNKED
) -> re.Pattern[bytes] | None:
    """Return what a whole stream has near its end, unless it has [DONE]; None: it is not judged.

    Of several choices the last finish may be one of many, so there [DONE] alone will do.
    """
    finish = _FINISHES.get(path)
    if finish is None and framing is Framing.CLOSE:
        return _WHOLE_EVENT
    return _NONE_BUT_DONE if finish is _FINISH_REASON and num_choices > 1 else finish


class AnswerWatch:
    """Takes an answer's body piece by piece."""

    __slots__ = (
        "_beginning",
        "_bytes",
        "_media",
        "_opening",
        "_pieces",
        "_tail_bytes",
        "has_event",
    )

    def __init__(self, media: Media, tail_bytes: int) -> None:
        self.has_event = media is not _STREAM  # a first event, or no stream at all
        self._media = media
        self._tail_bytes = tail_bytes
        self._pieces: list[bytes] = []
        self._bytes = 0  # in the pieces
        self._beginning = b""
        self._opening = b""  # comments, until the first event

    def take(self, piece: bytes) -> None:
        """Take the next bytes of the body."""
        if not self.has_event:
            self._look_for_event(piece)
        self._pieces.append(piece)
        self._bytes += len(piece)
        if self._bytes > 2 * self._tail_bytes:
            self._trim()

    def _trim(self) -> None:
        joined = b"".join(self._pieces)
        if not self._beginning:
            self._beginning = joined[:_BEGINNING_BYTES]
        tail = joined[-self._tail_bytes :]
        self._pieces = [tail]
        self._bytes = len(tail)

    def _look_for_event(self, piece: bytes) -> None:
        """Skip whole comment lines and empty ones; what is left begins an event, or is unclear."""
        opening = self._opening + piece
        match = _NO_EVENT.match(opening)
        assert match is not None
        rest = opening[match.end() :]
        self.has_event = bool(rest) and not rest.startswith(b":")
        # Of an unfinished comment it is enough to know that it is one.
        self._opening = rest[:1]

    def tail(self) -> bytes:
        """Return the last bytes of the body so far."""
        if len(self._pieces) != 1:
            self._pieces = [b"".join(self._pieces)]
        return self._pieces[0]

    @property
    def is_between_events(self) -> bool:
        """Whether another event could be appended to the stream as it is."""
        return not self._bytes or self.tail().endswith(_EVENT_ENDS)

    def is_whole_stream(self, finish: re.Pattern[bytes]) -> bool:
        """Say whether a stream that has ended says so itself: by [DONE], ``finish`` or an error.

        An event that fills all that is kept may have said so at its beginning.
        """
        tail = self.tail()
        done = tail.rfind(b"[DONE]")
        if done >= 0 and _BEFORE_DONE.search(tail, max(0, done - len(_DONE_FIELD)), done):
            return True
        if finish.search(tail) is not None or self.error_status() is not None:
            return True
        if finish in (_FINISH_REASON, _NONE_BUT_DONE, _WHOLE_EVENT):
            return False
        is_one_event = bool(self._beginning) and not _EVENT_START.search(tail)
        return is_one_event and self.is_between_events

    def error_status(self) -> int | None:
        """Return the status that an error in a body of status 200 amounts to, None if none."""
        tail = self.tail()
        is_stream = self._media is _STREAM
        where = tail if is_stream else self._beginning or tail[:_BEGINNING_BYTES]
        if _ERROR not in where and _ERROR_EVENT not in where:
            return None  # as nearly always
        found = _STREAM_ERROR.search(where) if is_stream else _JSON_ERROR.match(where)
        if found is None:
            return None
        code = _ERROR_CODE.search(tail, found.start() if is_stream else 0)
        return int(code[1]) if code else 500

    def usage(self) -> Usage | None:
        """Return the last usage in the tail. Raises ValueError for one that cannot be true."""
        tail = self.tail()
        end = len(tail)
        for _ in range(USAGES_LOOKED_AT_MAX):
            start = tail.rfind(b'"usage"', 0, end)
            if start < 0:
                return None
            match = _USAGE.match(tail, start)
            if match is not None:
                return _believable(match[1])
            end = start
        return None


def _believable(raw: bytes) -> Usage | None:
    try:
        usage = decode_usage(raw)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error
    cached_tokens = usage.cached_tokens or 0
    if not (
        0 <= cached_tokens <= usage.prompt_tokens <= _COUNT_MAX
        and 0 <= usage.completion_tokens <= _COUNT_MAX
        and 0 <= usage.total_tokens <= _COUNT_MAX
    ):
        raise ValueError(f"{usage} cannot be")
    # Other APIs count under other names (input_tokens, ...): nothing is known then.
    return usage if usage.prompt_tokens or usage.completion_tokens else None
