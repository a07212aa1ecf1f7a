"""The gateway in front of two real llama.cpp servers, with an agent beside each, or without.

Everything is a process of its own. The model is noise of a fixed seed: it says nothing, and always
the same nothing. One token is one byte, which the gateway is told.
"""

import asyncio
import json
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.blackbox.tiny_gguf import write_tiny_llama
from warmroute.demo.processes import Child, free_port, stop_all

pytest.importorskip("xllamacpp", reason="needs llama.cpp: pip install 'warmroute[engines]'")
pytestmark = pytest.mark.blackbox

DEADLINE_S = 30.0
MODEL = "tiny"
ENGINES = 2
SAME_EVERY_TIME = {"temperature": 0, "seed": 1, "cache_prompt": False}
"""With a cached prefix the rest is computed in other batches, whose sums round differently."""

CHAT = {"messages": [{"role": "user", "content": "Say something. " * 20}], "max_tokens": 24}
COMPLETION = {"prompt": "Once upon a time " * 20, "max_tokens": 24}
USAGE = {"stream": True, "stream_options": {"include_usage": True}}


@dataclass
class Fleet:
    """Two engines, the agents beside them and a gateway in front."""

    folder: Path
    redis_url: str
    ports: list[int] = field(default_factory=lambda: [free_port() for _ in range(ENGINES)])
    port: int = field(default_factory=free_port)
    admin_port: int = field(default_factory=free_port)
    engines: list[Child] = field(default_factory=list)
    agents: list[Child] = field(default_factory=list)
    children: list[Child] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def model(self) -> Path:
        return self.folder / "tiny.gguf"

    @property
    def engine_urls(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in self.ports]

    async def start_engine(self, index: int) -> Child:
        return await self._start(
            f"engine-{index}",
            *("tests.blackbox.llamacpp", "--model", str(self.model), "--alias", MODEL, "--metrics"),
            *("--port", str(self.ports[index])),
            ready="listening",
        )

    async def start_agent(self, index: int) -> Child:
        return await self._start(
            f"agent-{index}",
            *("warmroute", "agent", "--engine", "llamacpp", "--url", self.engine_urls[index]),
            *("--replica-id", f"r{index}", "--redis-url", self.redis_url),
        )

    async def start_gateway(self, *flags: str) -> Child:
        return await self._start(
            "gateway",
            *("warmroute", "router", "--port", str(self.port)),
            *("--admin-port", str(self.admin_port), "--set", "routing.bytes_per_token=1"),
            *("--set", "routing.slow_start_s=0", *flags),  # who is back is used at once
        )

    async def _start(self, name: str, *argv: str, ready: str = "ready:") -> Child:
        log = self.folder / f"{name}.log"
        command = [sys.executable, "-m", *argv]
        return await Child.start(name, command, log, ready, self.children)


@asynccontextmanager
async def engines_only(folder: Path, redis_url: str) -> AsyncIterator[Fleet]:
    fleet = Fleet(folder, redis_url)
    write_tiny_llama(fleet.model)
    try:
        fleet.engines = await asyncio.gather(*map(fleet.start_engine, range(ENGINES)))
        yield fleet
    finally:
        await stop_all(fleet.children)


@pytest.fixture
async def fleet(redis_process: tuple[Child, str], tmp_path: Path) -> AsyncIterator[Fleet]:
    """Engines that are reported, and a gateway that has found them in Redis."""
    async with engines_only(tmp_path, redis_process[1]) as fleet:
        *fleet.agents, _ = await asyncio.gather(
            *map(fleet.start_agent, range(ENGINES)),
            fleet.start_gateway("--redis-url", fleet.redis_url),
        )
        await replicas_that(fleet, lambda found: standings(found) == ["eligible"] * ENGINES)
        yield fleet


async def replicas_that(
    fleet: Fleet, holds: Callable[[list[dict[str, Any]]], bool]
) -> list[dict[str, Any]]:
    """Wait until ``holds`` is true of what the gateway believes of its replicas."""
    found: list[dict[str, Any]] = []
    url = f"http://127.0.0.1:{fleet.admin_port}/admin/replicas"
    async with aiohttp.ClientSession() as http:
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not (found and holds(found)):
                    async with http.get(url) as response:
                        found = (await response.json())["replicas"]
                    await asyncio.sleep(0.02)
        except TimeoutError:
            pytest.fail(f"the gateway believes {json.dumps(found, indent=1)}")
    return found


def standings(replicas: list[dict[str, Any]]) -> list[str]:
    return [replica["standing"] for replica in replicas]


def incarnation(replicas: list[dict[str, Any]], index: int) -> str:
    found: str = replicas[index]["report"]["incarnation"]
    return found


async def metric(fleet: Fleet, name: str) -> float:
    """Return the sum of a metric of the gateway over its labels."""
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"http://127.0.0.1:{fleet.admin_port}/metrics") as response,
    ):
        lines = (await response.text()).splitlines()
    found = [line for line in lines if line.startswith((f"{name} ", f"{name}{{"))]
    return sum(float(line.rsplit(" ", 1)[1]) for line in found)


