"""A whole gateway in this process, admin port and store included, in front of fake replicas.

A test says what each replica does byte for byte (`Fake`), what the settings are (`gateway_of`) and
what a client sends (`RawClient`); it reads what came back, what each replica was sent, the metrics
as Prometheus would, and the log as an operator would. At its end every gateway must be at rest.
"""

import asyncio
import io
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from router.config import RouterConfig, load_router_config, read_toml
from router.core.record import ExchangeRecord
from router.core.status import ReplicaStatus
from router.logs import log_request, logging_to
from router.serve import Gateway, StopSignals, build_gateway, run_gateway
from tests.router.gateway.running import RunningGateway
from tests.router.gateway.scripted_replica import Script, ScriptedReplica, Turn
from tests.router.gateway.wire import (
    DONE,
    LAST_CHUNK,
    STREAM_HEAD,
    Answer,
    Received,
    chunk,
    completion,
    event,
    ok,
    read_answer,
)
from tests.waiting import DEADLINE_S, until

PROBE_TARGETS = ("/v1/models", "/health")
"""What a gateway asks of its own accord."""

QUICK: dict[str, Any] = {
    "host": "127.0.0.1",
    "port": 0,
    "admin_host": "127.0.0.1",
    "admin_port": 0,
    "sweep_s": 0.02,
    "linger_s": 0.2,
    "drain_s": 0.2,
    "retry_backoff_s": 0.0,
    "retry_floor_per_s": 1000.0,
    "command_timeout_s": 10.0,
    "log_requests": True,
}
"""Settings under which a case takes milliseconds; what is retried is not rationed, and a Redis is
not taken for frozen because the machine is busy.
"""

FIN = event("", finish="stop")


def tok(index: int) -> bytes:
    """Return the event of one token."""
    return event(f"t{index}")


def streaming(*events: bytes, ends: bool = True) -> Script:
    """Return a script that streams these events, each in a chunk of its own."""

    async def script(turn: Turn) -> None:
        await turn.send(STREAM_HEAD)
        for one in events:
            await turn.send(chunk(one))
        if ends:
            await turn.send(LAST_CHUNK)

    return script


def saying(text: str) -> Script:
    """Return a script of a healthy replica, whose answers name it; streamed if so asked."""

    async def script(turn: Turn) -> None:
        if b'"stream": true' in turn.request.body:
            await streaming(event(text), FIN, DONE)(turn)
        else:
            await turn.send(ok(completion(text)))

    return script


def refusing(status: str, body: bytes = b'{"error":{"code":"x"}}', *headers: str) -> Script:
    """Return a script that answers every request with this status."""

    async def script(turn: Turn) -> None:
        await turn.send(ok(body, *headers, status=status))

    return script


async def resetting(turn: Turn) -> None:
    """Reset the connection in place of an answer."""
    turn.reset()


async def closing(turn: Turn) -> None:
    """Close the connection in place of an answer."""
    turn.close()


async def silent(turn: Turn) -> None:
    """Say nothing until the gateway closes the connection."""
    await turn.until_closed()


class Fake(ScriptedReplica):
    """A replica that plays ``play`` for every request but the gateway's own questions.

    Those it answers itself: with its models, and that it is well. ``asked`` has the others.
    """

    def __init__(
        self, play: Script | None = None, replica_id: str = "a", models: Sequence[str] = ("m",)
    ) -> None:
        super().__init__(self._answer, replica_id)
        self.play = play or saying(replica_id)
        self.models = models
        self.asked: list[Received] = []
        self.probed: list[Received] = []

    async def _answer(self, turn: Turn) -> None:
        request = turn.request
        if request.line.startswith("GET ") and request.target in PROBE_TARGETS:
            self.probed.append(request)
            listed = {"data": [{"id": name} for name in self.models]}
            await turn.send(ok(json.dumps(listed).encode()))
            return
        self.asked.append(request)
        await self.play(turn)

    async def is_asked(self, times: int = 1) -> None:
        """Wait until so many requests have come."""
        await until(lambda: len(self.asked) >= times, f"{self.replica_id} is asked {times} times")


