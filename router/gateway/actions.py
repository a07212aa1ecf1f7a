"""What a request does on its way: each action of the table in ``router.core.exchange``, done.

When which action is done is not decided here. Bytes of a body do not pass through it: an attempt
hands them from one connection to the other.
"""

import asyncio
from abc import ABC, abstractmethod
from dataclasses import replace
from http import HTTPStatus

from contract.failures import Failure
from router.core.admission import Ticket
from router.core.decision import Decision
from router.core.exchange import Event, State, Transition
from router.core.reason import NotResumed, Outcome, Reason
from router.core.record import ExchangeRecord
from router.core.request import BadRequestError, route_request
from router.core.retry import backoff_us, may_retry
from router.core.view import RouteRequest
from router.gateway.answer_limits import AnswerLimits
from router.gateway.attempt import Attempt
from router.gateway.context import Client, Context
from router.gateway.cors import without_cors
from router.gateway.explain import explanation_line
from router.gateway.http_head import RequestHead
from router.gateway.limits import NEVER_US
from router.gateway.local_answer import error_answer, error_event, request_id_line
from router.gateway.outgoing import later_id_line, outgoing_head, own_location, without_id
from router.gateway.relay import Relay
from router.gateway.resume import Resume, judge_break, judge_failure, resume_of
from router.gateway.verdict import ENGINE_PATHS, Refusal, last_resort, public_name, refusal_of

# To look a member up is a call of its own (until Python 3.12); these are needed every time.
_DECIDED, _FAILED, _INTERRUPTED = Event.DECIDED, State.FAILED, State.INTERRUPTED
_REFUSED = Outcome.REFUSED

_REDIRECTS = range(HTTPStatus.MULTIPLE_CHOICES, HTTPStatus.BAD_REQUEST)


