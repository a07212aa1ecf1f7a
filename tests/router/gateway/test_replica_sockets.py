"""Replicas of the same machine may be at the path of a socket, where the settings name them."""

import asyncio
from pathlib import Path
from typing import Any, Self

import aiohttp
import pytest

from contract.options import SettingError
from router.config import load_router_config
from router.core.reason import Ineligible, Outcome
from router.discovery import Discovery
from router.gateway.replica_pool import parse_address
from router.probes import Prober
from router.replica_entry import read_entry, url_complaint
from tests.router.gateway.running import clock_us, gateway_of
from tests.router.gateway.scripted_replica import Script, ScriptedReplica, Turn, answering
from tests.router.gateway.wire import STREAM_HEAD, chat, chunk, event, ok, post
from tests.waiting import until


class ReplicaAtPath(ScriptedReplica):
    """Serves on the path of a socket."""

    def __init__(self, script: Script, path: Path, replica_id: str = "at path") -> None:
        super().__init__(script, replica_id)
        self.path = path

    @property
    def url(self) -> str:
        return f"unix://{self.path}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_unix_server(self._serve, self.path)
        return self


async def echo(turn: Turn) -> None:
    await turn.send(ok(turn.request.body))


async def test_requests_go_to_a_path_on_one_connection(tmp_path: Path) -> None:
    bodies = [chat("one"), chat("x" * 200_000)]
    async with (
        ReplicaAtPath(echo, tmp_path / "socket") as replica,
        gateway_of(replica) as gateway,
    ):
        client = await gateway.connect()
        answers = [await client.ask(post(body)) for body in bodies]

    assert [answer.body for answer in answers] == bodies
    assert replica.num_connections == 1
    assert [request.values("host") for request in replica.requests] == [["localhost"]] * 2


async def test_a_client_that_leaves_frees_the_replica_at_a_path(tmp_path: Path) -> None:
    async def stall(turn: Turn) -> None:
        await turn.send(STREAM_HEAD + chunk(event("t")))
        await turn.until_closed()

    async with (
        ReplicaAtPath(stall, tmp_path / "socket") as replica,
        gateway_of(replica) as gateway,
    ):
        client = await gateway.connect()
        await client.send(post(chat(stream=True)))
        await replica.arrived.wait()
        client.close()
        await until(lambda: replica.num_open == 0)
        record = await gateway.record()

    assert record.outcome is Outcome.CLIENT_LEFT


@pytest.mark.parametrize("left", ["nothing", "a dead socket", "a file"])
async def test_where_nobody_listens_another_replica_is_asked(tmp_path: Path, left: str) -> None:
    path = tmp_path / "socket"
    if left == "a file":
        path.write_text("")
    elif left == "a dead socket":
        async with ReplicaAtPath(echo, path):
            pass
    async with ScriptedReplica(echo) as other, gateway_of(f"unix://{path}", other) as gateway:
        client = await gateway.connect()
        answers = [await client.ask(post(chat(f"{number}"))) for number in range(4)]

    assert [answer.status for answer in answers] == [200] * 4
    assert max(record.attempts for record in gateway.records) == 2


async def test_without_another_the_client_is_told_that_it_cannot_be_reached(
    tmp_path: Path,
) -> None:
    async with gateway_of(f"unix://{tmp_path}/none") as gateway:
        answer = await (await gateway.connect()).ask(post(chat()))

    assert (answer.status, answer.code) == (502, "replica_connect_failed")
    assert str(tmp_path) not in answer.body.decode()


async def test_a_replica_at_a_path_is_probed_and_asked_for_its_models(tmp_path: Path) -> None:
    models = ok(b'{"object": "list", "data": [{"id": "of the path"}]}')
    async with (
        ReplicaAtPath(answering(models), tmp_path / "socket") as replica,
        gateway_of(routing={"probe_failures": 1, "probe_answers": 1}) as gateway,
        aiohttp.ClientSession() as session,
    ):
        fleet = gateway.fleet
        fleet.add_static(replica.url, "here", None, now_us=clock_us())
        fleet.add_static(f"unix://{tmp_path}/none", "gone", None, now_us=clock_us())
        config = gateway.plane.context.config
        await Prober(fleet, gateway.metrics, lambda: config, clock_us).probe_all(session)
        await Discovery(fleet, 10.0, 10.0).ask_all(session)
        standings = {status.view.replica_id: status.standing for status in fleet.views()}

    assert fleet.models() == ["of the path"]
    assert standings == {"here": None, "gone": Ineligible.EJECTED}
    assert [request.line for request in replica.requests] == [
        "GET /health HTTP/1.1",
        "GET /v1/models HTTP/1.1",
    ]


def test_the_settings_may_name_a_path() -> None:
    tables: list[Any] = [{"url": "unix:///run/a.sock", "id": "a"}, "unix:///run/b.sock"]

    config = load_router_config({"replicas": tables})

    assert [entry.url for entry in config.replicas] == ["unix:///run/a.sock", "unix:///run/b.sock"]
    assert parse_address("unix:///run/a.sock").socket_path == "/run/a.sock"


@pytest.mark.parametrize(
    "url",
    [
        *("unix:", "unix:/run/a.sock", "unix://", "unix:///", "unix://run/a.sock"),
        *("unix:///run/", "unix:///run/a.sock?x=1", "unix:///" + "x" * 107, "unix:///run/a\nb"),
    ],
)
def test_these_are_no_paths_of_sockets(url: str) -> None:
    with pytest.raises(SettingError, match=r"path|cannot be printed"):
        load_router_config({"replicas": [url]})


def test_neither_a_report_nor_the_admin_port_can_have_the_gateway_open_a_path() -> None:
    assert url_complaint("unix:///run/docker.sock") is not None
    with pytest.raises(SettingError, match="scheme 'unix'"):
        read_entry({"url": "unix:///run/docker.sock"})
