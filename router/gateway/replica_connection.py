"""One connection to a replica: finds the head and the end of each answer, relays what is between.

A body is relayed in the pieces in which it comes. Each is given to the exchange twice, raw (with
its chunk framing) and as payload; the raw one goes to the client wherever both sides frame alike.
"""

import asyncio
import re
from collections.abc import Callable
from itertools import count
from typing import Protocol, cast

from httptools import HttpParserError, HttpResponseParser

from router.gateway.hop_by_hop import NOT_IN_TRAILERS
from router.gateway.http_grammar import LAST_CHUNK
from router.gateway.http_head import (
    HEAD_END,
    AnswerHead,
    BadHeadError,
    Framing,
    Media,
    read_answer_head,
)
from router.gateway.json_text import JsonText

JOINED_BYTES_MAX = 16_384
"""A body up to here is copied behind its head: cheaper than to hand the kernel two pieces."""

_HTTP = b"HTTP/"
_HEAD_END_BYTES = len(HEAD_END)
_SWITCHING, _REQUEST_TIMEOUT = 101, 408
_CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
"""Told to a parser that is to read a body only; the real head has been read already."""

# To look a member up is a call of its own (until Python 3.12); these stand for every answer.
_NONE, _LENGTH, _CHUNKED, _CLOSE = Framing

_PART_OF_LAST_CHUNK = re.compile(rb"(?:\A|\n)0")


class AnswerSink(Protocol):
    """Who asked, and takes the answer. Any of these may release or abort the connection."""

    def on_head(
        self, head: AnswerHead, length: int | None, framing: Framing, *, is_followed: bool
    ) -> None:
        """The final head is complete; ``is_followed``: more of the answer comes at once.

        ``length`` is its Content-Length; ``framing`` that of the body which follows.
        """

    def on_body(self, raw: bytes, payload: bytes) -> None:
        """The next bytes of the body."""

    def on_body_end(self, last_chunk: bytes = b"") -> None:
        """The body is whole. ``last_chunk`` says so to a client, and has not been given out."""

    def on_bad_answer(self, message: str) -> None:
        """What came is not HTTP, or not an answer to this request."""

    def on_upstream_lost(self, cause: str) -> None:
        """The connection ended before the answer did."""


class Home(Protocol):
    """Where connections are kept between two requests."""

    def put(self, connection: "ReplicaConnection") -> None:
        """Take back a connection that can serve another request."""

    def forget(self, connection: "ReplicaConnection") -> None:
        """Forget a connection that is closed."""


