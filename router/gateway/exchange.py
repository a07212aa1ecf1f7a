"""One request from its last byte in to its last byte out: the only one that knows both sides.

What may follow what is in the table of ``router.core.exchange``, what is done in ``actions``; here
the two are put together.
"""

import logging
from collections.abc import Callable
from functools import partial

from contract.failures import Failure
from router.core.exchange import Action, Event, State, Transition, transition
from router.core.request import BadRequestError
from router.gateway.actions import Actions
from router.gateway.local_answer import CONTINUE
from router.gateway.resume import Resume
from router.gateway.verdict import Refusal

log = logging.getLogger(__name__)

_ADMITTED = Event.ADMITTED  # to look it up is a call of its own (until Python 3.12)

LEADING_ZERO = b"0"
"""Before the size of the next chunk it changes nothing: 1a and 01a are one number."""


class Exchange(Actions):
    """The runtime of one request; ``on`` moves it through the table."""

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
        head, read = self._head, self._read
        try:
            if read is None:
                read = self._routed(self._body)
            elif isinstance(read, BadRequestError):
                raise read
            self._request = read
            read.request_id = self._request_id
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
        for step in steps:
            step(self, row)

    def probe(self) -> bytes | None:
        """Return bytes that mean nothing to a client, to learn whether it is still there.

        None where there are none, and the client has to be taken for gone.
        """
        resume = self._resume
        relay = self._attempt.relay if self._record.attempts else None
        if isinstance(resume, Resume):
            relay = resume.splice.relay
        if relay is None or relay.holds_head:
            return None if self._head.is_http_1_0 else CONTINUE
        if isinstance(resume, Resume):
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
