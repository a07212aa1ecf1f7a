"""Whom a fault strikes is a matter of its share and of a hash; what is set can be ended."""

import asyncio
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.server.fault_injector import FaultInjector
from replicas.server.faults import (
    DropLoadReports,
    ErrorStatus,
    Freeze,
    Restart,
    SlowHealth,
    SlowStart,
    Stall,
)
from replicas.server.metrics import ReplicaMetrics
from tests.replicas.server.test_driver import Clock, clock, make, token_times
from tests.waiting import until

__all__ = ["clock"]


KEYS = [f"request-{index}" for index in range(2_000)]
FOREVER_S = 3_600.0


def injector(seed: int = 0, replica_id: str = "r1") -> FaultInjector:
    return FaultInjector(ReplicaMetrics(), seed, replica_id)


def struck(faults: FaultInjector, share: float) -> list[str]:
    faults.set([ErrorStatus(share=share)])
    return [key for key in KEYS if faults.strike(ErrorStatus, key)]


@settings(deadline=None)  # 2,000 hashes a draw, on a machine that may be busy
@given(st.floats(0, 1), st.integers(0, 2**64 - 1))
def test_a_share_strikes_about_that_share(share: float, seed: int) -> None:
    number = len(struck(injector(seed), share))

    # Five standard deviations of a binomial draw: once in two million.
    assert abs(number - share * len(KEYS)) <= 5 * (len(KEYS) * share * (1 - share)) ** 0.5 + 1


@settings(deadline=None)  # 2,000 hashes a draw, on a machine that may be busy
@given(st.floats(0, 1), st.floats(0, 1))
def test_a_larger_share_strikes_all_that_a_smaller_one_does(one: float, other: float) -> None:
    smaller, larger = sorted((one, other))

    assert set(struck(injector(), smaller)) <= set(struck(injector(), larger))


def test_the_whole_share_strikes_all_and_none_strikes_nobody() -> None:
    assert struck(injector(), 1.0) == KEYS
    assert struck(injector(), 0.0) == []


def test_the_same_seed_strikes_the_same_requests_and_another_replica_others() -> None:
    again, here = struck(injector(), 0.3), struck(injector(), 0.3)
    there, later = struck(injector(replica_id="r2"), 0.3), struck(injector(seed=1), 0.3)

    assert again == here
    assert here != there
    assert here != later
    both = len(set(here) & set(there)) / len(KEYS)
    assert both == pytest.approx(0.09, abs=0.03)  # independent: one can stand in for the other


def test_faults_draw_independently() -> None:
    faults = injector()
    faults.set([ErrorStatus(share=0.3), Stall(share=0.3)])

    first = {key for key in KEYS if faults.draw(ErrorStatus, key)}
    second = {key for key in KEYS if faults.draw(Stall, key)}

    assert len(first & second) / len(KEYS) == pytest.approx(0.09, abs=0.03)


def test_strikes_are_counted_and_draws_are_not() -> None:
    faults = injector()
    faults.set([ErrorStatus()])

    faults.draw(ErrorStatus, "a")
    faults.strike(ErrorStatus, "a")
    faults.strike(ErrorStatus, "b")
    faults.strike(Stall, "b")

    assert faults.num_struck(ErrorStatus) == 2
    assert faults.num_struck(Stall) == 0


def test_a_fault_replaces_one_of_its_kind_and_clearing_one_leaves_the_others() -> None:
    faults = injector()
    faults.set([ErrorStatus(status=500), DropLoadReports()])
    faults.set([ErrorStatus(status=503)])

    assert faults.get(ErrorStatus) == ErrorStatus(status=503)
    faults.clear([ErrorStatus, Stall])
    assert faults.get(ErrorStatus) is None
    assert faults.get(DropLoadReports) == DropLoadReports()
    assert faults.any_set
    faults.clear()
    assert not faults.any_set


async def test_a_freeze_ends_by_itself_and_by_being_cleared_or_replaced() -> None:
    faults = injector()

    faults.set([Freeze(duration_s=0.0)])
    assert faults.disturbance.thawed is not None
    await until(lambda: faults.disturbance.thawed is None, "the end of the freeze")
    assert faults.get(Freeze) is None

    faults.set([Freeze()])
    first = faults.disturbance.thawed
    faults.set([Freeze(duration_s=FOREVER_S)])
    assert first is not None
    assert first.is_set()
    assert faults.disturbance.thawed is not None
    faults.clear()
    assert faults.disturbance.thawed is None
    assert faults.num_struck(Freeze) == 3


async def test_the_end_of_a_cleared_freeze_does_not_end_the_next_one() -> None:
    faults = injector()
    faults.set([Freeze(duration_s=0.0)])
    faults.set([Freeze()])

    await faults.wait(Freeze, 0.01)

    assert faults.get(Freeze) == Freeze()


async def test_a_freeze_is_no_lag_and_is_not_caught_up(clock: Clock) -> None:
    driver, metrics = make()

    class Thaw(asyncio.Event):
        async def wait(self) -> Literal[True]:
            clock.now += 10_000_000
            driver.disturbance.thawed = None
            return True

    driver.disturbance.thawed = Thaw()
    times = await token_times(driver, clock, 3)

    assert times == [10_010_000, 10_020_000, 10_030_000]
    assert metrics.lag_us == 0


async def test_a_slowdown_multiplies_every_step(clock: Clock) -> None:
    driver, _ = make(speedup=2.0)
    driver.disturbance.slowdown = 3.0

    assert await token_times(driver, clock, 2) == [15_000, 30_000]


async def test_a_slow_start_has_a_time_of_refusal_then_one_of_slowness_then_none() -> None:
    faults = injector()
    faults.set([SlowStart(ready_after_s=0.0, slow_for_s=FOREVER_S, slowdown=7.0)])

    assert not faults.is_ready
    await until(lambda: faults.is_ready, "readiness")
    assert faults.disturbance.slowdown == 7.0
    faults.clear([SlowStart])
    assert faults.disturbance.slowdown == 1.0

    faults.set([SlowStart(ready_after_s=0.0, slow_for_s=0.0)])
    await until(lambda: faults.get(SlowStart) is None, "the end of the slow start")
    assert faults.is_ready
    assert faults.disturbance.slowdown == 1.0


async def test_a_restart_strikes_once_unless_it_is_cleared_before() -> None:
    faults = injector()
    restarts: list[str] = []
    faults.on_restart = lambda: restarts.append("now")

    faults.set([Restart(after_s=FOREVER_S)])
    faults.clear([Restart])
    faults.set([ErrorStatus(), Restart()])
    await until(lambda: bool(restarts), "the restart")

    assert restarts == ["now"]
    assert faults.get(Restart) is None
    assert faults.get(ErrorStatus) is not None
    assert faults.num_struck(Restart) == 1


async def test_a_wait_ends_with_its_time_or_its_fault() -> None:
    faults = injector()
    faults.set([SlowHealth()])

    await faults.wait(SlowHealth, 0.0)
    waiting = asyncio.create_task(faults.wait(SlowHealth, None))
    await asyncio.sleep(0)
    faults.clear()

    await asyncio.wait_for(waiting, FOREVER_S)
