"""One dispatch of a request to one replica: the lease, the connection, the answer as it comes."""

import asyncio
import re
from collections.abc import Callable
from http import HTTPStatus

from contract.failures import Failure
from router.core.decision import Decision
from router.core.exchange import Event, State
from router.core.health import AttemptOutcome
from router.core.record import ExchangeRecord
from router.gateway.answer_limits import AnswerLimits
from router.gateway.answer_watch import AnswerWatch, finish_of
from router.gateway.context import Context, Owner
from router.gateway.explain import explanation_line
from router.gateway.http_head import AnswerHead, Framing, Media
from router.gateway.limits import NEVER_US
from router.gateway.relay import Relay
from router.gateway.replica_connection import ReplicaConnection
from router.gateway.replica_pool import ReplicaAddress, ReplicaPool, ReplicaUrlError
from router.gateway.splice import Splice
from router.gateway.verdict import ENGINE_PATHS, Verdict, judge_answer, replica_line

# To look a member up in its enumeration is a call of its own (until Python 3.12); these are
# needed for every answer.
_RESENT, _HEAD, _KEPT, _PAUSED = State.RESENT, State.HEAD, State.KEPT, State.PAUSED
_CONNECTED, _ANSWER_BEGAN, _BODY_END = Event.CONNECTED, Event.ANSWER_BEGAN, Event.BODY_END
_STREAM, _OTHER, _NONE, _CHUNKED = Media.STREAM, Media.OTHER, Framing.NONE, Framing.CHUNKED
_OK, _BAD_REQUEST, _NOT_FOUND = (int(HTTPStatus(number)) for number in (200, 400, 404))


