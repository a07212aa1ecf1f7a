"""The life of one request, as a table: everything that decides what may follow what is here.

    Rule 1: there is one way out. Every row that leads to ENDED has END as its last action, and
            nothing leads out of ENDED.
    Rule 2: a request may be sent again only where nothing has reached the client: FAILED, the
            state from which retries start, cannot be reached from STREAMING or PAUSED. From there
            a loss leads to INTERRUPTED, and what is asked for then is the rest of the answer: no
            way leads from it to the head of an answer, or to one of the gateway's own.
    Rule 3: DECIDED books a lease; whichever row leaves the attempt releases it, once.
    Rule 4: an action that can raise the next event is the last of its row, so a row has been
            done in full before another begins.

An event without a row changes nothing: late news of a dead attempt, or a second close. A stream
that ends without a byte raises BODY_BYTES before BODY_END, or UPSTREAM_LOST where it ought to have
said that it is whole.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from router.core.health import AttemptOutcome
from router.core.reason import Outcome


class State(IntEnum):
    """Where a request is. An IntEnum, because the table is looked up several times per request."""

    RECEIVED = 0  # all of it is here, nothing has been decided
    DECIDING = 1
    QUEUED = 2  # every replica of its model is at its limit
    CONNECTING = 3  # a lease is booked
    SENT = 4  # to a replica, which has not answered
    KEPT = 5  # a refusal (429, 502, 503, 504) comes in and is kept back: another may do better
    HEAD = 6  # the head of a stream is here; it is passed on together with its first bytes
    STREAMING = 7  # the client has had bytes of the answer
    PAUSED = 8  # likewise, and the client is slow
    FAILED = 9  # the attempt is over and nothing has reached the client
    BACKING_OFF = 10
    INTERRUPTED = 11  # the attempt is over and the client has had part of the answer
    REDECIDING = 12  # who gives the rest of it
    REQUEUED = 13
    RECONNECTING = 14
    RESENT = 15  # the rest has been asked for
    ENDED = 16


class Event(IntEnum):
    """What can happen to a request."""

    ADMITTED = 0
    REFUSED = 1  # by the gateway: unreadable, no such model, no replica, draining
    DECIDED = 2
    QUEUED = 3
    QUEUE_TIMEOUT = 4
    CONNECTED = 5
    CONNECT_FAILED = 6
    CONNECT_TIMEOUT = 7
    OUT_OF_SOCKETS = 8  # this process may open no more; no replica is to blame
    WENT_STALE = 9  # a reused connection had been closed before the request came
    ANSWER_BEGAN = 10
    STREAM_OPENED = 11
    REFUSAL_BEGAN = 12
    REFUSAL_TOO_LONG = 13
    BODY_BYTES = 14
    BODY_END = 15
    UPSTREAM_LOST = 16
    BAD_ANSWER = 17  # not HTTP
    FIRST_BYTE_TIMEOUT = 18
    BETWEEN_BYTES_TIMEOUT = 19
    PAUSED = 20
    RESUMED = 21
    CLIENT_WRITE_TIMEOUT = 22
    RETRY = 23
    BACKED_OFF = 24
    GIVEN_UP = 25
    CLIENT_LOST = 26
    DRAIN_OVER = 27
    RESUME = 28  # the rest can be had
    NOTHING_MISSING = 29  # but the mark of the end, which the gateway can write itself
    NOT_CONTINUED = 30  # a replica answered with something else than the rest
    TOTAL_TIMEOUT = 31  # whatever it waits for, it has taken too long


class Action(IntEnum):
    """What the shell has to do, in the order of the row."""

    DECIDE = 0
    CONNECT = 1  # take an idle connection, or open one
    RECONNECT = 2  # open one
    SEND = 3
    RELAY_HEAD = 4
    FINISH = 5  # end the client's message
    PAUSE = 6  # read no more from the replica
    RESUME = 7
    REUSE = 8  # the connection to the replica can serve another request
    DROP = 9  # close it, or stop opening it
    RELEASE = 10  # end the lease
    JUDGE = 11  # may it be tried again?
    WAIT = 12  # before it is
    STOP_WAITING = 13
    LEAVE_QUEUE = 14
    ANSWER = 15  # with the replica's refusal that was kept, or with the gateway's own error
    BREAK_OFF = 16  # so that nobody takes what was sent for the whole answer
    CUT = 17  # close the client's connection without a word
    END = 18  # count and log
    JUDGE_BREAK = 19  # can the rest be had elsewhere?
    REDECIDE = 20  # for the prompt with the answer so far
    SPLICE = 21  # the new stream into the one that the client has


RAISING = frozenset(
    {Action.DECIDE, Action.CONNECT, Action.RECONNECT, Action.RELAY_HEAD, Action.JUDGE}
    | {Action.WAIT, Action.JUDGE_BREAK, Action.REDECIDE, Action.SPLICE, Action.END}
)
"""Actions that may raise the next event (Rule 4); END lets the client's next request begin."""


