"""The connections that are kept for a replica, without a network."""

import asyncio
import ssl
from typing import cast

import pytest

from contract.failures import Failure
from router.gateway.config import GatewayConfig
from router.gateway.replica_connection import ReplicaConnection
from router.gateway.replica_pool import (
    POOL_UNUSED_US,
    ReplicaPool,
    ReplicaPools,
    ReplicaUrlError,
    parse_address,
)
from tests.router.gateway.fake_wire import Wire
from tests.waiting import until

URL = "http://127.0.0.1:1"


class Clock:
    """A time that the test sets."""

    now_us = 0

    def __call__(self) -> int:
        return self.now_us


class Caller:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.connections: list[ReplicaConnection] = []

    def on_connected(self, connection: ReplicaConnection) -> None:
        self.connections.append(connection)

    def on_connect_failed(self, failure: Failure, cause: str) -> None:
        raise AssertionError(failure, cause)

    def on_out_of_sockets(self) -> None:
        raise AssertionError


def pool_of(clock: Clock, **settings: float) -> ReplicaPool:
    config = GatewayConfig(**settings)  # type: ignore[arg-type]
    return ReplicaPool(URL, config, clock, ssl.create_default_context)


def connection_in(pool: ReplicaPool, now_us: int = 0) -> tuple[ReplicaConnection, Wire]:
    wire = Wire()
    connection = ReplicaConnection(pool, 1000)
    connection.connection_made(cast(asyncio.Transport, wire))
    connection.idle_since_us = now_us
    pool.put(connection)
    return connection, wire


def test_the_connection_used_last_is_taken_first() -> None:
    pool = pool_of(Clock())
    first, _ = connection_in(pool)
    last, _ = connection_in(pool)

    assert [pool.take(), pool.take(), pool.take()] == [last, first, None]


def test_a_connection_that_is_closing_is_not_taken() -> None:
    pool = pool_of(Clock())
    _, wire = connection_in(pool)

    wire.close()

    assert pool.take() is None


def test_a_connection_that_is_closed_is_forgotten() -> None:
    pool = pool_of(Clock())
    connection, _ = connection_in(pool)

    connection.connection_lost(None)

    assert pool.num_idle == 0


def test_old_connections_are_closed_and_young_ones_kept() -> None:
    pool = pool_of(Clock(), replica_idle_s=4.0)
    _, old = connection_in(pool, 0)
    _, young = connection_in(pool, 3_000_000)

    pool.sweep(4_000_000)

    assert (old.is_closed, young.is_closed, pool.num_idle) == (True, False, 1)


def test_no_more_connections_are_kept_than_the_settings_say() -> None:
    pool = pool_of(Clock(), replica_idle_max=1)
    _, kept = connection_in(pool)
    _, too_many = connection_in(pool)

    assert (kept.is_closed, too_many.is_closed, pool.num_idle) == (False, True, 1)


async def test_a_connection_that_comes_when_it_is_no_longer_wanted_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = pool_of(Clock())
    wire = Wire()
    is_open = asyncio.Event()

    async def connect(connection: ReplicaConnection) -> None:
        connection.connection_made(cast(asyncio.Transport, wire))
        is_open.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(pool, "_connect", connect)
    caller = Caller()
    task = pool.open(caller, 10_000_000)
    await is_open.wait()
    task.cancel()
    await until(task.done)

    assert wire.is_closed
    assert caller.connections == []


def test_the_pool_of_a_replica_that_is_gone_is_dropped_when_nothing_uses_it() -> None:
    clock = Clock()
    pools = ReplicaPools(GatewayConfig(), clock)
    pool = pools.of(URL)
    connection, _ = connection_in(pool)
    pool._open_now.add(connection)

    pools.sweep(2 * POOL_UNUSED_US)
    while_open = pools.of(URL)
    connection.connection_lost(None)
    pools.sweep(2 * POOL_UNUSED_US)
    after = pools.of(URL)

    assert while_open is pool
    assert after is not pool


@pytest.mark.parametrize(
    ("url", "host", "port", "authority", "prefix"),
    [
        ("http://a:9000", "a", 9000, b"a:9000", b""),
        ("http://a", "a", 80, b"a", b""),
        ("https://a/base/", "a", 443, b"a", b"/base"),
        ("http://[::1]:9000/v", "::1", 9000, b"[::1]:9000", b"/v"),
        ("http://user:secret@a:1", "a", 1, b"a:1", b""),
    ],
)
def test_a_url_is_taken_apart(
    url: str, host: str, port: int, authority: bytes, prefix: bytes
) -> None:
    address = parse_address(url)

    assert (address.host, address.port) == (host, port)
    assert (address.authority, address.prefix) == (authority, prefix)
    assert address.is_tls is url.startswith("https")


@pytest.mark.parametrize("url", ["", "a:80", "ftp://a", "http://", "http://s3cret:99999"])
def test_a_url_that_cannot_be_used_is_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(ReplicaUrlError) as refused:
        parse_address(url)

    assert "s3cret" not in str(refused.value)
