"""Who takes the text of an answer: a collector, or a stream that writes straight to its socket.

A step ends with one write for each stream that got a token. Those writes go to the transport at
once and never wait: a client that does not read fills a bounded buffer and is then cut off, while
the step loop, and so all other streams, go on.
"""

import asyncio
from collections.abc import Callable, Sequence

from replicas.server.generation import Generation
from replicas.server.metrics import ReplicaMetrics
from replicas.server.openai_answers import ChoiceChunks, Envelope


class Collector:
    """Keeps an answer until all its choices have ended."""

    def __init__(self, echoes: Sequence[str]) -> None:
        self._pieces: list[list[bytes]] = [[echo.encode()] for echo in echoes]
        self._num_open = len(echoes)
        self.ended = asyncio.Event()

    def take(self, generation: Generation, piece: bytes) -> None:
        """See Receiver."""
        self._pieces[generation.index].append(piece)
        if generation.finish_reason is not None:
            self._num_open -= 1
            if not self._num_open:
                self.ended.set()

    def when_written(self, act: Callable[[], None]) -> None:
        """Call ``act`` now: nothing is written before the end."""
        act()

    def texts(self) -> list[str]:
        """Return the text of each choice."""
        return [b"".join(pieces).decode() for pieces in self._pieces]


class EventStream:
    """A streamed answer: kept until a transport is attached, then written as it comes."""

    def __init__(
        self,
        envelope: Envelope,
        echoes: Sequence[str],
        buffer_bytes_max: int,
        metrics: ReplicaMetrics,
    ) -> None:
        self._chunks = [ChoiceChunks(envelope, i, echo) for i, echo in enumerate(echoes)]
        self._unopened = set(range(len(echoes)))
        self._num_open = len(echoes)
        self._buffer_bytes_max = buffer_bytes_max
        self._metrics = metrics
        self._early = b""
        self._transport: asyncio.WriteTransport | None = None
        self._chunked = False
        self._when_attached: Callable[[], None] = lambda: None
        self.tail = b""  # the last event, for whoever ends the response
        self.begun = asyncio.Event()
        self.ended = asyncio.Event()

    def take(self, generation: Generation, piece: bytes) -> None:
        """See Receiver."""
        reason = generation.finish_reason
        if not piece and reason is None:
            return  # held back: it may be the beginning of a stop string
        chunks = self._chunks[generation.index]
        stop_reason = None if reason is None else generation.stop_reason
        event = chunks.event(piece, reason, stop_reason)
        if generation.index in self._unopened:
            self._unopened.remove(generation.index)
            event = chunks.opening() + event
            self.begun.set()
        if reason is None:
            self._send(event)
        else:
            self._end(event)

    def take_early(self, num_bytes_max: int) -> bytes:
        """Return, and forget, the beginning of what came before there was a transport."""
        early, self._early = self._early[:num_bytes_max], self._early[num_bytes_max:]
        return early

    def attach(self, transport: asyncio.WriteTransport, chunked: bool) -> None:
        """Write what came early to ``transport``, and all that comes, in HTTP chunks or bare."""
        self._transport = transport
        self._chunked = chunked
        early, self._early = self._early, b""
        if early:
            self._write(early)
        self._when_attached()

    def when_written(self, act: Callable[[], None]) -> None:
        """Call ``act`` once all that was taken is with the transport, now if it is."""
        if self.begun.is_set() and self._transport is None:
            self._when_attached = act
        else:
            act()

    def _write(self, data: bytes) -> None:
        """Write some of the body; cut the client off if it has left too much unread."""
        assert self._transport is not None
        transport = self._transport
        if transport.is_closing():
            return
        # Asked before the write, so that one large event (an echo) is no reason by itself.
        if transport.get_write_buffer_size() > self._buffer_bytes_max:
            self._metrics.slow_clients += 1
            transport.abort()
            return
        transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def _send(self, event: bytes) -> None:
        if self._transport is None:
            self._early += event
        else:
            self._write(event)

    def _end(self, event: bytes) -> None:
        self._num_open -= 1
        if self._num_open:
            self._send(event)
        else:
            self.tail = event
            self.ended.set()
