"""TLS at both sides, with certificates that no other machine trusts."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from contract.failures import Failure
from contract.options import SettingError
from router.core.reason import Outcome
from router.gateway.config import GatewayConfig
from router.gateway.credentials import read_credentials
from tests.router.gateway.certificates import OPENSSL, Authority
from tests.router.gateway.running import RawClient, RunningGateway, gateway_of
from tests.router.gateway.scripted_replica import ScriptedReplica, Turn
from tests.router.gateway.wire import (
    DONE,
    LAST_CHUNK,
    LIMIT,
    STREAM_HEAD,
    chat,
    chunk,
    event,
    get,
    ok,
    post,
)
from tests.waiting import until

pytestmark = pytest.mark.skipif(
    OPENSSL is None, reason="the openssl command makes the certificates"
)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> tuple[Path, Path]:
    return authority.sign("gateway")


def served_with(pair: tuple[Path, Path]) -> dict[str, Any]:
    return {"tls_cert_file": str(pair[0]), "tls_key_file": str(pair[1])}


async def connect(gateway: RunningGateway, authority: Authority, limit: int = LIMIT) -> RawClient:
    trusting = ssl.create_default_context(cafile=str(authority.cert))
    client = RawClient(
        *await asyncio.open_connection("127.0.0.1", gateway.port, ssl=trusting, limit=limit)
    )
    gateway.clients.append(client)
    return client


async def echo(turn: Turn) -> None:
    await turn.send(ok(turn.request.body))


async def test_requests_are_served_over_tls(authority: Authority, pair: tuple[Path, Path]) -> None:
    body = chat("x" * 200_000)
    async with (
        ScriptedReplica(echo) as replica,
        gateway_of(replica, **served_with(pair)) as gateway,
    ):
        client = await connect(gateway, authority)
        await client.send(post(chat("one")) + post(body) + get("/health"))
        answers = [await client.answer() for _ in range(3)]

    assert [answer.status for answer in answers] == [200] * 3
    assert answers[1].body == body


async def test_a_stream_arrives_piece_by_piece_and_whole(
    authority: Authority, pair: tuple[Path, Path]
) -> None:
    seen = asyncio.Event()

    async def script(turn: Turn) -> None:
        await turn.send(STREAM_HEAD + chunk(event("a")))
        await seen.wait()
        await turn.send(chunk(event("b", "stop")) + chunk(DONE) + LAST_CHUNK)

    async with (
        ScriptedReplica(script) as replica,
        gateway_of(replica, **served_with(pair)) as gateway,
    ):
        client = await connect(gateway, authority)
        await client.send(post(chat(stream=True)))
        while b'"a"' not in await client.line():
            pass
        seen.set()
        record = await gateway.record()

    assert record.outcome is Outcome.COMPLETE


@pytest.mark.parametrize("version", ["1.1", "1.0"])
async def test_a_broken_answer_does_not_end_in_order(
    authority: Authority, pair: tuple[Path, Path], version: str
) -> None:
    async def script(turn: Turn) -> None:
        await turn.send(STREAM_HEAD + chunk(event("a")) + b"20\r\nhalf")
        turn.reset()

    async with (
        ScriptedReplica(script) as replica,
        gateway_of(replica, **served_with(pair)) as gateway,
    ):
        client = await connect(gateway, authority)
        await client.send(post(chat(stream=True), version=version))
        with pytest.raises((ConnectionError, ssl.SSLError, asyncio.IncompleteReadError)):
            await client.reader.readuntil(LAST_CHUNK)
        if version == "1.0":  # where only the end of the connection tells
            with pytest.raises((ConnectionError, ssl.SSLError)):
                await client.reader.read()
        record = await gateway.record()

    assert record.outcome is Outcome.BROKEN


async def test_a_client_that_leaves_is_noticed(
    authority: Authority, pair: tuple[Path, Path]
) -> None:
    async def stall(turn: Turn) -> None:
        await turn.send(STREAM_HEAD + chunk(event("t")))
        await turn.until_closed()

    async with (
        ScriptedReplica(stall) as replica,
        gateway_of(replica, **served_with(pair)) as gateway,
    ):
        client = await connect(gateway, authority)
        await client.send(post(chat(stream=True)))
        await replica.arrived.wait()
        client.close()
        await until(lambda: replica.num_open == 0)
        record = await gateway.record()

    assert record.outcome is Outcome.CLIENT_LEFT


async def test_a_refused_body_gets_its_answer(
    authority: Authority, pair: tuple[Path, Path]
) -> None:
    async with gateway_of(max_body_bytes=10, **served_with(pair)) as gateway:
        client = await connect(gateway, authority)
        answer = await client.ask(post(chat()))
        rest = await client.rest()

    assert (answer.status, rest) == (413, b"")


async def test_who_does_not_speak_tls_is_closed_and_others_do_not_feel_it(
    authority: Authority, pair: tuple[Path, Path]
) -> None:
    settings = {"client_header_timeout_s": 2.0, **served_with(pair)}
    async with gateway_of(**settings) as gateway:
        plain, silent = await gateway.connect(), await gateway.connect()
        await plain.send(get("/health"))
        client = await connect(gateway, authority)
        answer = await client.ask(get("/health"))
        await asyncio.gather(plain.rest(), silent.rest())  # both are closed

    assert answer.status == 200


async def test_a_slow_client_stops_its_replica(
    authority: Authority, pair: tuple[Path, Path]
) -> None:
    total, sent = 64 * 1024 * 1024, 0

    async def flood(turn: Turn) -> None:
        nonlocal sent
        await turn.send(ok(b"")[: -len("0\r\n\r\n")] + b"%d\r\n\r\n" % total)
        while sent < total:
            await turn.send(b"x" * 65_536)
            sent += 65_536

    async with (
        ScriptedReplica(flood) as replica,
        gateway_of(replica, write_buffer_bytes_max=100_000, **served_with(pair)) as gateway,
    ):
        client = await connect(gateway, authority, limit=1000)
        await client.send(post(chat()))
        before = -1
        while sent != before or not sent:
            before = sent
            await asyncio.sleep(0.2)
        stopped_at = sent
        answer = await client.answer()

    assert stopped_at < total / 2
    assert len(answer.body) == total


async def test_a_new_certificate_is_for_new_connections_and_the_old_ones_stay(
    authority: Authority, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    async with gateway_of(**served_with(pair)) as gateway:
        old = await connect(gateway, authority)
        config = GatewayConfig(**served_with(authority.sign("renewed")))
        gateway.plane.reconfigure(config, read_credentials(config), policy="", log=None)
        new = await connect(gateway, authority)
        answers = [await client.ask(get("/health")) for client in (old, new)]
        names = [client.peer_name() for client in (old, new)]

    assert [answer.status for answer in answers] == [200, 200]
    assert names == ["gateway", "renewed"]


@asynccontextmanager
async def tls_replica(pair: tuple[Path, Path]) -> AsyncIterator[str]:
    """Put TLS in front of a replica; give its URL."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*pair)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split()[0]))
                writer.write(ok(b'{"from": "tls"}'))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        yield f"https://localhost:{server.sockets[0].getsockname()[1]}"


