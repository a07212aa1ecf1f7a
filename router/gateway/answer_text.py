"""The text of answers, for the index: the prompt of the next turn holds it.

Only where a replica does not tell what it caches (``Lease.answer_place``). While an answer comes,
references to its pieces are kept and nothing is looked at. They are read in slices, between other
turns of the event loop: those of a long stream from time to time, all others when it has ended.

An answer that says more than one text is not learned: tool calls, several choices, or what a model
thought, as the next prompt holds that not at all, or not in this place.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from contract.sse import DONE_PAYLOAD, EventTooLargeError, SseReader
from router.core.answers import AnswerPlace
from router.gateway.answer_watch import AnswerWatch
from router.gateway.config import GatewayConfig
from router.gateway.http_head import Media

SLICE_BYTES = 32_768
"""Read in one turn of the event loop, in about 0.2 ms; twice as much may wait in one answer."""

END_BYTES = 4_096
"""To put an answer into the index takes about as long as to read so many bytes of it."""

_FIELD = b"data: "
_EVENT_END = b"\n\n"
_DONE = _FIELD + DONE_PAYLOAD + _EVENT_END


class NotTextError(ValueError):
    """There is more to an answer than one text, or it cannot be read, or it is too long."""


class _Message(msgspec.Struct):
    content: str | None = None
    tool_calls: Any = None
    function_call: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    refusal: Any = None
    audio: Any = None

    @property
    def text(self) -> str | None:
        if self.tool_calls or self.function_call or self.refusal or self.audio:
            raise NotTextError("it says more than text")
        if self.reasoning_content or self.reasoning:
            raise NotTextError("it shows what was thought")
        return self.content


class _Choice(msgspec.Struct):
    index: int = 0
    text: str | None = None
    message: _Message | None = None
    delta: _Message | None = None


class _Answer(msgspec.Struct):
    """A whole answer, or one event of a stream."""

    choices: list[_Choice] = []

    @property
    def text(self) -> str:
        if not self.choices:
            return ""
        choice = self.choices[0]
        if choice.index or len(self.choices) > 1:
            raise NotTextError("it has several choices")
        message = choice.delta or choice.message
        return (choice.text if message is None else message.text) or ""


_answers = msgspec.json.Decoder(_Answer)


class TextReader:
    """Takes the text out of one answer, in whatever pieces its body comes."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._text = bytearray()
        self._begun = b""  # a body that is no stream, or an event
        self._is_stream: bool | None = None  # None: nothing has come yet
        self._events: SseReader | None = None  # of a stream that is more than lines of JSON

    @property
    def num_bytes(self) -> int:
        """What it holds."""
        return len(self._text) + len(self._begun)

    def feed(self, data: bytes) -> None:
        """Read the next bytes. Raises NotTextError, and must not be fed again then."""
        data = self._begun + data
        if self._is_stream is None and (start := data[:64].lstrip()):
            self._is_stream = not start.startswith(b"{")
        self._begun = self._read_stream(data) if self._is_stream else data
        if self.num_bytes > self._bytes_max:
            raise NotTextError(f"it is longer than {self._bytes_max} bytes")

    def close(self) -> bytes:
        """Return the whole text in UTF-8. Raises NotTextError."""
        if self._is_stream:
            self._read_stream(self._begun + _EVENT_END)
        elif self._is_stream is False:
            self._add(_decoded([self._begun]))
        return bytes(self._text)

    def _read_stream(self, data: bytes) -> bytes:
        """Read whole events; return the beginning of one that is not."""
        if self._events is None:
            end = data.rfind(_EVENT_END)
            whole = data[: end + len(_EVENT_END)] if end >= 0 else b""
            try:
                self._add(_lines(whole))
            except msgspec.DecodeError:
                self._events = SseReader(self._bytes_max)
            else:
                return data[len(whole) :]
        try:
            payloads = self._events.feed(data)
        except EventTooLargeError as error:
            raise NotTextError(str(error)) from error
        self._add(_decoded([payload for payload in payloads if payload != DONE_PAYLOAD]))
        return b""

    def _add(self, answers: list[_Answer]) -> None:
        self._text += "".join([answer.text for answer in answers]).encode()


def _lines(events: bytes) -> list[_Answer]:
    """Read events of one line of JSON each, as nearly all are, in a fifth of the time.

    Within JSON there is no line end. Raises DecodeError for any other events.
    """
    lines = events.removesuffix(_DONE).replace(_EVENT_END + _FIELD, b"\n")
    return _answers.decode_lines(lines.removeprefix(_FIELD))


