"""A whole gateway: it starts, serves, loses what it may lose, and ends in order.

Most run in this process, over real sockets; signals and exit codes are those of a real child.
"""

import asyncio
import json
import signal
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from redis.asyncio import Redis

from contract.options import SettingError
from router.config import load_router_config
from router.serve import CannotStartError, StopSignals, build_gateway, run_gateway
from router.store.sync import FleetSync
from tests.redis_server import RedisServer
from tests.router.gateway.certificates import OPENSSL, Authority
from tests.router.store.reports import LAYOUT, redis_replicas, report, write
from tests.waiting import DEADLINE_S, until

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
COMMAND = (
    "import json, sys; from router.config import load_router_config; from router.serve import run; "
    "sys.exit(run(load_router_config({}, json.loads(sys.argv[1]))))"
)
LOCAL = {
    "host": "127.0.0.1",
    "port": 0,
    "admin_host": "127.0.0.1",
    "admin_port": 0,
    "command_timeout_s": 10.0,  # a busy machine's Redis is not frozen
}


class Replica:
    """Answers at once, or streams until ``finish`` is set."""

    def __init__(self) -> None:
        self.finish = asyncio.Event()
        self.begun = asyncio.Event()
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_get("/v1/models", self._models)
        self.server = TestServer(app)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m"}]})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        if not (await request.json()).get("stream"):
            return web.json_response({"choices": [], "object": "chat.completion"})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b'data: {"choices":[{"delta":{"content":"t"}}]}\n\n')
        self.begun.set()
        await self.finish.wait()
        await response.write(
            b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
        )
        return response


@dataclass
class Running:
    """A gateway that runs in this process."""

    url: str
    admin_url: str
    signals: StopSignals
    task: "asyncio.Task[int]"
    http: aiohttp.ClientSession

    async def chat(self, **changes: object) -> tuple[int, bytes]:
        url = f"{self.url}/v1/chat/completions"
        async with self.http.post(url, json=CHAT | changes) as response:
            return response.status, await response.read()

    async def metric(self, line_start: str) -> float:
        async with self.http.get(f"{self.admin_url}/metrics") as response:
            lines = (await response.text()).splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(line_start))

    async def knows(self, num_replicas: int) -> None:
        known: list[Any] = []
        async with asyncio.timeout(DEADLINE_S):
            while len(known) != num_replicas:
                async with self.http.get(f"{self.admin_url}/admin/replicas") as response:
                    known = (await response.json())["replicas"]

    async def exit_status(self) -> int:
        return await asyncio.wait_for(asyncio.shield(self.task), DEADLINE_S)


@asynccontextmanager
async def running(settings: Mapping[str, object] | None = None) -> AsyncIterator[Running]:
    gateway = build_gateway(load_router_config(None, LOCAL | dict(settings or {})))
    signals = StopSignals()
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(run_gateway(gateway, signals, ready.set_result))
    await asyncio.wait((task, ready), return_when=asyncio.FIRST_COMPLETED)
    assert ready.done(), task.exception()
    words = ready.result().split()
    assert words[:2] + words[3:4] == ["ready:", "data", "admin"]
    async with aiohttp.ClientSession() as http:
        try:
            yield Running(words[2], words[4], signals, task, http)
        finally:
            signals.on_signal()
            signals.on_signal()
            await asyncio.wait_for(task, DEADLINE_S)


@pytest.fixture
async def replica() -> AsyncIterator[Replica]:
    replica = Replica()
    async with replica.server:
        yield replica
        replica.finish.set()


async def test_a_request_goes_through_and_is_counted(replica: Replica) -> None:
    async with running({"replicas": [replica.url]}) as gateway:
        status, body = await gateway.chat()

        assert (status, json.loads(body)["object"]) == (200, "chat.completion")
        assert await gateway.metric("warmroute_requests_total{") == 1
        assert await gateway.metric("warmroute_in_flight_requests ") == 0
        assert await gateway.metric("warmroute_replica_in_flight_requests{") == 0


async def test_clients_are_served_on_the_path_of_a_socket(replica: Replica, tmp_path: Path) -> None:
    place = f"unix:{tmp_path / 'socket'}"
    async with running({"host": place, "replicas": [replica.url]}) as gateway:
        connector = aiohttp.UnixConnector(str(tmp_path / "socket"))
        async with aiohttp.ClientSession(connector=connector) as http:
            url = "http://gateway/v1/chat/completions"
            async with http.post(url, json=CHAT) as response:
                status = response.status

        assert (gateway.url, status) == (place, 200)
    assert not (tmp_path / "socket").exists()


