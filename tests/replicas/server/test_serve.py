"""The process: its ready line, its exit codes, and what signals do."""

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import AsyncIterator

import aiohttp

from contract.sse import DONE_PAYLOAD, SseReader
from tests.waiting import DEADLINE_S

PROGRAM = (
    "import sys; from contract.options import build_section; "
    "from replicas.server.config import ReplicaConfig; from replicas.server.serve import run; "
    "settings = dict(word.split('=', 1) for word in sys.argv[1:]); "
    "sys.exit(run(build_section(ReplicaConfig, settings, '[replica]')))"
)


@contextlib.asynccontextmanager
async def process(*settings: str) -> AsyncIterator[asyncio.subprocess.Process]:
    running = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, *settings),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(DEADLINE_S):
            yield running
    finally:
        if running.returncode is None:
            running.kill()
        await running.communicate()


async def ready_url(running: asyncio.subprocess.Process) -> str:
    assert running.stdout is not None
    line = (await running.stdout.readline()).decode()
    word, url, replica_id = line.split()
    assert word == "ready:"
    assert replica_id == "id=r1"
    return url


async def test_a_stop_signal_lets_the_stream_end_and_the_process_exits_0() -> None:
    settings = ("port=0", "replica_id=r1", "fixed_decode_ms=5")
    body = {"prompt": "hello", "max_tokens": 50, "stream": True}
    async with process(*settings) as running, aiohttp.ClientSession() as http:
        url = await ready_url(running)
        async with http.post(f"{url}/v1/completions", json=body) as response:
            running.send_signal(signal.SIGTERM)
            payloads = SseReader().feed(await response.read())

        code = await running.wait()

    assert payloads[-1] == DONE_PAYLOAD
    assert code == 0


async def test_a_second_signal_does_not_wait() -> None:
    settings = ("port=0", "replica_id=r1", "fixed_decode_ms=3600000")
    body = {"prompt": "hello", "max_tokens": 50, "stream": True}
    async with process(*settings) as running, aiohttp.ClientSession() as http:
        url = await ready_url(running)
        async with http.post(f"{url}/v1/completions", json=body) as response:
            running.send_signal(signal.SIGINT)
            running.send_signal(signal.SIGTERM)
            code = await running.wait()
            with contextlib.suppress(aiohttp.ClientError):
                data = await response.read()
                assert b"[DONE]" not in data

    assert code == 0


async def test_what_keeps_it_from_starting_is_one_line_and_code_3() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for settings in (("gpu=no-such",), (f"port={port}",), ("redis_url=x",)):
            async with process(*settings) as running:
                assert running.stderr is not None
                told = (await running.stderr.read()).decode()

                assert await running.wait() == 3
                assert told.startswith("cannot start: ")
                assert told.count("\n") == 1
