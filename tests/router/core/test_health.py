"""The breaker: which ends of attempts eject a replica, for how long, and how it comes back."""

import pytest

from router.core.config import RoutingConfig
from router.core.health import AttemptOutcome, Breaker, BreakerState
from tests.router.core.making import SECOND

FAILURES = (
    AttemptOutcome.SERVER_ERROR,
    AttemptOutcome.TRANSPORT_ERROR,
    AttemptOutcome.TIMEOUT,
)
CONFIG = RoutingConfig(
    breaker_failures=3,
    breaker_window_requests=10,
    breaker_window_share=0.5,
    breaker_cooldown_s=5.0,
    breaker_cooldown_max_s=15.0,
    back_pressure_s=1.0,
    back_pressure_max_s=3.0,
)


def observe(breaker: Breaker, outcome: AttemptOutcome, now_us: int, *, probe: bool = False) -> None:
    breaker.observe(outcome, now_us, began_us=now_us, is_probe=probe)


def ejected_breaker(now_us: int = 0) -> Breaker:
    breaker = Breaker(CONFIG)
    for _ in range(3):
        observe(breaker, AttemptOutcome.TIMEOUT, now_us)
    assert breaker.state is BreakerState.OPEN
    return breaker


def half_open_breaker() -> Breaker:
    breaker = ejected_breaker()
    breaker.tick(5 * SECOND)
    assert breaker.begin_attempt()
    return breaker


@pytest.mark.parametrize("failure", FAILURES)
def test_failures_in_a_row_eject(failure: AttemptOutcome) -> None:
    breaker = Breaker(CONFIG)

    for _ in range(2):
        observe(breaker, failure, 0)
    before = breaker.is_ejected
    observe(breaker, failure, 0)

    assert not before
    assert breaker.is_ejected


def test_an_answer_ends_the_row() -> None:
    breaker = Breaker(CONFIG)
    for outcome in (*FAILURES[:2], AttemptOutcome.OK, *FAILURES[:2]):
        observe(breaker, outcome, 0)

    assert breaker.state is BreakerState.CLOSED


def test_a_share_of_failures_ejects_though_answers_lie_between() -> None:
    breaker = Breaker(CONFIG)
    for _ in range(5):
        observe(breaker, AttemptOutcome.OK, 0)
        observe(breaker, AttemptOutcome.SERVER_ERROR, 0)

    assert breaker.state is BreakerState.OPEN


def test_failures_that_have_left_the_window_do_not_count() -> None:
    breaker = Breaker(CONFIG)
    for second in range(0, 200, 10):
        observe(breaker, AttemptOutcome.OK, second * SECOND)
        observe(breaker, AttemptOutcome.SERVER_ERROR, second * SECOND)

    assert breaker.state is BreakerState.CLOSED


@pytest.mark.parametrize(
    "outcome",
    [AttemptOutcome.CLIENT_ERROR, AttemptOutcome.BACK_PRESSURE, AttemptOutcome.CANCELLED],
)
def test_what_is_not_the_replicas_failure_never_ejects(outcome: AttemptOutcome) -> None:
    breaker = Breaker(CONFIG)

    for _ in range(100):
        observe(breaker, outcome, 0)

    assert breaker.state is BreakerState.CLOSED


def test_cooldown_lasts_as_long_as_it_is_set_and_doubles_up_to_its_cap() -> None:
    breaker = ejected_breaker()
    now_us = 0
    cooldowns = []

    for _ in range(4):
        opened_us = now_us
        while breaker.state is BreakerState.OPEN:
            now_us += SECOND
            breaker.tick(now_us)
        cooldowns.append((now_us - opened_us) // SECOND)
        assert breaker.begin_attempt()
        observe(breaker, AttemptOutcome.TRANSPORT_ERROR, now_us, probe=True)

    assert cooldowns == [5, 10, 15, 15]


def test_cooldowns_start_short_again_after_a_quiet_time() -> None:
    breaker = half_open_breaker()
    observe(breaker, AttemptOutcome.OK, 5 * SECOND, probe=True)
    for _ in range(3):
        observe(breaker, AttemptOutcome.TIMEOUT, 100 * SECOND)

    breaker.tick(105 * SECOND)

    assert breaker.state is BreakerState.HALF_OPEN


def test_cooldowns_stay_long_while_failures_come_back_soon() -> None:
    breaker = half_open_breaker()
    observe(breaker, AttemptOutcome.OK, 5 * SECOND, probe=True)
    for _ in range(3):
        observe(breaker, AttemptOutcome.TIMEOUT, 10 * SECOND)

    breaker.tick(15 * SECOND)

    assert breaker.state is BreakerState.OPEN


def test_half_open_lets_one_probe_through() -> None:
    breaker = half_open_breaker()

    assert breaker.is_ejected
    assert not breaker.begin_attempt()


@pytest.mark.parametrize("answer", [AttemptOutcome.OK, AttemptOutcome.CLIENT_ERROR])
def test_answered_probe_closes(answer: AttemptOutcome) -> None:
    breaker = half_open_breaker()

    observe(breaker, answer, 6 * SECOND, probe=True)

    assert breaker.state is BreakerState.CLOSED
    assert not breaker.is_ejected


def test_cancelled_probe_leaves_room_for_another() -> None:
    breaker = half_open_breaker()

    observe(breaker, AttemptOutcome.CANCELLED, 6 * SECOND, probe=True)

    assert breaker.state is BreakerState.HALF_OPEN
    assert breaker.begin_attempt()


def test_answer_to_what_began_before_the_ejection_does_not_undo_it() -> None:
    breaker = ejected_breaker(now_us=10)

    breaker.observe(AttemptOutcome.OK, 20, began_us=5, is_probe=False)
    before = breaker.state
    breaker.observe(AttemptOutcome.OK, 20, began_us=15, is_probe=False)

    assert before is BreakerState.OPEN
    assert breaker.state is BreakerState.CLOSED


def test_back_pressure_is_avoided_for_longer_each_time_and_an_answer_resets_it() -> None:
    breaker = Breaker(CONFIG)
    avoided_s = []
    now_us = 0

    for outcome in ("push", "push", "push", "answer", "push"):
        if outcome == "answer":
            observe(breaker, AttemptOutcome.OK, now_us)
            continue
        began_us = now_us
        observe(breaker, AttemptOutcome.BACK_PRESSURE, now_us)
        while breaker.is_avoided:
            now_us += SECOND
            breaker.tick(now_us)
        avoided_s.append((now_us - began_us) // SECOND)

    assert avoided_s == [1, 2, 3, 1]
