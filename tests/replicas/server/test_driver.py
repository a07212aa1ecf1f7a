"""The driver's pace: steps follow the model's time on average, and never catch up for ever."""

from dataclasses import dataclass

import pytest

from contract.blocks import root_hash
from replicas.core.scheduler import NeverFitsError
from replicas.core.scheduler_config import SchedulerConfig
from replicas.core.step_time import FixedStepTime
from replicas.server import driver as driver_module
from replicas.server.driver import Driver
from replicas.server.generation import Generation, Prompt, SamplingRules
from replicas.server.metrics import EngineMetrics

ROOT = root_hash("m")


@dataclass
class Clock:
    """A clock that moves only when the driver waits, ``late_us`` too far each time."""

    now: int = 1_000_000
    late_us: int = 0
    waits: int = 0

    def now_us(self) -> int:
        return self.now

    async def sleep(self, delay_s: float) -> None:
        self.now += round(delay_s * 1e6) + self.late_us
        self.waits += 1


class EndedError(Exception):
    """Raised by the last token, so that the endless driver returns."""


class Recorder:
    def __init__(self, clock: Clock) -> None:
        self.times: list[int] = []
        self._clock = clock

    def take(self, generation: Generation, piece: bytes) -> None:
        self.times.append(self._clock.now)
        if generation.finish_reason is not None:
            raise EndedError


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(driver_module, "now_us", clock.now_us)
    monkeypatch.setattr("asyncio.sleep", clock.sleep)
    return clock


def make(speedup: float = 1.0, catch_up_us_max: int = 50_000) -> tuple[Driver, EngineMetrics]:
    config = SchedulerConfig(num_blocks=100)
    metrics = EngineMetrics(config)
    step_time = FixedStepTime(prefill_us=10_000, decode_us=10_000)
    return Driver(config, step_time, speedup, catch_up_us_max, metrics), metrics


async def token_times(driver: Driver, clock: Clock, num_tokens: int) -> list[int]:
    recorder = Recorder(clock)
    rules = SamplingRules(max_tokens=num_tokens, open_ended=False)
    generation = Generation("1", 0, Prompt(b"word" * 8, ROOT), 0, rules, recorder)
    start = clock.now
    with driver.serving([generation]), pytest.raises(EndedError):
        await driver.run()
    return [at - start for at in recorder.times]


async def test_steps_end_when_the_model_says(clock: Clock) -> None:
    driver, _ = make()

    times = await token_times(driver, clock, 4)

    assert times == [10_000, 20_000, 30_000, 40_000]


async def test_a_speedup_divides_every_step(clock: Clock) -> None:
    driver, _ = make(speedup=4.0)

    times = await token_times(driver, clock, 4)

    assert times == [2_500, 5_000, 7_500, 10_000]


async def test_late_timers_do_not_slow_the_replica_down(clock: Clock) -> None:
    driver, metrics = make()
    clock.late_us = 3_000

    times = await token_times(driver, clock, 100)

    assert times[-1] == 100 * 10_000 + 3_000  # the lateness of one step, not of a hundred
    assert metrics.lag_us == 0


async def test_a_machine_that_is_too_slow_says_so_and_does_not_race_later(clock: Clock) -> None:
    driver, metrics = make(catch_up_us_max=20_000)
    clock.late_us = 15_000  # 5 ms more than a step has

    await token_times(driver, clock, 100)
    assert metrics.lag_us > 300_000
    clock.late_us = 0
    times = await token_times(driver, clock, 10)

    assert times[-1] >= 10 * 10_000 - 20_000


async def test_a_late_step_still_lets_the_loop_turn(clock: Clock) -> None:
    driver, _ = make()
    clock.late_us = 15_000

    await token_times(driver, clock, 10)

    assert clock.waits == 10


async def test_a_sequence_that_never_fits_leaves_the_others_unaccepted(clock: Clock) -> None:
    driver, metrics = make()
    recorder = Recorder(clock)
    short, long = (
        Generation(str(size), 0, Prompt(b"word" * size, ROOT), 0, SamplingRules(1, False), recorder)
        for size in (5, 5_000)
    )

    with pytest.raises(NeverFitsError), driver.serving([short, long]):
        pytest.fail("entered")

    assert driver.num_live == 0
    assert driver.engine.stats().waiting_requests == 0
    assert sum(metrics.finished.values()) == 1  # the short one, aborted
