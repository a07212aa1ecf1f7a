"""One request from its last byte in to its last byte out: the only one that knows both sides.

What may follow what is in the table of ``router.core.exchange``; here each action is done. Bytes of
a body do not pass through it: an attempt hands them from one connection to the other.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from contract.failures import Failure, error_body
from router.core.admission import Ticket
from router.core.decision import Decision
from router.core.exchange import Action, Event, State, Transition, transition
from router.core.reason import Outcome, Reason
from router.core.record import ExchangeRecord
from router.core.request import BadRequestError, route_request
from router.core.retry import backoff_us, may_retry
from router.core.view import RouteRequest
from router.gateway.attempt import Attempt
from router.gateway.context import Context
from router.gateway.http_head import RequestHead, request_bytes
from router.gateway.local_answer import CONTINUE, error_answer, request_id_line
from router.gateway.relay import Relay
from router.gateway.verdict import public_name, refusal_of

LEADING_ZERO = b"0"
"""Before the size of the next chunk it changes nothing: 1a and 01a are one number."""


class Client(Protocol):
    """The client's connection, as its exchange sees it."""

    is_paused: bool

    @property
    def closes(self) -> bool:
        """Whether the connection ends with this answer."""

    def write(self, data: bytes) -> None:
        """Send bytes."""

    def cut(self, *, reset: bool) -> None:
        """Close after what has been written; with a reset, if nothing else shows the break."""

    def on_exchange_end(self, *, closes: bool) -> None:
        """The exchange is over; the next request may begin."""


