"""Connections to one replica that wait for their next request, and the opening of new ones."""

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol
from urllib.parse import urlsplit

from contract.failures import Failure
from router.core.config import micros
from router.gateway.config import GatewayConfig
from router.gateway.credentials import Credentials
from router.gateway.limits import NEVER_US
from router.gateway.replica_connection import ReplicaConnection
from router.gateway.resolver import HostAddresses
from router.gateway.tls import replica_context
from router.replica_entry import NAMELESS, socket_path

POOL_UNUSED_US = 60_000_000
"""How long a pool without connections is kept; it is a few hundred bytes."""

_NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})


class ReplicaUrlError(ValueError):
    """The url of a replica cannot be used; the message does not repeat it, it may hold a secret."""


@dataclass(frozen=True, slots=True)
class ReplicaAddress:
    """A replica's url, taken apart."""

    host: str
    port: int
    authority: bytes  # for the Host header
    prefix: bytes  # of every path
    is_tls: bool
    socket_path: str | None = None  # instead of host and port
    authorization: bytes = field(default=b"", repr=False)  # line that it alone is sent


def parse_address(url: str) -> ReplicaAddress:
    """Return the parts of ``url``. Raises ReplicaUrlError."""
    path = socket_path(url)
    if path is not None:
        return ReplicaAddress(NAMELESS, 0, NAMELESS.encode(), b"", False, path)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ReplicaUrlError("the replica's url has no valid port") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ReplicaUrlError("the replica's url is not of the form http://host:port")
    is_tls = parts.scheme == "https"
    host = parts.hostname
    named = f"[{host}]" if ":" in host else host
    authority = f"{named}:{port}" if port is not None else named
    prefix = parts.path.rstrip("/")
    return ReplicaAddress(
        host, port or (443 if is_tls else 80), authority.encode(), prefix.encode(), is_tls
    )


class Caller(Protocol):
    """Who waits for a connection; exactly one of these is called, unless the task is cancelled."""

    def on_connected(self, connection: ReplicaConnection) -> None:
        """It is open and nobody else's."""

    def on_connect_failed(self, failure: Failure, cause: str) -> None:
        """The replica cannot be reached (CONNECT_FAILED) or not in time (CONNECT_TIMEOUT)."""

    def on_out_of_sockets(self) -> None:
        """This process has no descriptor left."""