async def until_metric(fleet: Fleet, name: str, at_least: float) -> None:
    try:
        async with asyncio.timeout(DEADLINE_S):
            while await metric(fleet, name) < at_least:  # noqa: ASYNC110  # another process
                await asyncio.sleep(0.02)
    except TimeoutError:
        pytest.fail(f"{name} is {await metric(fleet, name)}, expected {at_least}")


@dataclass
class Answer:
    status: int
    replica_id: str
    content_type: str
    body: bytes

    @property
    def without_names_and_times(self) -> bytes:
        """The body with the id, the date and the durations taken out: all else must be equal."""
        body = re.sub(rb'"id":"[^"]*"', b'"id":"-"', self.body)
        body = re.sub(rb'"created":\d+', b'"created":0', body)
        return re.sub(rb'"timings":\{[^}]*\}', b'"timings":{}', body)

    @property
    def usage(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)["usage"]
        return found


async def ask(
    http: aiohttp.ClientSession, url: str, body: dict[str, Any], model: str = MODEL
) -> Answer:
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    async with http.post(url + path, json={"model": model} | body) as response:
        replica_id = response.headers.get("x-warmroute-replica", "-")
        content_type = response.headers["content-type"]
        return Answer(response.status, replica_id, content_type, await response.read())


async def ask_all(
    http: aiohttp.ClientSession, fleet: Fleet, bodies: list[dict[str, Any]]
) -> list[Answer]:
    """Ask one after the other."""
    return [await ask(http, fleet.url, body) for body in bodies]


@pytest.mark.parametrize("body", [CHAT, COMPLETION], ids=["chat", "completion"])
@pytest.mark.parametrize("stream", [{}, USAGE], ids=["whole", "stream"])
async def test_an_answer_is_the_engine_s_own_byte_for_byte(
    body: dict[str, Any], stream: dict[str, Any], fleet: Fleet
) -> None:
    request = body | stream | SAME_EVERY_TIME
    async with aiohttp.ClientSession() as http:
        direct = [await ask(http, url, request) for url in fleet.engine_urls]

        routed = await ask(http, fleet.url, request)

    assert routed.status == 200
    assert routed.replica_id in ("r0", "r1")
    assert routed.content_type == direct[0].content_type
    assert len(routed.body) > 300
    assert routed.without_names_and_times == direct[0].without_names_and_times
    assert routed.without_names_and_times == direct[1].without_names_and_times


async def converse(http: aiohttp.ClientSession, fleet: Fleet, user: int) -> list[Answer]:
    """Four turns, each with all that was said before it."""
    messages = [{"role": "system", "content": f"You serve user {user}. " * 100}]
    answers = []
    for turn in range(4):
        messages.append({"role": "user", "content": f"Question {turn}? " * 10})
        answers.append(await ask(http, fleet.url, {"messages": messages, "max_tokens": 8}))
        said = json.loads(answers[-1].body)["choices"][0]["message"]["content"]
        messages.append({"role": "assistant", "content": said})
    return answers


async def test_conversations_stay_where_their_prefix_is_and_the_engine_confirms_it(
    fleet: Fleet,
) -> None:
    async with aiohttp.ClientSession() as http:
        conversations = [await converse(http, fleet, user) for user in range(12)]

    homes = [{answer.replica_id for answer in answers} for answers in conversations]
    answers = [answer for answers in conversations for answer in answers]
    assert [len(home) for home in homes] == [1] * 12
    assert set.union(*homes) == {"r0", "r1"}
    prompt_tokens = sum(answer.usage["prompt_tokens"] for answer in answers)
    cached_tokens = sum(a.usage["prompt_tokens_details"]["cached_tokens"] for a in answers)
    assert await metric(fleet, "warmroute_answered_prompt_tokens_total") == prompt_tokens
    assert await metric(fleet, "warmroute_cached_tokens_total") == cached_tokens
    predicted = await metric(fleet, "warmroute_matched_tokens_total")
    predicted /= await metric(fleet, "warmroute_prompt_tokens_total")
    assert cached_tokens / prompt_tokens > 0.6
    assert abs(predicted - cached_tokens / prompt_tokens) < 0.15

    def told(replicas: list[dict[str, Any]], what: str) -> int:
        return sum(replica["report"][what] or 0 for replica in replicas)

    replicas = await replicas_that(
        fleet,
        lambda found: (
            told(found, "cached_tokens_total") == cached_tokens
            and told(found, "prompt_tokens_total") == prompt_tokens
        ),
    )
    assert all(r["report"]["prefill_tokens_per_s"] > 1_000 for r in replicas)


async def test_more_requests_than_the_engine_keeps_a_connection_for(fleet: Fleet) -> None:
    """llama.cpp closes a connection after 100 requests."""
    async with aiohttp.ClientSession() as http:
        body = {"prompt": "hello", "max_tokens": 1}
        statuses = [(await ask(http, fleet.url, body)).status for _ in range(250)]

    assert statuses == [200] * 250
    assert await metric(fleet, "warmroute_retries_total") == 0