class Actions(ABC):
    """The state of one request, and what can be done with it."""

    # Class attributes, so that a request sets only what it changes.
    state = State.RECEIVED
    _request: RouteRequest | None = None
    _attempt: Attempt  # the last one; there is none before the first decision, nor after the end
    _kept: Attempt | None = None  # the last that was answered with a refusal, in full
    _ticket: Ticket | None = None
    _wait: asyncio.TimerHandle | None = None
    _num_sent = 0
    _limits: AnswerLimits  # once it is admitted
    _deadline_us = NEVER_US  # of the whole
    _resume: Resume | NotResumed | None = None  # of a stream under way
    _refusal: Refusal | None = None  # what to say if nothing can be saved
    _is_refused = False  # it was said
    _tried: tuple[str, ...] = ()  # replicas
    _closes = False
    _explained = b""  # the header of the last decision, if the request asks for it

    def __init__(
        self,
        context: Context,
        client: Client,
        head: RequestHead,
        body: bytes,
        path: str,
        read: RouteRequest | BadRequestError | None = None,
        received_us: int | None = None,
    ) -> None:
        self._context = context
        self._client = client
        self._head = head
        self._body = body
        self._read = read  # by somebody else, where the body is long
        # Draws are by an id of our own, as a client may give one id to all that it sends.
        self._draw_id = context.new_request_id()
        self._request_id = head.request_id or self._draw_id
        self._id_line = request_id_line(self._request_id)
        self.received_us = received_us = received_us or context.clock_us()
        # As if it were refused at once; written on until the end. ``path`` is of a closed list.
        self._record = ExchangeRecord(
            *(self._request_id, path, _REFUSED, 0, received_us, received_us),
            policy=context.policy,
            body_bytes=len(body),
        )

    def _set_limits(self, model: str | None) -> None:
        """Raises BadRequestError for a limit of the client's own that cannot be read."""
        limits, asked = self._context.limits, self._head.timeout
        self._limits = limits.of(model) if limits.of_model else limits.general
        if asked is not None:
            try:
                self._limits = limits.asked(asked, self._limits)
            except ValueError as error:
                name = self._context.config.timeout_header
                message = f"{name} is {asked[:40]!r}, {error}"
                raise BadRequestError(Failure.INVALID_REQUEST, message, name) from error
        self._deadline_us = self.received_us + self._limits.total_timeout

    def _routed(self, body: bytes) -> RouteRequest:
        """Return ``body`` as routing sees it. Raises BadRequestError."""
        head, routing = self._head, self._context.routing
        return route_request(head.path, body, self._draw_id, routing, head.session_key, head.tenant)

    @abstractmethod
    def on(self, event: Event) -> None:
        """Something has happened."""

    @abstractmethod
    def on_fault(self) -> None:
        """The gateway itself has failed, as the exception under way says."""

    def on_failure(self, event: Event, failure: Failure, detail: str) -> None:
        """Likewise, with the words for it if nothing can be saved."""
        if self.state is State.ENDED:
            return
        self._record.detail = detail
        name = public_name(self._attempt.replica_id)
        self._refusal = Refusal(failure, f"replica {name}: {detail}")
        self.on(event)

    def can_retry(self, status: int) -> bool:
        """Say whether an answer of this status may be kept back in favour of another replica's."""
        assert self._request is not None
        cause: Failure | int = status
        if status == HTTPStatus.NOT_FOUND and self.path in ENGINE_PATHS:
            # It may be for a model that the fleet serves: then this replica has lost it.
            is_known = self._context.fleet.knows_model(self._request.model)
            cause = Failure.MODEL_MISSING if is_known else status
        return may_retry(cause, self._record.attempts, self._context.routing)

    @property
    def path(self) -> str:
        """The request's path, of a closed list."""
        return self._record.path

    @property
    def num_choices(self) -> int:
        """How many texts the answer consists of; each of them has a finish."""
        return 1 if self._request is None else self._request.num_choices

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
        if self.state is State.ENDED:
            return  # since this sweep began
        if now_us >= self._deadline_us:
            self._refusal = Refusal(Failure.TOTAL_TIMEOUT, "the request took longer than it may")
            self.on(Event.TOTAL_TIMEOUT)
            return
        if not self._record.attempts:
            return
        attempt = self._attempt
        attempt.renew_lease(now_us)
        if not attempt.is_late(now_us):
            return
        if self.state in (State.SENT, State.HEAD, State.RESENT):
            detail = "no byte of an answer in time"
            self.on_failure(Event.FIRST_BYTE_TIMEOUT, Failure.FIRST_BYTE_TIMEOUT, detail)
        else:
            detail = "it fell silent within its answer"
            self.on_failure(Event.BETWEEN_BYTES_TIMEOUT, Failure.BETWEEN_BYTES_TIMEOUT, detail)

    # ---- the actions

    def _decide(self, _: Transition) -> None:
        context, request = self._context, self._request
        assert request is not None
        if context.queued and context.queue.waits(request.model):
            self._queue_up()
            return
        now_us = context.clock_us()
        self._take(context.fleet.decide(request, now_us, self._tried), now_us)

    def _redecide(self, _: Transition) -> None:
        resume, now_us = self._resume, self._context.clock_us()
        assert isinstance(resume, Resume)
        self._request = self._routed(resume.prepare(self._attempt))
        self._take(self._context.fleet.decide(self._request, now_us, self._tried), now_us)

    def _take(self, decision: Decision, now_us: int) -> None:
        self._record.reason = decision.reason
        if decision.lease is not None:
            self._attempt = Attempt(self._context, self, decision, self._limits, now_us)
            self._record.attempts += 1
            self._record.decided_us = now_us
            self._tried += (self._attempt.replica_id,)
        if decision.explanation is not None:
            self._explained = explanation_line(decision.explanation, self._context.config)
        if decision.lease is not None:
            self.on(_DECIDED)
        elif decision.reason is Reason.QUEUED:
            self._queue_up()
        else:
            self._refuse_for(decision.reason)

    def _queue_up(self) -> None:
        context, request = self._context, self._request
        assert request is not None
        self._record.reason = Reason.QUEUED
        self._ticket = context.queue.offer(request, context.clock_us(), self._tried)
        if self._ticket is None:
            self._record.reason = Reason.QUEUE_FULL
            self._refuse_for(Reason.QUEUE_FULL)
            return
        context.queued[self._ticket] = self
        self.on(Event.QUEUED)

    def _refuse_for(self, reason: Reason) -> None:
        # After an attempt, what went wrong there says more than that nobody else is left.
        if not self._record.attempts:
            assert self._request is not None
            self._refusal = refusal_of(reason, self._request.model)
        self.on(Event.REFUSED)

    def _send(self, _: Transition) -> None:
        attempt, request, head = self._attempt, self._request, self._head
        assert request is not None
        body, resume = self._body, self._resume
        if resume is not None and isinstance(resume, Resume):
            body = resume.body
        self._num_sent += 1
        is_first = self._num_sent == 1
        id_line = self._id_line if is_first else later_id_line(self._request_id, self._num_sent)
        limits = self._limits
        attempt.send(
            outgoing_head(head, attempt.address, id_line, body, is_first=is_first),
            body,
            bodiless=head.method == "HEAD",
            silence_max_us=limits.first_byte_timeout if request.stream else limits.answer_timeout,
        )

    def _relay_head(self, _: Transition) -> None:
        self._begin_relay(self._attempt)
        if self._client.is_paused:
            self.on(Event.PAUSED)

    def _begin_relay(self, attempt: Attempt) -> None:
        assert attempt.answer is not None
        assert self._request is not None
        if self._num_sent > 1 and attempt.answer.has_request_id:
            attempt.answer = without_id(attempt.answer)
        self._record.status = attempt.answer.status
        if attempt.answer.status in _REDIRECTS:
            attempt.answer = own_location(attempt.answer, attempt.address)
        line = b"" if attempt.answer.has_request_id else self._id_line
        if self._head.answer_lines:
            line += self._head.answer_lines
            attempt.answer = replace(attempt.answer, lines=without_cors(attempt.answer.lines))
        client = self._client
        relay = Relay(client.writer(), closes=client.closes, is_http_1_0=self._head.is_http_1_0)
        splice = None
        if self._context.resumes:
            resume = self._resume = resume_of(
                self._context, self._request, self.path, self._body, attempt.answer, relay
            )
            splice = resume.splice if isinstance(resume, Resume) else None
        attempt.begin_relay(relay, line, splice)
        self._closes = relay.closes
        self._let_go_of_prompt()
        if splice is None:
            self._let_go_of_body()

    def _splice(self, _: Transition) -> None:
        resume = self._resume
        assert isinstance(resume, Resume)
        self._attempt.continue_relay(resume.splice)
        resume.body = b""
        self._let_go_of_prompt()
        if self._client.is_paused:
            self.on(Event.PAUSED)

    def _release(self, row: Transition) -> None:
        attempt = self._attempt
        if row.attempt is None:
            verdict = attempt.judge()
            if row.state is _FAILED:
                self._kept = attempt
            if row.state is not _INTERRUPTED:
                self._record.detail = verdict.detail
        attempt.release(row.attempt)

    def _judge(self, _: Transition) -> None:
        kept, attempts = self._kept, self._record.attempts
        self.on(judge_failure(self._context, self._refusal, self._attempt, kept, attempts))

    def _judge_break(self, _: Transition) -> None:
        assert self._refusal is not None
        self.on(judge_break(self._context, self._resume, self._attempt, self._refusal.failure))

    def _wait_for_retry(self, _: Transition) -> None:
        wait_us = backoff_us(self._record.attempts, self._draw_id, self._context.routing)
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
        assert self._refusal is not None
        if self._record.attempts and self._attempt.decision.is_last_resort:
            self._refusal = last_resort(self._refusal)
        self._is_refused = True
        self._record.status = self._refusal.failure.kind.status
        self._closes = self._client.closes
        self._client.write(
            error_answer(
                self._refusal,
                self._id_line + self._head.answer_lines + self._explained,
                close=self._closes,
                bodiless=self._head.method == "HEAD",
                path=self._head.path,
            )
        )

    def _break_off(self, _: Transition) -> None:
        assert self._refusal is not None
        error = error_event(self._refusal, self._head.path)
        if isinstance(self._resume, Resume):
            is_visible = self._resume.break_off(error)
        else:
            is_visible = self._attempt.break_off(error)
        self._client.cut(reset=not is_visible)

    def _end(self, row: Transition) -> None:
        context = self._context
        context.exchanges.discard(self)
        if self._body:
            self._let_go_of_body()
        try:
            context.report(self._finish_record(row.outcome or self._outcome()))
        finally:
            if self._record.attempts:
                del self._attempt  # it knows its exchange: no cycle is left
                self._kept = self._resume = None
            self._client.on_exchange_end(closes=self._closes)

    def _let_go_of_body(self) -> None:
        """Free what only another attempt would need; a stream may run for a long time."""
        self._context.buffered_bytes -= len(self._body)
        self._body = b""

    def _let_go_of_prompt(self) -> None:
        if self._request is not None:
            self._request.prompt = b""
            self._request.chains = {}

    # ---- the books

    def _outcome(self) -> Outcome:
        if self._is_refused:
            return Outcome.REFUSED
        assert self._attempt.verdict is not None
        return self._attempt.verdict.outcome

    def _finish_record(self, outcome: Outcome) -> ExchangeRecord:
        record, request, resume = self._record, self._request, self._resume
        record.outcome = outcome
        record.ended_us = self._context.clock_us()
        if self._refusal is not None and outcome in (Outcome.REFUSED, Outcome.BROKEN):
            record.failure = self._refusal.failure
        if request is not None:
            record.model = request.model
            record.stream = request.stream
            record.prompt_tokens = request.prompt_tokens
        if record.attempts:
            self._attempt.fill(record)
        if resume is not None and isinstance(resume, Resume):
            resume.fill(record)
        return record
