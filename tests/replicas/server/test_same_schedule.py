"""The live worker takes the very steps of the pure engine that is fed the same arrivals."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contract.blocks import root_hash
from replicas.core.engine import Engine
from replicas.core.scheduler import StepPlan
from replicas.core.scheduler_config import SchedulerConfig, SchedulingPolicy
from replicas.server import driver as driver_module
from replicas.server.config import ReplicaConfig
from replicas.server.driver import Driver
from replicas.server.engine_setup import step_time_of
from replicas.server.generation import Generation, Prompt, SamplingRules
from replicas.server.metrics import EngineMetrics

ROOT = root_hash("m")
STEP_TIME = step_time_of(ReplicaConfig())


class DoneError(Exception):
    """Ends the endless driver."""


@dataclass(frozen=True)
class Arrival:
    at_us: int
    words: bytes
    max_tokens: int
    priority: int
    adapter: str | None
    pooling: bool

    def generation(self, name: int) -> Generation:
        prompt = Prompt(self.words, ROOT, self.adapter)
        rules = SamplingRules(
            self.max_tokens, open_ended=False, priority=self.priority, pooling=self.pooling
        )
        return Generation(str(name), 0, prompt, 0, rules, Nobody())


class Nobody:
    def take(self, generation: Generation, piece: bytes) -> None:
        pass


ARRIVALS = st.lists(
    st.builds(
        Arrival,
        at_us=st.integers(0, 300_000),
        words=st.builds(
            lambda first, num_words: first * num_words,
            st.sampled_from([b"aaaa", b"bbbb"]),
            st.integers(1, 60),
        ),
        max_tokens=st.integers(1, 25),
        priority=st.integers(0, 2),
        adapter=st.sampled_from([None, None, "x", "y"]),
        pooling=st.sampled_from([False, False, True]),
    ),
    min_size=1,
    max_size=12,
).map(lambda arrivals: sorted(arrivals, key=lambda each: each.at_us))
CONFIGS = st.builds(
    SchedulerConfig,
    num_blocks=st.integers(8, 40),
    block_size=st.just(16),
    max_num_batched_tokens=st.sampled_from([16, 64, 8_192]),
    max_num_seqs=st.sampled_from([2, 64]),
    max_model_len=st.just(1_000),
    policy=st.sampled_from(SchedulingPolicy),
    max_loras=st.sampled_from([None, 1]),
)


class Log:
    """What each step of an engine was."""

    def __init__(self, engine: Engine) -> None:
        self.steps: list[Any] = []
        plan_step = engine.plan_step

        def logged(now_us: int) -> StepPlan | None:
            plan = plan_step(now_us)
            if plan is not None:
                self.steps.append(
                    (
                        plan.started_us,
                        [
                            (each.sequence_id, n, [*each.block_table])
                            for each, n in plan.num_tokens.items()
                        ],
                        [each.sequence_id for each in plan.admitted],
                        [each.sequence_id for each in plan.preempted],
                    )
                )
            return plan

        engine.plan_step = logged  # type: ignore[method-assign]


def pure(config: SchedulerConfig, arrivals: Sequence[Arrival]) -> tuple[list[Any], Any]:
    """Step an engine in virtual time; what arrives during a step is in time for the next one."""
    generations = [arrival.generation(name) for name, arrival in enumerate(arrivals)]
    live = {each.sequence.sequence_id: each for each in generations}
    engine = Engine(config, STEP_TIME, lambda sequence: live[sequence.sequence_id].sample())
    log, waiting, now_us = Log(engine), list(zip(arrivals, generations, strict=True)), 0

    def arrive(until_us: int) -> None:
        while waiting and waiting[0][0].at_us <= until_us:
            arrival, generation = waiting.pop(0)
            engine.add(generation.sequence, arrival.at_us)

    while True:
        plan = engine.plan_step(now_us)
        if plan is None:
            if not waiting:
                return log.steps, engine.drain_events()
            now_us = waiting[0][0].at_us
            arrive(now_us)
            continue
        now_us += engine.step_time_us(plan)
        arrive(now_us)
        engine.complete_step(plan, now_us)


class LiveClock:
    """Time passes when the driver sleeps or waits; requests arrive while it does."""

    def __init__(self, arrivals: Sequence[Arrival]) -> None:
        self.now = 0
        self._waiting = list(enumerate(arrivals))
        self.driver: Driver | None = None
        self._inside = ExitStack()  # of all that have arrived

    def now_us(self) -> int:
        return self.now

    async def sleep(self, delay_s: float) -> None:
        end = self.now + round(delay_s * 1e6)
        while self._waiting and self._waiting[0][1].at_us <= end:
            self._arrive()
        self.now = end

    async def wait(self) -> None:
        if not self._waiting:
            raise DoneError
        first_us = self._waiting[0][1].at_us
        while self._waiting and self._waiting[0][1].at_us == first_us:
            self._arrive()

    def clear(self) -> None:
        pass

    def set(self) -> None:
        pass

    def _arrive(self) -> None:
        name, arrival = self._waiting.pop(0)
        self.now = arrival.at_us
        assert self.driver is not None
        self._inside.enter_context(self.driver.serving([arrival.generation(name)]))


async def live(
    config: SchedulerConfig, arrivals: Sequence[Arrival], patch: pytest.MonkeyPatch
) -> tuple[list[Any], Any]:
    clock = LiveClock(arrivals)
    published: list[Any] = []
    patch.setattr(driver_module, "now_us", clock.now_us)
    patch.setattr("asyncio.sleep", clock.sleep)
    driver = clock.driver = Driver(config, STEP_TIME, 1.0, 0, EngineMetrics(config))
    driver._work = clock  # type: ignore[assignment]  # the one seam where it waits for work
    driver.publish = published.extend
    log = Log(driver.engine)
    with pytest.raises(DoneError):
        await driver.run()
    return log.steps, published


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(config=CONFIGS, arrivals=ARRIVALS)
async def test_the_live_worker_takes_the_steps_of_the_pure_engine(
    config: SchedulerConfig, arrivals: list[Arrival]
) -> None:
    fitting = [
        each
        for each in arrivals
        if config.blocks_for(len(each.words) // 4 + each.max_tokens) < config.num_blocks
    ]

    with pytest.MonkeyPatch.context() as patch:
        live_steps, live_events = await live(config, fitting, patch)
    steps, events = pure(config, fitting)

    assert live_steps == steps
    assert live_events == events
