"""Clients of the same machine may come by the path of a socket."""

import asyncio
import socket
from pathlib import Path

import pytest

from router.core.reason import Outcome
from router.gateway.acceptor import Acceptor, listen
from tests.router.gateway.running import RawClient, gateway_of
from tests.router.gateway.scripted_replica import ScriptedReplica, Turn
from tests.router.gateway.wire import STREAM_HEAD, chat, chunk, event, ok, post
from tests.waiting import until


async def test_requests_are_served_on_a_path(tmp_path: Path) -> None:
    async def echo(turn: Turn) -> None:
        await turn.send(ok(turn.request.body))

    path = tmp_path / "socket"
    async with ScriptedReplica(echo) as replica, gateway_of(replica) as gateway:
        acceptor = Acceptor(listen(f"unix:{path}", 0, 16), gateway.plane._take)
        client = RawClient(*await asyncio.open_unix_connection(str(path)))
        bodies = [chat("one"), chat("x" * 100_000)]
        await client.send(b"".join(map(post, bodies)))
        answers = [await client.answer() for _ in bodies]
        client.close()
        acceptor.close()

    assert [answer.body for answer in answers] == bodies
    assert not path.exists()


async def test_a_client_on_a_path_that_leaves_is_noticed(tmp_path: Path) -> None:
    async def stall(turn: Turn) -> None:
        await turn.send(STREAM_HEAD + chunk(event("t")))
        await turn.until_closed()

    path = tmp_path / "socket"
    async with ScriptedReplica(stall) as replica, gateway_of(replica) as gateway:
        acceptor = Acceptor(listen(f"unix:{path}", 0, 16), gateway.plane._take)
        client = RawClient(*await asyncio.open_unix_connection(str(path)))
        await client.send(post(chat(stream=True)))
        await replica.arrived.wait()
        client.close()
        await until(lambda: replica.num_open == 0)
        record = await gateway.record()
        acceptor.close()

    assert record.outcome is Outcome.CLIENT_LEFT


def test_a_socket_that_a_dead_process_left_gives_way(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))

    with listen(f"unix:{path}", 0, 16) as listener:
        assert listener.getsockname() == str(path)


def test_a_path_in_use_is_not_taken_away(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with listen(f"unix:{path}", 0, 16), pytest.raises(OSError, match="in use"):
        listen(f"unix:{path}", 0, 16)


def test_a_file_is_not_taken_for_a_socket(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("precious")

    with pytest.raises(OSError, match="in use"):
        listen(f"unix:{path}", 0, 16)

    assert path.read_text() == "precious"
