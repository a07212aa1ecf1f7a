"""Runs the engine at its own pace on the wall clock.

A step is due when its modelled time, divided by the speed-up, has passed since the step before
was due, not since it ended: what the loop loses on one step it makes good on the next, so speed
does not drift. Requests never wait for a step to be accepted or freed.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from contract.kv_events import KvEvent
from replicas.core.engine import Engine
from replicas.core.scheduler import StepOutput
from replicas.core.scheduler_config import SchedulerConfig
from replicas.core.sequence import FinishReason
from replicas.core.sequence import Sequence as EngineSequence
from replicas.core.step_time import StepTime
from replicas.server.generation import Generation
from replicas.server.metrics import ReplicaMetrics

PublishEvents = Callable[[list[KvEvent]], None]


def now_us() -> int:
    """Microseconds of the monotonic clock; the wall clock may jump."""
    return time.monotonic_ns() // 1_000


class Driver:
    """Owns the engine and the generations that are live on it."""

    def __init__(
        self,
        config: SchedulerConfig,
        step_time: StepTime,
        speedup: float,
        catch_up_us_max: int,
        metrics: ReplicaMetrics,
    ) -> None:
        self.engine = Engine(config, step_time, self._sample)
        self.publish: PublishEvents = lambda _events: None
        self._us_per_model_us = 1 / speedup
        self._catch_up_us_max = catch_up_us_max
        self._metrics = metrics
        self._live: dict[EngineSequence, Generation] = {}
        self._work = asyncio.Event()

    @property
    def num_live(self) -> int:
        """Sequences waiting or running."""
        return len(self._live)

    @contextmanager
    def serving(self, generations: Sequence[Generation]) -> Iterator[None]:
        """Have all these live inside the block; what is still live at its end is aborted.

        Raises NeverFitsError, with none of them live, if one can never be served.
        """
        try:
            for generation in generations:
                self.engine.add(generation.sequence, now_us())
                self._live[generation.sequence] = generation
            self._work.set()
            yield
        finally:
            for generation in generations:
                self._abort(generation)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks; False, with nothing changed, while any block is held."""
        done = self.engine.reset_prefix_cache()
        self._publish()
        return done

    async def run(self) -> None:
        """Step until cancelled."""
        engine = self.engine
        due_us = now_us()
        while True:
            plan = engine.plan_step(now_us())
            if plan is None:
                self._work.clear()
                self._metrics.stalled_since_us = None
                await self._work.wait()
                due_us = self._metrics.stalled_since_us = now_us()
                continue
            due_us += round(engine.step_time_us(plan) * self._us_per_model_us)
            due_us = await self._wait_until(due_us)
            self._deliver(engine.complete_step(plan, now_us()))
            self._publish()

    async def _wait_until(self, due_us: int) -> int:
        """Return when the step is due: what the next one counts from."""
        late_us = now_us() - due_us
        # Also a late step lets the loop turn once, or sockets would starve.
        await asyncio.sleep(max(0, -late_us) / 1e6)
        if late_us > self._catch_up_us_max:
            # Beyond this the machine is too slow for the model, and catching up would later
            # look like a faster GPU than there is.
            self._metrics.lag_us += late_us
            return due_us + late_us
        return due_us

    def _sample(self, sequence: EngineSequence) -> int:
        return self._live[sequence].sample()

    def _deliver(self, output: StepOutput) -> None:
        at_us = now_us()
        metrics = self._metrics
        for sequence in output.new_tokens:
            generation = self._live[sequence]
            metrics.count_token(sequence, generation.last_token_us, at_us)
            generation.last_token_us = at_us
            if sequence.finish_reason is not None:
                del self._live[sequence]
                metrics.count_finished(sequence, at_us)
            generation.deliver()

    def _abort(self, generation: Generation) -> None:
        sequence = generation.sequence
        if sequence in self._live:
            del self._live[sequence]
            self.engine.abort(sequence.sequence_id, now_us())
            self._metrics.finished[FinishReason.ABORT] += 1

    def _publish(self) -> None:
        events = self.engine.drain_events()
        if events:
            self.publish(events)
