"""The process: its ready line, its exit codes, and what a signal does."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from replicas.agents.config import AgentConfig
from tests.waiting import DEADLINE_S
from warmroute.cli import main

pytestmark = pytest.mark.live


@asynccontextmanager
async def agent(*flags: str) -> AsyncIterator[asyncio.subprocess.Process]:
    running = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "warmroute", "agent", *flags),
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_is_ready_without_engine_or_redis_and_a_signal_ends_it(
    number: signal.Signals,
) -> None:
    flags = ("--engine", "tgi", "--url", "http://engine-a:1", "--url", "http://engine-b:2")
    async with agent(*flags, "--redis-url", "redis://127.0.0.1:1") as running:
        assert running.stdout is not None
        line = (await running.stdout.readline()).decode()

        running.send_signal(number)
        code = await running.wait()

    assert line == "ready: watching tgi engine-a-1 engine-b-2\n"
    assert code == 0


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--url", "http://e:1"),
        ("--url", "http://e:1", "--redis-url", "nowhere"),
        ("--url", "http://e:1", "--redis-url", "redis://r:1", "--engine", "ollama"),
    ],
    ids=["nothing", "no redis", "bad redis", "bad engine"],
)
def test_what_keeps_it_from_starting_is_one_line_and_code_3(
    flags: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    code = main(["agent", *flags])

    assert code == 3
    assert capfd.readouterr().err.count("\n") == 1


def test_secrets_come_from_the_environment_and_flags_go_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    configs: list[AgentConfig] = []
    monkeypatch.setattr("warmroute.agent.run_agent", configs.append)
    monkeypatch.setenv("WARMROUTE_REDIS_URL", "redis://environment:1")
    monkeypatch.setenv("WARMROUTE_ENGINE_API_KEY", "sk-environment")

    main(["agent", "--url", "http://e:1"])
    main(["agent", "--url", "http://e:1", "--url", "http://e:2", "--redis-url", "redis://flag:1"])

    assert [config.redis_url for config in configs] == ["redis://environment:1", "redis://flag:1"]
    assert [config.api_key for config in configs] == ["sk-environment"] * 2
    assert [len(config.urls) for config in configs] == [1, 2]