class Attempt:
    """Made by a decision; over when its lease is released."""

    # Class attributes, so that an attempt sets only what it changes.
    address: ReplicaAddress  # once it connects
    _pool: ReplicaPool | None = None
    _connecting: asyncio.Task[None] | None = None
    _connection: ReplicaConnection | None = None
    _watch: AnswerWatch | None = None
    _is_stream = False
    _finish: re.Pattern[bytes] | None = None  # what it ends with if it is whole, where that's known
    _last_chunk = b""  # that ends its body, and is yet to be passed on
    _pieces: tuple[tuple[bytes, bytes], ...] = ()  # of a refusal that is kept: raw, payload
    _pieces_bytes = 0
    _silence_max_us = NEVER_US  # since its last sign
    _heard_us = NEVER_US  # its last sign that the fleet has been told of; none before it is sent
    sent_us: int | None = None
    first_byte_us: int | None = None
    answer: AnswerHead | None = None
    _length: int | None = None
    _framing = _NONE
    relay: Relay | None = None
    _splice: Splice | None = None  # of a stream that can be continued elsewhere
    _write_raw: Callable[[bytes], None] | None = None  # past the head, where nothing is reframed
    verdict: Verdict | None = None
    answer_bytes = chunks = 0

    def __init__(
        self,
        context: Context,
        owner: Owner,
        decision: Decision,
        limits: AnswerLimits,
        now_us: int,
    ) -> None:
        assert decision.lease is not None
        assert decision.replica is not None
        self._context = context
        self._owner = owner
        self._limits = limits
        self._lease = decision.lease
        self.decision = decision
        self.replica_id = decision.replica.replica_id
        self.last_us = now_us  # when it last gave a sign

    # ---- towards the replica

    def connect(self) -> None:
        """Take an idle connection, or open one."""
        assert self.decision.replica is not None
        try:
            pool = self._pool = self._context.pools.of(self.decision.replica.url)
        except ReplicaUrlError as error:
            self.on_connect_failed(Failure.CONNECT_FAILED, str(error))
            return
        self.address = pool.address
        connection = pool.take()
        if connection is None:
            self._connecting = pool.open(self, self._limits.connect_timeout)
        else:
            self._connection = connection
            self._owner.on(_CONNECTED)

    def reconnect(self) -> None:
        """Open a new connection in place of one that turned out to be closed."""
        assert self._pool is not None
        self._connection = None
        self._connecting = self._pool.open(self, self._limits.connect_timeout)

    def send(self, head: bytes, body: bytes, *, bodiless: bool, silence_max_us: int) -> None:
        """Write the request. ``bodiless``: it is a HEAD; the limit is on the wait for an answer."""
        assert self._connection is not None
        self.sent_us = self.last_us = self._heard_us = self._context.clock_us()
        self._silence_max_us = silence_max_us
        self._connection.send(self, head, body, bodiless=bodiless)

    def pause(self) -> None:
        """Read no more of the answer; silence is not the replica's fault then."""
        self._silence_max_us = NEVER_US
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        """Read on."""
        self.last_us = self._heard_us = self._context.clock_us()
        self._silence_max_us = self._limits.between_bytes_timeout
        if self._connection is not None:
            self._connection.resume()

    def reuse(self) -> None:
        """Give the connection back."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.release(self.last_us)

    def drop(self) -> None:
        """Close the connection, or stop opening it; the replica learns of it at once."""
        if self._connecting is not None:
            self._connecting.cancel()
        if self._connection is not None:
            self._connection.abort()

    def release(self, outcome: AttemptOutcome | None) -> None:
        """End the lease; with None, as the answer was judged."""
        usage = None if self.verdict is None else self.verdict.usage
        if outcome is None:
            assert self.verdict is not None
            outcome = self.verdict.attempt
        self._silence_max_us = NEVER_US
        self._lease.num_chunks = self.chunks
        self._lease.end(outcome, self._context.clock_us(), usage)
        if self._context.queued:  # there may be room for one of them
            self._context.pump()

    def judge(self) -> Verdict:
        """Judge the answer, which is whole."""
        assert self.answer is not None
        verdict = self.verdict = judge_answer(self.answer.status, self._watch)
        if self.lacks_model and self._owner.path in ENGINE_PATHS:
            verdict.attempt = AttemptOutcome.NOT_FOUND
        return verdict

    @property
    def lacks_model(self) -> bool:
        """Whether its answer says that there is no such model; a path may be missing as well."""
        if self.answer is None or self.answer.status != _NOT_FOUND:
            return False
        body = b"".join(payload for _, payload in self._pieces)
        if not body and self._watch is not None:
            body = self._watch.tail()
        return b"model" in body.lower()

    def fill(self, record: ExchangeRecord) -> None:
        """Write down what this attempt, the last one, has to say."""
        record.replica_id = self.replica_id
        record.matched_tokens = self.decision.matched_tokens
        record.sent_us = self.sent_us
        record.first_byte_us = self.first_byte_us
        record.answer_bytes = self.answer_bytes
        record.chunks = self.chunks
        if self.verdict is not None:
            record.usage = self.verdict.usage
            record.usage_unreadable = self.verdict.usage_unreadable

    def is_late(self, now_us: int) -> bool:
        """Say whether it has been silent for longer than it may."""
        return now_us - self.last_us >= self._silence_max_us

    def renew_lease(self, now_us: int) -> None:
        """Keep the lease alive, and tell of the replica's last sign."""
        self._lease.renew(now_us)
        if self.last_us > self._heard_us:
            self._heard_us = self.last_us
            self._lease.heard(self.last_us)

    # ---- what the pool calls

    def on_connected(self, connection: ReplicaConnection) -> None:
        self._connecting = None
        self._connection = connection
        self._owner.on(Event.CONNECTED)

    def on_connect_failed(self, failure: Failure, cause: str) -> None:
        self._connecting = None
        is_late = failure is Failure.CONNECT_TIMEOUT
        event = Event.CONNECT_TIMEOUT if is_late else Event.CONNECT_FAILED
        self._owner.on_failure(event, failure, f"no connection: {cause}")

    def on_out_of_sockets(self) -> None:
        self._connecting = None
        detail = "the gateway can open no more connections"
        self._owner.on_failure(Event.OUT_OF_SOCKETS, Failure.OVERLOADED, detail)

    # ---- what the connection calls

    def on_head(
        self, head: AnswerHead, length: int | None, framing: Framing, *, is_followed: bool
    ) -> None:
        self.answer = head
        self._length = length
        self._framing = framing
        self.last_us = self._context.clock_us()
        if self._owner.state is _RESENT:
            self._on_head_of_rest(head)
            return
        if head.status >= _BAD_REQUEST and self._owner.can_retry(head.status):
            self._silence_max_us = self._limits.between_bytes_timeout
            self._owner.on(Event.REFUSAL_BEGAN)
            return
        media = head.media
        if media is not _OTHER:
            self._watch = self._context.watch(media, self._lease)
        if media is _STREAM and framing is not _NONE:
            # Its first bytes may be far off; if it breaks before, another replica can serve.
            self._begin_stream(head)
            self._owner.on(Event.STREAM_OPENED)
        else:
            # Likewise where none of its body has come, or perhaps no chunk.
            has_begun = media is _OTHER or (is_followed and framing is not _CHUNKED)
            self._silence_max_us = self._limits.between_bytes_timeout
            self._owner.on(_ANSWER_BEGAN if has_begun else Event.STREAM_OPENED)
            if not is_followed and self.relay is not None:
                self.relay.flush()

    def _on_head_of_rest(self, head: AnswerHead) -> None:
        if head.status == _OK and head.media is Media.STREAM:
            self._watch = self._context.watch(head.media, self._lease)
            self._begin_stream(head)
            self._owner.on(Event.STREAM_OPENED)
        else:
            detail = f"it answered {head.status} when asked for the rest of a stream"
            self._owner.on_failure(Event.NOT_CONTINUED, Failure.UPSTREAM_LOST, detail)

    def _begin_stream(self, head: AnswerHead) -> None:
        self._is_stream = True
        assert self.sent_us is not None
        self._silence_max_us -= self.last_us - self.sent_us  # its head is not yet a first byte
        if head.status < _BAD_REQUEST and not head.is_encoded:
            self._finish = finish_of(self._owner.path, self._owner.num_choices, self._framing)
        if self._finish is not None and self._framing is Framing.LENGTH:
            self._framing = Framing.CLOSE  # in chunks, its end can be held back until it is judged

    def on_body(self, raw: bytes, payload: bytes) -> None:
        """Pass on the next piece; this runs once per chunk of every stream."""
        now_us = self._context.clock_us()
        write = self._write_raw
        if write is None:
            self._on_piece(raw, payload, now_us)
            return
        self.answer_bytes += len(payload)
        if self._is_stream:
            self.chunks += 1
            self._context.metrics.chunk_gap_us(now_us - self.last_us)
        self.last_us = now_us
        write(raw)  # after the stamps, because it may pause this very stream
        if self._watch is not None:
            self._watch.take(payload)

    def _on_piece(self, raw: bytes, payload: bytes, now_us: int) -> None:
        """Take a piece that is more than a write: one of the first, or of events to be read."""
        state = self._owner.state
        if state is _KEPT:
            self._keep(raw, payload, now_us)
            return
        if self._is_stream:
            if self.chunks:
                self._context.metrics.chunk_gap_us(now_us - self.last_us)
            self.chunks += 1
        self.answer_bytes += len(payload)
        self.last_us = now_us
        if state is not _PAUSED:
            self._silence_max_us = self._limits.between_bytes_timeout
        if state is _HEAD:
            self._owner.on(Event.BODY_BYTES)
        splice = self._splice
        if splice is not None:
            splice.take(payload)
        else:
            assert self.relay is not None
            self.relay.pass_on(raw, payload)
        watch = self._watch
        if watch is not None:
            watch.take(payload)
        if self.first_byte_us is None and (watch is None or watch.has_event):
            self.first_byte_us = now_us
            self._lease.first_byte(now_us)
            if self._lease.is_probe and self._is_stream:  # whose end may be far off
                self._pass_probe(now_us)
            if splice is None and self.relay is not None:
                self._write_raw = self.relay.write_raw
        if splice is not None and splice.has_failed:
            detail = "it sent an error within its stream"
            self._owner.on_failure(Event.UPSTREAM_LOST, Failure.UPSTREAM_LOST, detail)

    def _pass_probe(self, now_us: int) -> None:
        assert self.answer is not None
        if judge_answer(self.answer.status, self._watch).attempt is AttemptOutcome.OK:
            self._lease.pass_probe(now_us)

    def on_body_end(self, last_chunk: bytes = b"") -> None:
        owner = self._owner
        self._last_chunk = last_chunk
        if self._finish is not None:
            assert self._watch is not None
            if not self._watch.is_whole_stream(self._finish):
                detail = "its stream ended without a finish"
                owner.on_failure(Event.UPSTREAM_LOST, Failure.UPSTREAM_LOST, detail)
                return
        if owner.state is _HEAD:
            owner.on(Event.BODY_BYTES)  # a stream without any: what there is of it is passed on
        owner.on(_BODY_END)

    def on_bad_answer(self, message: str) -> None:
        self._owner.on_failure(Event.BAD_ANSWER, Failure.UPSTREAM_PROTOCOL, message)

    def on_upstream_lost(self, cause: str) -> None:
        connection = self._connection
        assert connection is not None
        assert self.sent_us is not None
        is_race = connection.was_reused and not connection.has_answered
        age_us = self._context.clock_us() - self.sent_us
        if is_race and age_us <= self._context.limits.reuse_race_us:
            self._context.metrics.went_stale()
            self._owner.on(Event.WENT_STALE)
            return
        detail = f"the connection was lost before its answer was whole: {cause}"
        self._owner.on_failure(Event.UPSTREAM_LOST, Failure.UPSTREAM_LOST, detail)

    # ---- towards the client

    def begin_relay(self, relay: Relay, extra_lines: bytes, splice: Splice | None = None) -> None:
        """Pass on the head, and what has been kept of the body.

        With a splice the body gets chunks of the gateway's own, of whole events.
        """
        assert self.answer is not None
        self.relay = relay
        self._splice = splice
        lines = b"%b%bx-warmroute-matched-tokens: %d\r\n" % (
            *(extra_lines, replica_line(self.replica_id), self.decision.matched_tokens),
        )
        explanation = self.decision.explanation
        if explanation is not None:
            lines += explanation_line(explanation, self._context.config)
        framing = self._framing if splice is None else Framing.CLOSE
        relay.begin(self.answer, self._length, framing, lines)
        for raw, payload in self._pieces:
            relay.pass_on(raw, payload)
            self.answer_bytes += len(payload)

    def continue_relay(self, splice: Splice) -> None:
        """Pass on the rest of a stream whose beginning the client has."""
        self.relay = splice.relay
        self._splice = splice
        splice.begin_rest()

    def finish_relay(self) -> None:
        """Write what ends the client's message."""
        assert self.relay is not None
        if self._splice is not None:
            self._splice.end()
        self.relay.finish(self._last_chunk)

    def break_off(self, error: bytes) -> bool:
        """Add the event ``error`` where one can follow what has been passed on.

        Returns whether the client can tell from a closed connection that the body is not whole.
        """
        assert self.relay is not None
        assert self._connection is not None
        self.relay.flush()  # its client has to see that an answer had begun
        watch = self._watch if self._is_stream else None
        if watch is not None and watch.is_between_events and self.can_add_chunk():
            self.relay.add_chunk(error)
        return self.relay.end_is_visible and not self._connection.may_be_ending

    def can_add_chunk(self) -> bool:
        """Say whether the client is between two chunks."""
        relay, connection = self.relay, self._connection
        return bool(relay and connection and relay.can_add_chunk(connection.is_between_chunks))

    def _keep(self, raw: bytes, payload: bytes, now_us: int) -> None:
        self.last_us = now_us
        self._pieces += ((raw, payload),)
        self._pieces_bytes += len(payload)
        if self._pieces_bytes > self._context.config.held_answer_bytes_max:
            self._owner.on(Event.REFUSAL_TOO_LONG)
            self._pieces = ()
