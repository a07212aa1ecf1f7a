"""The table of a request's life, driven with events in any order.

A shell that does what the table says is modelled by its effects: leases booked and released, bytes
sent to the client, ends counted. The laws hold whatever comes when.
"""

from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from router.core.exchange import (
    RAISING,
    TRANSITIONS,
    Action,
    Event,
    State,
    rows,
    state_diagram,
    transition,
)
from router.core.reason import Outcome

TO_CLIENT = {Action.RELAY_HEAD, Action.FINISH, Action.ANSWER, Action.BREAK_OFF, Action.CUT}
LAST_WORDS = {Action.FINISH, Action.ANSWER, Action.BREAK_OFF, Action.CUT}
LEASED = {State.CONNECTING, State.SENT, State.KEPT, State.HEAD, State.STREAMING, State.PAUSED}
LEASED |= {State.RECONNECTING, State.RESENT}
BEGUN = {State.STREAMING, State.PAUSED, State.INTERRUPTED, State.REDECIDING, State.REQUEUED}
BEGUN |= {State.RECONNECTING, State.RESENT}
"""The client has had part of an answer, and there is more to come."""


class Shell:
    """Does the actions of a request, in effect."""

    def __init__(self) -> None:
        self.state = State.RECEIVED
        self.leases = 0
        self.begun = False  # the client has had bytes of an answer
        self.counts: Counter[Action] = Counter()
        self.resumes = 0
        self.sends_after_begin = 0

    def take(self, event: Event) -> None:
        row = transition(self.state, event)
        was_ended = self.state is State.ENDED
        self.leases += Action.CONNECT in row.actions  # the decision that it follows booked one
        self.resumes += Action.REDECIDE in row.actions
        sends = Action.SEND in row.actions and self.state in BEGUN
        for action in row.actions:
            assert not was_ended
            self.counts[action] += 1
            self.leases -= action is Action.RELEASE
            self.begun = self.begun or action in TO_CLIENT
        self.sends_after_begin += self.begun and not sends and Action.SEND in row.actions
        self.state = row.state


@example([Event.ADMITTED, Event.DECIDED, Event.DECIDED])
@given(st.lists(st.sampled_from(Event), max_size=60))
def test_events_in_any_order_keep_the_laws(events: list[Event]) -> None:
    shell = Shell()

    for event in events:
        shell.take(event)

        assert shell.leases == (shell.state in LEASED)
        assert shell.counts[Action.END] == (shell.state is State.ENDED)
        assert shell.begun == (shell.state in BEGUN) or shell.state is State.ENDED
        assert shell.sends_after_begin == 0
        assert shell.counts[Action.ANSWER] + shell.counts[Action.RELAY_HEAD] <= 1
        assert shell.counts[Action.SPLICE] <= shell.resumes
        assert sum(shell.counts[action] for action in LAST_WORDS) <= (shell.state is State.ENDED)


RESUMED = (
    *(Event.ADMITTED, Event.DECIDED, Event.CONNECTED, Event.STREAM_OPENED, Event.BODY_BYTES),
    *(Event.UPSTREAM_LOST, Event.RESUME, Event.DECIDED, Event.CONNECTED),
)


@given(st.lists(st.sampled_from(Event), max_size=40))
def test_a_resumed_stream_has_one_head_and_one_end_whatever_comes(events: list[Event]) -> None:
    shell = Shell()
    for event in RESUMED:
        shell.take(event)
    assert shell.state is State.RESENT

    for event in events:
        shell.take(event)

    assert shell.counts[Action.RELAY_HEAD] == 1
    assert shell.counts[Action.ANSWER] == 0
    assert shell.leases == (shell.state in LEASED)
    assert sum(shell.counts[action] for action in LAST_WORDS) <= 1


