"""`warmroute load` against two gateways that share three replicas: each answers its half."""

import asyncio
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from warmroute.demo.fleet import DemoConfig, Fleet, running_fleet
from warmroute.demo.processes import Child, free_port, stop_all

pytestmark = pytest.mark.blackbox

DEADLINE_S = 60.0


@pytest.fixture
async def fast_fleet(redis_process: tuple[Child, str], tmp_path: Path) -> AsyncIterator[Fleet]:
    config = DemoConfig(speedup=20.0)
    async with running_fleet(config, "prefix_load", redis_process[1], tmp_path) as running:
        yield running


@pytest.fixture
async def second_gateway(
    fast_fleet: Fleet, redis_process: tuple[Child, str], tmp_path: Path
) -> AsyncIterator[str]:
    port = free_port()
    argv = [
        *(sys.executable, "-m", "warmroute", "router", "--port", str(port), "--admin-port", "0"),
        *("--redis-url", redis_process[1], "--fleet", "demo-prefix_load"),
    ]
    children: list[Child] = []
    try:
        await Child.start("gateway-2", argv, tmp_path / "gateway-2.log", "ready:", children)
        url = f"http://127.0.0.1:{port}"
        await until_ready(url)
        yield url
    finally:
        await stop_all(children)


async def until_ready(url: str) -> None:
    """Wait until the gateway knows a replica."""
    async with asyncio.timeout(DEADLINE_S), aiohttp.ClientSession() as session:
        status = 0
        while status != 200:
            async with session.get(f"{url}/ready") as response:
                status = response.status
            await asyncio.sleep(0.02)


async def until_asked(fleet: Fleet) -> None:
    """Wait until the gateway has answered a request."""
    async with asyncio.timeout(DEADLINE_S), aiohttp.ClientSession() as session:
        metrics = ""
        while "warmroute_requests_total{" not in metrics:
            async with session.get(f"{fleet.admin_url}/metrics") as response:
                metrics = await response.text()
            await asyncio.sleep(0.02)


async def start_load(*flags: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "warmroute", "load", *flags),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def test_both_gateways_answer_their_half_and_predict_what_they_hit(
    fast_fleet: Fleet, second_gateway: str
) -> None:
    load = await start_load(
        *("--urls", f"{fast_fleet.url},{second_gateway}"),
        *("--requests", "60", "--repeat", "2", "--time-compression", "20"),
    )
    output, errors = await asyncio.wait_for(load.communicate(), DEADLINE_S)

    assert load.returncode == 0, (output.decode(), errors.decode())
    rows = [re.split(r"\s{2,}", line) for line in output.decode().splitlines()[2:]]
    assert [row[:3] for row in rows] == [
        [fast_fleet.url, "60", "0"],
        [second_gateway, "60", "0"],
        ["all", "120", "0"],
    ]
    # The second round finds what the first one left in the caches: well above the trace's own 10%.
    predicted, actual = (float(cell.rstrip("%")) for cell in rows[-1][5:7])
    assert predicted > 30
    assert actual > 30


async def test_a_stop_signal_ends_it_at_once_with_130(fast_fleet: Fleet) -> None:
    load = await start_load("--urls", fast_fleet.url, "--time-compression", "0.001")
    await until_asked(fast_fleet)

    load.send_signal(signal.SIGTERM)
    _, errors = await asyncio.wait_for(load.communicate(), DEADLINE_S)

    assert load.returncode == 130
    assert errors.decode().strip() == "interrupted"
