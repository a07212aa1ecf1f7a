"""The data plane: accepts clients, looks at all limits on time, drains, and stops."""

import asyncio
import logging
import secrets
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import unquote

from contract.failures import Failure
from router.core.config import RoutingConfig
from router.core.reason import Ineligible, Reason
from router.gateway.acceptor import Acceptor, listen
from router.gateway.client_connection import ClientConnection
from router.gateway.config import GatewayConfig
from router.gateway.context import Context, Fleet, Log, Metrics
from router.gateway.credentials import Credentials, read_credentials
from router.gateway.http_head import RequestHead
from router.gateway.local_answer import (
    error_answer,
    json_answer,
    model_body,
    models_body,
    options_answer,
    request_id_line,
    status_body,
)
from router.gateway.routes import MODELS_PATH, Match, Route, Routes
from router.gateway.verdict import Refusal, refusal_of

log = logging.getLogger(__name__)

SERVING = frozenset({None, Ineligible.BACKING_OFF, Ineligible.NOT_REPORTING})
"""Standings of replicas for which the gateway is ready. One that does not report may be well: it
may be the store that is gone."""

SLICE_US = 10_000
"""How long a sweep may go on before others have a turn."""

CLOSING_S = 1.0
"""How long clients may take to read the last bytes of a gateway that has stopped."""


@dataclass(frozen=True, slots=True)
class DataPlaneStats:
    """What is under way at a moment."""

    clients: int
    exchanges: int
    queued: int
    idle_replica_connections: int
    buffered_bytes: int
    turned_away: int  # connections beyond ``connections_max``, since the start
    handshakes_failed: int  # connections that came to no TLS session, since the start
    is_draining: bool


