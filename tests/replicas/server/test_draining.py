"""A draining replica ends what runs and takes nothing new; a stopped one cuts what is left."""

import asyncio
from dataclasses import replace

import aiohttp
import msgspec
import pytest

from contract.sse import DONE_PAYLOAD, SseReader
from replicas.server.replica import Replica, running_replica
from tests.replicas.server.conftest import CONFIG, FOREVER_MS, Start
from tests.waiting import until

BODY = {"prompt": "hello", "max_tokens": 40, "stream": True}


async def test_running_requests_end_and_new_ones_are_refused(
    start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start(fixed_decode_ms=5.0)
    async with http.post(f"{replica.url}/v1/completions", json=BODY) as running:
        async with http.post(f"{replica.url}/admin/drain") as response:
            drained = await response.json()
        async with http.post(f"{replica.url}/v1/completions", json=BODY) as refused:
            error = (await refused.json())["error"]
        async with http.get(f"{replica.url}/health") as health:
            await health.read()
        payloads = SseReader().feed(await running.read())

    assert drained == {"draining": True, "live_sequences": 1}
    assert (refused.status, error["code"]) == (503, "draining")
    assert refused.headers["retry-after"] == "1"
    assert (health.status, health.headers["retry-after"]) == (503, "1")
    assert payloads[-1] == DONE_PAYLOAD
    assert msgspec.json.decode(payloads[-2])["choices"][0]["finish_reason"] == "length"


async def test_draining_returns_when_the_last_answer_is_written(
    start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start(fixed_decode_ms=2.0)
    async with http.post(f"{replica.url}/v1/completions", json=BODY) as running:
        await replica.drain()

        assert replica.driver.num_live == 0
        payloads = SseReader().feed(await running.read())
    assert payloads[-1] == DONE_PAYLOAD


@pytest.mark.parametrize("streaming", [True, False])
async def test_what_outlives_the_drain_is_cut_off_visibly(
    streaming: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replicas.server.replica.LAST_ANSWERS_S", 3_600.0)
    config = replace(CONFIG, fixed_decode_ms=FOREVER_MS, drain_s=0.01)
    body = BODY | {"stream": streaming}
    async with aiohttp.ClientSession() as http:
        async with running_replica(config) as replica:
            asking = asyncio.create_task(ask(http, replica, body))
            await until(lambda: replica.driver.engine.stats().output_tokens_total == 1)
            await replica.drain()
            assert replica.driver.num_live == 1

        with pytest.raises(aiohttp.ClientError):
            await asking
        assert replica.driver.num_live == 0


async def ask(http: aiohttp.ClientSession, replica: Replica, body: dict[str, object]) -> bytes:
    async with http.post(f"{replica.url}/v1/completions", json=body) as response:
        return await response.read()


async def test_health_models_and_version_answer(start: Start, http: aiohttp.ClientSession) -> None:
    replica = await start(max_model_len=777)
    answers = {}
    for path in ("/health", "/v1/models", "/version"):
        async with http.get(replica.url + path) as response:
            assert response.status == 200
            answers[path] = await response.json()

    (model,) = answers["/v1/models"]["data"]
    assert (model["id"], model["max_model_len"]) == (CONFIG.model, 777)
    assert model["owned_by"] == "warmroute"
    assert answers["/version"]["version"]


async def test_the_prefix_cache_is_reset_unless_blocks_are_held(
    start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start(fixed_decode_ms=FOREVER_MS)
    running = asyncio.create_task(ask(http, replica, {"prompt": [7] * 40, "max_tokens": 2}))
    await until(lambda: replica.driver.engine.stats().output_tokens_total == 1)

    async def reset() -> bool:
        async with http.post(f"{replica.url}/reset_prefix_cache") as response:
            answer: bool = (await response.json())["success"]
            return answer

    assert replica.driver.engine.cached_hashes()
    assert await reset() is False
    running.cancel()
    await until(lambda: replica.driver.num_live == 0)
    assert await reset() is True
    assert replica.driver.engine.cached_hashes() == []


async def serve_until_a_step_fails(http: aiohttp.ClientSession) -> None:
    async with running_replica(CONFIG) as replica:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(replica.driver.engine, "plan_step", lambda now_us: 1 // (now_us * 0))
            await ask(http, replica, BODY)


async def test_a_step_loop_that_fails_ends_the_replica(http: aiohttp.ClientSession) -> None:
    with pytest.raises(ExceptionGroup) as failed:
        await serve_until_a_step_fails(http)

    assert failed.group_contains(ZeroDivisionError)
