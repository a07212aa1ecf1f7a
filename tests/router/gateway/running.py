"""A gateway on a free port, with the real fleet and metrics, in front of scripted replicas."""

import asyncio
import socket
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import router.policies  # noqa: F401  # registers the policies
from router.core.config import RoutingConfig
from router.core.fleet import FleetState
from router.core.policy import build_policy
from router.core.record import ExchangeRecord
from router.gateway.config import GatewayConfig
from router.gateway.data_plane import DataPlane
from router.metrics import RouterMetrics
from tests.router.gateway.scripted_replica import ScriptedReplica
from tests.router.gateway.wire import LIMIT, Answer, chat, post, read_answer
from tests.waiting import DEADLINE_S, until

MODEL = "m"


def clock_us() -> int:
    """Return the time as the gateway has it."""
    return time.monotonic_ns() // 1000


class RawClient:
    """A connection on which bytes are written and answers read."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        """Write bytes."""
        self._writer.write(data)
        await self._writer.drain()

    async def answer(self, *, bodiless: bool = False) -> Answer:
        """Read the next answer."""
        async with asyncio.timeout(DEADLINE_S):
            return await read_answer(self.reader, bodiless=bodiless)

    async def ask(self, request: bytes, *, bodiless: bool = False) -> Answer:
        """Send a request and read its answer."""
        await self.send(request)
        return await self.answer(bodiless=bodiless)

    async def line(self) -> bytes:
        """Read one line."""
        async with asyncio.timeout(DEADLINE_S):
            return await self.reader.readuntil(b"\n")

    async def rest(self) -> bytes:
        """Read until the gateway closes; a reset ends it as well."""
        data = b""
        async with asyncio.timeout(DEADLINE_S):
            try:
                while piece := await self.reader.read(65_536):
                    data += piece
            except ConnectionError:
                pass
        return data

    def peer_name(self) -> str:
        """Return the common name in the gateway's certificate."""
        (((_, name),),) = self._writer.get_extra_info("peercert")["subject"]
        return str(name)

    def finish_sending(self) -> None:
        """Close one half: the client still reads."""
        self._writer.write_eof()

    def close(self) -> None:
        """Leave, as a client does whose process ends."""
        self._writer.close()

    def reset(self) -> None:
        """Leave with a reset."""
        sock = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


@dataclass
class RunningGateway:
    """What a test can see of a gateway."""

    port: int
    plane: DataPlane
    fleet: FleetState
    metrics: RouterMetrics
    records: list[ExchangeRecord] = field(default_factory=list)
    clients: list[RawClient] = field(default_factory=list)

    async def connect(self, limit: int = LIMIT) -> RawClient:
        """Open a client's connection."""
        client = RawClient(*await asyncio.open_connection("127.0.0.1", self.port, limit=limit))
        self.clients.append(client)
        return client

    async def ask(self, request: bytes, *, bodiless: bool = False) -> Answer:
        """Send one request on a connection of its own."""
        client = await self.connect()
        answer = await client.ask(request, bodiless=bodiless)
        client.close()
        return answer

    async def chat(self, text: str = "hi", *headers: str, **more: Any) -> Answer:
        """Send one chat request on a connection of its own."""
        return await self.ask(post(chat(text, **more), *headers))

    async def record(self, index: int = -1) -> ExchangeRecord:
        """Return the record of an exchange that has ended, when it has."""
        await until(lambda: bool(self.records) and self.is_at_rest, "an exchange has ended")
        return self.records[index]

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is under way or held."""
        stats = self.plane.stats()
        return not (stats.exchanges or stats.queued or len(self.fleet.ledger))

    def check_at_rest(self) -> None:
        """Assert that nothing was left behind, and that every request ended once."""
        self.fleet.check()
        assert self.plane.stats().buffered_bytes == 0
        assert len({record.request_id for record in self.records}) == len(self.records)


@asynccontextmanager
async def gateway_of(
    *replicas: ScriptedReplica | str,
    routing: dict[str, Any] | None = None,
    policy: str = "round_robin",
    **settings: Any,
) -> AsyncIterator[RunningGateway]:
    """Run a gateway in front of ``replicas`` (a text is a url); check at the end that it rests."""
    config = GatewayConfig(**{"sweep_s": 0.02, "linger_s": 0.2} | settings)
    routing_config = RoutingConfig(**{"retry_backoff_s": 0.0} | (routing or {}))
    fleet = FleetState(routing_config, build_policy(policy))
    for index, replica in enumerate(replicas):
        url = replica if isinstance(replica, str) else replica.url
        name = f"r{index}" if isinstance(replica, str) else replica.replica_id
        fleet.add_static(url, name, MODEL, now_us=clock_us())
    metrics = RouterMetrics()
    metrics.attach(fleet)
    records: list[ExchangeRecord] = []
    plane = DataPlane(
        config, fleet, routing_config, metrics, clock_us, policy=policy, log=records.append
    )
    port = await plane.start("127.0.0.1", 0)
    gateway = RunningGateway(port, plane, fleet, metrics, records)
    try:
        yield gateway
        await until(lambda: gateway.is_at_rest, "the gateway is at rest")
        for client in gateway.clients:
            client.close()
        await until(lambda: plane.stats().clients == 0, "all clients are gone")
        gateway.check_at_rest()
    finally:
        for client in gateway.clients:
            client.close()
        await plane.stop(0)