class DataPlane:
    """One listening port and everything behind it."""

    def __init__(
        self,
        config: GatewayConfig,
        fleet: Fleet,
        routing: RoutingConfig,
        metrics: Metrics,
        clock_us: Callable[[], int],
        *,
        policy: str = "",
        log: Log | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        """Put it together. Raises SettingError for a file that cannot be used."""
        credentials = credentials or read_credentials(config)
        self._tls = credentials.tls
        self.context = Context(
            config,
            fleet,
            routing,
            metrics,
            clock_us,
            policy=policy,
            id_prefix=f"wr-{secrets.token_hex(6)}",
            log=log,
            keys=credentials.keys,
        )
        self.context.pools.reconfigure(config, credentials)
        self.routes = Routes(config)
        self._clients: set[ClientConnection] = set()
        self._arriving: set[ClientConnection] = set()  # accepted, and not yet begun
        self._opening: set[asyncio.Task[None]] = set()
        self._turned_away = 0
        self._handshakes_failed = 0
        self._acceptor: Acceptor | None = None
        self._sweep: asyncio.Handle | None = None
        self._at_rest = asyncio.Event()
        self._no_clients = asyncio.Event()

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port. Raises OSError if it cannot be had."""
        listener = listen(host, port, self.context.config.backlog)
        self._acceptor = Acceptor(listener, self._take)
        self.context.texts.start(asyncio.get_running_loop())
        self._schedule_sweep()
        return self._acceptor.port

    def reconfigure(
        self, config: GatewayConfig, credentials: Credentials, *, policy: str, log: Log | None
    ) -> None:
        """Hold to other settings, from the next request of every connection on.

        Connections stay as they are: new ones get the new certificate.
        """
        self._tls = credentials.tls
        self.routes = Routes(config)
        self.context.reconfigure(config, credentials, policy=policy, log=log)
        for client in self._clients:
            client.reconfigure()

    def drain(self) -> None:
        """Be no longer ready, refuse new requests with a 503, let the running ones finish."""
        self.context.is_draining = True

    async def stop(self, drain_s: float) -> None:
        """Drain for at most so long, then end what still runs so that its clients see it."""
        self.drain()
        try:
            async with asyncio.timeout(drain_s):
                await self._rest()
        except TimeoutError:
            for exchange in list(self.context.exchanges):
                exchange.on_drain_over()
        await self._close()

    def stats(self) -> DataPlaneStats:
        """Return what is under way."""
        context = self.context
        return DataPlaneStats(
            clients=len(self._clients),
            exchanges=len(context.exchanges),
            queued=len(context.queue),
            idle_replica_connections=context.pools.num_idle,
            buffered_bytes=context.buffered_bytes,
            turned_away=self._turned_away,
            handshakes_failed=self._handshakes_failed,
            is_draining=context.is_draining,
        )

    def pump(self) -> None:
        """Let queued requests go on; to be called when reports have come."""
        self.context.pump()

    def answer_locally(
        self, route: Route, head: RequestHead, match: Match, *, closes: bool
    ) -> bytes:
        """Return the answer to a request that no replica is asked for."""
        is_head = head.method == "HEAD"
        request_id = head.request_id or self.context.new_request_id()
        lines = request_id_line(request_id) + head.answer_lines
        if route is Route.OPTIONS:
            return options_answer(match.methods, lines, close=closes)
        if route is Route.MODELS:
            return self._answer_models(head, request_id, lines, closes=closes)
        if route is Route.READY and not self.is_ready():
            return error_answer(self._unready(), lines, close=closes, bodiless=is_head)
        status = "ready" if route is Route.READY else "ok"
        return json_answer(200, status_body(status), lines, close=closes, bodiless=is_head)

    def is_ready(self) -> bool:
        """Say whether a request for some model would find a replica now."""
        return not self.context.is_draining and any(
            status.standing in SERVING for status in self.context.fleet.views()
        )

    def _unready(self) -> Refusal:
        if self.context.is_draining:
            return Refusal(Failure.DRAINING, "the gateway is stopping")
        return Refusal(Failure.NO_REPLICA, "there is no replica that can take a request")

    def _answer_models(
        self, head: RequestHead, request_id: str, lines: bytes, *, closes: bool
    ) -> bytes:
        models = self.context.fleet.models()
        name = unquote(head.path.removeprefix(MODELS_PATH).removeprefix("/"))
        is_head = head.method == "HEAD"
        if name and name not in models:
            refusal = refusal_of(Reason.MODEL_NOT_FOUND, name)
            self.context.report_refused(request_id, MODELS_PATH, refusal.failure)
            return error_answer(refusal, lines, close=closes, bodiless=is_head)
        body = model_body(name) if name else models_body(models)
        return json_answer(200, body, lines, close=closes, bodiless=is_head)

    # ---- clients

    def on_client(self, connection: ClientConnection) -> None:
        """One has begun."""
        self._arriving.discard(connection)
        self._clients.add(connection)

    def on_client_gone(self, connection: ClientConnection) -> None:
        """One is closed."""
        self._clients.discard(connection)
        if not self._clients:
            self._no_clients.set()

    def _take(self, sock: socket.socket) -> None:
        if len(self._clients) + len(self._arriving) >= self.context.config.connections_max:
            self._turn_away(sock)
            return
        connection = ClientConnection(self, sock, is_tls=self._tls is not None)
        self._arriving.add(connection)
        task = asyncio.get_running_loop().create_task(self._open(connection, sock))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self, connection: ClientConnection, sock: socket.socket) -> None:
        tls = self._tls
        limit_s = None if tls is None else self.context.config.client_header_timeout_s
        try:
            loop = asyncio.get_running_loop()
            await loop.connect_accepted_socket(
                lambda: connection, sock, ssl=tls, ssl_handshake_timeout=limit_s
            )
        except OSError:
            sock.close()  # the client has gone already, or does not speak TLS
            self._handshakes_failed += tls is not None
        finally:
            self._arriving.discard(connection)

    def _turn_away(self, sock: socket.socket) -> None:
        self._turned_away += 1
        message = "the gateway serves as many connections as it may; try again later"
        try:
            if self._tls is None:
                sock.send(error_answer(Refusal(Failure.OVERLOADED, message), close=True))
        except OSError:
            pass  # that client has gone already
        sock.close()

    # ---- time

    def _schedule_sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweep = loop.call_later(self.context.config.sweep_s, self._on_sweep)

    def _on_sweep(self) -> None:
        self.context.swept_us = self.context.clock_us()
        self._sweep_on(self._steps_of_sweep())

    def _sweep_on(self, steps: Iterator[None]) -> None:
        """Go on with a sweep; the event loop has a turn where many meet their limits at once."""
        loop, clock_us = asyncio.get_running_loop(), self.context.clock_us
        until_us = clock_us() + SLICE_US
        try:
            for _ in steps:
                if clock_us() >= until_us:
                    self._sweep = loop.call_soon(self._sweep_on, steps)
                    return
        except Exception:  # the next sweep may do better, and must come
            log.exception("a sweep met a fault of the gateway")
        self._schedule_sweep()

    def _steps_of_sweep(self) -> Iterator[None]:
        """Look at every limit on time, one at each step."""
        context, now_us = self.context, self.context.swept_us
        for exchange in list(context.exchanges):
            exchange.on_sweep(now_us)
            yield
        for client in list(self._clients):
            client.on_sweep(now_us)
            yield
        self._bound_unsent()
        context.pools.sweep(now_us)
        for ticket in context.queue.expired(now_us):
            queued = context.queued.pop(ticket, None)
            if queued is not None:  # it has not ended since the step before
                queued.on_queue_timeout()
            yield
        context.pump()
        if context.is_draining and not any(client.is_busy for client in self._clients):
            self._at_rest.set()

    def _bound_unsent(self) -> None:
        """Cut the clients that are furthest behind while all together are too far."""
        excess = -self.context.config.unsent_bytes_max
        excess += sum(client.unsent_bytes for client in self._clients)
        if excess <= 0:
            return
        for client in sorted(self._clients, key=lambda client: -client.unsent_bytes):
            excess -= client.unsent_bytes
            client.cut_off()
            if excess <= 0:
                return

    async def _rest(self) -> None:
        while any(client.is_busy for client in self._clients):
            self._at_rest.clear()
            await self._at_rest.wait()

    async def _close(self) -> None:
        if self._acceptor is not None:
            self._acceptor.close()
        for task in list(self._opening):
            task.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)
        for client in list(self._clients):
            client.end()
        try:
            async with asyncio.timeout(CLOSING_S):
                while self._clients:
                    self._no_clients.clear()
                    await self._no_clients.wait()
        except TimeoutError:
            for client in list(self._clients):
                client.abort()
        if self._sweep is not None:
            self._sweep.cancel()
        await self.context.bodies.close()
        await self.context.pools.close()
