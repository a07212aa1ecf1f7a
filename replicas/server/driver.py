"""Runs the engine at its own pace on the wall clock.

A step is due when its modelled time, divided by the speed-up, has passed since the step before
was due, not since it ended: what the loop loses on one step it makes good on the next, so speed
does not drift. Requests never wait for a step to be accepted or freed.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from contract.kv_events import KvEvent
from replicas.core.engine import Engine
from replicas.core.scheduler import StepOutput, StepPlan
from replicas.core.scheduler_config import SchedulerConfig
from replicas.core.sequence import FinishReason
from replicas.core.sequence import Sequence as EngineSequence
from replicas.core.step_time import StepTime
from replicas.server.generation import Generation
from replicas.server.metrics import EngineMetrics

PublishEvents = Callable[[list[KvEvent]], None]

ShowEvents = Callable[[Sequence[KvEvent], StepPlan | None], None]
"""Takes events and the step that caused them, None for a reset."""


def show_nobody(_events: Sequence[KvEvent], _plan: StepPlan | None) -> None:
    """Be what events are shown to while nobody wants to see them."""


def now_us() -> int:
    """Microseconds of the monotonic clock; the wall clock may jump."""
    return time.monotonic_ns() // 1_000


@dataclass
class Disturbance:
    """What faults do to the pace of the engines of a replica."""

    slowdown: float = 1.0  # times a step's own time
    thawed: asyncio.Event | None = None  # what every step waits for, while there is something


class Driver:
    """Owns the engine and the generations that are live on it."""

    def __init__(
        self,
        config: SchedulerConfig,
        step_time: StepTime,
        speedup: float,
        catch_up_us_max: int,
        metrics: EngineMetrics,
    ) -> None:
        self.engine = Engine(config, step_time, self._sample)
        self.metrics = metrics
        self.disturbance = Disturbance()
        self.publish: PublishEvents = lambda _events: None
        self.show: ShowEvents = show_nobody
        self._config = config
        self._step_time = step_time
        self._us_per_model_us = 1 / speedup
        self._catch_up_us_max = catch_up_us_max
        self._live: dict[EngineSequence, Generation] = {}
        self._plan: StepPlan | None = None  # the last one
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

    def take_events(self) -> list[KvEvent]:
        """Return the events that were not published yet, for someone who publishes them now."""
        events = self.engine.drain_events()
        if events:
            # All were caused by the last plan: a step publishes before the next one is planned.
            self.show(events, self._plan)
        return events

    def restart(self) -> None:
        """Abort all that is live and go on with an engine that knows and has counted nothing."""
        for generation in list(self._live.values()):
            self._abort(generation)
        emptied = self.reset_prefix_cache()
        assert emptied, "blocks are held by nobody that is live"
        self.engine = Engine(self._config, self._step_time, self._sample)
        self.metrics = EngineMetrics(self._config)
        self._plan = None

    async def run(self) -> None:
        """Step until cancelled."""
        due_us = now_us()
        while True:
            # Others after a restart; a step that was under way then ends on the old ones.
            engine, metrics = self.engine, self.metrics
            plan = engine.plan_step(now_us())
            if plan is None:
                self._work.clear()
                metrics.stalled_since_us = None
                await self._work.wait()
                due_us = metrics.stalled_since_us = now_us()
                continue
            self._plan = plan
            step_us = engine.step_time_us(plan) * self._us_per_model_us
            due_us += round(step_us * self.disturbance.slowdown)
            due_us = await self._wait_until(due_us)
            while self.disturbance.thawed is not None:
                await self.disturbance.thawed.wait()
                due_us = now_us()
            # One reading for the step's end: what is counted from it would not add up with two.
            ended_us = now_us()
            output = engine.complete_step(plan, ended_us)
            metrics.count_step(plan, output)
            self._deliver(output, ended_us)
            self._publish()

    async def _wait_until(self, due_us: int) -> int:
        """Return when the step is due: what the next one counts from."""
        late_us = now_us() - due_us
        # Also a late step lets the loop turn once, or sockets would starve.
        await asyncio.sleep(max(0, -late_us) / 1e6)
        if late_us > self._catch_up_us_max:
            # Beyond this the machine is too slow for the model, and catching up would later
            # look like a faster GPU than there is.
            self.metrics.lag_us += late_us
            return due_us + late_us
        return due_us

    def _sample(self, sequence: EngineSequence) -> int:
        return self._live[sequence].sample()

    def _deliver(self, output: StepOutput, at_us: int) -> None:
        metrics = self.metrics
        for sequence in output.new_tokens:
            generation = self._live[sequence]
            metrics.count_token(sequence, generation.last_token_us, at_us)
            generation.last_token_us = at_us
            if sequence.finish_reason is not None:
                self._end(generation, at_us)
            generation.deliver()
        for sequence in output.finished:
            if sequence.pooling:
                generation = self._live[sequence]
                self._end(generation, at_us)
                generation.deliver()

    def _end(self, generation: Generation, at_us: int) -> None:
        del self._live[generation.sequence]
        self.metrics.count_finished(generation.sequence, generation.siblings, at_us)

    def _abort(self, generation: Generation) -> None:
        sequence = generation.sequence
        if sequence not in self._live:
            return
        del self._live[sequence]
        self.engine.abort(sequence.sequence_id, now_us())
        self.metrics.finished[FinishReason.ABORT] += 1

    def _publish(self) -> None:
        events = self.take_events()
        if events:
            self.publish(events)