def _decoded(payloads: list[bytes]) -> list[_Answer]:
    try:
        return [_answers.decode(payload) for payload in payloads]
    except (msgspec.DecodeError, RecursionError) as error:
        raise NotTextError(str(error)) from error


class AnswerTexts:
    """All answers under way that will be learned, and the reading of what has come of them."""

    def __init__(self, config: GatewayConfig, clock_us: Callable[[], int]) -> None:
        self.held_bytes = 0
        self._clock_us = clock_us
        self._loop: asyncio.AbstractEventLoop | None = None  # until it starts, all wait
        self._waiting: deque[AnswerText] = deque()
        self.reconfigure(config)

    def reconfigure(self, config: GatewayConfig) -> None:
        """Hold to these limits from here on."""
        self.answer_bytes_max = config.index_answer_bytes_max
        self.bytes_max = config.index_answers_bytes_max

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Read from now on, between the turns of ``loop``."""
        self._loop = loop
        self._read_on()

    def wait(self, answer: "AnswerText") -> None:
        """Have ``answer`` read, soon."""
        self._waiting.append(answer)
        if len(self._waiting) == 1:
            self._read_on()

    def _read(self) -> None:
        """Read a slice, of those that have waited longest."""
        bytes_left = SLICE_BYTES
        try:
            while self._waiting and bytes_left > 0:
                answer = self._waiting.popleft()
                bytes_left -= answer.read(bytes_left, self._clock_us())
                if answer.is_waiting:
                    self._waiting.append(answer)
        finally:
            self._read_on()

    def _read_on(self) -> None:
        if self._waiting and self._loop is not None:
            self._loop.call_soon(self._read)


class AnswerText:
    """One answer, from its first byte to its end."""

    __slots__ = (
        *("_held_bytes", "_is_over", "_pieces", "_place", "_reader"),
        *("_texts", "_unread_bytes", "is_waiting"),
    )

    def __init__(self, texts: AnswerTexts, place: AnswerPlace) -> None:
        place.on_end = self.end
        self.is_waiting = False  # to be read
        self._texts = texts
        self._place: AnswerPlace | None = place  # None: it will not be learned
        self._reader = TextReader(texts.answer_bytes_max)
        self._pieces: list[bytes] = []  # not yet read
        self._unread_bytes = 0  # of them
        self._held_bytes = 0  # these, and what the reader holds
        self._is_over = False

    def take(self, piece: bytes) -> None:
        """Keep the next piece of the body."""
        if self._place is None:
            return
        texts, size = self._texts, len(piece)
        self._pieces.append(piece)
        self._unread_bytes += size
        self._held_bytes += size
        texts.held_bytes += size
        if texts.held_bytes > texts.bytes_max:
            self._give_up()
        elif self._unread_bytes > SLICE_BYTES and not self.is_waiting:
            self._wait()

    def end(self, is_whole: bool) -> None:
        """Learn the answer, soon; or forget it, unless it ended as it should."""
        if not is_whole:
            self._give_up()
        elif self._place is not None:
            self._is_over = True
            if not self.is_waiting:
                self._wait()

    def read(self, bytes_max: int, now_us: int) -> int:
        """Read about so many bytes; return how many, or to how many it amounts."""
        self.is_waiting = False
        place = self._place
        if place is None:
            return 0
        size = count = 0
        for piece in self._pieces:
            size += len(piece)
            count += 1
            if size >= bytes_max:
                break
        data = b"".join(self._pieces[:count])
        del self._pieces[:count]
        self._unread_bytes -= size
        try:
            self._reader.feed(data)
            if self._is_over and not self._pieces:
                place.learn(self._reader.close(), now_us)
                self._give_up()
                return size + END_BYTES
        except NotTextError:
            self._give_up()
            return size
        self._hold(self._unread_bytes + self._reader.num_bytes)
        if self._is_over or self._unread_bytes > SLICE_BYTES:
            self.is_waiting = True
        return size

    def _wait(self) -> None:
        self.is_waiting = True
        self._texts.wait(self)

    def _hold(self, num_bytes: int) -> None:
        self._texts.held_bytes += num_bytes - self._held_bytes
        self._held_bytes = num_bytes

    def _give_up(self) -> None:
        """Hold nothing any more."""
        self._place = None
        self._pieces.clear()
        self._hold(0)


class TextWatch(AnswerWatch):
    """Takes an answer's body piece by piece, and has its text learned."""

    __slots__ = ("_answer",)

    def __init__(self, media: Media, tail_bytes: int, answer: AnswerText) -> None:
        super().__init__(media, tail_bytes)
        self._answer = answer

    def take(self, piece: bytes) -> None:
        """Take the next bytes of the body."""
        self._answer.take(piece)
        AnswerWatch.take(self, piece)
