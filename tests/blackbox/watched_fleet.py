"""Two gateways and three replicas under the eyes of a Prometheus, as processes of their own.

The second gateway continues broken streams, the first lets its clients see them break.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from tests.blackbox.conftest import MODEL
from tests.blackbox.prometheus import Prometheus
from warmroute.demo.fleet import start_redis
from warmroute.demo.processes import Child, free_port, stop_all
from warmroute.demo.redis_server import find_redis

NUM_GATEWAYS, NUM_REPLICAS = 2, 3
SPEEDUP = 5.0
"""Five times an A100: a request of the demo's trace takes about 0.3 s."""


@dataclass(frozen=True)
class WatchedFleet:
    """Where everything is; ``children`` by name."""

    gateway_urls: list[str]
    prometheus: Prometheus
    children: dict[str, Child]


@asynccontextmanager
async def watched_fleet(folder: Path) -> AsyncIterator[WatchedFleet]:
    """Start everything and wait until Prometheus has seen all of it; end it on leaving."""
    data, admin, replica = (
        [free_port() for _ in range(number)]
        for number in (NUM_GATEWAYS, NUM_GATEWAYS, NUM_REPLICAS)
    )
    children: list[Child] = []
    async with AsyncExitStack() as stack:
        stack.push_async_callback(stop_all, children)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        redis_url = await start_redis(find_redis(), folder, children)
        shared = ["--redis-url", redis_url, "--fleet", "watched"]
        commands = {f"replica-{i}": _replica(i, port) for i, port in enumerate(replica)} | {
            f"gateway-{i}": ["router", "--port", str(data[i]), "--admin-port", str(admin[i])]
            for i in range(NUM_GATEWAYS)
        }
        commands["gateway-1"] += ["--set", "gateway.failover=resume"]
        async with asyncio.TaskGroup() as starting:
            for name, words in commands.items():
                argv = [sys.executable, "-m", "warmroute", *words, *shared]
                starting.create_task(
                    Child.start(name, argv, folder / f"{name}.log", "ready:", children)
                )
        targets = {
            "warmroute-gateway": [f"127.0.0.1:{port}" for port in admin],
            "warmroute-replica": [f"127.0.0.1:{port}" for port in replica],
        }
        prometheus = await Prometheus.start(folder, targets, session, children)
        await prometheus.until(f"sum(up) == {NUM_GATEWAYS + NUM_REPLICAS}")
        await prometheus.until(f"sum(warmroute_replica_eligible) == {NUM_GATEWAYS * NUM_REPLICAS}")
        yield WatchedFleet(
            [f"http://127.0.0.1:{port}" for port in data],
            prometheus,
            {child.name: child for child in children},
        )


def _replica(index: int, port: int) -> list[str]:
    return [
        *("replica", "--replica-id", f"replica-{index}", "--port", str(port)),
        *("--model", MODEL, "--gpu", "a100", "--speedup", str(SPEEDUP), "--kv-blocks", "20000"),
    ]