class ReplicaConnection(asyncio.Protocol):
    """Carries one request at a time, then goes back to its pool."""

    # Of the request under way; class attributes, so that a connection sets only what it changes.
    _sink: AnswerSink | None = None
    _bodiless = False
    _buffer = b""
    _framing: Framing | None = None  # None: the head is not complete
    _remaining = 0
    _text: JsonText | None = None  # of a body whose end nothing else shows
    _is_success = False
    _reusable = True
    _complete = False  # the last chunk has been read
    _excess = False
    _is_ending = False  # a part of the last chunk has been given out
    _paused = False
    _last_piece = b"\n"
    has_answered = False
    idle_since_us = 0

    def __init__(self, home: Home, head_bytes_max: int) -> None:
        self._home = home
        self._head_bytes_max = head_bytes_max
        self._transport: asyncio.Transport | None = None
        self._parser: HttpResponseParser | None = None
        self._parts: list[bytes] = []
        self._trailers: dict[bytes, bytes] = {}
        self._begun, self._ended = count(), count()  # chunks, as the parser counts them
        self.on_body: Callable[[bytes], None]
        self.on_header: Callable[[bytes, bytes], bytes]
        self.on_chunk_header: Callable[[], int]
        self.on_chunk_complete: Callable[[], int]
        self.num_requests = 0

    @property
    def is_open(self) -> bool:
        """Whether a request can be written."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def was_reused(self) -> bool:
        """Whether the request under way is not its first."""
        return self.num_requests > 1

    def send(self, sink: AnswerSink, head: bytes, body: bytes, *, bodiless: bool) -> None:
        """Write a request; its answer goes to ``sink``. ``bodiless``: it answers a HEAD."""
        assert self._sink is None
        assert self._transport is not None
        self._sink = sink
        self._bodiless = bodiless
        self._buffer = b""
        self._framing = None
        self._reusable = True
        self.has_answered = False
        self.num_requests += 1
        if len(body) > JOINED_BYTES_MAX:
            self._transport.writelines((head, body))
        else:
            self._transport.write(head + body)

    def release(self, now_us: int) -> None:
        """End the request under way, and keep the connection if another can follow."""
        transport = self._transport
        self._sink = None
        if not self._reusable or transport is None or transport.is_closing():
            self.abort()
        elif transport.get_write_buffer_size():
            self.abort()  # it answered before it had read the request
        else:
            if self._paused:
                self.resume()
            self.idle_since_us = now_us
            self._home.put(self)

    def abort(self) -> None:
        """Close at once, so that the replica stops computing."""
        self._sink = None
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """Read no more until ``resume``."""
        if self._transport is not None and not self._paused and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._transport is not None and self._paused and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()

    # ---- what the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not an isinstance check: uvloop's transports have the methods and not the base class.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        sink = self._sink
        if sink is None:
            self.abort()  # an answer that nobody asked for
        elif self._framing is _CHUNKED:
            self._read_chunks(sink, data)
        elif self._framing is not None:
            self._read_body(sink, data)
        else:
            self.has_answered = True
            self._read_head(data)

    def eof_received(self) -> bool:
        # Not left to connection_lost, which comes only when all that was written has been sent:
        # never, if the replica stopped reading.
        self._gone(None)
        self.abort()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._home.forget(self)
        self._gone(exc)
        self._transport = None

    def _gone(self, exc: Exception | None) -> None:
        sink = self._sink
        if sink is None:
            return
        self._reusable = False
        if self._framing is _CLOSE and exc is None and not self._is_cut_short():
            sink.on_body_end()
        else:
            self._sink = None
            sink.on_upstream_lost(type(exc).__name__ if exc else "closed by the replica")

    def _is_cut_short(self) -> bool:
        """Say whether a body that has ended with its connection shows that more was to come."""
        text = self._text
        return text is not None and (text.is_open or (text.is_empty and self._is_success))

    # ---- the head

    def _read_head(self, data: bytes) -> None:
        buffer = self._buffer + data if self._buffer else data
        if not buffer.startswith(_HTTP) and not _HTTP.startswith(buffer):
            self._bad("its answer is not HTTP")
            return
        while True:
            end = buffer.find(HEAD_END)
            if end < 0 or end > self._head_bytes_max:
                break
            try:
                head, length = read_answer_head(buffer[: end + 2])
            except BadHeadError as error:
                self._bad(f"the head of its answer cannot be read: {error}")
                return
            buffer = buffer[end + _HEAD_END_BYTES :]
            if head.status == _REQUEST_TIMEOUT and self.was_reused and not head.keep_alive:
                # It is about the silence before this request, as proxies say it (RFC 9110, 15.5.9).
                self.has_answered = False
                self._gone(None)
                return
            if head.status >= 200:
                self._begin_body(head, length, buffer)
                return
            if head.status == _SWITCHING:
                self._bad("it switched protocols, which nobody asked for")
                return
        if len(buffer) > self._head_bytes_max:
            self._bad("the head of its answer is too large")
        elif buffer.count(b"\n") != buffer.count(b"\r\n"):
            self._bad("a line of the head of its answer does not end with CR LF")
        self._buffer = buffer

    def _begin_body(self, head: AnswerHead, length: int | None, body: bytes) -> None:
        sink = self._sink
        assert sink is not None
        framing = self._framing = _NONE if self._bodiless else head.framing
        self._remaining = length or 0
        if framing is _CHUNKED:
            self._begin_chunks()
        elif framing is _CLOSE:
            self._text = JsonText() if head.media is Media.JSON and not head.is_encoded else None
            self._is_success = head.status < 300
        self._reusable = head.keep_alive
        is_whole = framing is _NONE or (framing is _LENGTH and not length)
        sink.on_head(head, length, framing, is_followed=is_whole or bool(body))
        if self._sink is not sink:
            return
        if is_whole:
            self._reusable = self._reusable and not body
            sink.on_body_end()
        elif framing is _CHUNKED and body:
            self._read_chunks(sink, body)
        elif body:
            self._read_body(sink, body)

    # ---- the body

    def _read_body(self, sink: AnswerSink, data: bytes) -> None:
        if self._framing is not _LENGTH:
            if self._text is not None:
                self._text.take(data)
            sink.on_body(data, data)
            return
        if len(data) > self._remaining:
            data = data[: self._remaining]
            self._reusable = False
        self._remaining -= len(data)
        sink.on_body(data, data)
        if not self._remaining and self._sink is sink:
            sink.on_body_end()

    def _begin_chunks(self) -> None:
        self._complete = self._excess = self._is_ending = False
        self._parts.clear()
        if self._parser is None:
            # It calls these for every chunk of every stream: functions in C, not in Python.
            self.on_body = self._parts.append
            self.on_header = self._trailers.setdefault
            self.on_chunk_header = self._begun.__next__
            self.on_chunk_complete = self._ended.__next__
            self._parser = HttpResponseParser(self)
        self._parser.feed_data(_CHUNKED_HEAD)
        self._trailers.clear()  # what it has found is our own head's

    def _read_chunks(self, sink: AnswerSink, data: bytes) -> None:
        assert self._parser is not None
        try:
            self._parser.feed_data(data)
        except HttpParserError as error:
            self._bad(f"the body of its answer is not chunked as it says: {error}")
            return
        if self._excess:
            self._bad("more came than its answer")
            return
        before, self._last_piece = self._last_piece, data
        if len(data) < _HEAD_END_BYTES:
            self._last_piece = before[-_HEAD_END_BYTES:] + data
        parts = self._parts
        payload = parts.pop() if parts else b""
        if parts:  # a piece of several chunks
            payload = b"".join((*parts, payload))
            parts.clear()
        if self._complete:
            self._end_chunks(sink, before, data, payload)
        else:
            sink.on_body(data, payload)

    def _end_chunks(self, sink: AnswerSink, before: bytes, data: bytes, payload: bytes) -> None:
        """Give out all but the last chunk: whether the answer is whole is yet to be judged."""
        data = self._without_empty_lines(before, data)
        found = LAST_CHUNK.search(before[-1:] + data)
        if found is None and payload:
            self._bad("the last chunk of its answer cannot be read")
            return
        self._is_ending = found is None  # it began in a piece before
        start = found.start() - 1 if found is not None else 0
        if self._trailers and any(map(NOT_IN_TRAILERS.fullmatch, self._trailers)):
            self._bad("a trailer of its answer says what only a head may")
            return
        if start:
            sink.on_body(data[:start], payload)
        if self._sink is sink:
            sink.on_body_end(data[start:])

    def _without_empty_lines(self, before: bytes, data: bytes) -> bytes:
        """Return the end of a chunked body without empty lines behind it: the parser skips them,
        but a client would take them for the beginning of its next answer.
        """
        tail = before[-_HEAD_END_BYTES:] + data
        num_excess = len(tail) - len(tail.rstrip(b"\r\n")) - _HEAD_END_BYTES
        if num_excess <= 0:  # as nearly always
            return data
        self._reusable = False
        return data[:-num_excess]

    @property
    def is_between_chunks(self) -> bool:
        """Whether what has been given out of a chunked body ends with a whole chunk."""
        if self._is_ending:
            return False
        # Both counters go on by one, so the next comparison is as good.
        return next(self._begun) == next(self._ended) and self._last_piece.endswith(b"\n")

    @property
    def may_be_ending(self) -> bool:
        """Whether a part of the last chunk may have been given out.

        There are clients that take it for the whole of it.
        """
        if self._framing is not _CHUNKED or self.is_between_chunks:
            return False
        return self._is_ending or _PART_OF_LAST_CHUNK.search(self._last_piece) is not None

    def _bad(self, message: str) -> None:
        sink = self._sink
        self._reusable = False
        self._is_ending = _PART_OF_LAST_CHUNK.search(self._last_piece) is not None
        self._last_piece = b""  # the parser is further than what was given out
        if sink is not None:
            self._sink = None
            sink.on_bad_answer(message)

    # ---- what the parser calls, beside what _begin_chunks sets

    def on_message_begin(self) -> None:
        self._excess = self._complete

    def on_message_complete(self) -> None:
        self._complete = True
