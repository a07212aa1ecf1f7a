"""Data-parallel engines behind one API: who gets a request, and what all of them are together."""

import asyncio
from typing import Any

import aiohttp
import pytest

from replicas.server.replica import Replica
from tests.replicas.server.conftest import FOREVER_MS, Start
from tests.waiting import until

COMPLETION = "/v1/completions"
HEADER = "X-data-parallel-rank"


async def send(
    http: aiohttp.ClientSession, replica: Replica, rank: str | None = None, **body: Any
) -> tuple[int, Any]:
    headers = {} if rank is None else {HEADER: rank}
    body = {"prompt": [1] * 40, "max_tokens": 5} | body
    async with http.post(replica.url + COMPLETION, json=body, headers=headers) as response:
        return response.status, await response.json()


def lines(replica: Replica) -> list[tuple[int, int]]:
    """Waiting and running sequences of each rank."""
    schedulers = [driver.engine.scheduler for driver in replica.ranks.drivers]
    return [(len(each.waiting), len(each.running)) for each in schedulers]


async def test_a_waiting_sequence_weighs_as_much_as_four_running_ones(
    start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start(data_parallel_size=2, fixed_decode_ms=FOREVER_MS)
    tasks = []

    async def add(expected: list[tuple[int, int]], rank: str | None = None, n: int = 1) -> None:
        tasks.append(asyncio.create_task(send(http, replica, rank, n=n)))
        await until(lambda: lines(replica) == expected, f"{expected}")

    await add([(0, 3), (0, 0)], rank="0", n=3)
    await add([(0, 3), (0, 1)], rank="1")
    # A decode step of each rank is under way for ever, so whoever comes now waits.
    await add([(0, 3), (1, 1)])  # 3 against 1
    await add([(1, 3), (1, 1)])  # 3 against 5
    await add([(1, 3), (2, 1)])  # 7 against 5
    await add([(2, 3), (2, 1)])  # 7 against 9

    for task in tasks:
        task.cancel()


async def test_the_first_of_equal_ranks_is_taken_and_choices_are_spread(
    start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start(data_parallel_size=3, fixed_prefill_ms=FOREVER_MS)
    task = asyncio.create_task(send(http, replica, n=4))
    await until(lambda: replica.ranks.num_live == 4)

    assert [driver.num_live for driver in replica.ranks.drivers] == [2, 1, 1]
    task.cancel()


async def test_the_header_names_the_rank(start: Start, http: aiohttp.ClientSession) -> None:
    replica = await start(data_parallel_size=2)

    statuses = [(await send(http, replica, rank))[0] for rank in ("1", "1", "0")]

    finished = [driver.engine.stats().finished_total for driver in replica.ranks.drivers]
    assert statuses == [200] * 3
    assert finished == [1, 2]


@pytest.mark.parametrize("rank", ["2", "-1", "one", "", "9" * 5_000])
async def test_a_rank_that_there_is_not_is_refused(
    start: Start, http: aiohttp.ClientSession, rank: str
) -> None:
    replica = await start(data_parallel_size=2)

    status, answer = await send(http, replica, rank)

    assert (status, answer["error"]["param"]) == (400, HEADER)
    assert "0 to 1" in answer["error"]["message"]


async def test_each_rank_has_a_cache_of_its_own(start: Start, http: aiohttp.ClientSession) -> None:
    replica = await start(data_parallel_size=2)

    cached = []
    for rank in ("0", "1", "0", "1"):
        _, answer = await send(http, replica, rank)
        cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert cached == [0, 0, 32, 32]


async def test_what_never_fits_leaves_nothing_on_any_rank(
    start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start(data_parallel_size=2, kv_blocks=4, fixed_prefill_ms=FOREVER_MS)

    status, answer = await send(http, replica, prompt=[[7], [7] * 200])

    assert (status, answer["error"]["code"]) == (400, "never_fits")
    assert replica.ranks.num_live == 0
    assert lines(replica) == [(0, 0), (0, 0)]


async def test_the_sum_is_that_of_the_ranks(start: Start, http: aiohttp.ClientSession) -> None:
    replica = await start(data_parallel_size=2, fixed_decode_ms=1.0)
    await send(http, replica, "0", max_tokens=3)
    await send(http, replica, "1", max_tokens=4)

    stats = replica.ranks.stats()

    assert (stats.output_tokens_total, stats.finished_total) == (7, 2)
    assert stats.kv_blocks_total == 2_000
    each = [driver.engine.stats().step_time_us or 0 for driver in replica.ranks.drivers]
    assert stats.step_time_us == max(each) > 0


async def test_a_client_that_leaves_frees_its_rank(
    start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start(data_parallel_size=2, fixed_decode_ms=FOREVER_MS)
    task = asyncio.create_task(send(http, replica, "1"))
    await until(lambda: replica.ranks.drivers[1].engine.stats().output_tokens_total == 1)

    task.cancel()

    await until(lambda: replica.ranks.num_live == 0)
    assert replica.ranks.stats().kv_blocks_used == 0
