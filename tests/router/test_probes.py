"""Probes over real sockets: what each kind of answer is taken for."""

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

import router.policies  # noqa: F401  # registers the policies
from router.core.config import RoutingConfig
from router.core.fleet import FleetState
from router.core.policy import build_policy
from router.core.reason import Ineligible
from router.gateway.config import GatewayConfig
from router.metrics import RouterMetrics
from router.probes import Prober
from tests.router.gateway.running import clock_us
from warmroute.demo.processes import free_port

pytestmark = pytest.mark.live


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as opened:
        yield opened


async def serving(handler: web.Application) -> tuple[web.AppRunner, str]:
    runner = web.AppRunner(handler, shutdown_timeout=0.1)  # of those that never answer
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"


def app(status: int | None) -> web.Application:
    """Return a replica whose health path answers so; None: never."""

    async def health(_: web.Request) -> web.Response:
        if status is None:
            await asyncio.Event().wait()
        return web.Response(status=status or 200)

    served = web.Application()
    served.router.add_get("/health", health)
    return served


@pytest.mark.parametrize(
    ("status", "result", "is_out"),
    [
        (200, "answered", False),
        (404, "answered", False),
        (503, "failed", True),
        (None, "late", True),
    ],
)
async def test_each_answer_is_taken_for_what_it_is(
    session: aiohttp.ClientSession, status: int | None, result: str, is_out: bool
) -> None:
    runner, url = await serving(app(status))
    fleet = FleetState(RoutingConfig(probe_failures=1), build_policy("round_robin"))
    fleet.add_static(url, "a", "m", now_us=0)
    metrics = RouterMetrics()
    config = GatewayConfig(probe_timeout_s=0.2 if status is None else 10.0)
    prober = Prober(fleet, metrics, lambda: config, clock_us)

    try:
        await prober.probe_all(session)
    finally:
        await runner.cleanup()

    assert (fleet.views()[0].standing is Ineligible.EJECTED) == is_out
    assert f'warmroute_probes_total{{result="{result}"}} 1.0' in metrics.render().decode()


async def test_a_port_where_nobody_listens_fails_its_probe(session: aiohttp.ClientSession) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    fleet = FleetState(RoutingConfig(probe_failures=1), build_policy("round_robin"))
    fleet.add_static(url, "a", "m", now_us=0)
    prober = Prober(fleet, RouterMetrics(), GatewayConfig, clock_us)

    await prober.probe_all(session)

    assert fleet.views()[0].standing is Ineligible.EJECTED


async def test_a_slow_health_path_is_none_that_is_dead(session: aiohttp.ClientSession) -> None:
    asked, answer = 0, asyncio.Event()

    async def health(_: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        await answer.wait()
        return web.Response()

    served = web.Application()
    served.router.add_get("/health", health)
    runner, url = await serving(served)
    fleet = FleetState(RoutingConfig(probe_failures=3), build_policy("round_robin"))
    fleet.add_static(url, "a", "m", now_us=0)
    config = GatewayConfig(probe_timeout_s=0.05)
    prober = Prober(fleet, RouterMetrics(), lambda: config, clock_us)
    try:
        for _ in range(3):
            answer.clear()
            await prober.probe_all(session)
            await prober.probe_all(session)
            answer.set()
            while prober.num_late:
                await prober.probe_all(session)
    finally:
        await runner.cleanup()

    assert asked == 3  # and not once more while one waits
    assert fleet.views()[0].standing is None
