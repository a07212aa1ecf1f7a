"""The product's own replica in this process, with step times of choice, and clients for it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from replicas.core.engine_stats import EngineStats
from replicas.server.config import ReplicaConfig
from replicas.server.replica import Replica, running_replica
from tests.waiting import until

BLOCK_TOKENS = 16


@asynccontextmanager
async def simulated(**settings: Any) -> AsyncIterator[Replica]:
    """Run a replica of model ``m`` whose steps take no time if ``settings`` do not say more."""
    quick: dict[str, Any] = {"model": "m", "port": 0, "block_size": BLOCK_TOKENS}
    quick |= {"fixed_prefill_ms": 0.0, "fixed_decode_ms": 0.0, "kv_blocks": 1_000}
    quick["redis_timeout_ms"] = 10_000  # a busy machine's Redis is not away
    config = ReplicaConfig(**quick | settings)
    async with running_replica(config) as replica:
        yield replica


def stats_of(replica: Replica) -> EngineStats:
    """Return what its engine does now."""
    return replica.driver.engine.stats()


async def is_empty(replica: Replica) -> None:
    """Wait until it holds nothing for anybody."""

    def holds_nothing() -> bool:
        now = stats_of(replica)
        return now.running_requests == now.waiting_requests == now.kv_blocks_used == 0

    await until(holds_nothing, "the replica is empty")
