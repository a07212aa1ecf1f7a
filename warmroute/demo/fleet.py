"""The demo's processes: one Redis, one gateway, some replicas, all real and all on loopback."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from contract.options import option
from warmroute.demo.processes import Child, StartError, free_port, stop_all
from warmroute.demo.redis_server import READY, RedisBinary

DISCOVERY_TIMEOUT_S = 15.0
"""Replicas report every 100 ms, so a gateway knows them in a fraction of this."""


@dataclass(frozen=True)
class DemoConfig:
    """What the demo starts and replays."""

    replicas: int = option(3, "replicas", "enough for a choice, few enough for two cores")
    model: str = option("llama-3.1-8b", "", "the model whose weights and KV set the step time")
    gpu: str = option("a100", "", "the GPU whose bandwidth and FLOP/s set the step time")
    kv_blocks: int = option(
        20_000, "blocks", "KV blocks of 16 tokens per replica: 5,000 shrunk trace blocks"
    )
    speedup: float = option(5.0, "x", "how much faster than that GPU a replica runs")
    time_compression: float = option(24.0, "x", "how much faster than recorded requests arrive")
    requests: int = option(1_750, "requests", "how much of the shipped trace is replayed")
    policies: tuple[str, ...] = option(
        ("round_robin", "least_loaded", "prefix_hash", "prefix_load"), "", "one run for each"
    )
    port: int = option(0, "TCP port", "of the gateway; 0 takes a free one")
    admin_port: int = option(0, "TCP port", "of the gateway's admin side; 0 takes a free one")

    def __post_init__(self) -> None:
        if self.replicas < 1:
            raise ValueError(f"replicas is {self.replicas}, must be 1 or more")
        if not self.policies:
            raise ValueError("policies is empty, must name at least one")
        if self.time_compression <= 0 or self.speedup <= 0:
            raise ValueError("time_compression and speedup must be above 0")
        for name in ("port", "admin_port"):
            if not 0 <= getattr(self, name) <= 65_535:
                raise ValueError(f"{name} is {getattr(self, name)}, must be from 0 to 65535")
        if self.requests < 1:
            raise ValueError(f"requests is {self.requests}, must be 1 or more")


@dataclass(frozen=True)
class Fleet:
    """A running fleet."""

    url: str
    admin_url: str
    replica_urls: list[str]
    children: list[Child]


async def start_redis(binary: RedisBinary, folder: Path, children: list[Child]) -> str:
    """Start a server on a free port and return its URL."""
    port = free_port()
    log = folder / "redis.log"
    await Child.start("redis", binary.argv(port, folder), log, READY, children)
    return f"redis://127.0.0.1:{port}/0"


@asynccontextmanager
async def running_fleet(
    config: DemoConfig, policy: str, redis_url: str, folder: Path
) -> AsyncIterator[Fleet]:
    """Start replicas and a gateway with ``policy``; end them on leaving, whatever happened."""
    name = f"demo-{policy}"
    children: list[Child] = []
    replica_ports = [free_port() for _ in range(config.replicas)]
    port = config.port or free_port()
    admin_port = config.admin_port or free_port()
    commands = {
        f"replica-{index}": _replica_argv(config, index, at, redis_url, name)
        for index, at in enumerate(replica_ports)
    }
    commands["gateway"] = _gateway_argv(policy, port, admin_port, redis_url, name)
    fleet = Fleet(
        url=f"http://127.0.0.1:{port}",
        admin_url=f"http://127.0.0.1:{admin_port}",
        replica_urls=[f"http://127.0.0.1:{at}" for at in replica_ports],
        children=children,
    )
    try:
        async with asyncio.TaskGroup() as starting:
            for child, argv in commands.items():
                log = folder / f"{child}.log"
                starting.create_task(Child.start(child, argv, log, "ready:", children))
        await _wait_until_known(fleet, config.replicas)
        yield fleet
    finally:
        await stop_all(children)


def _replica_argv(
    config: DemoConfig, index: int, port: int, redis_url: str, fleet: str
) -> list[str]:
    return [
        *(sys.executable, "-m", "warmroute", "replica"),
        *("--replica-id", f"replica-{index}", "--port", str(port)),
        *("--redis-url", redis_url, "--fleet", fleet),
        *("--model", config.model, "--gpu", config.gpu),
        *("--kv-blocks", str(config.kv_blocks), "--speedup", str(config.speedup)),
    ]


def _gateway_argv(policy: str, port: int, admin_port: int, redis_url: str, fleet: str) -> list[str]:
    return [
        *(sys.executable, "-m", "warmroute", "router", "--policy", policy),
        *("--port", str(port), "--admin-port", str(admin_port)),
        *("--redis-url", redis_url, "--fleet", fleet),
    ]


async def _wait_until_known(fleet: Fleet, replicas: int) -> None:
    known: Any = []
    try:
        async with asyncio.timeout(DISCOVERY_TIMEOUT_S), aiohttp.ClientSession() as session:
            while len(known) < replicas:
                async with session.get(f"{fleet.admin_url}/admin/replicas") as response:
                    known = (await response.json())["replicas"]
                await asyncio.sleep(0.05)
    except TimeoutError as error:
        raise StartError(
            f"the gateway knows {len(known)} of {replicas} replicas after {DISCOVERY_TIMEOUT_S:g} s"
        ) from error
