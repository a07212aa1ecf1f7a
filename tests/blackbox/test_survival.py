"""What dies or freezes takes only its own requests with it, and nothing is left behind.

Real processes: a replica killed with 50 streams running, Redis stopped for ten seconds, fifty
clients that leave in the middle.
"""

import asyncio
import signal

import aiohttp
import pytest

from tests.blackbox.conftest import MODEL
from tests.blackbox.streams import Streams
from warmroute.demo.fleet import Fleet
from warmroute.demo.processes import Child

pytestmark = pytest.mark.blackbox

DEADLINE_S = 30.0
FREEZE_S = 10.0
PROMPTS = [f"conversation {index} " + "lorem ipsum " * 20 for index in range(50)]


async def gauge(session: aiohttp.ClientSession, url: str, name: str) -> float:
    """Return the sum of a metric over its labels."""
    async with session.get(f"{url}/metrics") as response:
        lines = (await response.text()).splitlines()
    found = [line for line in lines if line.startswith((f"{name} ", f"{name}{{"))]
    assert found, f"{name} is not in {url}/metrics"
    return sum(float(line.rsplit(" ", 1)[1]) for line in found)


async def wait_for_rest(fleet: Fleet, replica_urls: list[str]) -> None:
    """Wait until no lease and no KV block is held; fail at the deadline."""
    held: dict[str, float] = {}
    async with aiohttp.ClientSession() as session:
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not held or any(held.values()):
                    held = {
                        url: await gauge(session, url, "warmroute_engine_kv_blocks_used")
                        + await gauge(session, url, "vllm:num_requests_running")
                        + await gauge(session, url, "vllm:num_requests_waiting")
                        for url in replica_urls
                    }
                    name = "warmroute_replica_in_flight_requests"
                    held[fleet.admin_url] = await gauge(session, fleet.admin_url, name)
                    await asyncio.sleep(0.02)
        except TimeoutError:
            pytest.fail(f"still held after {DEADLINE_S} s: {held}")


async def test_a_killed_replica_takes_only_its_own_streams(fleet: Fleet) -> None:
    streams = Streams(fleet.url, MODEL)
    running = asyncio.create_task(streams.run(PROMPTS, num_tokens=300))
    await asyncio.wait_for(streams.begun.wait(), DEADLINE_S)
    victim = next(child for child in fleet.children if child.name == "replica-1")

    victim.signal(signal.SIGKILL)
    later = Streams(fleet.url, MODEL)
    await later.run([f"after {index}" for index in range(40)], num_tokens=3)
    await running

    of_victim = [stream for stream in streams.all if stream.replica_id == "replica-1"]
    others = [stream for stream in streams.all if stream.replica_id != "replica-1"]
    assert of_victim
    assert others
    assert [s.text == s.expected and s.is_whole for s in others] == [True] * len(others)
    broken = [stream for stream in of_victim if not stream.is_whole]
    assert broken
    assert [s.is_visibly_broken for s in broken] == [True] * len(broken)
    assert all(s.text == s.expected for s in of_victim if s.is_whole)  # it had ended before
    assert all(s.expected.startswith(s.text) for s in of_victim if not s.transport_error)
    assert [s.status for s in later.all] == [200] * 40
    assert all(s.is_whole and s.text == s.expected for s in later.all)
    survivors = [url for url, child in zip(fleet.replica_urls, "012", strict=True) if child != "1"]
    await wait_for_rest(fleet, survivors)


async def test_a_frozen_redis_is_not_felt_by_any_request(
    fleet: Fleet, redis_process: tuple[Child, str]
) -> None:
    loop = asyncio.get_running_loop()
    statuses: list[int] = []
    redis, _ = redis_process

    redis.signal(signal.SIGSTOP)
    try:
        end = loop.time() + FREEZE_S
        while loop.time() < end:
            batch = Streams(fleet.url, MODEL)
            prompts = [f"frozen {len(statuses) + index}" for index in range(4)]
            await asyncio.wait_for(batch.run(prompts, num_tokens=3), DEADLINE_S)
            statuses += [stream.status for stream in batch.all if stream.is_whole]
            assert len(statuses) % 4 == 0, batch.all
    finally:
        redis.signal(signal.SIGCONT)

    assert set(statuses) == {200}
    await wait_for_rest(fleet, fleet.replica_urls)


async def test_fifty_clients_that_leave_leave_nothing_behind(fleet: Fleet) -> None:
    streams = Streams(fleet.url, MODEL)
    running = asyncio.create_task(streams.run(PROMPTS, num_tokens=4000))
    await asyncio.wait_for(streams.begun.wait(), DEADLINE_S)

    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

    assert not any(stream.is_whole for stream in streams.all)
    await wait_for_rest(fleet, fleet.replica_urls)