@dataclass(frozen=True, slots=True)
class Transition:
    """One row: the state that follows, and what to do.

    ``attempt`` is how RELEASE ends the lease, None: by the answer's status. ``outcome`` is how
    the exchange ends, None: by what the client was sent.
    """

    state: State
    actions: tuple[Action, ...] = ()
    attempt: AttemptOutcome | None = None
    outcome: Outcome | None = None


_LOST = AttemptOutcome.TRANSPORT_ERROR
_LATE = AttemptOutcome.TIMEOUT
_UNJUDGED = AttemptOutcome.CANCELLED

_REFUSE = Transition(State.ENDED, (Action.ANSWER, Action.END))
_LEAVE = Transition(State.ENDED, (Action.END,), outcome=Outcome.CLIENT_LEFT)
_LEAVE_QUEUE = Transition(
    State.ENDED, (Action.LEAVE_QUEUE, Action.END), outcome=Outcome.CLIENT_LEFT
)
_CONNECT = Transition(State.CONNECTING, (Action.CONNECT,))
_ABANDON = Transition(
    State.ENDED,
    (Action.DROP, Action.RELEASE, Action.END),
    _UNJUDGED,
    Outcome.CLIENT_LEFT,
)
_CANCEL = Transition(
    State.ENDED, (Action.DROP, Action.RELEASE, Action.ANSWER, Action.END), _UNJUDGED
)


def _fail(attempt: AttemptOutcome) -> Transition:
    return Transition(State.FAILED, (Action.DROP, Action.RELEASE, Action.JUDGE), attempt)


def _interrupt(attempt: AttemptOutcome | None) -> Transition:
    actions = (Action.DROP, Action.RELEASE, Action.JUDGE_BREAK)
    return Transition(State.INTERRUPTED, actions, attempt)


_BREAK = Transition(State.ENDED, (Action.BREAK_OFF, Action.END), outcome=Outcome.BROKEN)
_BREAK_OFF = Transition(
    State.ENDED,
    (Action.DROP, Action.BREAK_OFF, Action.RELEASE, Action.END),
    _UNJUDGED,
    Outcome.BROKEN,
)


_ATTEMPT_UNDER_WAY = {Event.CLIENT_LOST: _ABANDON, Event.DRAIN_OVER: _CANCEL}
_NOTHING_RELAYED = _ATTEMPT_UNDER_WAY | {
    Event.UPSTREAM_LOST: _fail(_LOST),
    Event.BAD_ANSWER: _fail(_LOST),
    Event.FIRST_BYTE_TIMEOUT: _fail(_LATE),
    Event.BETWEEN_BYTES_TIMEOUT: _fail(_LATE),
}
_DONE = (Action.FINISH, Action.REUSE, Action.RELEASE, Action.END)
_RELAYING = {
    Event.BODY_END: Transition(State.ENDED, _DONE),
    Event.UPSTREAM_LOST: _interrupt(_LOST),
    Event.BAD_ANSWER: _interrupt(_LOST),
    Event.BETWEEN_BYTES_TIMEOUT: _interrupt(_LATE),
    Event.DRAIN_OVER: _BREAK_OFF,
    Event.CLIENT_LOST: _ABANDON,
    Event.CLIENT_WRITE_TIMEOUT: Transition(
        State.ENDED,
        (Action.DROP, Action.CUT, Action.RELEASE, Action.END),
        _UNJUDGED,
        Outcome.CLIENT_LEFT,
    ),
}

