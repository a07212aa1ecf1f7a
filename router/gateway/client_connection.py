"""One client's connection: one exchange at a time, in the order of the requests, within limits.

A client that closes its connection sends the same FIN as one that has only finished sending. To
tell them apart, bytes without a meaning are written (`Exchange.probe`): a closed socket answers
them with a reset, at once. Where no bytes are without a meaning (HTTP/1.0, within a chunk), a FIN
soon after the request is taken for the end of sending, a later one for leaving; whoever has left
all the same is noticed by the reset that the next bytes of the answer meet. TLS has no half-closed
connections: there, an end is an end.
"""

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Protocol, cast

from contract.failures import Failure
from router.core.exchange import Event
from router.gateway.context import Context
from router.gateway.exchange import Exchange
from router.gateway.http_head import RequestHead
from router.gateway.limits import NEVER_US, is_read_in_turn
from router.gateway.local_answer import CONTINUE, error_answer, request_id_line
from router.gateway.long_request import LongRequest
from router.gateway.request_reader import Phase, Request, RequestReader
from router.gateway.routes import UNMATCHED, Match, Route, Routes
from router.gateway.verdict import Refusal

PROBE_REPLIES_S = (0.03, 0.09)
"""A client on this network has answered a probe by the first, one of the same continent by the
second, others by the next sweep."""

# To look a member up is a call of its own (until Python 3.12); these stand for every request.
_BETWEEN, _REPLICA = Phase.BETWEEN, Route.REPLICA

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # of SO_LINGER: on, and for no time


class Site(Protocol):
    """The data plane, as its clients' connections see it."""

    context: Context
    routes: Routes

    def answer_locally(
        self, route: Route, head: RequestHead, match: Match, *, closes: bool
    ) -> bytes:
        """Return the answer to a request that no replica is asked for."""

    def on_client(self, connection: "ClientConnection") -> None:
        """One has begun."""

    def on_client_gone(self, connection: "ClientConnection") -> None:
        """One is closed."""