@dataclass
class FieldGateway(RunningGateway):
    """A gateway as a client, an operator and a monitor see it."""

    parts: Gateway = field(kw_only=True)
    admin_port: int = field(kw_only=True)
    signals: StopSignals = field(kw_only=True)
    task: "asyncio.Task[int]" = field(kw_only=True)
    log: io.StringIO = field(kw_only=True)

    def samples(self, name: str, **labels: str) -> list[float]:
        """Return the samples of a metric with these labels, as they would be scraped now."""
        text = self.metrics.render().decode()
        return [
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]

    def count(self, name: str, **labels: str) -> float:
        """Return their sum."""
        return sum(self.samples(name, **labels))

    def num_series(self) -> int:
        """Return how many series a scrape has."""
        lines = self.metrics.render().decode().splitlines()
        return sum(not line.startswith("#") for line in lines)

    def outcomes(self) -> list[str]:
        """Return how the exchanges ended, in the order of their ends."""
        return [record.outcome.value for record in self.records]

    def status_of(self, replica_id: str = "a") -> ReplicaStatus:
        """Return what is believed of a replica."""
        return next(s for s in self.fleet.views() if s.view.replica_id == replica_id)

    def load_of(self, replica_id: str = "a") -> int:
        """Return its requests under way, of this gateway."""
        return self.status_of(replica_id).view.own_requests

    async def knows(self, *replica_ids: str) -> None:
        """Wait until the fleet is these."""
        await until(
            lambda: {s.view.replica_id for s in self.fleet.views()} == set(replica_ids),
            f"the fleet is {replica_ids}",
        )

    async def admin(self, method: str, path: str, body: object = None) -> Answer:
        """Ask the admin port."""
        content = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: admin\r\nConnection: close\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", self.admin_port)
        try:
            async with asyncio.timeout(DEADLINE_S):
                writer.write(head.encode() + content)
                return await read_answer(reader)
        finally:
            writer.close()

    async def rests(self) -> None:
        """Wait until nothing is under way."""
        await until(lambda: self.is_at_rest, "the gateway is at rest")

    def logged(self) -> list[dict[str, Any]]:
        """Return the lines that have been written to the log."""
        return [json.loads(line) for line in self.log.getvalue().splitlines()]


@asynccontextmanager
async def listening(replicas: Iterable[ScriptedReplica]) -> AsyncIterator[None]:
    """Let all of them listen."""
    async with AsyncExitStack() as stack:
        for replica in replicas:
            await stack.enter_async_context(replica)
        yield


@asynccontextmanager
async def gateway_of(
    *replicas: ScriptedReplica | str, **settings: Any
) -> AsyncIterator[FieldGateway]:
    """Run a gateway in front of ``replicas`` (a text is a url of one named r0, r1, ...).

    ``settings`` are those of any section by their bare names, over `QUICK`. With ``toml`` the
    replicas, and what ``settings`` do not say, are in that file, and it can be reloaded.
    """
    toml: Path | None = settings.pop("toml", None)
    entries = [_entry(replica, index) for index, replica in enumerate(replicas)]

    def read() -> RouterConfig:
        file = read_toml(toml) if toml else {"replicas": entries}
        return load_router_config(file, QUICK | settings)

    parts = build_gateway(read(), read)
    records: list[ExchangeRecord] = []
    parts.plane.context.log = _both(records.append, log_request)
    signals, log = StopSignals(), io.StringIO()
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    with logging_to(log, logging.DEBUG):
        task = asyncio.create_task(run_gateway(parts, signals, ready.set_result))
        await asyncio.wait((task, ready), return_when=asyncio.FIRST_COMPLETED)
        assert ready.done(), task.exception()
        port, admin_port = (urlsplit(word).port or 0 for word in ready.result().split()[2::2])
        gateway = FieldGateway(
            port=port,
            plane=parts.plane,
            fleet=parts.fleet,
            metrics=parts.metrics,
            records=records,
            parts=parts,
            admin_port=admin_port,
            signals=signals,
            task=task,
            log=log,
        )
        try:
            yield gateway
            await _leaves_nothing(gateway)
        finally:
            for client in gateway.clients:
                client.close()
            signals.on_signal()
            signals.on_signal()
            await asyncio.wait_for(task, DEADLINE_S)


async def _leaves_nothing(gateway: FieldGateway) -> None:
    await gateway.rests()
    for client in gateway.clients:
        client.close()
    await until(lambda: gateway.plane.stats().clients == 0, "all clients are gone")
    gateway.check_at_rest()
    assert gateway.count("warmroute_in_flight_requests") == 0


def _entry(replica: ScriptedReplica | str, index: int) -> dict[str, str]:
    if isinstance(replica, str):
        return {"url": replica, "id": f"r{index}", "model": "m"}
    return {"url": replica.url, "id": replica.replica_id, "model": "m"}


def _both(
    one: Callable[[ExchangeRecord], None], other: Callable[[ExchangeRecord], None]
) -> Callable[[ExchangeRecord], None]:
    def log(record: ExchangeRecord) -> None:
        one(record)
        other(record)

    return log