@pytest.mark.skipif(OPENSSL is None, reason="the openssl command makes the certificates")
async def test_clients_and_replicas_are_spoken_to_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    trusting = ssl.create_default_context(cafile=str(authority.cert))
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(*authority.sign("replica"))
    cert, key = authority.sign("gateway")
    replica = Replica()
    await replica.server.start_server(ssl=serving)
    settings = {
        "replicas": [f"https://127.0.0.1:{replica.server.port}"],
        "tls_cert_file": str(cert),
        "tls_key_file": str(key),
        "replica_ca_file": str(authority.cert),
    }
    async with running(settings) as gateway:
        url = f"{gateway.url}/v1/chat/completions"
        async with gateway.http.post(url, json=CHAT, ssl=trusting) as response:
            status = response.status
        async with gateway.http.get(f"{gateway.url}/v1/models", ssl=trusting) as response:
            models = await response.json()
    await replica.server.close()

    assert gateway.url.startswith("https://")
    assert status == 200
    assert [model["id"] for model in models["data"]] == ["m"]  # which the replica was asked for


async def test_a_certificate_that_is_none_is_a_start_that_failed(tmp_path: Path) -> None:
    path = tmp_path / "cert.pem"
    settings = LOCAL | {"tls_cert_file": str(path), "tls_key_file": str(path)}

    process = await child(settings, tmp_path / "errors")
    status = await asyncio.wait_for(process.wait(), DEADLINE_S)

    text = (tmp_path / "errors").read_text()
    assert status == 3
    assert text.startswith("warmroute: tls_cert_file ")
    assert text.count("\n") == 1


async def test_an_admin_port_that_is_open_to_others_is_warned_of(tmp_path: Path) -> None:
    process = await child(LOCAL | {"admin_host": "0.0.0.0"}, tmp_path / "errors")
    assert process.stdout is not None
    await asyncio.wait_for(process.stdout.readline(), DEADLINE_S)
    process.send_signal(signal.SIGTERM)
    await asyncio.wait_for(process.wait(), DEADLINE_S)

    lines = [json.loads(line) for line in (tmp_path / "errors").read_text().splitlines()]
    assert [line["level"] for line in lines if "admin_keys" in line["message"]] == ["warning"]


async def test_a_replica_added_by_the_admin_is_used(replica: Replica) -> None:
    async with running() as gateway:
        before, _ = await gateway.chat()
        url = f"{gateway.admin_url}/admin/replicas"
        async with gateway.http.post(url, json={"url": replica.url}) as response:
            assert response.status == 201

        after, _ = await gateway.chat()

    assert before in (404, 503)
    assert after == 200


async def test_a_reported_replica_is_used(replica: Replica, redis_server: RedisServer) -> None:
    async with (
        redis_replicas(redis_server) as replicas,
        running({"redis_url": redis_server.url}) as gateway,
    ):
        await write(replicas, report("a", url=replica.url))
        await gateway.knows(1)

        status, _ = await gateway.chat()

    assert status == 200


async def test_a_frozen_redis_is_not_felt_by_requests(
    replica: Replica, redis_server: RedisServer
) -> None:
    settings = {"redis_url": redis_server.url, "set": ["store.command_timeout_s=0.1"]}
    async with redis_replicas(redis_server) as replicas, running(settings) as gateway:
        await write(replicas, report("a", url=replica.url))
        await gateway.knows(1)
        redis_server.freeze()
        try:
            statuses = set()
            while not await gateway.metric('warmroute_store_state{state="frozen"}'):
                statuses.add((await gateway.chat())[0])
            for _ in range(50):
                statuses.add((await gateway.chat())[0])
            gateway.signals.on_signal()
            exit_status = await gateway.exit_status()
        finally:
            redis_server.thaw()

    assert statuses == {200}
    assert exit_status == 0


async def test_the_first_signal_refuses_what_is_new_and_finishes_what_runs(
    replica: Replica,
) -> None:
    async with running({"replicas": [replica.url]}) as gateway:
        stream = asyncio.create_task(gateway.chat(stream=True))
        await replica.begun.wait()

        gateway.signals.on_signal()
        refused: list[int] = []
        async with asyncio.timeout(DEADLINE_S):
            while 503 not in refused:
                refused.append((await gateway.chat())[0])
        replica.finish.set()

        status, body = await stream
        assert (status, body.endswith(b"data: [DONE]\n\n")) == (200, True)
        assert await gateway.exit_status() == 0


