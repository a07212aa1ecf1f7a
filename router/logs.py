"""One JSON object a line on standard error, written by a thread: a full pipe holds up no request.

Rule: nothing of a request's headers or body is ever logged, but its model's name, cut short.
"""

import logging
import queue
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener
from typing import Any, TextIO

import msgspec

from router.core.record import ExchangeRecord

LINES_WAITING_MAX = 10_000
"""Lines that may wait for a slow reader; more are dropped, and counted in a later line."""

MODEL_LENGTH_MAX = 100

requests_log = logging.getLogger("router.requests")

_encode = msgspec.json.Encoder().encode


class _JsonLines(logging.Formatter):
    """Formats an entry; ``extra={"fields": {...}}`` adds to the object."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {"time": when, "level": record.levelname.lower()}
        line |= {"logger": record.name, "message": record.getMessage()}
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return _encode(line).decode()


class _DroppingQueue(QueueHandler):
    """Hands entries to the writing thread as long as there is room."""

    def __init__(self, lines: "queue.Queue[logging.LogRecord]") -> None:
        super().__init__(lines)
        self._dropped = 0

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record  # both sides are one process: no need to make it fit for a pickle

    def enqueue(self, record: logging.LogRecord) -> None:
        if self._dropped:
            record.msg, record.args = f"{record.getMessage()} ({self._dropped} lines lost)", None
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            self._dropped += 1
        else:
            self._dropped = 0


@contextmanager
def logging_to(stream: TextIO = sys.stderr, level: int = logging.INFO) -> Iterator[None]:
    """Send all log entries of this process to ``stream`` until the block is left."""
    writer = logging.StreamHandler(stream)
    writer.setFormatter(_JsonLines())
    lines: queue.Queue[logging.LogRecord] = queue.Queue(LINES_WAITING_MAX)
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
        root.removeHandler(handler)
        root.setLevel(before)
        listener.stop()


def log_request(record: ExchangeRecord) -> None:
    """Write the one line of a request that has ended."""
    usage = record.usage
    fields: dict[str, Any] = {
        "request_id": record.request_id,
        "path": record.path,
        "model": None if record.model is None else record.model[:MODEL_LENGTH_MAX],
        "stream": record.stream,
        "outcome": record.outcome.value,
        "status": record.status,
        "failure": None if record.failure is None else record.failure.kind.code,
        "detail": record.detail or None,
        "policy": record.policy,
        "reason": None if record.reason is None else record.reason.value,
        "replica": record.replica_id,
        "attempts": record.attempts,
        "resumes": record.resumes,
        "prompt_tokens": record.prompt_tokens,
        "matched_tokens": record.matched_tokens,
        "usage_prompt_tokens": None if usage is None else usage.prompt_tokens,
        "usage_cached_tokens": None if usage is None else usage.cached_tokens,
        "usage_completion_tokens": None if usage is None else usage.completion_tokens,
        "sent_after_us": _since(record.received_us, record.sent_us),
        "first_byte_after_us": _since(record.received_us, record.first_byte_us),
        "ended_after_us": record.ended_us - record.received_us,
        "body_bytes": record.body_bytes,
        "answer_bytes": record.answer_bytes,
        "chunks": record.chunks,
    }
    requests_log.info("request ended", extra={"fields": fields})


def _since(start_us: int, us: int | None) -> int | None:
    return None if us is None else us - start_us