class Exchange:
    """The runtime of one request; ``on`` moves it through the table."""

    # Class attributes, so that a request sets only what it changes.
    state = State.RECEIVED
    _request: RouteRequest | None = None
    _attempt: Attempt | None = None
    _attempts = 0
    _kept: Attempt | None = None  # the last that was answered with a refusal, in full
    _ticket: Ticket | None = None
    _wait: asyncio.TimerHandle | None = None
    _decided_us: int | None = None
    _reason: Reason | None = None
    _failure: Failure | None = None  # the gateway's word for what went wrong last
    _message = ""
    _param: str | None = None
    _detail = ""
    _status = 0
    _is_refused = False  # with the gateway's own error
    _closes = False

    def __init__(
        self, context: Context, client: Client, head: RequestHead, body: bytes, path: str
    ) -> None:
        self._context = context
        self._client = client
        self._head = head
        self._body = body
        self._body_bytes = len(body)
        self._path = path  # one of a closed list
        self._request_id = head.request_id or context.new_request_id()
        self._received_us = context.clock_us()
        self._tried: set[str] = set()

    def start(self) -> None:
        """Begin. The exchange may have ended when this returns."""
        context = self._context
        context.exchanges.add(self)
        context.metrics.exchange_started()
        context.budget.on_request()
        head = self._head
        try:
            self._request = route_request(
                head.path, self._body, self._request_id, context.routing, head.session_key
            )
        except BadRequestError as error:
            self._refuse(error.failure, error.message, error.param)
        else:
            self.on(Event.ADMITTED)

    def on(self, event: Event) -> None:
        """Move through the table, and do what it says."""
        row = transition(self.state, event)
        self.state = row.state
        for action in row.actions:
            _DO[action](self, row)

    def on_failure(self, event: Event, failure: Failure, detail: str) -> None:
        """Likewise, with the words for it if nothing can be saved."""
        if self._attempt is None:
            return  # it has ended
        self._failure = failure
        self._detail = detail
        self._message = f"replica {public_name(self._attempt.replica_id)}: {detail}"
        self.on(event)

    def can_retry(self, status: int) -> bool:
        """Say whether an answer of this status may be kept back in favour of another replica's."""
        return may_retry(status, self._attempts, self._context.routing)

    # ---- what the gateway and the client's connection call

    def on_placed(self, decision: Decision) -> None:
        """It has left the queue with this decision."""
        self._ticket = None
        self._take(decision, self._context.clock_us())

    def on_queue_timeout(self) -> None:
        """It has left the queue because it waited too long."""
        self._ticket = None
        self._failure = Failure.OVERLOADED
        self._message = "every replica was busy for too long; try again later"
        self.on(Event.QUEUE_TIMEOUT)

    def on_client_lost(self) -> None:
        """The client has closed its connection."""
        self.on(Event.CLIENT_LOST)

    def on_client_write_timeout(self) -> None:
        """The client has taken nothing for too long."""
        self.on(Event.CLIENT_WRITE_TIMEOUT)

    def on_client_paused(self) -> None:
        """The client is slower than the replica."""
        self.on(Event.PAUSED)

    def on_client_resumed(self) -> None:
        """The client has caught up."""
        self.on(Event.RESUMED)

    def on_drain_over(self) -> None:
        """The gateway stops."""
        self._failure = Failure.DRAINING
        self._message = "the gateway is stopping"
        self.on(Event.DRAIN_OVER)

    def on_sweep(self, now_us: int) -> None:
        """Time has passed."""
        attempt = self._attempt
        if attempt is None:
            return
        attempt.renew_lease()
        if now_us < attempt.deadline_us:
            return
        if self.state in (State.SENT, State.HEAD):
            detail = "no byte of an answer in time"
            self.on_failure(Event.FIRST_BYTE_TIMEOUT, Failure.FIRST_BYTE_TIMEOUT, detail)
        else:
            detail = "it fell silent within its answer"
            self.on_failure(Event.BETWEEN_BYTES_TIMEOUT, Failure.BETWEEN_BYTES_TIMEOUT, detail)

    def probe(self) -> bytes | None:
        """Return bytes that mean nothing to a client, to learn whether it is still there.

        None where there are none, and the client has to be taken for gone.
        """
        relay = None if self._attempt is None else self._attempt.relay
        if relay is None:
            return None if self._head.is_http_1_0 else CONTINUE
        return LEADING_ZERO if self._attempt and self._attempt.can_add_chunk() else None

    # ---- the actions

    def _decide(self, _: Transition) -> None:
        context, request = self._context, self._request
        assert request is not None
        if context.queue.waits(request.model):
            self._queue_up()
        else:
            now_us = context.clock_us()
            self._take(context.fleet.decide(request, now_us, self._tried), now_us)

    def _take(self, decision: Decision, now_us: int) -> None:
        self._reason = decision.reason
        if decision.lease is not None:
            self._decided_us = now_us
            self._attempts += 1
            self._attempt = Attempt(self._context, self, decision, now_us)
            self._tried.add(self._attempt.replica_id)
            self.on(Event.DECIDED)
        elif decision.reason is Reason.QUEUED:
            self._queue_up()
        else:
            self._refuse_for(decision.reason)

    def _queue_up(self) -> None:
        context, request = self._context, self._request
        assert request is not None
        self._reason = Reason.QUEUED
        ticket = context.queue.offer(request, context.clock_us(), self._tried)
        if ticket is None:
            self._reason = Reason.QUEUE_FULL
            self._refuse_for(Reason.QUEUE_FULL)
            return
        self._ticket = ticket
        context.queued[ticket] = self
        self.on(Event.QUEUED)

    def _refuse_for(self, reason: Reason) -> None:
        assert self._request is not None
        refusal = refusal_of(reason, self._request.model)
        if self._attempts:  # what went wrong before says more than that nobody else is left
            self.on(Event.REFUSED)
        else:
            self._refuse(refusal.failure, refusal.message, refusal.param)

    def _refuse(self, failure: Failure, message: str, param: str | None) -> None:
        self._failure, self._message, self._param = failure, message, param
        self.on(Event.REFUSED)

    def _connect(self, _: Transition) -> None:
        assert self._attempt is not None
        self._attempt.connect()

    def _reconnect(self, _: Transition) -> None:
        assert self._attempt is not None
        self._attempt.reconnect()

    def _send(self, _: Transition) -> None:
        attempt, request, head = self._attempt, self._request, self._head
        assert attempt is not None
        assert request is not None
        context = self._context
        authority, prefix = attempt.authority_and_prefix
        own_lines = b"" if head.request_id else request_id_line(self._request_id)
        if head.has_body or head.method == "POST":
            own_lines += b"Content-Length: %d\r\n" % len(self._body)
        limit_us = context.limits.first_byte_us if request.stream else context.limits.answer_us
        attempt.send(
            request_bytes(head, authority, prefix, own_lines),
            self._body,
            bodiless=head.method == "HEAD",
            silence_max_us=limit_us,
        )

    def _relay_head(self, _: Transition) -> None:
        attempt = self._attempt
        assert attempt is not None
        self._begin_relay(attempt)
        if self._client.is_paused:
            self.on(Event.PAUSED)

    def _begin_relay(self, attempt: Attempt) -> None:
        assert attempt.answer is not None
        self._let_go_of_body()
        self._status = attempt.answer.status
        line = b"" if attempt.answer.has_request_id else request_id_line(self._request_id)
        client = self._client
        relay = Relay(client.write, closes=client.closes, is_http_1_0=self._head.is_http_1_0)
        attempt.begin_relay(relay, line)
        self._closes = relay.closes

    def _finish(self, _: Transition) -> None:
        assert self._attempt is not None
        assert self._attempt.relay is not None
        self._attempt.relay.finish()

    def _pause(self, _: Transition) -> None:
        assert self._attempt is not None
        self._attempt.pause()

    def _resume(self, _: Transition) -> None:
        assert self._attempt is not None
        self._attempt.resume()

    def _reuse(self, _: Transition) -> None:
        assert self._attempt is not None
        self._attempt.reuse()

    def _drop(self, _: Transition) -> None:
        assert self._attempt is not None
        self._attempt.drop()

    def _release(self, row: Transition) -> None:
        attempt = self._attempt
        assert attempt is not None
        if row.attempt is None:
            self._detail = attempt.judge(self._path).detail
        if row.state is State.FAILED and row.attempt is None:
            self._kept = attempt
        attempt.release(row.attempt)

    def _judge(self, _: Transition) -> None:
        context, kept = self._context, self._kept
        is_refusal = kept is not None and kept is self._attempt
        if is_refusal:
            assert kept is not None
            assert kept.answer is not None
            cause: Failure | int = kept.answer.status
        else:
            assert self._failure is not None
            cause = self._failure
        if not may_retry(cause, self._attempts, context.routing) or not context.budget.take(
            context.clock_us()
        ):
            self.on(Event.GIVEN_UP)
            return
        context.metrics.retry(cause.kind.code if isinstance(cause, Failure) else f"http_{cause}")
        self.on(Event.RETRY)

    def _wait_for_retry(self, _: Transition) -> None:
        wait_us = backoff_us(self._attempts, self._request_id, self._context.routing)
        loop = asyncio.get_running_loop()
        self._wait = loop.call_later(wait_us / 1_000_000, self.on, Event.BACKED_OFF)

    def _stop_waiting(self, _: Transition) -> None:
        if self._wait is not None:
            self._wait.cancel()

    def _leave_queue(self, _: Transition) -> None:
        if self._ticket is not None:
            self._context.queue.cancel(self._ticket)
            self._context.queued.pop(self._ticket, None)

    def _answer(self, _: Transition) -> None:
        if self._kept is not None:
            self._attempt = self._kept
            self._begin_relay(self._kept)
            self._finish(_)
            return
        assert self._failure is not None
        self._is_refused = True
        self._status = self._failure.kind.status
        self._closes = self._client.closes
        self._client.write(
            error_answer(
                self._failure,
                self._message,
                self._param,
                request_id_line(self._request_id),
                close=self._closes,
                bodiless=self._head.method == "HEAD",
            )
        )

    def _break_off(self, _: Transition) -> None:
        attempt = self._attempt
        assert attempt is not None
        assert attempt.relay is not None
        assert self._failure is not None
        if attempt.can_add_event():
            event = b"data: %b\n\n" % error_body(self._failure, self._message, self._param)
            attempt.relay.add_chunk(event)
        self._client.cut(reset=not attempt.relay.end_is_visible)

    def _cut(self, _: Transition) -> None:
        self._client.cut(reset=True)

    def _end(self, row: Transition) -> None:
        context = self._context
        context.exchanges.discard(self)
        self._let_go_of_body()
        context.report(self._record(row.outcome or self._outcome()))
        self._attempt = self._kept = None  # they know their exchange: no cycles are left behind
        self._client.on_exchange_end(closes=self._closes)

    def _let_go_of_body(self) -> None:
        """Free what only another attempt would need; a stream may run for a long time."""
        self._context.buffered_bytes -= len(self._body)
        self._body = b""
        if self._request is not None:
            self._request.prompt = b""
            self._request.chains = {}

    def _outcome(self) -> Outcome:
        verdict = None if self._attempt is None else self._attempt.verdict
        if self._is_refused or verdict is None:
            return Outcome.REFUSED
        return verdict.outcome

    def _record(self, outcome: Outcome) -> ExchangeRecord:
        request, attempt = self._request, self._attempt
        ended_us = None if attempt is None or self._kept is attempt else attempt.ended_us
        record = ExchangeRecord(
            request_id=self._request_id,
            path=self._path,
            outcome=outcome,
            status=self._status,
            received_us=self._received_us,
            ended_us=self._context.clock_us() if ended_us is None else ended_us,
            policy=self._context.policy,
            reason=self._reason,
            detail=self._detail,
            attempts=self._attempts,
            decided_us=self._decided_us,
            body_bytes=self._body_bytes,
        )
        if outcome in (Outcome.REFUSED, Outcome.BROKEN):
            record.failure = self._failure
        if request is not None:
            record.model = request.model
            record.stream = request.stream
            record.prompt_tokens = request.prompt_tokens
        if attempt is not None:
            attempt.fill(record)
        return record


_DO: tuple[Callable[[Exchange, Transition], None], ...] = tuple(
    {
        Action.DECIDE: Exchange._decide,
        Action.CONNECT: Exchange._connect,
        Action.RECONNECT: Exchange._reconnect,
        Action.SEND: Exchange._send,
        Action.RELAY_HEAD: Exchange._relay_head,
        Action.FINISH: Exchange._finish,
        Action.PAUSE: Exchange._pause,
        Action.RESUME: Exchange._resume,
        Action.REUSE: Exchange._reuse,
        Action.DROP: Exchange._drop,
        Action.RELEASE: Exchange._release,
        Action.JUDGE: Exchange._judge,
        Action.WAIT: Exchange._wait_for_retry,
        Action.STOP_WAITING: Exchange._stop_waiting,
        Action.LEAVE_QUEUE: Exchange._leave_queue,
        Action.ANSWER: Exchange._answer,
        Action.BREAK_OFF: Exchange._break_off,
        Action.CUT: Exchange._cut,
        Action.END: Exchange._end,
    }[action]
    for action in Action
)