TRANSITIONS: dict[State, dict[Event, Transition]] = {
    State.RECEIVED: {
        Event.ADMITTED: Transition(State.DECIDING, (Action.DECIDE,)),
        Event.REFUSED: _REFUSE,
        Event.CLIENT_LOST: _LEAVE,
    },
    State.DECIDING: {
        Event.DECIDED: _CONNECT,
        Event.QUEUED: Transition(State.QUEUED),
        Event.REFUSED: _REFUSE,
        Event.CLIENT_LOST: _LEAVE,
    },
    State.QUEUED: {
        Event.DECIDED: _CONNECT,
        Event.REFUSED: _REFUSE,
        Event.QUEUE_TIMEOUT: _REFUSE,
        Event.CLIENT_LOST: _LEAVE_QUEUE,
        Event.DRAIN_OVER: Transition(State.ENDED, (Action.LEAVE_QUEUE, Action.ANSWER, Action.END)),
    },
    State.CONNECTING: _ATTEMPT_UNDER_WAY
    | {
        Event.CONNECTED: Transition(State.SENT, (Action.SEND,)),
        Event.CONNECT_FAILED: _fail(_LOST),
        Event.CONNECT_TIMEOUT: _fail(_LATE),
        Event.OUT_OF_SOCKETS: _CANCEL,
    },
    State.SENT: _NOTHING_RELAYED
    | {
        Event.ANSWER_BEGAN: Transition(State.STREAMING, (Action.RELAY_HEAD,)),
        Event.STREAM_OPENED: Transition(State.HEAD),
        Event.REFUSAL_BEGAN: Transition(State.KEPT),
        Event.WENT_STALE: Transition(State.CONNECTING, (Action.DROP, Action.RECONNECT)),
    },
    State.KEPT: _NOTHING_RELAYED
    | {
        Event.BODY_END: Transition(State.FAILED, (Action.REUSE, Action.RELEASE, Action.JUDGE)),
        Event.REFUSAL_TOO_LONG: Transition(State.STREAMING, (Action.RELAY_HEAD,)),
    },
    State.HEAD: _NOTHING_RELAYED
    | {
        Event.BODY_BYTES: Transition(State.STREAMING, (Action.RELAY_HEAD,)),
    },
    State.STREAMING: _RELAYING | {Event.PAUSED: Transition(State.PAUSED, (Action.PAUSE,))},
    State.PAUSED: _RELAYING | {Event.RESUMED: Transition(State.STREAMING, (Action.RESUME,))},
    State.FAILED: {
        Event.RETRY: Transition(State.BACKING_OFF, (Action.WAIT,)),
        Event.GIVEN_UP: _REFUSE,
        Event.CLIENT_LOST: _LEAVE,
    },
    State.BACKING_OFF: {
        Event.BACKED_OFF: Transition(State.DECIDING, (Action.DECIDE,)),
        Event.CLIENT_LOST: Transition(
            State.ENDED, (Action.STOP_WAITING, Action.END), outcome=Outcome.CLIENT_LEFT
        ),
        Event.DRAIN_OVER: Transition(State.ENDED, (Action.STOP_WAITING, Action.ANSWER, Action.END)),
    },
    State.INTERRUPTED: {
        Event.RESUME: Transition(State.REDECIDING, (Action.REDECIDE,)),
        Event.NOTHING_MISSING: Transition(
            State.ENDED, (Action.FINISH, Action.END), outcome=Outcome.COMPLETE
        ),
        Event.GIVEN_UP: _BREAK,
        Event.CLIENT_LOST: _LEAVE,
    },
    State.REDECIDING: {
        Event.DECIDED: Transition(State.RECONNECTING, (Action.CONNECT,)),
        Event.QUEUED: Transition(State.REQUEUED),
        Event.REFUSED: _BREAK,
        Event.CLIENT_LOST: _LEAVE,
    },
    State.REQUEUED: {
        Event.DECIDED: Transition(State.RECONNECTING, (Action.CONNECT,)),
        Event.REFUSED: _BREAK,
        Event.QUEUE_TIMEOUT: _BREAK,
        Event.CLIENT_LOST: _LEAVE_QUEUE,
        Event.DRAIN_OVER: Transition(
            State.ENDED,
            (Action.LEAVE_QUEUE, Action.BREAK_OFF, Action.END),
            outcome=Outcome.BROKEN,
        ),
    },
    State.RECONNECTING: {
        Event.CONNECTED: Transition(State.RESENT, (Action.SEND,)),
        Event.CONNECT_FAILED: _interrupt(_LOST),
        Event.CONNECT_TIMEOUT: _interrupt(_LATE),
        Event.OUT_OF_SOCKETS: _BREAK_OFF,
        Event.DRAIN_OVER: _BREAK_OFF,
        Event.CLIENT_LOST: _ABANDON,
    },
    State.RESENT: {
        Event.STREAM_OPENED: Transition(State.STREAMING, (Action.SPLICE,)),
        Event.NOT_CONTINUED: _interrupt(None),
        Event.UPSTREAM_LOST: _interrupt(_LOST),
        Event.BAD_ANSWER: _interrupt(_LOST),
        Event.FIRST_BYTE_TIMEOUT: _interrupt(_LATE),
        Event.WENT_STALE: Transition(State.RECONNECTING, (Action.DROP, Action.RECONNECT)),
        Event.DRAIN_OVER: _BREAK_OFF,
        Event.CLIENT_LOST: _ABANDON,
    },
    State.ENDED: {},
}
"""Every row there is. The first state is RECEIVED, the last ENDED."""

for _row in TRANSITIONS.values():
    if Event.DRAIN_OVER in _row:  # no time left is no time left, whoever says so
        _row[Event.TOTAL_TIMEOUT] = _row[Event.DRAIN_OVER]


def transition(state: State, event: Event) -> Transition:
    """Return what ``event`` does in ``state``; where there is no row: the same state, no action."""
    return _TABLE[state][event]


_TABLE = [[TRANSITIONS[state].get(event, Transition(state)) for event in Event] for state in State]


def rows() -> Iterator[tuple[State, Event, Transition]]:
    """Yield the table row by row, in the order of a request's life."""
    for state, row in TRANSITIONS.items():
        for event, result in row.items():
            yield state, event, result


def state_diagram() -> str:
    """Return the table as a Mermaid state diagram; events with one effect share an arrow."""
    lines = ["stateDiagram-v2", f"    [*] --> {_name(State.RECEIVED)}"]
    arrows: dict[tuple[State, State], list[str]] = {}
    for state, event, result in rows():
        if result.state is not state:
            arrows.setdefault((state, result.state), []).append(_name(event))
    for (state, following), events in arrows.items():
        lines.append(f"    {_name(state)} --> {_name(following)}: {', '.join(events)}")
    lines.append(f"    {_name(State.ENDED)} --> [*]")
    return "\n".join(lines) + "\n"


def _name(member: IntEnum) -> str:
    return member.name.lower()