async def test_a_replica_is_asked_over_tls(authority: Authority) -> None:
    async with (
        tls_replica(authority.sign("replica")) as url,
        gateway_of(url, replica_ca_file=str(authority.cert)) as gateway,
    ):
        answers = [await gateway.chat("x" * 100_000) for _ in range(2)]

    assert [answer.body for answer in answers] == [b'{"from": "tls"}'] * 2


async def test_a_replica_that_nobody_vouches_for_is_not_asked(authority: Authority) -> None:
    async with (
        tls_replica(authority.sign("unknown")) as url,
        gateway_of(url) as by_system,
        gateway_of(url, replica_tls_verify=False) as unchecked,
    ):
        refused = await by_system.chat()
        taken = await unchecked.chat()

    assert (refused.status, refused.code) == (502, Failure.CONNECT_FAILED.kind.code)
    assert b"SSLCertVerificationError" in refused.body
    assert taken.status == 200


async def test_a_replica_with_the_name_of_another_is_not_asked(authority: Authority) -> None:
    async with (
        tls_replica(authority.sign("other", "DNS:other.example")) as url,
        gateway_of(url, replica_ca_file=str(authority.cert)) as gateway,
    ):
        answer = await gateway.chat()

    assert answer.status == 502


def test_a_pair_that_does_not_fit_is_refused_with_both_names(
    authority: Authority, pair: tuple[Path, Path]
) -> None:
    other = authority.sign("other pair")

    with pytest.raises(SettingError) as caught:
        read_credentials(GatewayConfig(**served_with((pair[0], other[1]))))

    assert str(pair[0]) in str(caught.value)
    assert "KEY_VALUES_MISMATCH" in str(caught.value)


@pytest.mark.parametrize("content", [None, "", "-----BEGIN CERTIFICATE-----\nx\n"])
def test_a_file_that_is_no_certificate_is_refused_by_its_name(
    tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "file.pem"
    if content is not None:
        path.write_text(content)

    for settings in (served_with((path, path)), {"replica_ca_file": str(path)}):
        with pytest.raises(SettingError, match=r"file\.pem"):
            read_credentials(GatewayConfig(**settings))


def test_a_certificate_needs_its_key() -> None:
    with pytest.raises(ValueError, match="together"):
        GatewayConfig(tls_cert_file="a.pem")
