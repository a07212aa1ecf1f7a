"""One JSON object a line on standard error, written by a thread: a full pipe holds up no request.

Rule: nothing of a request's headers or body is ever logged, but its model's name, cut short.

The lines of requests that end about the same time are one entry and one write: to wake the thread
for each would cost more than all else about it.
"""

import asyncio
import logging
import queue
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener
from typing import Any, TextIO

import msgspec

from router.core.reason import Outcome, Reason
from router.core.record import ExchangeRecord

LINES_WAITING_MAX = 10_000
"""Lines that may wait for a slow reader; more are dropped, and counted in a later line."""

GATHERING_S = 0.01
"""How long the line of a request waits for others, so that they are written together."""

GATHERED_MAX = 256
MODEL_LENGTH_MAX = 100

requests_log = logging.getLogger("router.requests")

_encoder = msgspec.json.Encoder()


class _RequestLine(msgspec.Struct, gc=False):
    """The line of a request that has ended, in the order of its fields."""

    time: datetime | None  # None, until it is written: that of its entry
    level: str
    logger: str
    message: str
    request_id: str
    path: str
    model: str | None
    stream: bool
    outcome: Outcome
    status: int
    failure: str | None
    detail: str | None
    policy: str
    reason: Reason | None
    replica: str | None
    attempts: int
    resumes: int
    prompt_tokens: int
    matched_tokens: int
    usage_prompt_tokens: int | None
    usage_cached_tokens: int | None
    usage_completion_tokens: int | None
    sent_after_us: int | None
    first_byte_after_us: int | None
    ended_after_us: int
    body_bytes: int
    answer_bytes: int
    chunks: int


class _RequestLines:
    """Gathers lines, and hands them over together."""

    def __init__(self) -> None:
        self._lines: list[_RequestLine] = []

    def add(self, record: ExchangeRecord) -> None:
        """Take in the line of a request that has ended."""
        lines = self._lines
        lines.append(_line_of(record))
        if len(lines) == 1:
            asyncio.get_running_loop().call_later(GATHERING_S, self.hand_over)
        elif len(lines) >= GATHERED_MAX:
            self.hand_over()

    def hand_over(self) -> None:
        """Log what has been gathered."""
        lines, self._lines = self._lines, []
        if lines:
            requests_log.info("%d requests ended", len(lines), extra={"lines": lines})


_request_lines = _RequestLines()
log_request = _request_lines.add
"""Writes the one line of a request that has ended, soon; to be called on a running loop."""


class _JsonLines(logging.Formatter):
    """Formats an entry; of ``extra={"lines": [...]}`` each becomes a line, without the message."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC)
        if lines := getattr(record, "lines", None):
            for entry in lines:
                entry.time = when
            return _encoder.encode_lines(lines).decode().removesuffix("\n")
        line: dict[str, Any] = {"time": when, "level": record.levelname.lower()}
        line |= {"logger": record.name, "message": record.getMessage()}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return _encoder.encode(line).decode()


class _LineQueue(queue.Queue[logging.LogRecord]):
    """Holds entries, and is full by their lines."""

    def _init(self, maxsize: int) -> None:
        super()._init(maxsize)
        self._num_lines = 0

    def _qsize(self) -> int:
        return self._num_lines

    def _put(self, item: logging.LogRecord) -> None:
        super()._put(item)
        self._num_lines += _num_lines(item)

    def _get(self) -> logging.LogRecord:
        item: logging.LogRecord = super()._get()
        self._num_lines -= _num_lines(item)
        return item


class _DroppingQueue(QueueHandler):
    """Hands entries to the writing thread as long as there is room."""

    def __init__(self, lines: _LineQueue) -> None:
        super().__init__(lines)
        self._dropped = 0

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record  # both sides are one process: no need to make it fit for a pickle

    def enqueue(self, record: logging.LogRecord) -> None:
        if self._dropped:
            lost = f" ({self._dropped} lines lost)"
            record.msg, record.args = record.getMessage() + lost, None
            for line in getattr(record, "lines", ())[:1]:
                line.message += lost
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            self._dropped += _num_lines(record)
        else:
            self._dropped = 0


def _num_lines(record: logging.LogRecord | None) -> int:
    """Return how many lines an entry is; the one by which a listener is stopped is one, too."""
    return len(getattr(record, "lines", ())) or 1


@contextmanager
def logging_to(stream: TextIO = sys.stderr, level: int = logging.INFO) -> Iterator[None]:
    """Send all log entries of this process to ``stream`` until the block is left."""
    writer = logging.StreamHandler(stream)
    writer.setFormatter(_JsonLines())
    lines = _LineQueue(LINES_WAITING_MAX)
    handler = _DroppingQueue(lines)
    root = logging.getLogger()
    before = root.level
    root.setLevel(level)
    root.addHandler(handler)
    listener = QueueListener(lines, writer)
    listener.start()
    try:
        yield
    finally:
        _request_lines.hand_over()
        root.removeHandler(handler)
        root.setLevel(before)
        listener.stop()


def _line_of(record: ExchangeRecord) -> _RequestLine:
    usage, received_us = record.usage, record.received_us
    # By position: to look up so many names takes six times as long as all the rest.
    return _RequestLine(
        None,
        "info",
        requests_log.name,
        "request ended",
        record.request_id,
        record.path,
        None if record.model is None else record.model[:MODEL_LENGTH_MAX],
        record.stream,
        record.outcome,
        record.status,
        None if record.failure is None else record.failure.kind.code,
        record.detail or None,
        record.policy,
        record.reason,
        record.replica_id,
        record.attempts,
        record.resumes,
        record.prompt_tokens,
        record.matched_tokens,
        None if usage is None else usage.prompt_tokens,
        None if usage is None else usage.cached_tokens,
        None if usage is None else usage.completion_tokens,
        _since(received_us, record.sent_us),
        _since(received_us, record.first_byte_us),
        record.ended_us - received_us,
        record.body_bytes,
        record.answer_bytes,
        record.chunks,
    )


def _since(start_us: int, us: int | None) -> int | None:
    return None if us is None else us - start_us
