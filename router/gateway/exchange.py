"""One request from its last byte in to its last byte out: the only one that knows both sides.

What may follow what is in the table of ``router.core.exchange``; here each action is done. Bytes of
a body do not pass through it: an attempt hands them from one connection to the other.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial

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
from router.gateway.context import Client, Context
from router.gateway.http_head import RequestHead, request_bytes
from router.gateway.local_answer import CONTINUE, error_answer, request_id_line
from router.gateway.relay import Relay
from router.gateway.verdict import Refusal, public_name, refusal_of

log = logging.getLogger(__name__)

LEADING_ZERO = b"0"
"""Before the size of the next chunk it changes nothing: 1a and 01a are one number."""


class Exchange:
    """The runtime of one request; ``on`` moves it through the table."""

    # Class attributes, so that a request sets only what it changes.
    state = State.RECEIVED
    _request: RouteRequest | None = None
    _attempt: Attempt  # the last one; there is none before the first decision, nor after the end
    _attempts = 0
    _kept: Attempt | None = None  # the last that was answered with a refusal, in full
    _ticket: Ticket | None = None
    _wait: asyncio.TimerHandle | None = None
    _decided_us: int | None = None
    _reason: Reason | None = None
    _refusal: Refusal | None = None  # what to say if nothing can be saved
    _is_refused = False  # it was said
    _detail = ""
    _status = 0
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
        self._id_line = request_id_line(self._request_id)
        self._received_us = context.clock_us()
        self._tried: set[str] = set()

    def start(self) -> None:
        """Begin. The exchange may have ended when this returns."""
        context = self._context
        context.exchanges.add(self)
        context.metrics.exchange_started()
        context.budget.on_request()
        try:
            self._admit()
        except Exception:
            # A fault of the gateway itself: its client is told so, and the others do not feel it.
            log.exception("request %s met a fault of the gateway", self._request_id)
            self._refusal = Refusal(Failure.INTERNAL, "the gateway failed on this request")
            self.on(Event.REFUSED)

    def _admit(self) -> None:
        head = self._head
        try:
            self._request = route_request(
                head.path, self._body, self._request_id, self._context.routing, head.session_key
            )
        except BadRequestError as error:
            self._refusal = Refusal(error.failure, error.message, error.param)
            self.on(Event.REFUSED)
        else:
            self.on(Event.ADMITTED)

    def on(self, event: Event) -> None:
        """Move through the table, and do what it says."""
        row, steps = _ROWS[self.state][event]
        self.state = row.state
        for step in steps:
            step(self, row)

    def on_failure(self, event: Event, failure: Failure, detail: str) -> None:
        """Likewise, with the words for it if nothing can be saved."""
        if self.state is State.ENDED:
            return
        self._detail = detail
        name = public_name(self._attempt.replica_id)
        self._refusal = Refusal(failure, f"replica {name}: {detail}")
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
        message = "every replica was busy for too long; try again later"
        self._refusal = Refusal(Failure.OVERLOADED, message)
        self.on(Event.QUEUE_TIMEOUT)

    def on_drain_over(self) -> None:
        """The gateway stops."""
        self._refusal = Refusal(Failure.DRAINING, "the gateway is stopping")
        self.on(Event.DRAIN_OVER)

    def on_sweep(self, now_us: int) -> None:
        """Time has passed."""
        if not self._attempts:
            return
        attempt = self._attempt
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
        if not self._attempts or self._attempt.relay is None:
            return None if self._head.is_http_1_0 else CONTINUE
        return LEADING_ZERO if self._attempt.can_add_chunk() else None

    # ---- the actions

    def _decide(self, _: Transition) -> None:
        context, request = self._context, self._request
        assert request is not None
        if context.queue.waits(request.model):
            self._queue_up()
            return
        now_us = context.clock_us()
        self._take(context.fleet.decide(request, now_us, self._tried), now_us)

    def _take(self, decision: Decision, now_us: int) -> None:
        self._reason = decision.reason
        if decision.lease is not None:
            self._decided_us = now_us
            self._attempts += 1
            attempt = self._attempt = Attempt(self._context, self, decision, now_us)
            self._tried.add(attempt.replica_id)
            self.on(Event.DECIDED)
        elif decision.reason is Reason.QUEUED:
            self._queue_up()
        else:
            self._refuse_for(decision.reason)

    def _queue_up(self) -> None:
        context, request = self._context, self._request
        assert request is not None
        self._reason = Reason.QUEUED
        self._ticket = context.queue.offer(request, context.clock_us(), self._tried)
        if self._ticket is None:
            self._reason = Reason.QUEUE_FULL
            self._refuse_for(Reason.QUEUE_FULL)
            return
        context.queued[self._ticket] = self
        self.on(Event.QUEUED)

    def _refuse_for(self, reason: Reason) -> None:
        # After an attempt, what went wrong there says more than that nobody else is left.
        if not self._attempts:
            assert self._request is not None
            self._refusal = refusal_of(reason, self._request.model)
        self.on(Event.REFUSED)

    def _send(self, _: Transition) -> None:
        attempt, request, head = self._attempt, self._request, self._head
        assert request is not None
        address = attempt.address
        own_lines = b"" if head.request_id else self._id_line
        if head.has_body or head.method == "POST":
            own_lines += b"Content-Length: %d\r\n" % len(self._body)
        limits = self._context.limits
        attempt.send(
            request_bytes(head, address.authority, address.prefix, own_lines),
            self._body,
            bodiless=head.method == "HEAD",
            silence_max_us=limits.first_byte_us if request.stream else limits.answer_us,
        )

    def _relay_head(self, _: Transition) -> None:
        self._begin_relay(self._attempt)
        if self._client.is_paused:
            self.on(Event.PAUSED)

    def _begin_relay(self, attempt: Attempt) -> None:
        assert attempt.answer is not None
        self._let_go_of_body()
        self._status = attempt.answer.status
        line = b"" if attempt.answer.has_request_id else self._id_line
        client = self._client
        relay = Relay(client.write, closes=client.closes, is_http_1_0=self._head.is_http_1_0)
        attempt.begin_relay(relay, line)
        self._closes = relay.closes

    def _release(self, row: Transition) -> None:
        attempt = self._attempt
        if row.attempt is None:
            self._detail = attempt.judge(self._path).detail
            if row.state is State.FAILED:
                self._kept = attempt
        attempt.release(row.attempt)

    def _judge(self, _: Transition) -> None:
        context, attempt = self._context, self._attempt
        if attempt is self._kept:
            assert attempt.answer is not None
            cause: Failure | int = attempt.answer.status
            name = str(cause)
        else:
            assert self._refusal is not None
            cause = self._refusal.failure
            name = cause.kind.code
        is_worth_it = may_retry(cause, self._attempts, context.routing)
        if is_worth_it and context.budget.take(context.clock_us()):
            context.metrics.retry(name)
            self.on(Event.RETRY)
        else:
            self.on(Event.GIVEN_UP)

    def _wait_for_retry(self, _: Transition) -> None:
        wait_us = backoff_us(self._attempts, self._request_id, self._context.routing)
        loop = asyncio.get_running_loop()
        self._wait = loop.call_later(wait_us / 1_000_000, self.on, Event.BACKED_OFF)

    def _stop_waiting(self, _: Transition) -> None:
        assert self._wait is not None
        self._wait.cancel()

    def _leave_queue(self, _: Transition) -> None:
        assert self._ticket is not None
        self._context.queue.cancel(self._ticket)
        del self._context.queued[self._ticket]

    def _answer(self, _: Transition) -> None:
        if self._kept is not None:
            self._attempt = self._kept
            self._begin_relay(self._kept)
            self._kept.finish_relay()
            return
        refusal = self._refusal
        assert refusal is not None
        self._is_refused = True
        self._status = refusal.failure.kind.status
        self._closes = self._client.closes
        self._client.write(
            error_answer(
                refusal,
                self._id_line,
                close=self._closes,
                bodiless=self._head.method == "HEAD",
            )
        )

    def _break_off(self, _: Transition) -> None:
        attempt, refusal = self._attempt, self._refusal
        assert attempt.relay is not None
        assert refusal is not None
        if attempt.can_add_event():
            body = error_body(refusal.failure, refusal.message, refusal.param)
            attempt.relay.add_chunk(b"data: %b\n\n" % body)
        self._client.cut(reset=not attempt.relay.end_is_visible)

    def _end(self, row: Transition) -> None:
        context = self._context
        context.exchanges.discard(self)
        if self._body:
            self._let_go_of_body()
        context.report(self._record(row.outcome or self._outcome()))
        if self._attempts:
            del self._attempt  # it knows its exchange: no cycle is left
            self._kept = None
        self._client.on_exchange_end(closes=self._closes)

    def _let_go_of_body(self) -> None:
        """Free what only another attempt would need; a stream may run for a long time."""
        self._context.buffered_bytes -= len(self._body)
        self._body = b""
        if self._request is not None:
            self._request.prompt = b""
            self._request.chains = {}

    # ---- the books

    def _outcome(self) -> Outcome:
        if self._is_refused:
            return Outcome.REFUSED
        assert self._attempt.verdict is not None
        return self._attempt.verdict.outcome

    def _record(self, outcome: Outcome) -> ExchangeRecord:
        request = self._request
        record = ExchangeRecord(
            request_id=self._request_id,
            path=self._path,
            outcome=outcome,
            status=self._status,
            received_us=self._received_us,
            ended_us=self._context.clock_us(),
            policy=self._context.policy,
            reason=self._reason,
            detail=self._detail,
            attempts=self._attempts,
            decided_us=self._decided_us,
            body_bytes=self._body_bytes,
        )
        if self._refusal is not None and outcome in (Outcome.REFUSED, Outcome.BROKEN):
            record.failure = self._refusal.failure
        if request is not None:
            record.model = request.model
            record.stream = request.stream
            record.prompt_tokens = request.prompt_tokens
        if self._attempts:
            self._attempt.fill(record)
        return record


_DO: dict[Action, Callable[[Exchange, Transition], None]] = {
    Action.DECIDE: Exchange._decide,
    Action.CONNECT: lambda exchange, _: exchange._attempt.connect(),
    Action.RECONNECT: lambda exchange, _: exchange._attempt.reconnect(),
    Action.SEND: Exchange._send,
    Action.RELAY_HEAD: Exchange._relay_head,
    Action.FINISH: lambda exchange, _: exchange._attempt.finish_relay(),
    Action.PAUSE: lambda exchange, _: exchange._attempt.pause(),
    Action.RESUME: lambda exchange, _: exchange._attempt.resume(),
    Action.REUSE: lambda exchange, _: exchange._attempt.reuse(),
    Action.DROP: lambda exchange, _: exchange._attempt.drop(),
    Action.RELEASE: Exchange._release,
    Action.JUDGE: Exchange._judge,
    Action.WAIT: Exchange._wait_for_retry,
    Action.STOP_WAITING: Exchange._stop_waiting,
    Action.LEAVE_QUEUE: Exchange._leave_queue,
    Action.ANSWER: Exchange._answer,
    Action.BREAK_OFF: Exchange._break_off,
    Action.CUT: lambda exchange, _: exchange._client.cut(reset=True),
    Action.END: Exchange._end,
}
# The table once more, by number and with the functions in the place of the actions' names.
_ROWS = [
    [
        (row, tuple(_DO[action] for action in row.actions))
        for row in map(partial(transition, state), Event)
    ]
    for state in State
]
