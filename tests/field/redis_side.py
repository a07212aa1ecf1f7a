"""What stands between a gateway and its replicas' reports: a shim before Redis, and the reporters.

The shim delays, freezes (sockets stay open, no byte moves), refuses, resets, puts bytes of its own
in the place of Redis's, or leads new connections to another server.
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import msgspec

from contract.load_report import LoadReport, encode_report
from contract.redis_layout import REPORT_TTL_MS, RedisLayout
from tests.redis_server import RedisServer
from tests.router.gateway.scripted_replica import ScriptedReplica

KEYS = RedisLayout("default")
REPORT_INTERVAL_S = 0.03
READ_BYTES = 65_536


class RedisShim:
    """Listens on a free port and passes bytes on to ``target_port``, as far as it is told to."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.delay_s = 0.0  # of every reply
        self.reply: bytes | None = None  # in the place of every reply
        self.resets = False  # in the place of every reply
        self.port = 0
        self._moves = asyncio.Event()
        self._moves.set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Its address."""
        return f"redis://127.0.0.1:{self.port}/0"

    def freeze(self) -> None:
        """Move no bytes and close nothing."""
        self._moves.clear()

    def thaw(self) -> None:
        """Move bytes again, those that waited included."""
        self._moves.set()

    async def refuse(self) -> None:
        """Close all connections and listen no more."""
        assert self._server is not None
        self._server.close()
        await self.cut()

    async def cut(self) -> None:
        """Close all connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def listen(self) -> None:
        """Listen (again)."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.thaw()
        await self.refuse()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        upstream: asyncio.StreamWriter | None = None
        try:
            replies, upstream = await asyncio.open_connection("127.0.0.1", self.target_port)
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._commands(reader, upstream))
                pumps.create_task(self._replies(replies, writer))
        except (OSError, ExceptionGroup, asyncio.CancelledError):
            pass  # one side has closed, or the test did
        finally:
            self._tasks.discard(task)
            for side in (writer, upstream):
                if side is not None:
                    side.transport.abort()

    async def _commands(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(READ_BYTES):
            await self._moves.wait()
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError

    async def _replies(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(READ_BYTES):
            await asyncio.sleep(self.delay_s)
            await self._moves.wait()
            if self.resets:
                writer.write(data[: len(data) // 2])
                sock = writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                break
            writer.write(data if self.reply is None else self.reply)
            await writer.drain()
        raise ConnectionResetError


@dataclass
class Reporter:
    """Says of fake replicas what a test wants: a report each, again and again, in Redis."""

    redis: Any
    reports: dict[str, LoadReport] = field(default_factory=dict)

    def say(self, replica: ScriptedReplica | str, **fields: Any) -> None:
        """Report this of a replica (or of an id, with ``url``) from now on."""
        known: dict[str, Any] = {"model": "m", "incarnation": "first", "sequence": 0}
        known |= {"waiting_requests": 0, "running_requests": 0}
        if isinstance(replica, ScriptedReplica):
            known["url"] = replica.url
            replica = replica.replica_id
        known |= msgspec.structs.asdict(self.reports[replica]) if replica in self.reports else {}
        self.reports[replica] = LoadReport(**known | {"replica_id": replica} | fields)

    async def hush(self, replica_id: str, *, forget: bool = True) -> None:
        """Report no more; with ``forget`` its last report is taken away as well."""
        del self.reports[replica_id]
        if forget:
            await self.redis.delete(KEYS.replica(replica_id))

    async def write_all(self) -> None:
        """Write every report once, numbered on."""
        for replica_id in list(self.reports):
            report = self.reports[replica_id]
            self.say(replica_id, sequence=report.sequence + 1)
            data = encode_report(self.reports[replica_id])
            await self.redis.set(KEYS.replica(replica_id), data, px=REPORT_TTL_MS)
            await self.redis.sadd(KEYS.replicas, replica_id)


@asynccontextmanager
async def reporting(
    server: RedisServer, *replicas: ScriptedReplica, **fields: Any
) -> AsyncIterator[Reporter]:
    """Report ``replicas`` to Redis, idle if ``fields`` say nothing else, until the block ends."""
    async with server.client() as redis:
        reporter = Reporter(redis)
        for replica in replicas:
            reporter.say(replica, **fields)
        await reporter.write_all()

        async def go_on() -> None:
            while True:
                await asyncio.sleep(REPORT_INTERVAL_S)
                with contextlib.suppress(OSError, RuntimeError):
                    await reporter.write_all()

        task = asyncio.create_task(go_on())
        try:
            yield reporter
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
