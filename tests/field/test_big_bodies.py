"""Big bodies: one limit for every route, known before all is read, and memory that is bounded."""

import asyncio
import hashlib
import json
import os
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from router.core.config import RoutingConfig
from router.gateway.body_reader import BodyReader
from router.gateway.body_worker import Question
from tests.field.harness import Fake, gateway_of, silent
from tests.router.gateway.scripted_replica import Turn
from tests.router.gateway.wire import chat, chunk, completion, ok, post
from tests.waiting import until

MIB = 1024 * 1024
LIMIT = 4 * MIB
SMALL = {"max_body_bytes": LIMIT}
PATHS = ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/messages", "/tokenize"]


def image_chat(size: int) -> bytes:
    """Return a chat request of exactly ``size`` bytes, an image in it as a data URL."""
    url = "data:image/png;base64,"
    short = chat("", messages=[{"role": "user", "content": [_image(url)]}])
    return short.replace(url.encode(), url.encode() + b"A" * (size - len(short)))


def _image(url: str) -> dict[str, object]:
    return {"type": "image_url", "image_url": {"url": url}}


@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize("size", [MIB - 1, MIB + 1, 8 * MIB, 31 * MIB])
async def test_big_01_a_body_of_images_arrives_whole(size: int, framing: str) -> None:
    body = image_chat(size)
    digests: list[bytes] = []

    async def play(turn: Turn) -> None:
        digests.append(hashlib.sha256(turn.request.body).digest())
        await turn.send(ok(completion()))

    async with Fake(play) as a, gateway_of(a) as gateway:
        client = await gateway.connect()
        if framing == "length":
            answer = await client.ask(post(body))
        else:
            head = post(b"", "Transfer-Encoding: chunked").replace(b"Content-Length: 0\r\n", b"")
            await client.send(head)
            for at in range(0, size, 3 * MIB):
                await client.send(chunk(body[at : at + 3 * MIB]))
            answer = await client.ask(b"0\r\n\r\n")

    assert len(body) == size
    assert answer.status == 200
    assert digests == [hashlib.sha256(body).digest()]


@pytest.mark.parametrize("path", PATHS)
async def test_big_02_a_length_over_the_limit_is_refused_before_the_body(path: str) -> None:
    async with Fake() as a, gateway_of(a, **SMALL) as gateway:
        client = await gateway.connect()
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {LIMIT + 1}\r\n\r\n"
        answer = await client.ask(head.encode())
        await client.rest()

        assert gateway.outcomes() == ["refused"]
        assert gateway.count("warmroute_failures_total", code="body_too_large") == 1

    assert answer.status == 413
    assert json.loads(answer.body)["error"]["code"] == "body_too_large"
    assert answer.value("connection") == "close"
    assert a.asked == []


async def test_big_02_a_body_without_end_is_refused_at_the_limit() -> None:
    async with Fake() as a, gateway_of(a, **SMALL) as gateway:
        client = await gateway.connect()
        head = post(b"", "Transfer-Encoding: chunked").replace(b"Content-Length: 0\r\n", b"")
        await client.send(head + chunk(b"x" * (LIMIT + 1)))
        answer = await client.answer()

    assert (answer.status, answer.code, a.asked) == (413, "body_too_large", [])


async def test_big_02_a_body_at_the_limit_is_served() -> None:
    async with Fake() as a, gateway_of(a, **SMALL) as gateway:
        assert (await gateway.ask(post(image_chat(LIMIT)))).status == 200


async def test_big_04_bodies_beyond_the_bound_are_refused_and_memory_comes_back() -> None:
    request = post(image_chat(LIMIT))
    async with Fake(silent) as a, gateway_of(a, buffered_bytes_max=5 * LIMIT) as gateway:
        clients = [await gateway.connect() for _ in range(10)]
        with traced_memory() as memory:
            for client in clients:
                await client.send(request)
            await until(lambda: len(gateway.records) == 5, "five are refused")
            await a.is_asked(5)
            peak = memory()[1]
            assert gateway.plane.stats().buffered_bytes == 5 * LIMIT
            for client in clients:
                client.close()
            await until(lambda: gateway.plane.stats().buffered_bytes == 0)
            await gateway.rests()
            await until(lambda: a.num_open == 0)
            a.asked.clear()
            a.requests.clear()
            left = memory()[0]

    assert {record.status for record in gateway.records[:5]} == {503}
    # The replica here holds its five bodies up to three times as well, as bytes are joined.
    assert peak <= (3 * 5 + 3 * 5) * LIMIT
    assert left <= LIMIT


@pytest.mark.parametrize("turns", [1, 2, 5])
async def test_big_04_a_client_that_leaves_while_its_body_is_read_leaves_no_process(
    turns: int,
) -> None:
    reader = BodyReader(RoutingConfig())
    question = Question("/v1/completions", None, "", "", MIB)
    reading = asyncio.create_task(reader.read(question, chat("x" * MIB), 5.0, lambda: False))
    for _ in range(turns):  # of the event loop: the process is being started
        await asyncio.sleep(0)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await reader.close()

    assert num_readers() == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}


def num_readers() -> int:
    """Return how many processes that read long bodies this one has."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    commands = (Path(f"/proc/{child}/cmdline").read_bytes() for child in children)
    return sum(b"body_worker" in command for command in commands)


@contextmanager
def traced_memory() -> Iterator[Callable[[], tuple[int, int]]]:
    """Trace what is allocated within the block; yields a reader of the bytes now and at most."""
    tracemalloc.start()
    try:
        yield tracemalloc.get_traced_memory
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("path", "status"), [("/nothing", 404), ("/v1/chat/completions", 200), ("/v1/models", 405)]
)
async def test_big_05_the_request_behind_a_refused_body_is_answered(path: str, status: int) -> None:
    body = chat("x" * 256 * 1024)
    async with Fake() as a, gateway_of(a) as gateway:
        client = await gateway.connect()
        first = await client.ask(post(body, path=path))
        is_closed = first.values("connection") == ["close"]
        second = None if is_closed else await client.ask(post(chat()))

    assert first.status == status
    assert second is None or second.status == 200


async def test_big_05_a_body_without_a_key_breaks_nothing() -> None:
    async with Fake() as a, gateway_of(a, api_keys=("0" * 64,)) as gateway:
        client = await gateway.connect()
        first = await client.ask(post(chat("x" * 256 * 1024), "Authorization: Bearer bad"))
        is_closed = first.values("connection") == ["close"]
        second = None if is_closed else await client.ask(post(chat()))

    assert first.status == 401
    assert second is None or second.status == 401
    assert a.asked == []


async def test_big_05_a_refusal_is_read_before_the_connection_breaks() -> None:
    async with Fake() as a, gateway_of(a, **SMALL) as gateway:
        client = await gateway.connect()
        await client.send(post(image_chat(2 * LIMIT)))  # all of it, though it is refused at once
        answer = await client.answer()

    assert (answer.status, answer.value("connection")) == (413, "close")
