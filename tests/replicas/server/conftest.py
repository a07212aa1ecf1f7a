"""Real replicas on port 0, whose steps take fixed times."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, Protocol

import aiohttp
import pytest

from replicas.server.config import ReplicaConfig
from replicas.server.replica import Replica, running_replica

MODEL = "test-model"

CONFIG = ReplicaConfig(
    model=MODEL, port=0, fixed_prefill_ms=0.0, fixed_decode_ms=0.0, kv_blocks=1_000
)
FOREVER_MS = 3_600_000.0
"""A step of this length is under way until the test ends."""


class Start(Protocol):
    """Starts a replica that lives until the end of the test."""

    async def __call__(self, **settings: Any) -> Replica: ...


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    async with AsyncExitStack() as running:

        async def start(**settings: Any) -> Replica:
            return await running.enter_async_context(running_replica(replace(CONFIG, **settings)))

        yield start


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session
