"""An engine of two pages that a test may change, freeze, stop and start again on its port."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

PAGE = "llamacpp:requests_processing {running}\nllamacpp:prompt_tokens_total {tokens}\n"
MODELS = '{"data": [{"id": "tiny", "aliases": ["tiny", "small"]}, {"id": "adapter"}]}'


class FakeEngine:
    """Answers like llama.cpp; ``requests`` are all that it was asked, with their headers."""

    def __init__(self) -> None:
        self.port = 0
        self.metrics = PAGE.format(running=0, tokens=10)
        self.models = MODELS
        self.statuses: dict[str, int] = {}
        self.answering = asyncio.Event()
        self.answering.set()
        self.requests: list[web.Request] = []
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _answer(self, request: web.Request) -> web.Response:
        self.requests.append(request)
        await self.answering.wait()
        pages = {"/metrics": self.metrics, "/v1/models": self.models, "/health": "{}"}
        status = self.statuses.get(request.path, 200)
        elsewhere = {"location": "/health"} if status == 302 else {}
        return web.Response(text=pages[request.path], status=status, headers=elsewhere)


@asynccontextmanager
async def fake_engine() -> AsyncIterator[FakeEngine]:
    fake = FakeEngine()
    await fake.start()
    try:
        yield fake
    finally:
        fake.answering.set()
        await fake.stop()


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    async with fake_engine() as fake:
        yield fake
