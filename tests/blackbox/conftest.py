"""Real processes for the black-box tests: a Redis, a gateway and three replicas."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from warmroute.demo.fleet import DemoConfig, Fleet, running_fleet, start_redis
from warmroute.demo.processes import Child, stop_all
from warmroute.demo.redis_server import find_redis

MODEL = "llama-3.1-8b"


@pytest.fixture
async def redis_process(tmp_path: Path) -> AsyncIterator[tuple[Child, str]]:
    children: list[Child] = []
    try:
        url = await start_redis(find_redis(), tmp_path, children)
        yield children[0], url
    finally:
        await stop_all(children)


@pytest.fixture
async def fleet(redis_process: tuple[Child, str], tmp_path: Path) -> AsyncIterator[Fleet]:
    """Replicas at the speed of an H100: a step takes about 8 ms, so streams last a while."""
    config = DemoConfig(model=MODEL, gpu="h100", speedup=1.0, kv_blocks=20_000)
    async with running_fleet(config, "prefix_load", redis_process[1], tmp_path) as running:
        yield running
