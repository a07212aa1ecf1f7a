"""The data-parallel engines of one replica behind one API: who takes a sequence, and their sum.

Each rank has its own KV blocks, prefix cache and clock. One rank is the common case.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from functools import partial

from contract.blocks import BlockHash
from contract.kv_events import BlockStored, KvEvent
from replicas.core.engine_stats import EngineStats
from replicas.server.driver import Driver
from replicas.server.generation import Generation
from replicas.server.shared_cache import SharedCache

WAITING_WEIGHT = 4
"""A waiting sequence weighs as much as this many running ones (vLLM's DPLBAsyncMPClient)."""


class Ranks:
    """Gives every sequence to one engine and shows all of them as one."""

    def __init__(self, drivers: Sequence[Driver]) -> None:
        assert drivers
        self.drivers = tuple(drivers)
        self.publish: Callable[[list[KvEvent]], None] = lambda _events: None
        self._cache = SharedCache() if len(drivers) > 1 else None
        for rank, driver in enumerate(self.drivers):
            driver.publish = partial(self._pass_on, rank)

    @property
    def num_live(self) -> int:
        """Sequences waiting or running."""
        return sum(driver.num_live for driver in self.drivers)

    @property
    def prefilling_tokens(self) -> int:
        """Prompt tokens of live sequences that have no token yet, computed or not."""
        return sum(driver.engine.prefilling_prompt_tokens for driver in self.drivers)

    @contextmanager
    def serving(self, generations: Sequence[Generation], rank: int | None = None) -> Iterator[None]:
        """Have all these live inside the block, on ``rank`` or each where there is least to do.

        Raises NeverFitsError, with none of them live, if one can never be served.
        """
        with ExitStack() as stack:
            for generation in generations:
                driver = self._least_busy() if rank is None else self.drivers[rank]
                stack.enter_context(driver.serving([generation]))
            yield

    async def run(self) -> None:
        """Step all engines until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for driver in self.drivers:
                tasks.create_task(driver.run())

    def restart(self) -> None:
        """Have every engine start anew; see ``Driver.restart()``."""
        for driver in self.drivers:
            driver.restart()

    def reset_prefix_cache(self) -> bool:
        """Forget the cached blocks of every rank that holds none; False if one does."""
        done = [driver.reset_prefix_cache() for driver in self.drivers]
        return all(done)

    def stats(self) -> EngineStats:
        """Return the sum over all ranks; the step time is that of the slowest."""
        each = [driver.engine.stats() for driver in self.drivers]
        if len(each) == 1:
            return each[0]
        times = [stats.step_time_us for stats in each if stats.step_time_us is not None]
        sums = {
            field.name: sum(getattr(stats, field.name) for stats in each)
            for field in fields(EngineStats)
            if field.name != "step_time_us"
        }
        return EngineStats(**sums, step_time_us=max(times, default=None))

    def take_events(self) -> list[KvEvent]:
        """Return what has not been published yet, of steps under way too."""
        taken: list[KvEvent] = []
        for rank, driver in enumerate(self.drivers):
            taken += self._merged(rank, driver.take_events())
        return taken

    def cached_hashes(self) -> list[BlockHash]:
        """Return the blocks that some rank has cached, as of the last event."""
        if self._cache is None:
            return self.drivers[0].engine.cached_hashes()
        return self._cache.hashes()

    def cached_runs(self) -> list[BlockStored]:
        """Return the same as events that would store it, consecutive blocks in one."""
        if self._cache is None:
            return self.drivers[0].engine.cached_runs()
        return self._cache.runs()

    def _least_busy(self) -> Driver:
        """Return the lowest of the ranks that have least to do, by exact counts of this moment.

        vLLM's front end has counts up to 100 ms old and adds its own; here there is one process.
        """
        if len(self.drivers) == 1:
            return self.drivers[0]
        return min(self.drivers, key=_score)

    def _pass_on(self, rank: int, events: list[KvEvent]) -> None:
        merged = self._merged(rank, events)
        if merged:
            self.publish(merged)

    def _merged(self, rank: int, events: list[KvEvent]) -> list[KvEvent]:
        return events if self._cache is None else self._cache.merge(rank, events)


def _score(driver: Driver) -> int:
    scheduler = driver.engine.scheduler
    return WAITING_WEIGHT * len(scheduler.waiting) + len(scheduler.running)
