"""What probes and operators ask, answered in the shape of vLLM."""

import asyncio

import aiohttp
import pytest

from tests.replicas.server.conftest import FOREVER_MS, MODEL, Start
from tests.waiting import until


async def test_load_counts_the_requests_inside(start: Start, http: aiohttp.ClientSession) -> None:
    replica = await start(fixed_prefill_ms=FOREVER_MS)

    async def server_load() -> int:
        async with http.get(f"{replica.url}/load") as response:
            load: int = (await response.json())["server_load"]
            return load

    before = await server_load()
    bodies = [("completions", {"prompt": "x", "n": 3}), ("embeddings", {"input": "x"})]
    tasks = [
        asyncio.create_task(http.post(f"{replica.url}/v1/{path}", json=body))
        for path, body in bodies
    ]
    await until(lambda: replica.driver.num_live == 4)
    during = await server_load()
    for task in tasks:
        task.cancel()
    await until(lambda: replica.driver.num_live == 0)

    assert (before, during, await server_load()) == (0, 2, 0)


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_ping_is_empty_while_all_is_well_and_503_while_draining(
    start: Start, http: aiohttp.ClientSession, method: str
) -> None:
    replica = await start()

    async with http.request(method, f"{replica.url}/ping") as well:
        body = await well.read()
    replica.api.gate.drain()
    async with http.request(method, f"{replica.url}/ping") as draining:
        pass

    assert (well.status, body, draining.status) == (200, b"", 503)


async def test_version_and_models_have_vllms_shape(
    start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start(aliases=("other",), max_model_len=512)

    async with http.get(f"{replica.url}/version") as response:
        version = await response.json()
    async with http.get(f"{replica.url}/v1/models") as response:
        models = await response.json()

    assert version.keys() == {"version"}
    assert models["object"] == "list"
    assert [card["id"] for card in models["data"]] == [MODEL, "other"]
    for card in models["data"]:
        assert card["object"] == "model"
        assert (card["root"], card["parent"], card["max_model_len"]) == (MODEL, None, 512)
