"""Blocks: what can never fit is refused at once, what does not fit now waits, and none is lost."""

import asyncio
import contextlib
import json
import random
from typing import Any

import aiohttp
import pytest

from replicas.server.replica import Replica
from tests.field.harness import gateway_of
from tests.field.simulated import BLOCK_TOKENS, is_empty, simulated, stats_of
from tests.router.gateway.wire import Answer, chat, post
from tests.waiting import until


def prompt_of(tokens: int, first: int = 0) -> list[int]:
    """Return a prompt of exactly so many tokens, which no other ``first`` shares."""
    return [first, *range(1, tokens)]


async def complete(replica: Replica, tokens: int, max_tokens: int, **more: Any) -> Answer:
    """Ask a replica for a completion; the answer's body is its JSON."""
    body = {"model": "m", "prompt": prompt_of(tokens), "max_tokens": max_tokens} | more
    url = f"{replica.url}/v1/completions"
    async with aiohttp.ClientSession() as http, http.post(url, json=body) as response:
        content = await response.read()
        return Answer(response.status, [], content, content, is_whole=True)


async def test_kv_01_what_never_fits_is_a_400_and_holds_up_nobody() -> None:
    async with simulated(kv_blocks=64, max_model_len=4096) as s:
        answers = await asyncio.gather(
            complete(s, 100, 10), complete(s, 1500, 10), complete(s, 100, 10, prompt="other")
        )

        await is_empty(s)

    assert [answer.status for answer in answers] == [200, 400, 200]
    assert answers[1].code == "never_fits"
    assert "64" in json.loads(answers[1].body)["error"]["message"]


async def test_kv_02_the_limit_is_exact_and_nothing_hangs_beside_it() -> None:
    async with simulated(kv_blocks=8, enable_prefix_caching=False) as s:
        pool = stats_of(s).kv_blocks_total * BLOCK_TOKENS
        statuses = []
        for total in range(pool - 33, pool + 34):
            answer = await complete(s, total - 8, 8, ignore_eos=True)
            statuses.append(answer.status)
            assert stats_of(s).waiting_requests == 0

    assert sorted(statuses) == statuses
    assert set(statuses) == {200, 400}


async def test_kv_04_small_requests_wait_no_longer_than_the_big_one_before_them() -> None:
    """First come, first served: nobody overtakes, so the big one cannot starve; the small ones
    wait for it, which is at most as long as what runs before it.
    """
    settings = {"kv_blocks": 100, "fixed_decode_ms": 1.0, "enable_prefix_caching": False}
    async with simulated(**settings, faults=("freeze",)) as s:  # until all are there
        order: list[str] = []

        async def ask(name: str, tokens: int) -> None:
            answer = await complete(s, tokens, 20, ignore_eos=True)
            assert answer.status == 200
            order.append(name)

        running = asyncio.create_task(ask("running", 70 * BLOCK_TOKENS))
        await until(lambda: stats_of(s).running_requests == 1)
        big = asyncio.create_task(ask("big", 50 * BLOCK_TOKENS))
        await until(lambda: stats_of(s).waiting_requests == 1)
        small = [asyncio.create_task(ask("small", BLOCK_TOKENS)) for _ in range(20)]
        await until(lambda: stats_of(s).waiting_requests == 21)
        s.faults.clear()
        async with asyncio.timeout(20):
            await asyncio.gather(running, big, *small)

    assert order[0] == "running"
    assert order.count("small") == 20
    assert "big" in order


SAME_AS_ABSENT: list[dict[str, Any]] = [
    {"max_tokens": None},
    {"max_completion_tokens": 5},
    {"max_completion_tokens": None, "max_tokens": 5},
    {"max_completion_tokens": 5, "max_tokens": 7},
    {},
]
IMPOSSIBLE: list[Any] = [0, -1, 1.5, "5", 10**9, 2**63, [], {}, True]


@pytest.mark.parametrize("fields", SAME_AS_ABSENT, ids=repr)
@pytest.mark.parametrize("stream", [False, True])
async def test_kv_06_no_number_of_tokens_is_the_default(
    fields: dict[str, Any], stream: bool
) -> None:
    async with simulated(max_model_len=512) as s, gateway_of(s.url) as gateway:
        answer = await gateway.chat(stream=stream, **fields)

    assert answer.status == 200
    if not stream:
        usage = json.loads(answer.body)["usage"]
        cap = fields.get("max_completion_tokens") or fields.get("max_tokens") or 512
        assert 0 < usage["completion_tokens"] <= cap


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("value", IMPOSSIBLE, ids=repr)
async def test_kv_06_an_impossible_number_of_tokens_is_a_400(name: str, value: Any) -> None:
    async with simulated(max_model_len=512) as s, gateway_of(s.url) as gateway:
        answer = await gateway.ask(post(chat(**{name: value})))

        await is_empty(s)

    assert answer.status == 400
    assert json.loads(answer.body)["error"]["type"] == "invalid_request_error"


async def test_kv_08_requests_that_fail_leave_no_blocks() -> None:
    async with simulated(
        kv_blocks=64, max_model_len=4096, faults=("reset_mid_stream:after_tokens=5",)
    ) as s:
        refused = [(await complete(s, 2000 + n, 10)).status for n in range(50)]
        broken = await asyncio.gather(*(cut(s, n) for n in range(20)))
        await is_empty(s)
        s.faults.clear()
        whole = await complete(s, 64 * BLOCK_TOKENS - 10, 10, ignore_eos=True)

    assert set(refused) == {400}
    assert broken == [True] * 20
    assert whole.status == 200


async def cut(replica: Replica, number: int) -> bool:
    """Ask for a stream; say whether it broke."""
    body = {"model": "m", "prompt": prompt_of(100, number), "max_tokens": 50, "stream": True}
    async with aiohttp.ClientSession() as http:
        try:
            async with http.post(f"{replica.url}/v1/completions", json=body) as response:
                await response.read()
        except aiohttp.ClientError:
            return True
    return False


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("scheduling", ["fcfs", "priority"])
async def test_kv_09_whatever_comes_the_engine_always_goes_on(seed: int, scheduling: str) -> None:
    draw = random.Random(seed)
    async with simulated(kv_blocks=40, scheduling=scheduling, max_num_seqs=16) as s:

        async def ask(number: int) -> int | None:
            tokens, output = draw.randrange(1, 400), draw.randrange(1, 200)
            shared = draw.random() < 0.5
            body = {"prompt": prompt_of(tokens, 0 if shared else number), "ignore_eos": True}
            if scheduling == "priority":
                body["priority"] = draw.randrange(3)
            leaves = draw.random() < 0.2
            asking = complete(s, 1, output, **body)
            with contextlib.suppress(TimeoutError):
                return (await asyncio.wait_for(asking, 0.01 if leaves else 20)).status
            return None if leaves else 0

        statuses = [status for _ in range(2) for status in await _all(ask, 40)]
        await is_empty(s)
        s.driver.engine.scheduler.check()

    assert set(statuses) <= {200, 400, None}
    assert statuses.count(200) > 40


async def _all(ask: Any, count: int) -> list[int | None]:
    return list(await asyncio.gather(*(ask(number) for number in range(count))))
