"""Clocks: nothing that a wall clock says, here or at a replica, moves a time limit."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.load_report import LoadReport
from tests.field.asking import PATIENT
from tests.field.harness import Fake, gateway_of, listening, refusing, saying
from tests.field.redis_side import reporting
from tests.redis_server import RedisServer
from tests.router.gateway.running import clock_us
from tests.waiting import until

HOUR_S = 3600.0
ROOT = Path(__file__).parents[2]


@pytest.fixture
def wall_clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """A wall clock that a test can set: the hours by which it is ahead."""
    ahead = [0.0]
    real, real_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: real() + ahead[0] * HOUR_S)
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + int(ahead[0] * HOUR_S * 1e9))
    yield ahead
    ahead[0] = 0.0


async def test_clk_01_a_replicas_clock_says_nothing_of_the_age_of_its_report(
    redis_server: RedisServer,
) -> None:
    """A report holds no time at all: its age counts from when its number was first read."""
    names = ("behind", "ahead", "right")
    settings = {"redis_url": redis_server.url, "policy": "round_robin"}
    fakes = [Fake(replica_id=name) for name in names]
    fields = LoadReport.__struct_fields__
    assert not [name for name in fields if name.endswith(("_at", "time", "stamp"))]
    async with listening(fakes), reporting(redis_server, *fakes) as say:
        async with gateway_of(**settings, **PATIENT) as gateway:
            await gateway.knows(*names)
            for _ in range(30):
                assert (await gateway.chat()).status == 200
            shares = [len(fake.asked) for fake in fakes]
        async with gateway_of(**settings, report_stale_s=0.2, report_dead_s=0.4) as gateway:
            await gateway.knows(*names)
            await say.hush("behind", forget=False)

            def who_is_fresh() -> list[str]:
                return [n for n in names if gateway.status_of(n).freshness.value == "fresh"]

            await until(lambda: who_is_fresh() == ["ahead", "right"], "only one is behind")

    assert shares == [10, 10, 10]


async def test_clk_03_a_jump_of_the_wall_clock_moves_no_limit(wall_clock: list[float]) -> None:
    settings = {"breaker_failures": 1, "breaker_cooldown_s": 0.3, "retry_max": 0}
    async with Fake() as a, gateway_of(a, **settings) as gateway:
        for hours in (0.0, 1.0, -1.0, 1000.0, 0.0):
            wall_clock[0] = hours
            for _ in range(5):
                assert (await gateway.chat()).status == 200
        for hours in (1.0, -1.0):  # which would end a cooldown at once, and never
            a.play = refusing("500 No")
            before_us = clock_us()
            assert (await gateway.chat()).status == 500
            wall_clock[0] = hours
            await until(lambda: gateway.status_of().breaker.value == "half_open")
            assert clock_us() - before_us >= 300_000
            a.play = saying("a")
            assert (await gateway.chat()).status == 200
        await gateway.rests()

        assert all(0 <= r.ended_us - r.received_us < 60_000_000 for r in gateway.records)
        assert gateway.status_of().breaker.value == "closed"


@pytest.mark.parametrize("folder", ["contract", "router", "replicas/core"])
def test_clk_03_no_duration_is_taken_from_a_wall_clock(folder: str) -> None:
    wall = ("time.time(", "time.time_ns(", "datetime.now(", "utcnow(")
    found = [
        f"{path.name}:{number}"
        for path in (ROOT / folder).rglob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if any(call in line for call in wall)
    ]

    assert found == []