async def test_a_model_that_no_engine_serves_is_refused_by_the_gateway(fleet: Fleet) -> None:
    """llama.cpp itself takes any name."""
    async with aiohttp.ClientSession() as http:
        answer = await ask(http, fleet.url, {"prompt": "hello"}, model="no-such-model")

    assert answer.status == 404
    assert json.loads(answer.body)["error"]["code"] == "model_not_found"


async def test_a_killed_engine_costs_no_request_and_is_used_again_when_it_is_back(
    fleet: Fleet,
) -> None:
    before = await replicas_that(fleet, lambda found: len(found) == ENGINES)
    bodies = [{"prompt": f"story {n}: " + "la " * 150, "max_tokens": 30} for n in range(60)]
    async with aiohttp.ClientSession() as http:
        clients = [asyncio.create_task(ask_all(http, fleet, bodies[n::6])) for n in range(6)]
        await until_metric(fleet, "warmroute_requests_total", 12)
        fleet.engines[0].signal(signal.SIGKILL)
        answers = [answer for client in clients for answer in await client]
        later = await ask_all(http, fleet, bodies[:20])
    away = await replicas_that(fleet, lambda found: standings(found)[0] != "eligible")

    await fleet.start_engine(0)
    back = await replicas_that(
        fleet,
        lambda found: (
            standings(found) == ["eligible"] * ENGINES
            and incarnation(found, 0) != incarnation(before, 0)
        ),
    )
    async with aiohttp.ClientSession() as http:
        fresh = [{"prompt": f"tale {n}: " + "lo " * 150, "max_tokens": 1} for n in range(20)]
        again = await ask_all(http, fleet, fresh)

    assert {a.replica_id for a in answers} == {"r0", "r1"}
    assert [a.status for a in answers + later + again] == [200] * 100
    assert {a.replica_id for a in later} == {"r1"}
    assert standings(away)[1] == "eligible"
    assert incarnation(back, 1) == incarnation(before, 1)
    assert {a.replica_id for a in again} == {"r0", "r1"}


async def test_a_killed_agent_costs_no_request_and_the_next_one_takes_over(fleet: Fleet) -> None:
    body = {"prompt": "a common beginning " * 60, "max_tokens": 2}
    async with aiohttp.ClientSession() as http:
        fleet.agents[0].signal(signal.SIGKILL)
        await replicas_that(fleet, lambda found: standings(found)[0] == "not_reporting")
        one_reported = [await ask(http, fleet.url, body) for _ in range(10)]
        fleet.agents[1].signal(signal.SIGKILL)
        await replicas_that(fleet, lambda found: standings(found)[1] == "not_reporting")
        none_reported = [await ask(http, fleet.url, body) for _ in range(10)]

        for index in range(ENGINES):
            await fleet.start_agent(index)
        await replicas_that(fleet, lambda found: standings(found) == ["eligible"] * ENGINES)
        reported = [await ask(http, fleet.url, body) for _ in range(10)]

    assert {a.replica_id for a in one_reported} == {"r1"}
    assert [a.status for a in one_reported + none_reported + reported] == [200] * 30


async def test_without_redis_and_agents_the_gateway_learns_from_what_it_sends(
    redis_process: tuple[Child, str], tmp_path: Path
) -> None:
    async with engines_only(tmp_path, "") as fleet, aiohttp.ClientSession() as http:
        flags = [flag for url in fleet.engine_urls for flag in ("--replica", url)]
        await fleet.start_gateway(*flags)
        found = await replicas_that(fleet, lambda found: len(found) == ENGINES)
        prompts = [f"document {n} " * 100 for n in range(6)]
        homes = [
            {(await ask(http, fleet.url, {"prompt": p, "max_tokens": 2})).replica_id for _ in "abc"}
            for p in prompts
        ]
        hit_rate = await metric(fleet, "warmroute_cached_tokens_total")
        hit_rate /= await metric(fleet, "warmroute_answered_prompt_tokens_total")
        fleet.engines[0].signal(signal.SIGKILL)
        after = [await ask(http, fleet.url, {"prompt": p, "max_tokens": 2}) for p in prompts * 3]

    assert [replica["replica_id"] for replica in found] == sorted(fleet.engine_urls)
    assert [len(home) for home in homes] == [1] * 6
    assert set.union(*homes) == set(fleet.engine_urls)
    assert hit_rate == pytest.approx(2 / 3, abs=0.02)
    assert [answer.status for answer in after] == [200] * 18


async def test_an_engine_that_is_named_and_reported_is_one_replica(
    redis_process: tuple[Child, str], tmp_path: Path
) -> None:
    async with engines_only(tmp_path, redis_process[1]) as fleet:
        flags = [flag for url in fleet.engine_urls for flag in ("--replica", url)]
        await fleet.start_gateway("--redis-url", fleet.redis_url, *flags)
        await replicas_that(fleet, lambda found: len(found) == ENGINES)

        for index in range(ENGINES):
            await fleet.start_agent(index)
        found = await replicas_that(
            fleet, lambda found: [r["replica_id"] for r in found] == ["r0", "r1"]
        )

    assert [replica["static"] for replica in found] == [True, True]
    assert [replica["url"] for replica in found] == fleet.engine_urls
