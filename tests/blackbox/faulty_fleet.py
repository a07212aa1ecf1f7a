"""A gateway before two replicas, one of which is told to fail; all are real processes."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from redis.asyncio import Redis

from contract.kv_events import decode_snapshot
from contract.redis_layout import RedisLayout
from tests.blackbox.conftest import MODEL
from tests.blackbox.streams import Stream, Streams
from warmroute.demo.fleet import start_redis
from warmroute.demo.processes import Child, free_port, stop_all
from warmroute.demo.redis_server import find_redis

DEADLINE_S = 60.0
SILENCE_S = 5.0
"""The gateway's limit: short enough to wait for, long enough for a busy machine."""

NUM_REPORTS_SURE = 3
"""The one that is believed, one on its way, and one that says how things are now."""

FAULTY, SOUND = "replica-0", "replica-1"
REPLICA_FLAGS = {
    "--model": MODEL,
    "--kv-blocks": "20000",
    "--fixed-prefill-ms": "5",
    "--fixed-decode-ms": "5",
    "--snapshot-interval-ms": "300",
}
GATEWAY_SETTINGS = {
    "gateway.between_bytes_timeout_s": SILENCE_S,
    "gateway.first_byte_timeout_s": SILENCE_S,
    # A replica is to be tried again soon, so that one test does not spoil the next.
    "routing.back_pressure_s": 0.05,
    "routing.back_pressure_max_s": 0.05,
    "routing.breaker_cooldown_s": 0.2,
    "routing.breaker_cooldown_max_s": 0.2,
    "routing.retry_budget": 1.0,
    # What is shared out after one test is not what the next one did.
    "routing.slow_start_s": 0.0,
}


@dataclass
class Fleet:
    """A gateway before a replica that is told to fail and one that is not."""

    url: str
    admin_url: str
    replica_urls: dict[str, str]
    http: aiohttp.ClientSession
    redis: Any  # its stubs do not know that all answers are bytes
    num_rounds: int = 0

    async def set(self, name: str, parameters: dict[str, Any], replica_id: str = FAULTY) -> None:
        url = f"{self.replica_urls[replica_id]}/admin/faults"
        async with self.http.put(url, json={name: parameters}) as response:
            assert response.status == 200, await response.text()

    async def clear(self) -> None:
        for url in self.replica_urls.values():
            async with self.http.delete(f"{url}/admin/faults") as response:
                assert response.status == 200

    async def num_struck(self, name: str) -> int:
        async with self.http.get(f"{self.replica_urls[FAULTY]}/admin/faults") as response:
            listed = (await response.json())["faults"]
        return next(int(row["struck"]) for row in listed if row["name"] == name)

    async def belief(self, replica_id: str = FAULTY) -> dict[str, Any]:
        async with self.http.get(f"{self.admin_url}/admin/replicas") as response:
            replicas = (await response.json())["replicas"]
        return next((row for row in replicas if row["replica_id"] == replica_id), {})

    async def gauge(self, name: str) -> float:
        async with self.http.get(f"{self.admin_url}/metrics") as response:
            lines = (await response.text()).splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))

    async def until_gauge(self, name: str, value: float) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while await self.gauge(name) != value:  # noqa: ASYNC110  # another process
                await asyncio.sleep(0.02)

    async def ask(self, num_streams: int = 8, num_tokens: int = 12) -> list[Stream]:
        """Return as many ended streams, of prompts that nobody has seen yet."""
        self.num_rounds += 1
        streams = Streams(self.url, MODEL)
        prompts = [f"{self.num_rounds} {index} " + "lorem " * 99 for index in range(num_streams)]
        await asyncio.wait_for(streams.run(prompts, num_tokens), DEADLINE_S)
        return streams.all

    async def until_struck(self, name: str) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                if await self.num_struck(name):
                    return
                await asyncio.sleep(0.02)

    async def until_reported_anew(self, replica_id: str) -> None:
        """Wait until the gateway has read a report that was begun after this call.

        The first new one that it shows may have been on its way.
        """
        seen = set[tuple[str, int]]()
        async with asyncio.timeout(DEADLINE_S):
            while len(seen) < NUM_REPORTS_SURE:
                report = (await self.belief(replica_id)).get("report") or {}
                seen.add((report.get("incarnation", ""), report.get("sequence", 0)))
                await asyncio.sleep(0.02)

    async def ask_until_struck(self, name: str) -> list[Stream]:
        before, asked = await self.num_struck(name), list[Stream]()
        async with asyncio.timeout(DEADLINE_S):
            while await self.num_struck(name) == before:
                asked += await self.ask()
        return asked

    async def until_believed(self, right: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return what the gateway believes of the faulty replica, once it is right."""
        belief: dict[str, Any] = {}
        try:
            async with asyncio.timeout(DEADLINE_S):
                while True:
                    belief = await self.belief()
                    if right(belief):
                        return belief
                    await asyncio.sleep(0.02)
        except TimeoutError:
            pytest.fail(f"believed in the end: {belief}")

    async def until_agreed(self) -> None:
        """Wait until the gateway knows as many blocks as the faulty replica's next snapshot has."""
        key = RedisLayout("default").kv_snapshot(FAULTY)
        seen: tuple[Any, ...] = ()
        try:
            async with asyncio.timeout(DEADLINE_S):
                while len(seen) < 2 or seen[0] != seen[1]:
                    data = await self.redis.get(key)
                    known = len(decode_snapshot(data).block_hashes)
                    seen = (known, (await self.belief())["believed_blocks"])
                    await asyncio.sleep(0.02)
        except TimeoutError:
            pytest.fail(f"in the snapshot and in the gateway: {seen}")


def is_at_rest(belief: dict[str, Any]) -> bool:
    return (belief.get("standing"), belief.get("breaker")) == ("eligible", "closed")


async def start_replica(
    name: str, redis_url: str, folder: Path, children: list[Child], *flags: str
) -> str:
    port = free_port()
    given = REPLICA_FLAGS | {"--replica-id": name, "--port": str(port), "--redis-url": redis_url}
    words = [word for pair in given.items() for word in pair]
    argv = [sys.executable, "-m", "warmroute", "replica", *words, *flags]
    await Child.start(name, argv, folder / f"{name}.log", "ready:", children)
    return f"http://127.0.0.1:{port}"


@asynccontextmanager
async def running_fleet(folder: Path) -> AsyncIterator[Fleet]:
    """Run the fleet inside the block."""
    children: list[Child] = []
    port, admin_port = free_port(), free_port()
    settings = [f"{name}={value}" for name, value in GATEWAY_SETTINGS.items()]
    try:
        redis_url = await start_redis(find_redis(), folder, children)
        urls = {
            name: await start_replica(name, redis_url, folder, children) for name in (FAULTY, SOUND)
        }
        argv = [
            *(sys.executable, "-m", "warmroute", "router", "--redis-url", redis_url),
            *("--port", str(port), "--admin-port", str(admin_port)),
            *(word for setting in settings for word in ("--set", setting)),
        ]
        await Child.start("gateway", argv, folder / "gateway.log", "ready:", children)
        async with aiohttp.ClientSession() as http, Redis.from_url(redis_url) as redis:
            yield Fleet(
                f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}", urls, http, redis
            )
    finally:
        await stop_all(children)