@given(st.lists(st.sampled_from(Event), max_size=60))
def test_every_request_can_still_be_ended_by_its_client_or_by_the_drain(
    events: list[Event],
) -> None:
    shell = Shell()
    for event in events:
        shell.take(event)
    ways_out = {Event.CLIENT_LOST, Event.DRAIN_OVER, Event.REFUSED, Event.GIVEN_UP}

    ending = {event for event in ways_out if transition(shell.state, event).state is State.ENDED}

    assert ending or shell.state is State.ENDED


def test_a_common_request_passes_through_five_rows() -> None:
    shell = Shell()

    for event in (
        *(Event.ADMITTED, Event.DECIDED, Event.CONNECTED, Event.ANSWER_BEGAN, Event.BODY_END),
    ):
        shell.take(event)

    assert shell.state is State.ENDED
    assert shell.counts == Counter(
        [
            *(Action.DECIDE, Action.CONNECT, Action.SEND, Action.RELAY_HEAD, Action.FINISH),
            *(Action.REUSE, Action.RELEASE, Action.END),
        ]
    )


@pytest.mark.parametrize("state", [State.STREAMING, State.PAUSED])
def test_nothing_is_tried_again_once_the_client_has_had_a_byte(state: State) -> None:
    following = {row.state for row in TRANSITIONS[state].values()}

    assert following <= {State.STREAMING, State.PAUSED, State.INTERRUPTED, State.ENDED}


def test_after_a_byte_only_the_rest_can_be_asked_for() -> None:
    reached, found = {State.INTERRUPTED}, {State.INTERRUPTED}
    while found:
        found = {row.state for state in found for row in TRANSITIONS[state].values()} - reached
        reached |= found

    actions = {a for state in reached for row in TRANSITIONS[state].values() for a in row.actions}

    assert reached == BEGUN | {State.ENDED}
    assert actions.isdisjoint({Action.DECIDE, Action.RELAY_HEAD, Action.ANSWER, Action.JUDGE})


@pytest.mark.parametrize(
    "events",
    [
        [Event.UPSTREAM_LOST, Event.GIVEN_UP],
        [Event.BAD_ANSWER, Event.GIVEN_UP],
        [Event.BETWEEN_BYTES_TIMEOUT, Event.GIVEN_UP],
        [Event.UPSTREAM_LOST, Event.RESUME, Event.REFUSED],
        [Event.DRAIN_OVER],
    ],
)
def test_a_stream_that_breaks_is_broken_off_visibly(events: list[Event]) -> None:
    state = State.STREAMING
    actions: list[Action] = []
    for event in events:
        row = transition(state, event)
        state = row.state
        actions += row.actions

    assert Action.BREAK_OFF in actions
    assert Action.FINISH not in actions
    assert (state, row.outcome) == (State.ENDED, Outcome.BROKEN)


def test_every_row_keeps_the_rules_at_the_head_of_the_file() -> None:
    for state, event, row in rows():
        name = f"{state.name} {event.name}"
        assert set(row.actions[:-1]).isdisjoint(RAISING), name
        assert (row.actions[-1:] == (Action.END,)) == (row.state is State.ENDED), name
        leaves_attempt = state in LEASED and row.state not in LEASED
        assert (Action.RELEASE in row.actions) == leaves_attempt, name
    assert TRANSITIONS[State.ENDED] == {}


def test_every_state_can_be_reached_and_every_event_means_something() -> None:
    reached = {State.RECEIVED} | {row.state for _, _, row in rows()}
    meant = {event for _, event, _ in rows()}

    assert reached == set(State)
    assert meant == set(Event)
    assert {action for _, _, row in rows() for action in row.actions} == set(Action)


def test_the_diagram_shows_every_state_and_every_event_that_moves() -> None:
    diagram = state_diagram()

    assert diagram.startswith("stateDiagram-v2\n    [*] --> received\n")
    for state, event, row in rows():
        if row.state is not state:
            arrow = f"    {state.name.lower()} --> {row.state.name.lower()}: "
            (line,) = [line for line in diagram.splitlines() if line.startswith(arrow)]
            assert event.name.lower() in line.removeprefix(arrow).split(", ")