class ClientConnection(asyncio.Protocol):
    """Serves one connection until it closes."""

    _exchange: Exchange | LongRequest | None = None
    _request_closes = False
    _phase = Phase.BETWEEN
    _deadline_us = NEVER_US
    _write_deadline_us = NEVER_US
    _unsent_bytes = 0
    _is_half_closed = False
    _is_lingering = False  # what comes is thrown away
    _is_serving = False
    _reading_is_paused = False
    is_paused = False

    def __init__(self, site: Site, sock: socket.socket, *, is_tls: bool = False) -> None:
        self._site = site
        self._is_tls = is_tls
        self._context = context = site.context
        self._socket = sock
        self._transport: asyncio.Transport | None = None
        self._reader = RequestReader(context.config, context.heads, context.reserve)

    @property
    def is_busy(self) -> bool:
        """Whether an exchange is under way, or an answer not yet sent."""
        unsent = self._transport is not None and self._transport.get_write_buffer_size() > 0
        return self._exchange is not None or unsent

    @property
    def unsent_bytes(self) -> int:
        """Bytes that wait for a client which is slow; 0 if it is not."""
        return self._unsent_bytes if self.is_paused else 0

    # ---- what its exchange calls

    @property
    def closes(self) -> bool:
        """Whether the connection ends with the present answer."""
        return self._request_closes or self._context.is_draining

    def writer(self) -> Callable[[bytes], None]:
        """Return what sends the bytes of one answer, until its exchange ends."""
        transport = self._transport
        # A transport drops what comes after its end; but the one of TLS complains of it in the log.
        return self.write if transport is None or self._is_tls else transport.write

    def write(self, data: bytes) -> None:
        """Send bytes."""
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.write(data)

    def cut(self, *, reset: bool) -> None:
        """Close after what has been written; with a reset, if nothing else shows the break."""
        if reset:
            self._reset_on_close()
            # TLS would end in order, with a close_notify, and what was sent would seem whole.
            if (self.is_paused or self._is_tls) and self._transport is not None:
                self._transport.abort()
        self.close()

    def on_exchange_end(self, *, closes: bool) -> None:
        """The exchange is over; the next request may begin."""
        self._exchange = None
        reader = self._reader
        if closes:
            self.close()
        elif self._is_serving:
            pass  # the request did not get as far as a replica: the loop below goes on
        elif reader.ready or reader.phase is not _BETWEEN or self._is_half_closed:
            self._serve_next()
        else:  # as nearly always
            self._deadline_us = self._context.swept_us + self._context.limits.idle_us

    # ---- what the data plane calls

    def reconfigure(self) -> None:
        """Hold to the settings as they are now, from the next request on."""
        config = self._context.config
        self._reader.reconfigure(config)
        if self._transport is not None:
            self._transport.set_write_buffer_limits(config.write_buffer_bytes_max)

    def cut_off(self) -> None:
        """End it at once: it takes too little of its answer."""
        if self._exchange is not None:
            self._exchange.on(Event.CLIENT_WRITE_TIMEOUT)
        self.abort()

    def end(self) -> None:
        """The gateway stops: close, but not without a word where a request is on its way."""
        if self._exchange is None and self._reader.phase in (Phase.HEAD, Phase.BODY):
            self._refuse(Refusal(Failure.DRAINING, "the gateway is stopping"))
        elif not self._is_lingering:
            self.close()

    def close(self) -> None:
        """Close after what has been written."""
        transport = self._transport
        if transport is not None and not transport.is_closing():
            self._deadline_us = self._after(self._context.limits.write_us)
            transport.close()

    def abort(self) -> None:
        """Close at once; with a reset if bytes are lost by it, for nothing else may show that."""
        transport = self._transport
        if transport is not None:
            if transport.get_write_buffer_size():
                self._reset_on_close()
            transport.abort()

    def on_sweep(self, now_us: int) -> None:
        """Time has passed."""
        if self.is_paused:
            self._look_for_progress(now_us)
        if self._is_half_closed:
            self._look_for_reset()
        if now_us >= self._deadline_us:
            self._on_deadline()

    # ---- what the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not an isinstance check: uvloop's transports have the methods and not the base class.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(self._context.config.write_buffer_bytes_max)
        self._deadline_us = self._context.swept_us + self._context.limits.idle_us
        self._site.on_client(self)

    def data_received(self, data: bytes) -> None:
        if self._is_lingering:
            return
        reader = self._reader
        is_free = self._exchange is None and self._is_writable()
        request = reader.read_whole(data) if is_free else None
        if request is None:
            reader.feed(data)
        else:
            self._serve(request)
        if self._exchange is None:
            self._serve_next()
        elif request is None and reader.is_full:
            self._pause_reading()
        if reader.has_more:
            self._pause_reading()
            asyncio.get_running_loop().call_soon(self.data_received, b"")

    def eof_received(self) -> bool:
        self._is_half_closed = True
        exchange = self._exchange
        if exchange is None or self._is_tls:
            return False
        probe = exchange.probe()
        if probe is not None:
            self.write(probe)
        elif self._context.clock_us() - exchange.received_us > self._context.limits.half_closed_us:
            self.cut(reset=True)  # it may still read, and must not take a part for the whole
            self.abort()
            return False
        for wait_s in PROBE_REPLIES_S:
            asyncio.get_running_loop().call_later(wait_s, self._look_for_reset)
        return True

    def connection_lost(self, _: Exception | None) -> None:
        self._transport = None
        self._is_lingering = True
        self._context.buffered_bytes -= self._reader.let_go_of_bodies()
        self._site.on_client_gone(self)
        if self._exchange is not None:
            self._exchange.on(Event.CLIENT_LOST)

    def pause_writing(self) -> None:
        self.is_paused = True
        assert self._transport is not None
        self._unsent_bytes = self._transport.get_write_buffer_size()
        self._write_deadline_us = self._after(self._context.limits.write_us)
        if self._exchange is not None:
            self._exchange.on(Event.PAUSED)

    def resume_writing(self) -> None:
        self.is_paused = False
        if self._exchange is not None:
            self._exchange.on(Event.RESUMED)

    # ---- requests

    def _serve_next(self) -> None:
        """Serve what is ready, until an exchange has to be waited for."""
        reader = self._reader
        ready = reader.ready
        self._is_serving = True
        while ready and self._exchange is None and self._is_writable():
            item = ready.popleft()
            if isinstance(item, Request):
                self._serve(item)
            else:
                self._refuse(item)
            if not ready:
                reader.read_on()
        self._is_serving = False
        if self._exchange is None and self._is_writable():
            self._await_request()
        if self._reading_is_paused and not reader.is_full:
            self._resume_reading()

    def _await_request(self) -> None:
        """Nothing is under way: wait for bytes, but not for ever."""
        reader, context = self._reader, self._context
        if self._is_half_closed:
            self.close()
            return
        before = self._phase
        if reader.phase is Phase.BODY and before is not Phase.BODY:
            self._begin_body()
        phase = self._phase = reader.phase
        if phase is Phase.BETWEEN and self._deadline_us == NEVER_US:  # not for an empty line
            self._deadline_us = context.swept_us + context.limits.idle_us
        elif phase is Phase.BODY:
            self._deadline_us = self._after(context.limits.body_us)
        elif phase is Phase.HEAD and before is not Phase.HEAD:
            self._deadline_us = self._after(context.limits.header_us)

    def _serve(self, request: Request) -> None:
        context, head = self._context, request.head
        self._request_closes = not head.keep_alive
        self._deadline_us = NEVER_US
        self._phase = _BETWEEN
        match = self._site.routes.match(head.method, head.path)
        refused = None
        if head.objection or match.refusal or context.is_draining:
            refused = match.refuse(head, is_draining=context.is_draining)
        if refused is None and match.route is _REPLICA:
            parts = (context, self, head, request.body, match.label)
            if head.encoding or not is_read_in_turn(request.body, context.config):
                self._exchange = LongRequest(*parts, self._set_exchange)
            else:
                self._exchange = Exchange(*parts)
            self._exchange.start()
            return
        context.buffered_bytes -= len(request.body)
        if refused is not None:
            self._answer_refused(refused, match.label, head)
        else:
            assert match.route is not None
            self.write(self._site.answer_locally(match.route, head, match, closes=self.closes))
        if self.closes:
            self.close()

    def _set_exchange(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def _begin_body(self) -> None:
        """Ask for a body where that is waited for; say now, before it comes, if it is not wanted.

        What is wrong with the path only is said after the body, so that the connection goes on.
        """
        reader = self._reader
        is_asked, reader.wants_continue = reader.wants_continue, False
        head = reader.head
        assert head is not None
        if not is_asked and head.objection is None:
            return
        match = self._site.routes.match(head.method, head.path)
        refused = match.refuse(head, is_draining=self._context.is_draining)
        if refused is not None:
            self._refuse(refused)
        elif is_asked:
            self.write(CONTINUE)

    def _refuse(self, refused: Refusal) -> None:
        """Answer what cannot be read on, and throw away what still comes of it."""
        self._request_closes = True
        head = self._reader.head
        label = self._site.routes.match(head.method, head.path).label if head else UNMATCHED
        self._answer_refused(refused, label, head)
        self._reader.give_up()
        self._context.buffered_bytes -= self._reader.let_go_of_bodies()
        self._is_lingering = True
        self._deadline_us = self._after(self._context.limits.linger_us)
        if self._is_writable() and self._transport is not None and not self._is_tls:
            self._transport.write_eof()

    def _answer_refused(self, refused: Refusal, label: str, head: RequestHead | None) -> None:
        context = self._context
        request_id = (head and head.request_id) or context.new_request_id()
        failure = refused.failure
        lines = request_id_line(request_id) + (head.answer_lines if head else b"")
        if failure is Failure.METHOD_NOT_ALLOWED and head is not None:
            methods = self._site.routes.match(head.method, head.path).methods
            lines += b"Allow: %b\r\n" % methods.encode()
        is_head = head is not None and head.method == "HEAD"
        path = head.path if head is not None else ""
        self.write(error_answer(refused, lines, close=self.closes, bodiless=is_head, path=path))
        context.report_refused(request_id, label, failure)

    # ---- limits

    def _on_deadline(self) -> None:
        self._deadline_us = NEVER_US
        if self._is_lingering or not self._is_writable():
            self.abort()
        elif self._phase is Phase.BETWEEN:
            self.close()
        else:
            self._reader.give_up()
            what = "head" if self._phase is Phase.HEAD else "body"
            self._refuse(Refusal(Failure.REQUEST_TIMEOUT, f"the {what} of the request is late"))

    def _look_for_progress(self, now_us: int) -> None:
        if self._transport is None:
            return
        unsent_bytes = self._transport.get_write_buffer_size()
        if unsent_bytes < self._unsent_bytes:
            self._write_deadline_us = now_us + self._context.limits.write_us
        elif now_us >= self._write_deadline_us:
            self.cut_off()
        self._unsent_bytes = unsent_bytes

    def _look_for_reset(self) -> None:
        """Close if the client has answered a probe, or an answer, with a reset."""
        if self._transport is not None and self._socket.getsockopt(
            socket.SOL_SOCKET, socket.SO_ERROR
        ):
            self.abort()

    def _reset_on_close(self) -> None:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)

    def _pause_reading(self) -> None:
        if self._transport is not None and not self._reading_is_paused:
            self._reading_is_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._is_writable() and self._transport is not None:
            self._reading_is_paused = False
            self._transport.resume_reading()

    def _is_writable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def _after(self, limit_us: int) -> int:
        return self._context.clock_us() + limit_us
