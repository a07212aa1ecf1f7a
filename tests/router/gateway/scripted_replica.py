"""A replica that does byte for byte what a test says, and remembers what it was sent."""

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Self

from tests.router.gateway.wire import Received, read_request

READ_BYTES = 65_536
QUEUE_FILLERS = 4  # a queue of 0 takes one or two


class Turn:
    """One request at the replica, and the connection on which to answer it."""

    def __init__(
        self,
        request: Received,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        index: int,
    ) -> None:
        self.request = request
        self.index = index  # of the request on its connection
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        """Write, and wait until the kernel has it."""
        self._writer.write(data)
        await self._writer.drain()

    async def send_pieces(self, *pieces: bytes) -> None:
        """Write pieces that the other side reads apart, as far as a kernel lets itself be told."""
        for piece in pieces:
            await self.send(piece)
            await asyncio.sleep(0)

    def close(self) -> None:
        """Close in order: FIN."""
        self._writer.close()

    def reset(self) -> None:
        """Close with a reset."""
        sock = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def until_closed(self) -> None:
        """Wait until the gateway closes the connection."""
        try:
            while await self._reader.read(READ_BYTES):
                pass
        except ConnectionError:
            pass


Script = Callable[[Turn], Awaitable[None]]


class ScriptedReplica:
    """Serves on a free port; ``script`` is run for every request and may be changed at any time."""

    def __init__(self, script: Script, replica_id: str = "a") -> None:
        self.script = script
        self.replica_id = replica_id
        self.requests: list[Received] = []
        self.port = 0
        self.num_connections = 0
        self.num_open = 0
        self.arrived = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.num_connections += 1
        self.num_open += 1
        try:
            await self._serve_connection(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the gateway has closed it; what it has sent is in the record
        except asyncio.CancelledError:
            pass  # the test is over
        finally:
            self.num_open -= 1
            self._tasks.discard(task)
            writer.transport.abort()

    async def _serve_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        index = 0
        while not writer.is_closing():
            request = await read_request(reader)
            self.requests.append(request)
            self.arrived.set()
            await self.script(Turn(request, reader, writer, index))
            index += 1


def answering(answer: bytes) -> Script:
    """Return a script that answers every request alike."""

    async def script(turn: Turn) -> None:
        await turn.send(answer)

    return script


async def never_answering(turn: Turn) -> None:
    """Wait for the gateway to give up."""
    await turn.until_closed()


@contextmanager
def deaf_port() -> Iterator[int]:
    """Listen on a port whose queue is full: the kernel neither accepts nor refuses there."""
    with socket.socket() as listener, ExitStack() as held:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = int(listener.getsockname()[1])
        for _ in range(QUEUE_FILLERS):
            filler = held.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        yield port
