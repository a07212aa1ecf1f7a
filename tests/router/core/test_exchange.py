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
LEASED = {State.CONNECTING, State.SENT, State.KEPT, State.HEAD, State.STREAMING, State.PAUSED}


class Shell:
    """Does the actions of a request, in effect."""

    def __init__(self) -> None:
        self.state = State.RECEIVED
        self.leases = 0
        self.begun = False  # the client has had bytes of an answer
        self.counts: Counter[Action] = Counter()
        self.sends_after_begin = 0

    def take(self, event: Event) -> None:
        row = transition(self.state, event)
        was_ended = self.state is State.ENDED
        self.leases += Action.CONNECT in row.actions  # the decision that it follows booked one
        for action in row.actions:
            assert not was_ended
            self.counts[action] += 1
            self.leases -= action is Action.RELEASE
            self.begun = self.begun or action in TO_CLIENT
            self.sends_after_begin += self.begun and action is Action.SEND
        self.state = row.state


@example([Event.ADMITTED, Event.DECIDED, Event.DECIDED])
@given(st.lists(st.sampled_from(Event), max_size=60))
def test_events_in_any_order_keep_the_laws(events: list[Event]) -> None:
    shell = Shell()

    for event in events:
        shell.take(event)

        assert shell.leases == (shell.state in LEASED)
        assert shell.counts[Action.END] == (shell.state is State.ENDED)
        assert shell.sends_after_begin == 0
        assert shell.counts[Action.ANSWER] + shell.counts[Action.RELAY_HEAD] <= 1


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

    assert following <= {State.STREAMING, State.PAUSED, State.ENDED}


@pytest.mark.parametrize(
    "event", [Event.UPSTREAM_LOST, Event.BAD_ANSWER, Event.BETWEEN_BYTES_TIMEOUT, Event.DRAIN_OVER]
)
def test_a_stream_that_breaks_is_broken_off_visibly(event: Event) -> None:
    row = transition(State.STREAMING, event)

    assert Action.BREAK_OFF in row.actions
    assert Action.FINISH not in row.actions
    assert row.outcome is Outcome.BROKEN


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
