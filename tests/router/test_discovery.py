"""Model names of replicas that do not report: learnt from what they list, one by one.

Replicas are small aiohttp servers on free ports; the fleet is a real one.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

import router.policies  # noqa: F401  # fills the register
from router.core.config import RoutingConfig
from router.core.fleet import FleetState
from router.core.policy import build_policy
from router.discovery import ANSWER_BYTES_MAX, MODELS_MAX, Discovery
from tests.router.store.reports import report
from tests.waiting import until

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class World:
    def __init__(self, stack: AsyncExitStack) -> None:
        self.fleet = FleetState(RoutingConfig(), build_policy("prefix_load"))
        self.discovery = Discovery(self.fleet, interval_s=0.01, timeout_s=1.0)
        self._stack = stack

    async def replica(self, replica_id: str, answer: Handler, model: str | None = None) -> None:
        app = web.Application()
        app.router.add_get("/v1/models", answer)
        server = await self._stack.enter_async_context(TestServer(app))
        self.fleet.add_static(f"http://127.0.0.1:{server.port}", replica_id, model, now_us=0)

    async def ask(self) -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20.0)) as session:
            await self.discovery.ask_all(session)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        yield World(stack)


def listing(*names: object) -> Handler:
    async def answer(request: web.Request) -> web.Response:
        models = [{"id": name, "object": "model", "max_model_len": 4096} for name in names]
        return web.json_response({"object": "list", "data": models})

    return answer


def saying(body: bytes, status: int = 200) -> Handler:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=body, status=status)

    return answer


async def hang(request: web.Request) -> web.Response:
    await asyncio.Event().wait()
    raise AssertionError


async def test_a_replica_is_asked_for_its_names(world: World) -> None:
    await world.replica("a", listing("m", "m-lora"))

    await world.ask()

    assert world.fleet.models() == ["m", "m-lora"]


async def test_a_replica_is_asked_with_its_own_key(world: World) -> None:
    asked: list[str | None] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.headers.get("Authorization"))
        return web.json_response({"data": []})

    await world.replica("a", answer)
    await world.ask()
    world.discovery = Discovery(world.fleet, 1.0, 1.0, authorization=lambda _url: "Bearer engine")
    await world.ask()

    assert asked == [None, "Bearer engine"]


async def test_a_name_given_by_hand_is_kept_beside_the_listed(world: World) -> None:
    await world.replica("a", listing("listed"), model="given")

    await world.ask()

    assert world.fleet.models() == ["given", "listed"]
    assert world.fleet.views()[0].view.model == "given"


async def test_a_replica_that_reports_is_believed_and_not_asked(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.fleet.on_report(report("a", url="http://127.0.0.1:1"), 0, 0)

    await world.ask()

    assert world.fleet.models() == ["m"]
    assert caplog.records == [], "nobody answers there"


@pytest.mark.parametrize(
    "answer",
    [
        saying(b"", 200),
        saying(b"<html>", 200),
        saying(b'{"data": {}}'),
        saying(b'{"data": [{"id": 5}]}'),
        saying(b'{"data": []}'),
        saying(b'{"data": [{"id": "x", "more": ' + b"[" * 100_000),
        saying(b'{"data": [{"id": "x"}]}', 500),
        saying(b'{"data": [{"id": "' + b"x" * 1000 + b'"}, {"id": ""}, {"id": "a\\nb"}]}'),
        saying(b" " * (ANSWER_BYTES_MAX + 1) + b'{"data": [{"id": "x"}]}'),
        hang,
    ],
)
async def test_any_other_answer_changes_nothing(world: World, answer: Handler) -> None:
    await world.replica("a", listing("m"))
    await world.replica("b", answer, model="given")

    await world.ask()

    assert world.fleet.models() == ["given", "m"]
    assert [status.standing for status in world.fleet.views()] == [None, None]


async def test_a_list_without_end_is_cut(world: World) -> None:
    await world.replica("a", listing(*[f"m{number}" for number in range(MODELS_MAX * 3)]))

    await world.ask()

    assert len(world.fleet.models()) == MODELS_MAX


async def test_a_replica_that_is_not_there_is_said_once_and_asked_again(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    world.fleet.add_static("http://127.0.0.1:1", "gone", "m", now_us=0)
    asked: list[None] = []
    names = listing("n")

    async def count(request: web.Request) -> web.StreamResponse:
        asked.append(None)
        return await names(request)

    await world.replica("a", count)
    task = asyncio.create_task(world.discovery.run())
    await until(lambda: len(asked) > 3)
    task.cancel()
    await asyncio.wait([task])

    lines = [record.getMessage() for record in caplog.records if "gone" in record.getMessage()]
    assert len(lines) == 1


async def test_a_replica_that_has_come_is_asked_at_once_and_the_others_later(world: World) -> None:
    asked: list[str] = []

    def noting(name: str) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            asked.append(name)
            return await listing(name)(request)

        return answer

    world.discovery = Discovery(world.fleet, interval_s=3_600.0, timeout_s=5.0)
    await world.replica("a", noting("a"))
    task = asyncio.create_task(world.discovery.run())
    await until(lambda: asked == ["a"])
    await world.replica("b", noting("b"))
    await until(lambda: len(asked) > 1)
    task.cancel()
    await asyncio.wait([task])

    assert asked == ["a", "b"]