class ReplicaPool:
    """All connections to one url."""

    def __init__(
        self,
        url: str,
        config: GatewayConfig,
        clock_us: Callable[[], int],
        tls: Callable[[], ssl.SSLContext],
    ) -> None:
        self.address = parse_address(url)
        self.used_us = clock_us()
        self._config = config
        self._clock_us = clock_us
        self._open_now: set[ReplicaConnection] = set()
        # The one used last is last, and taken first; a dict, because any may close at any time.
        self._idle: dict[ReplicaConnection, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._tls = tls
        self._addresses = HostAddresses(self.address.host, config, clock_us)

    @property
    def num_idle(self) -> int:
        """Connections that wait for a request."""
        return len(self._idle)

    @property
    def is_used(self) -> bool:
        """Whether there is a connection, or one is being opened."""
        return bool(self._tasks or self._open_now)

    def take(self) -> ReplicaConnection | None:
        """Return an idle connection that is open, None if there is none."""
        while self._idle:
            connection, _ = self._idle.popitem()
            if connection.is_open:
                return connection
        return None

    def reconfigure(self, config: GatewayConfig) -> None:
        """Hold to other settings from the next connection on."""
        self._config = config

    def authorize(self, authorization: str | None) -> None:
        """Send this replica a credential of its own, or, with None, none."""
        value = (authorization or "").encode("latin-1", "replace")
        line = b"Authorization: %b\r\n" % value if value else b""
        self.address = replace(self.address, authorization=line)

    def put(self, connection: ReplicaConnection) -> None:
        """Keep a connection for the next request; close it if enough are kept."""
        self.used_us = connection.idle_since_us
        if len(self._idle) >= self._config.replica_idle_max:
            connection.abort()
            return
        self._idle[connection] = None

    def forget(self, connection: ReplicaConnection) -> None:
        """Forget a connection that is closed."""
        self._idle.pop(connection, None)
        self._open_now.discard(connection)

    def open(self, caller: Caller, limit_us: int) -> asyncio.Task[None]:
        """Open a connection for ``caller``. Cancel the task if it is no longer wanted."""
        limit_s = None if limit_us == NEVER_US else limit_us / 1_000_000
        task = asyncio.get_running_loop().create_task(self._open(caller, limit_s))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _open(self, caller: Caller, limit_s: float | None) -> None:
        self.used_us = self._clock_us()
        connection = ReplicaConnection(self, self._config.header_bytes_max)
        try:
            async with asyncio.timeout(limit_s):
                await self._connect(connection)
        except TimeoutError:
            caller.on_connect_failed(Failure.CONNECT_TIMEOUT, "no answer to the connection")
        except OSError as error:
            if error.errno in _NO_DESCRIPTORS:
                caller.on_out_of_sockets()
            else:
                caller.on_connect_failed(Failure.CONNECT_FAILED, type(error).__name__)
        except asyncio.CancelledError:
            connection.abort()  # it may have come into being in the same turn
            raise
        else:
            self._open_now.add(connection)
            caller.on_connected(connection)

    async def _connect(self, connection: ReplicaConnection) -> None:
        loop, address = asyncio.get_running_loop(), self.address
        if address.socket_path is not None:
            await loop.create_unix_connection(lambda: connection, address.socket_path)
            return
        tls = self._tls() if address.is_tls else None
        refused: OSError | None = None
        try:
            for ip in await self._addresses.get():
                try:
                    transport, _ = await loop.create_connection(
                        lambda: connection,
                        ip,
                        address.port,
                        ssl=tls,
                        server_hostname=address.host if tls else None,
                    )
                except OSError as error:
                    refused = error
                    continue
                sock = transport.get_extra_info("socket")
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return
        except asyncio.CancelledError:
            self._addresses.distrust()  # too slow for the time limit, or no longer wanted
            raise
        self._addresses.distrust()
        raise refused or OSError(f"{address.host} has no address")

    def sweep(self, now_us: int) -> None:
        """Close connections that have been idle for so long that the replica may close them."""
        idle_us = micros(self._config.replica_idle_s)
        old = [c for c in self._idle if now_us - c.idle_since_us >= idle_us]
        for connection in old:
            del self._idle[connection]
            connection.abort()

    async def close(self) -> None:
        """Close all connections, stop those that are being opened."""
        for connection in list(self._open_now):
            connection.abort()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class ReplicaPools:
    """One pool per url; those of departed replicas are dropped when nothing uses them."""

    def __init__(self, config: GatewayConfig, clock_us: Callable[[], int]) -> None:
        self._config = config
        self._clock_us = clock_us
        self._pools: dict[str, ReplicaPool] = {}
        self._tls: ssl.SSLContext | None = None
        self._authorizations: Mapping[str, str] = {}

    def reconfigure(self, config: GatewayConfig, credentials: Credentials) -> None:
        """Hold to other settings."""
        self._config = config
        self._tls = credentials.replica_tls
        self._authorizations = credentials.of_replicas
        for url, pool in self._pools.items():
            pool.reconfigure(config)
            pool.authorize(self._authorizations.get(url))

    def authorization(self, url: str) -> str:
        """Return the Authorization header for small questions to the replica at ``url``."""
        return self._authorizations.get(url) or self._config.upstream_authorization

    def tls(self) -> ssl.SSLContext:
        """Return how replicas with an https URL are spoken to."""
        if self._tls is None:
            self._tls = replica_context("", verify=True)
        return self._tls

    def of(self, url: str) -> ReplicaPool:
        """Return the pool of ``url``. Raises ReplicaUrlError."""
        pool = self._pools.get(url)
        if pool is None:
            pool = self._pools[url] = ReplicaPool(url, self._config, self._clock_us, self.tls)
            pool.authorize(self._authorizations.get(url))
        return pool

    @property
    def num_idle(self) -> int:
        """Idle connections to all replicas."""
        return sum(pool.num_idle for pool in self._pools.values())

    def sweep(self, now_us: int) -> None:
        """Close old connections and drop pools without any."""
        for url, pool in list(self._pools.items()):
            pool.sweep(now_us)
            if not pool.is_used and now_us - pool.used_us > POOL_UNUSED_US:
                del self._pools[url]

    async def close(self) -> None:
        """Close all."""
        for pool in self._pools.values():
            await pool.close()
        self._pools.clear()
