"""Preemption: there is always progress, little is computed twice, and no client can tell."""

import asyncio
import json
from typing import Any

import pytest

from replicas.core.block_pool import BlockPool
from replicas.server.replica import Replica
from tests.field.harness import gateway_of
from tests.field.simulated import BLOCK_TOKENS, is_empty, simulated, stats_of
from tests.field.test_kv_admission import complete, prompt_of
from tests.router.gateway.wire import Answer

TINY = {"kv_blocks": 40, "max_num_batched_tokens": 256}


async def crowd(replica: Replica, count: int, tokens: int, output: int) -> list[Answer]:
    """Ask for so many answers at once; no two prompts share a block."""
    asking = (
        complete(replica, 1, output, prompt=prompt_of(tokens, number), ignore_eos=True)
        for number in range(count)
    )
    async with asyncio.timeout(60):
        return await asyncio.gather(*asking)


def usage_of(answer: Answer) -> dict[str, Any]:
    """Return an answer's usage."""
    usage: dict[str, Any] = json.loads(answer.body)["usage"]
    return usage


async def test_pre_01_a_crowd_that_fits_two_at_a_time_is_served_to_the_last() -> None:
    big = 16 * BLOCK_TOKENS  # of 40 blocks: 40 %
    async with simulated(**TINY) as s:
        answers = await crowd(s, 100, big - 20, 20)
        await is_empty(s)
        s.driver.engine.scheduler.check()
        page = await get_metrics(s)

    assert [answer.status for answer in answers] == [200] * 100
    assert {usage_of(answer)["completion_tokens"] for answer in answers} == {20}
    assert "num_requests_waiting" in page


async def get_metrics(replica: Replica) -> str:
    """Return the replica's metrics page."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(replica.url.rpartition(":")[2]))
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    page = (await reader.read()).decode()
    writer.close()
    return page


async def test_pre_02_preemptions_stay_few_and_little_is_computed_twice() -> None:
    async with simulated(**TINY, enable_prefix_caching=False) as s:
        answers = await crowd(s, 24, 6 * BLOCK_TOKENS, 2 * BLOCK_TOKENS)
        stats = stats_of(s)

    useful = sum(usage_of(answer)["prompt_tokens"] for answer in answers)
    made = sum(usage_of(answer)["completion_tokens"] for answer in answers)
    assert {answer.status for answer in answers} == {200}
    assert stats.preemptions_total > 0
    assert stats.preemptions_total / 24 <= 4
    assert stats.computed_prefill_tokens_total + made <= 1.5 * (useful + made)


async def test_pre_04_a_full_pool_is_asked_once_a_step_and_makes_no_noise(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries = 0
    match = BlockPool.match

    def counting(self: BlockPool, *args: Any) -> list[int]:
        nonlocal tries
        tries += 1
        return match(self, *args)

    monkeypatch.setattr(BlockPool, "match", counting)  # the first thing that an admission does
    async with simulated(**TINY) as s:
        await crowd(s, 60, 16 * BLOCK_TOKENS - 20, 20)
        stats = stats_of(s)

    admissions = 60 + stats.preemptions_total
    assert tries - admissions <= stats.steps_total
    assert len(caplog.records) <= stats.preemptions_total + 20


@pytest.mark.parametrize("stream", [False, True])
async def test_pre_06_no_client_can_tell_that_it_was_preempted(stream: bool) -> None:
    async def run(kv_blocks: int) -> tuple[list[bytes], int]:
        async with (
            simulated(kv_blocks=kv_blocks, enable_prefix_caching=False) as s,
            gateway_of(s.url) as gateway,
        ):
            answers = await asyncio.gather(
                *(
                    gateway.chat(
                        f"{number} " * 40,
                        f"x-request-id: {number}",
                        max_tokens=100,
                        ignore_eos=True,
                        stream=stream,
                    )
                    for number in range(20)
                )
            )
            return [seen(answer, stream) for answer in answers], stats_of(s).preemptions_total

    calm, none = await run(2000)
    tight, many = await run(40)

    assert none == 0 < many
    assert calm == tight


def seen(answer: Answer, stream: bool) -> bytes:
    """Return what a client sees of an answer but the ids and times in it."""
    parts = answer.body.split(b"\n\n") if stream else [answer.body]
    texts = []
    for part in parts:
        data = part.removeprefix(b"data: ")
        if data.startswith(b"{"):
            body = json.loads(data)
            texts.append([body["choices"], body.get("usage")])
    return json.dumps(texts).encode()
