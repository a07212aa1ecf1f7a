"""What follows an attempt that failed: another, the rest of its answer elsewhere, or the end."""

from contract.failures import Failure
from router.core.exchange import Event
from router.core.reason import NotResumed
from router.core.record import ExchangeRecord
from router.core.retry import LOST, may_retry
from router.core.view import RouteRequest
from router.gateway.attempt import Attempt
from router.gateway.context import Context
from router.gateway.continuation import Continuation, NotResumableError
from router.gateway.http_head import AnswerHead, Media
from router.gateway.limits import has_many_items
from router.gateway.relay import Relay
from router.gateway.splice import Splice
from router.gateway.verdict import Refusal


class Resume:
    """The stream that its client has, and the request for the rest of it."""

    body = b""  # of the request for the rest, while it may have to be sent

    def __init__(self, context: Context, continuation: Continuation, relay: Relay) -> None:
        bytes_max = context.config.resume_bytes_max
        self.splice = Splice(relay, tokens_max=continuation.tokens_max, bytes_max=bytes_max)
        self.num_resumed = 0
        self._context = context
        self._continuation = continuation
        self._first: Attempt | None = None
        self._answer_bytes = 0  # of the attempts that are over
        self._chunks = 0

    def judge(self, attempt: Attempt, failure: Failure) -> Event:
        """Say what follows an interruption of ``attempt``, and count it."""
        splice = self.splice
        if splice.misses_only_the_mark(wants_usage=self._continuation.wants_usage):
            splice.write_done()
            return Event.NOTHING_MISSING
        why = self._refusal(attempt, failure)
        if why is not None:
            self._context.metrics.resume_refused(why)
            self.body = b""
            return Event.GIVEN_UP
        self.num_resumed += 1
        self._context.metrics.resume(failure.kind.code)
        return Event.RESUME

    def prepare(self, attempt: Attempt) -> bytes:
        """Return the body that asks for what is missing after ``attempt``, which is over."""
        self._first = self._first or attempt
        self._answer_bytes += attempt.answer_bytes
        self._chunks += attempt.chunks
        self.body = self._continuation.body(self.splice.text, self.splice.text_tokens)
        return self.body

    def break_off(self, error: bytes) -> bool:
        """End the client's stream with ``error``; return whether it sees that it is broken."""
        if self.body:  # the rest was to be asked for, and nobody has begun it
            self._context.metrics.resume_refused(NotResumed.NOT_CONTINUED)
        return self.splice.break_off(error)

    def fill(self, record: ExchangeRecord) -> None:
        """Correct what the last attempt says of the whole."""
        first = self._first
        record.resumes = self.num_resumed
        if first is None:
            return
        record.sent_us = first.sent_us
        record.first_byte_us = first.first_byte_us
        record.matched_tokens = first.decision.matched_tokens
        record.answer_bytes += self._answer_bytes
        record.chunks += self._chunks
        record.usage = self.splice.usage

    def _refusal(self, attempt: Attempt, failure: Failure) -> NotResumed | None:
        context = self._context
        if self.splice.why_unfit is not None:
            return self.splice.why_unfit
        if self.num_resumed >= context.config.resume_max:
            return NotResumed.RESUMED_OFTEN
        if not _may_spend(context, attempt, failure):
            return NotResumed.BUDGET
        return None


def resume_of(
    context: Context,
    request: RouteRequest,
    path: str,
    body: bytes,
    answer: AnswerHead,
    relay: Relay,
) -> Resume | NotResumed | None:
    """Return what can continue this answer, or why nothing can; None if it is a refusal."""
    config = context.config
    if answer.status != 200:
        return None
    if not request.stream or answer.media is not Media.STREAM:
        return NotResumed.NOT_A_STREAM
    if answer.is_encoded:
        return NotResumed.NOT_A_STREAM
    is_much = context.buffered_bytes > config.buffered_bytes_max // 2
    if len(body) > config.resume_bytes_max or is_much or has_many_items(body, config):
        return NotResumed.TOO_LARGE
    try:
        return Resume(context, Continuation(path, body), relay)
    except NotResumableError as error:
        return error.why


def judge_break(
    context: Context, resume: Resume | NotResumed | None, attempt: Attempt, failure: Failure
) -> Event:
    """Say what follows after ``failure`` where the client has had part of the answer; count it."""
    if isinstance(resume, Resume):
        return resume.judge(attempt, failure)
    if resume is not None:
        context.metrics.resume_refused(resume)
    return Event.GIVEN_UP


def judge_failure(
    context: Context,
    refusal: Refusal | None,
    attempt: Attempt,
    kept: Attempt | None,
    attempts: int,
) -> Event:
    """Say whether there is one more attempt where nothing has reached the client; count it.

    Where ``attempt`` was ``kept`` it has the replica's own refusal, else ``refusal`` says what went
    wrong with it.
    """
    cause: Failure | int
    if attempt is not kept:
        assert refusal is not None
        cause = refusal.failure
    else:
        assert attempt.answer is not None
        cause = Failure.MODEL_MISSING if attempt.lacks_model else attempt.answer.status
    name = cause.kind.code if isinstance(cause, Failure) else str(cause)
    if may_retry(cause, attempts, context.routing) and _may_spend(context, attempt, cause):
        context.metrics.retry(name)
        return Event.RETRY
    return Event.GIVEN_UP


def _may_spend(context: Context, attempt: Attempt, cause: Failure | int) -> bool:
    """Say whether the budget has room for another attempt after this one."""
    is_moved = context.fleet.is_moved(attempt.decision, is_lost=cause in LOST)
    return context.budget.take(context.clock_us(), is_moved=is_moved)
