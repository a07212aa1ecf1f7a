"""One request from its last byte in to its last byte out: the only one that knows both sides.

What may follow what is in the table of ``router.core.exchange``, what is done in ``actions``; here
the two are put together.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps

from contract.failures import Failure
from router.core.exchange import Action, Event, State, Transition, transition
from router.core.health import AttemptOutcome
from router.core.reason import Outcome
from router.core.request import BadRequestError
from router.gateway.actions import Actions
from router.gateway.local_answer import CONTINUE
from router.gateway.relay import Relay
from router.gateway.resume import Resume
from router.gateway.verdict import Refusal

log = logging.getLogger(__name__)

_ADMITTED = Event.ADMITTED  # to look it up is a call of its own (until Python 3.12)

LEADING_ZERO = b"0"
"""Before the size of the next chunk it changes nothing: 1a and 01a are one number."""


def _guarded(method: Callable[..., None]) -> Callable[..., None]:
    """Return ``method`` of an exchange, which a fault in it ends; ``on`` does so itself."""

    @wraps(method)
    def guarded(exchange: "Exchange", *args: object) -> None:
        try:
            method(exchange, *args)
        except Exception:
            exchange.on_fault()

    return guarded


class Exchange(Actions):
    """The runtime of one request; ``on`` moves it through the table."""

    def start(self) -> None:
        """Begin. The exchange may have ended when this returns."""
        context = self._context
        context.exchanges.add(self)
        context.metrics.exchange_started()
        context.budget.on_request(self.received_us)
        try:
            self._admit()
        except Exception:
            self.on_fault()

    def _admit(self) -> None:
        head, read = self._head, self._read
        try:
            if read is None:
                read = self._routed(self._body)
            elif isinstance(read, BadRequestError):
                raise read
            self._request = read
            read.request_id = self._draw_id
            self._set_limits(read.model)
        except BadRequestError as error:
            self._refusal = Refusal(error.failure, error.message, error.param)
            self.on(Event.REFUSED)
        else:
            if head.wants_explanation:
                self._request.is_explained = self._context.config.explain_requests
            self.on(_ADMITTED)

    def on(self, event: Event) -> None:
        """Move through the table, and do what it says."""
        row, steps = _ROWS[self.state][event]
        self.state = row.state
        try:
            for step in steps:
                step(self, row)
        except Exception:
            self.on_fault()

    on_failure = _guarded(Actions.on_failure)
    on_placed = _guarded(Actions.on_placed)
    on_sweep = _guarded(Actions.on_sweep)

    def on_fault(self) -> None:
        """End it here, whatever it has come to: its client sees it, and the others do not feel it.

        The row of the table that met the fault is half done, so what is held is looked up.
        """
        log.exception("request %s met a fault of the gateway", self._request_id)
        if self not in self._context.exchanges:
            return  # it had ended, and its client knows how
        relay = self._relay()
        is_untold = not self._is_refused and (relay is None or relay.holds_head)
        actions = [Action.STOP_WAITING] if self._wait is not None else []
        actions += [Action.LEAVE_QUEUE] if self._ticket is not None else []
        actions += [Action.DROP, Action.RELEASE] if self._record.attempts else []
        actions += [Action.ANSWER if is_untold else Action.CUT, Action.END]
        outcome = Outcome.REFUSED if is_untold else Outcome.BROKEN
        row = Transition(State.ENDED, tuple(actions), AttemptOutcome.CANCELLED, outcome)
        self.state = row.state
        self._kept = None
        self._refusal = Refusal(Failure.INTERNAL, "the gateway failed on this request")
        for action in row.actions:
            with suppress(Exception):  # it may be this one that failed
                _DO[action](self, row)

    def _relay(self) -> Relay | None:
        """Return what the answer goes through, None before there is one."""
        if isinstance(self._resume, Resume):
            return self._resume.splice.relay
        return self._attempt.relay if self._record.attempts else None

    def probe(self) -> bytes | None:
        """Return bytes that mean nothing to a client, to learn whether it is still there.

        None where there are none, and the client has to be taken for gone.
        """
        relay = self._relay()
        if relay is None or relay.holds_head:
            return None if self._head.is_http_1_0 else CONTINUE
        if isinstance(self._resume, Resume):
            return None if self._head.is_http_1_0 else LEADING_ZERO
        return LEADING_ZERO if self._attempt.can_add_chunk() else None


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
    Action.JUDGE_BREAK: Exchange._judge_break,
    Action.REDECIDE: Exchange._redecide,
    Action.SPLICE: Exchange._splice,
}
# The table once more, by number and with the functions in the place of the actions' names.
_ROWS = [
    [
        (row, tuple(_DO[action] for action in row.actions))
        for row in map(partial(transition, state), Event)
    ]
    for state in State
]
