"""A connection without a kernel: a transport whose far end is played by a script."""

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

RESET = ConnectionResetError(104, "Connection reset by peer")


class VirtualSocket:
    """The options that the gateway sets and reads."""

    def __init__(self) -> None:
        self.closes_with_reset = False
        self.error = 0

    def setsockopt(self, level: int, name: int, _: object) -> None:
        """Notice the one option that changes how a connection ends."""
        if (level, name) == (socket.SOL_SOCKET, socket.SO_LINGER):
            self.closes_with_reset = True

    def getsockopt(self, *_: int) -> int:
        """Return the pending error."""
        return self.error


class VirtualTransport(asyncio.Transport):
    """The gateway's side of a connection.

    ``on_write`` is told of all that the far end gets; while that does not read, written bytes wait
    here and the protocol is paused as by a real transport.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        protocol: asyncio.Protocol,
        sock: VirtualSocket,
        on_write: Callable[[bytes], None],
    ) -> None:
        super().__init__({"socket": sock})
        self._loop = loop
        self._protocol = protocol
        self._on_write = on_write
        self.sock = sock
        self.unsent = b""
        self.is_lost = False
        self.was_aborted = False
        self.wrote_eof = False
        self._far_end_reads = True
        self._high = 65_536
        self._is_closing = False
        self._protocol_is_paused = False
        self._reading_is_paused = False
        self._arrived: deque[bytes | None] = deque()  # None: the end

    # ---- what the far end does

    def arrive(self, data: bytes | None) -> None:
        """Deliver bytes, or with None the end of what the far end sends."""
        self._arrived.append(data)
        self._deliver()

    def reset(self) -> None:
        """Break the connection from the far end."""
        self.unsent = b""
        self._lose(RESET)

    def set_far_end_reads(self, reads: bool) -> None:
        """Let the far end stop, or go on, reading."""
        self._far_end_reads = reads
        if not reads:
            return
        data, self.unsent = self.unsent, b""
        if data and not self.is_lost:
            self._on_write(data)
        if self._protocol_is_paused and not self.is_lost:
            self._protocol_is_paused = False
            self._protocol.resume_writing()
        if self._is_closing:
            self._lose(None)

    def _deliver(self) -> None:
        while self._arrived and not (self._reading_is_paused or self._is_closing or self.is_lost):
            data = self._arrived.popleft()
            if data is not None:
                self._protocol.data_received(data)
            elif not self._protocol.eof_received():
                self.close()

    def _lose(self, error: Exception | None) -> None:
        self._is_closing = True
        if not self.is_lost:
            self.is_lost = True
            self._loop.call_soon(self._protocol.connection_lost, error)

    # ---- what the gateway calls

    def write(self, data: Any) -> None:
        assert not self.wrote_eof, "written after the end"
        if self._is_closing or not data:
            return
        if self._far_end_reads:
            self._on_write(bytes(data))
            return
        self.unsent += data
        if len(self.unsent) > self._high and not self._protocol_is_paused:
            self._protocol_is_paused = True
            self._protocol.pause_writing()

    def writelines(self, pieces: Any) -> None:
        self.write(b"".join(pieces))

    def write_eof(self) -> None:
        self.wrote_eof = True

    def close(self) -> None:
        self._is_closing = True
        if not self.unsent:
            self._lose(None)

    def abort(self) -> None:
        self.was_aborted = self.was_aborted or not self.is_lost
        self.unsent = b""
        self._lose(None)

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self._reading_is_paused = True

    def resume_reading(self) -> None:
        self._reading_is_paused = False
        self._loop.call_soon(self._deliver)

    def get_write_buffer_size(self) -> int:
        return len(self.unsent)

    def set_write_buffer_limits(self, high: int | None = None, _: int | None = None) -> None:
        self._high = 65_536 if high is None else high
