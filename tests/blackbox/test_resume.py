"""A replica that is killed under twenty streams, and none of their clients can tell.

Real processes: a gateway with `failover = resume` before two replicas, and a third replica beside
them that gives the undisturbed answers.
"""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from contract.sse import DONE_PAYLOAD, SseReader
from warmroute.demo.processes import Child, free_port, stop_all

pytestmark = pytest.mark.blackbox

DEADLINE_S = 30.0
MODEL = "resumed"
NUM_STREAMS = 20
REPLICA = ("--model", MODEL, "--kv-blocks", "4000", "--fixed-prefill-ms", "2")
DECODE_MS = {"a": 40, "b": 40, "beside": 5}
"""Slow enough for all to have begun before the first one ends."""

FIRST_EVENTS = 5
"""Which every stream has had when the replica is killed; each has about 80 more to come."""


@dataclass
class Taken:
    """One stream as its client sees it."""

    path: str
    body: dict[str, Any]
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    replica_id: str | None = None
    payloads: list[bytes] = field(default_factory=list)

    async def read(self, session: aiohttp.ClientSession, url: str) -> None:
        reader = SseReader()
        async with session.post(f"{url}{self.path}", json=self.body) as response:
            assert response.status == 200
            self.replica_id = response.headers.get("x-warmroute-replica")
            async for data in response.content.iter_any():
                self.payloads += reader.feed(data)
                if len(self.payloads) >= FIRST_EVENTS:
                    self.begun.set()
        self.begun.set()

    @property
    def events(self) -> list[dict[str, Any]]:
        assert self.payloads[-1:] == [DONE_PAYLOAD]
        return [msgspec.json.decode(payload) for payload in self.payloads[:-1]]

    def seen(self) -> dict[str, Any]:
        """Return all that one run of the same request has in common with another."""
        choices = [choice for event in self.events for choice in event["choices"]]
        deltas = [choice.get("delta", choice) for choice in choices]
        usages = [event["usage"] for event in self.events if event.get("usage")]
        return {
            "text": "".join(d.get("text", "") + d.get("content", "") for d in deltas),
            "roles": [delta["role"] for delta in deltas if "role" in delta],
            "finishes": [c["finish_reason"] for c in choices if c["finish_reason"]],
            "indices": {choice["index"] for choice in choices},
            "usages": usages,
        }


def requests() -> list[Taken]:
    """Return chats and completions: with a limit and without, with usage and without."""
    taken = []
    for index in range(NUM_STREAMS):
        text = f"number {index} " + "lorem ipsum dolor " * (3 + index)
        body: dict[str, Any] = {"model": MODEL, "stream": True, "max_tokens": 80 + index}
        if index % 4 < 2:
            body["stream_options"] = {"include_usage": True}
        if index % 2:
            taken.append(Taken("/v1/completions", body | {"prompt": text}))
        else:
            chat = body | {"messages": [{"role": "user", "content": text}]}
            taken.append(Taken("/v1/chat/completions", chat))
    return taken


@dataclass
class Running:
    """The processes of this test."""

    url: str
    admin_url: str
    beside_url: str
    victim: Child


async def start_replica(name: str, folder: Path, children: list[Child]) -> str:
    port = free_port()
    argv = [sys.executable, "-m", "warmroute", "replica", "--replica-id", name, *REPLICA]
    argv += ["--fixed-decode-ms", str(DECODE_MS[name])]
    log = folder / f"{name}.log"
    await Child.start(name, [*argv, "--port", str(port)], log, "ready:", children)
    return f"http://127.0.0.1:{port}"


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    children: list[Child] = []
    port, admin_port = free_port(), free_port()
    try:
        urls = [await start_replica(name, tmp_path, children) for name in ("a", "b", "beside")]
        argv = [
            *(sys.executable, "-m", "warmroute", "router", "--policy", "round_robin"),
            *("--port", str(port), "--admin-port", str(admin_port)),
            *("--replica", urls[0], "--replica", urls[1], "--set", "gateway.failover=resume"),
        ]
        await Child.start("gateway", argv, tmp_path / "gateway.log", "ready:", children)
        victim = next(child for child in children if child.name == "a")
        admin_url = f"http://127.0.0.1:{admin_port}"
        yield Running(f"http://127.0.0.1:{port}", admin_url, urls[2], victim)
    finally:
        await stop_all(children)


async def totals(session: aiohttp.ClientSession, url: str) -> dict[str, float]:
    async with session.get(f"{url}/metrics") as response:
        lines = (await response.text()).splitlines()
    found: dict[str, float] = {}
    for line in lines:
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            name = name.partition("{")[0]
            found[name] = found.get(name, 0.0) + float(value)
    return found


async def test_no_client_can_tell_that_its_replica_was_killed(running: Running) -> None:
    streams, undisturbed = requests(), requests()
    connector = aiohttp.TCPConnector(limit=0)
    async with asyncio.timeout(DEADLINE_S), aiohttp.ClientSession(connector=connector) as session:
        async with asyncio.TaskGroup() as tasks:
            for stream in streams:
                tasks.create_task(stream.read(session, running.url))
            await asyncio.gather(*(stream.begun.wait() for stream in streams))

            running.victim.signal(signal.SIGKILL)

        async with asyncio.TaskGroup() as tasks:
            for stream in undisturbed:
                tasks.create_task(stream.read(session, running.beside_url))
        counted = await totals(session, running.admin_url)

    assert [stream.seen() for stream in streams] == [stream.seen() for stream in undisturbed]
    for stream in streams:
        assert len({(e["id"], e["created"], e["model"]) for e in stream.events}) == 1
    assert len({stream.replica_id for stream in streams}) == 2
    assert counted["warmroute_resumes_total"] == NUM_STREAMS / 2
    assert counted["warmroute_resumes_refused_total"] == 0
    assert counted["warmroute_broken_answers_total"] == 0
    assert counted["warmroute_open_leases"] == 0
