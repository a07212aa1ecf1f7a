"""A client that leaves, or does not read, frees its blocks in whatever phase its request is."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import pytest

from contract.sse import SseReader
from replicas.core.sequence import FinishReason
from replicas.core.text import expected_text
from replicas.server.replica import Replica
from tests.replicas.server.conftest import FOREVER_MS, MODEL, Start
from tests.waiting import until

LONG = "a prompt of many blocks " * 100


def body(**fields: Any) -> bytes:
    return msgspec.json.encode({"model": MODEL, "prompt": LONG, "max_tokens": 500} | fields)


@contextlib.asynccontextmanager
async def connection(replica: Replica) -> AsyncIterator[socket.socket]:
    """Yield a blocking-free raw socket that is closed at the end."""
    loop = asyncio.get_running_loop()
    with socket.socket() as raw:
        raw.setblocking(False)
        await loop.sock_connect(raw, ("127.0.0.1", int(replica.url.rpartition(":")[2])))
        yield raw


async def send(raw: socket.socket, content: bytes) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
    await asyncio.get_running_loop().sock_sendall(raw, head % len(content) + content)


async def is_at_rest(replica: Replica, num_aborted: int) -> None:
    """Wait until nothing is held, and the aborted are counted."""
    stats = replica.driver.engine.stats

    def rest() -> bool:
        now = stats()
        return now.running_requests == now.waiting_requests == now.kv_blocks_used == 0

    await until(rest, "rest")
    replica.driver.engine.scheduler.check()
    assert replica.driver.num_live == 0
    counted = replica.driver.metrics.finished[FinishReason.ABORT]
    assert stats().aborted_total == counted == num_aborted


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("num_choices", [1, 4])
async def test_leaving_during_prefill_frees_all_choices(
    start: Start, streaming: bool, num_choices: int
) -> None:
    replica = await start(fixed_prefill_ms=FOREVER_MS)
    async with connection(replica) as raw:
        await send(raw, body(stream=streaming, n=num_choices))
        await until(lambda: replica.driver.engine.stats().running_requests == num_choices)

    await is_at_rest(replica, num_choices)


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("num_choices", [1, 4])
async def test_leaving_during_decode_frees_all_choices(
    start: Start, streaming: bool, num_choices: int
) -> None:
    replica = await start(fixed_decode_ms=FOREVER_MS)
    async with connection(replica) as raw:
        await send(raw, body(stream=streaming, n=num_choices))
        await until(lambda: replica.driver.engine.stats().output_tokens_total == num_choices)

    await is_at_rest(replica, num_choices)


@pytest.mark.parametrize("streaming", [True, False])
async def test_leaving_the_waiting_line_lets_the_others_wait_on(
    start: Start, streaming: bool
) -> None:
    replica = await start(max_num_seqs=1, fixed_prefill_ms=FOREVER_MS)
    stats = replica.driver.engine.stats
    async with connection(replica) as first:
        await send(first, body())
        await until(lambda: stats().running_requests == 1)
        async with connection(replica) as second:
            await send(second, body(stream=streaming))
            await until(lambda: stats().waiting_requests == 1)

        await until(lambda: stats().waiting_requests == 0)
        assert stats().running_requests == 1

    await is_at_rest(replica, 2)


async def test_leaving_before_the_body_is_whole_leaves_nothing(start: Start) -> None:
    replica = await start()
    async with connection(replica) as raw:
        await asyncio.get_running_loop().sock_sendall(
            raw, b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"
        )

    await is_at_rest(replica, 0)


async def test_twenty_that_leave_at_once_leave_a_replica_that_serves(
    start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start(kv_blocks=600, fixed_decode_ms=1.0)
    async with contextlib.AsyncExitStack() as clients:
        for index in range(20):
            raw = await clients.enter_async_context(connection(replica))
            await send(raw, body(stream=True, prompt=f"{index} {LONG}", max_tokens=5_000))
        await until(lambda: replica.driver.num_live == 20)
        await until(lambda: replica.driver.engine.stats().output_tokens_total > 0)

    await is_at_rest(replica, 20)
    async with http.post(f"{replica.url}/v1/completions", data=body(max_tokens=3)) as response:
        assert response.status == 200


async def test_a_client_that_does_not_read_is_cut_and_stops_nobody(
    start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start(kv_blocks=10_000, stream_buffer_max_bytes=10_000)
    async with connection(replica) as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        await send(raw, body(stream=True, max_tokens=100_000))
        await until(lambda: replica.metrics.slow_clients == 0 and replica.driver.num_live == 1)
        url = f"{replica.url}/v1/completions"
        async with http.post(url, data=body(stream=True, max_tokens=400)) as response:
            payloads = SseReader().feed(await response.read())

        await until(lambda: replica.metrics.slow_clients == 1, "the cut")
        await is_at_rest(replica, 1)

    events = [msgspec.json.decode(payload) for payload in payloads[:-1]]
    text = "".join(event["choices"][0]["text"] for event in events)
    assert text == expected_text(LONG.encode(), 400)


async def test_a_client_that_does_not_read_its_end_is_cut(start: Start) -> None:
    replica = await start(
        kv_blocks=10_000, stream_buffer_max_bytes=100_000_000, last_write_timeout_s=0.05
    )
    async with connection(replica) as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        await send(raw, body(stream=True, max_tokens=50_000))

        await until(lambda: replica.metrics.slow_clients == 1, "the cut")

    await is_at_rest(replica, 0)