async def test_the_second_signal_cuts_what_runs_so_that_it_shows(replica: Replica) -> None:
    async with running({"replicas": [replica.url]}) as gateway:
        stream = asyncio.create_task(gateway.chat(stream=True))
        await replica.begun.wait()

        gateway.signals.on_signal()
        await asyncio.sleep(0)
        gateway.signals.on_signal()

        assert await gateway.exit_status() == 1
        (result,) = await asyncio.gather(stream, return_exceptions=True)
        assert isinstance(result, aiohttp.ClientError) or b'"error"' in result[1]  # type: ignore[index]


async def test_the_drain_ends_after_its_time(replica: Replica) -> None:
    settings = {"replicas": [replica.url], "set": ["gateway.drain_s=0.2"]}
    async with running(settings) as gateway:
        stream = asyncio.create_task(gateway.chat(stream=True))
        await replica.begun.wait()

        gateway.signals.on_signal()

        assert await gateway.exit_status() == 0
        (result,) = await asyncio.gather(stream, return_exceptions=True)
        assert isinstance(result, aiohttp.ClientError) or b'"error"' in result[1]  # type: ignore[index]


async def test_a_stopped_gateway_leaves_nothing_in_redis(redis_server: RedisServer) -> None:
    async with redis_server.client() as redis:
        async with running({"redis_url": redis_server.url}):
            async with asyncio.timeout(DEADLINE_S):
                while not await gateways(redis):
                    pass

        assert await gateways(redis) == set()
        assert await redis.keys("*") == []


async def gateways(redis: Redis) -> set[bytes | str]:
    return set(await redis.smembers(LAYOUT.gateways))


async def test_a_bug_in_a_background_loop_ends_no_request(
    replica: Replica, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("router.serve.RESTART_PAUSE_S", 0.01)
    calls: list[None] = []

    async def fail(_: FleetSync) -> None:
        calls.append(None)
        raise AssertionError("a bug")

    monkeypatch.setattr("router.store.sync.FleetSync.run", fail)
    async with running({"replicas": [replica.url]}) as gateway:
        await until(lambda: len(calls) > 2)

        status, _ = await gateway.chat()
        assert status == 200
        assert await gateway.metric('warmroute_background_restarts_total{task="store"}') >= 2


@pytest.mark.parametrize("name", ["port", "admin_port"])
async def test_a_busy_port_is_a_start_that_failed(name: str) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        gateway = build_gateway(load_router_config(None, LOCAL | {name: port}))

        with pytest.raises(CannotStartError) as caught:
            await run_gateway(gateway, StopSignals(), str)

    assert str(caught.value) == f"cannot listen on 127.0.0.1:{port}: Address already in use"


async def test_a_host_that_is_none_is_a_start_that_failed() -> None:
    gateway = build_gateway(load_router_config(None, LOCAL | {"admin_host": "no.such.invalid"}))

    with pytest.raises(CannotStartError, match=r"cannot listen on no\.such\.invalid:0: "):
        await run_gateway(gateway, StopSignals(), str)


def test_a_redis_url_that_cannot_be_read_is_named_and_not_quoted() -> None:
    config = load_router_config(None, {"redis_url": "redis://:LEAKED@127.0.0.1:port/0"})

    with pytest.raises(SettingError) as caught:
        build_gateway(config)

    assert "redis_url" in str(caught.value)
    assert "LEAKED" not in str(caught.value)


async def child(settings: dict[str, object], errors: Path) -> asyncio.subprocess.Process:
    with errors.open("wb") as output:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", COMMAND, json.dumps(settings)),
            stdout=asyncio.subprocess.PIPE,
            stderr=output,
        )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_process_says_ready_and_ends_on_a_signal(
    tmp_path: Path, number: signal.Signals
) -> None:
    process = await child(LOCAL, tmp_path / "errors")
    assert process.stdout is not None
    try:
        line = (await asyncio.wait_for(process.stdout.readline(), DEADLINE_S)).decode()
        url = line.split()[2]
        async with aiohttp.ClientSession() as http, http.get(f"{url}/health") as response:
            assert response.status == 200
        process.send_signal(number)

        assert await asyncio.wait_for(process.wait(), DEADLINE_S) == 0
    finally:
        if process.returncode is None:
            process.kill()
    lines = (tmp_path / "errors").read_text().splitlines()
    assert [json.loads(line)["level"] for line in lines] == ["info"] * len(lines)


async def test_a_process_that_cannot_start_says_so_in_one_line(tmp_path: Path) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        process = await child(LOCAL | {"port": port}, tmp_path / "errors")

        status = await asyncio.wait_for(process.wait(), DEADLINE_S)

    text = (tmp_path / "errors").read_text()
    assert status == 3
    assert text == f"warmroute: cannot listen on 127.0.0.1:{port}: Address already in use\n"
