"""A whole gateway takes in changed settings: by a request to the admin port, and by a signal."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from router.config import RouterConfig, load_router_config, read_toml
from router.serve import StopSignals, build_gateway, run_gateway
from tests.router.gateway.running import RawClient
from tests.router.gateway.scripted_replica import ScriptedReplica, Turn
from tests.router.gateway.wire import DONE, LAST_CHUNK, STREAM_HEAD, chat, chunk, event, ok, post
from tests.waiting import DEADLINE_S, until

pytestmark = pytest.mark.live

LOCAL = "host = '127.0.0.1'\nport = 0\n"
ADMIN = "[admin]\nadmin_port = 0\n"


class Running:
    """A gateway and the file from which it was started."""

    def __init__(self, path: Path, http: aiohttp.ClientSession) -> None:
        self._path = path
        self._http = http
        self.signals = StopSignals()
        self.url = self.admin_url = ""

    def write(self, replicas: list[str], gateway: str = "", more: str = "") -> None:
        self._path.write_text(f"replicas = {replicas}\n[gateway]\n{LOCAL}{gateway}\n{ADMIN}{more}")

    def read(self) -> RouterConfig:
        return load_router_config(read_toml(self._path))

    async def connect(self) -> RawClient:
        host, port = self.url.removeprefix("http://").split(":")
        return RawClient(*await asyncio.open_connection(host, int(port)))

    async def reload(self) -> tuple[int, Any]:
        async with self._http.post(f"{self.admin_url}/admin/reload") as response:
            return response.status, await response.json()

    async def metric(self, name: str) -> float:
        async with self._http.get(f"{self.admin_url}/metrics") as response:
            lines = (await response.text()).splitlines()
        (value,) = [line.split(" ")[1] for line in lines if line.startswith(f"{name} ")]
        return float(value)


@asynccontextmanager
async def running(path: Path, replicas: list[str], gateway: str = "") -> AsyncIterator[Running]:
    async with aiohttp.ClientSession() as http:
        running = Running(path, http)
        running.write(replicas, gateway)
        parts = build_gateway(running.read(), running.read)
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(run_gateway(parts, running.signals, ready.set_result))
        words = (await asyncio.wait_for(ready, DEADLINE_S)).split()
        running.url, running.admin_url = words[2], words[4]
        try:
            yield running
        finally:
            running.signals.on_signal()
            running.signals.on_signal()
            await asyncio.wait_for(task, DEADLINE_S)


async def echo(turn: Turn) -> None:
    await turn.send(ok(turn.request.body))


def num_posts(replica: ScriptedReplica) -> int:
    return sum(request.line.startswith("POST ") for request in replica.requests)


async def test_a_reload_reaches_connections_that_are_open(tmp_path: Path) -> None:
    body = chat("x" * 1000)
    key = "Authorization: Bearer key"
    async with (
        ScriptedReplica(echo) as replica,
        running(tmp_path / "router.toml", [replica.url]) as gateway,
    ):
        client = await gateway.connect()
        statuses = [(await client.ask(post(body))).status]

        gateway.write([replica.url], f"api_keys = ['{sha256(b'key').hexdigest()}']")
        answers = [await gateway.reload()]
        statuses += [(await client.ask(post(body, *headers))).status for headers in ([], [key])]

        gateway.write([replica.url], "max_body_bytes = 100")
        answers.append(await gateway.reload())
        statuses.append((await client.ask(post(body))).status)
        client.close()

    assert statuses == [200, 401, 200, 413]
    assert answers == [
        (200, {"generation": 2, "changed": ["gateway.api_keys"]}),
        (200, {"generation": 3, "changed": ["gateway.max_body_bytes", "gateway.api_keys"]}),
    ]


async def test_a_stream_goes_on_while_its_replica_is_taken_from_the_list(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def slow(turn: Turn) -> None:
        await turn.send(STREAM_HEAD + chunk(event("a")))
        await go_on.wait()
        await turn.send(chunk(event("b", "stop")) + chunk(DONE) + LAST_CHUNK)

    async with (
        ScriptedReplica(slow) as old,
        ScriptedReplica(echo) as new,
        running(tmp_path / "router.toml", [old.url]) as gateway,
    ):
        stream, client = await gateway.connect(), await gateway.connect()
        await stream.send(post(chat(stream=True)))
        await until(lambda: num_posts(old) == 1)
        gateway.write([new.url], more="[policy]\nname = 'least_loaded'\n")
        await gateway.reload()
        answers = [await client.ask(post(chat())) for _ in range(5)]
        go_on.set()
        whole = await stream.answer()
        for each in (stream, client):
            each.close()

    assert [answer.status for answer in answers] == [200] * 5
    assert (num_posts(old), num_posts(new)) == (1, 5)
    assert whole.is_whole
    assert whole.body.endswith(DONE)


async def test_what_is_refused_is_said_counted_and_changes_nothing(tmp_path: Path) -> None:
    async with (
        ScriptedReplica(echo) as replica,
        running(tmp_path / "router.toml", [replica.url]) as gateway,
    ):
        refused = []
        for wrong in ("[", "max_body_bytes = 0", "backlog = 7"):
            gateway.write([], wrong)
            refused.append(await gateway.reload())
        generation = await gateway.metric("warmroute_config_generation")
        refusals = await gateway.metric("warmroute_config_refused_total")
        client = await gateway.connect()
        answer = await client.ask(post(chat()))
        client.close()

    assert [status for status, _ in refused] == [400] * 3
    assert "need a restart: gateway.backlog" in refused[2][1]["error"]["message"]
    assert (generation, refusals) == (1, 3)
    assert answer.status == 200


async def test_a_hangup_takes_in_what_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "router.toml"
    path.write_text(f"[gateway]\n{LOCAL}{ADMIN}")
    with (tmp_path / "errors").open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "warmroute", "router", "--config", str(path)),
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
        )
    assert process.stdout is not None
    try:
        words = (await asyncio.wait_for(process.stdout.readline(), DEADLINE_S)).decode().split()
        path.write_text(f"[gateway]\n{LOCAL}{ADMIN}[log]\nlog_level = 'debug'\n")
        process.send_signal(signal.SIGHUP)
        generation = 1
        async with aiohttp.ClientSession() as http, asyncio.timeout(DEADLINE_S):
            while generation == 1:
                async with http.get(f"{words[4]}/admin/config") as response:
                    generation = (await response.json())["generation"]
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), DEADLINE_S) == 0
    finally:
        if process.returncode is None:
            process.kill()

    lines = [json.loads(line) for line in (tmp_path / "errors").read_text().splitlines()]
    assert any("changed: log.log_level" in line["message"] for line in lines)
