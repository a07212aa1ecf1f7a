"""The data plane: accepts clients, looks at all limits on time, drains, and stops."""

import asyncio
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import unquote

from contract.failures import Failure
from router.core.config import RoutingConfig
from router.core.reason import Ineligible, Reason
from router.gateway.acceptor import Acceptor, listen
from router.gateway.client_connection import ClientConnection
from router.gateway.config import GatewayConfig
from router.gateway.context import Context, Fleet, Log, Metrics
from router.gateway.http_head import RequestHead
from router.gateway.local_answer import (
    error_answer,
    json_answer,
    model_body,
    models_body,
    options_answer,
    status_body,
)
from router.gateway.routes import MODELS_PATH, Match, Route, Routes
from router.gateway.verdict import Refusal, refusal_of

SERVING = frozenset({None, Ineligible.BACKING_OFF, Ineligible.NOT_REPORTING})
"""Standings of replicas for which the gateway is ready. One that does not report may be well: it
may be the store that is gone."""

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
    ) -> None:
        self.context = Context(
            config,
            fleet,
            routing,
            metrics,
            clock_us,
            policy=policy,
            id_prefix=f"wr-{secrets.token_hex(6)}",
            log=log,
        )
        self.routes = Routes(config)
        self._clients: set[ClientConnection] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._acceptor: Acceptor | None = None
        self._sweep: asyncio.TimerHandle | None = None
        self._at_rest = asyncio.Event()
        self._no_clients = asyncio.Event()

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port. Raises OSError if it cannot be had."""
        listener = listen(host, port, self.context.config.backlog)
        self._acceptor = Acceptor(listener, self._take)
        self._schedule_sweep()
        return self._acceptor.port

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
        if route is Route.OPTIONS:
            return options_answer(match.methods, close=closes)
        if route is Route.MODELS:
            return self._answer_models(head.path, closes=closes, is_head=is_head)
        if route is Route.READY and not self.is_ready():
            return error_answer(self._unready(), close=closes, bodiless=is_head)
        status = "ready" if route is Route.READY else "ok"
        return json_answer(200, status_body(status), close=closes, bodiless=is_head)

    def is_ready(self) -> bool:
        """Say whether a request for some model would find a replica now."""
        return not self.context.is_draining and any(
            status.standing in SERVING for status in self.context.fleet.views()
        )

    def _unready(self) -> Refusal:
        if self.context.is_draining:
            return Refusal(Failure.DRAINING, "the gateway is stopping")
        return Refusal(Failure.NO_REPLICA, "there is no replica that can take a request")

    def _answer_models(self, path: str, *, closes: bool, is_head: bool) -> bytes:
        models = self.context.fleet.models()
        name = unquote(path.removeprefix(MODELS_PATH).removeprefix("/"))
        if not name:
            return json_answer(200, models_body(models), close=closes, bodiless=is_head)
        if name in models:
            return json_answer(200, model_body(name), close=closes, bodiless=is_head)
        refusal = refusal_of(Reason.MODEL_NOT_FOUND, name)
        return error_answer(refusal, close=closes, bodiless=is_head)

    # ---- clients

    def on_client(self, connection: ClientConnection) -> None:
        """One has begun."""
        self._clients.add(connection)

    def on_client_gone(self, connection: ClientConnection) -> None:
        """One is closed."""
        self._clients.discard(connection)
        if not self._clients:
            self._no_clients.set()

    def _take(self, sock: socket.socket) -> None:
        if len(self._clients) + len(self._opening) >= self.context.config.connections_max:
            self._turn_away(sock)
            return
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._open(sock))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self, sock: socket.socket) -> None:
        try:
            loop = asyncio.get_running_loop()
            await loop.connect_accepted_socket(lambda: ClientConnection(self, sock), sock)
        except OSError:
            sock.close()  # the client has gone already

    def _turn_away(self, sock: socket.socket) -> None:
        message = "the gateway serves as many connections as it may; try again later"
        try:
            sock.send(error_answer(Refusal(Failure.OVERLOADED, message), close=True))
        except OSError:
            pass  # that client has gone already
        sock.close()

    # ---- time

    def _schedule_sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweep = loop.call_later(self.context.config.sweep_s, self._on_sweep)

    def _on_sweep(self) -> None:
        self._schedule_sweep()
        context = self.context
        now_us = context.swept_us = context.clock_us()
        for exchange in list(context.exchanges):
            exchange.on_sweep(now_us)
        for client in list(self._clients):
            client.on_sweep(now_us)
        context.pools.sweep(now_us)
        for ticket in context.queue.expired(now_us):
            context.queued.pop(ticket).on_queue_timeout()
        context.pump()
        if context.is_draining and not any(client.is_busy for client in self._clients):
            self._at_rest.set()

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
            client.close()
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
        await self.context.pools.close()
