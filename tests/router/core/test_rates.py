"""How slow a replica is, learned from answers: against its peers, for as much work, robustly.

Answers are made by hand: a replica takes so many microseconds for a token, and one of its own.
"""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.openai_api import PromptTokensDetails, Usage
from router.core.config import RoutingConfig, micros
from router.core.health import AttemptOutcome
from router.core.policy import build_policy
from router.core.rates import (
    ANSWERS_KEPT,
    ANSWERS_PER_TICK,
    CLASSES_MAX,
    PRIOR_ANSWERS,
    Pace,
    Peers,
)
from router.core.view import RouteRequest
from tests.router.core.making import SECOND, chosen, lease_of, make_fleet, make_report

STEP_US = 10_000  # what any step takes, beside its tokens
TOKEN_US = 25.0
DECODE_US = 8_000
OUTPUT_TOKENS = 20
WINDOW_US = micros(RoutingConfig().rate_window_s)


class Drive:
    """Sends requests one after the other and answers them as replicas of given speeds would."""

    def __init__(self, ids: str, **settings: object) -> None:
        self.fleet = make_fleet(ids, policy="round_robin", **settings)
        self.now_us = 0
        self.factors = dict.fromkeys(ids, 1.0)
        self.num_sent = 0

    def answer(
        self,
        prompt_tokens: int = 4_000,
        *,
        stream: bool = True,
        outcome: AttemptOutcome = AttemptOutcome.OK,
        usage: Usage | None = None,
        num_chunks: int = OUTPUT_TOKENS,
        noise: float = 1.0,
    ) -> None:
        """Send one request to the next replica and let it be answered."""
        self.num_sent += 1
        request = RouteRequest(f"{self.num_sent}", "m", prompt_tokens, stream=stream)
        lease = lease_of(self.fleet.decide(request, self.now_us))
        factor = self.factors[lease.replica.replica_id] * noise
        self.now_us += round((STEP_US + prompt_tokens * TOKEN_US) * factor)
        lease.first_byte(self.now_us)
        self.now_us += round(DECODE_US * factor * (num_chunks - 1))
        lease.num_chunks = num_chunks
        lease.end(outcome, self.now_us, usage)
        self.compare()

    def compare(self) -> None:
        """Do what a tick does with answers, without the reports growing old."""
        rates = self.fleet._roster.rates
        if rates is not None:
            rates.compare()

    def slowdowns(self) -> dict[str, float]:
        """Return what policies see after a tick."""
        self.fleet.tick(self.now_us)
        return {
            status.view.replica_id: round(status.view.prefill_slowdown, 2)
            for status in self.fleet.views()
        }


def test_slow_replica_is_found_and_its_speed_divided() -> None:
    drive = Drive("abcd")
    drive.factors["c"] = 3.0

    for number in range(4 * 20):
        drive.answer(prompt_tokens=(500, 1_000, 4_000)[number // 4 % 3])

    assert drive.slowdowns() == {"a": 1, "b": 1, "c": 3, "d": 1}
    speeds = [status.view.prefill_tokens_per_s for status in drive.fleet.views()]
    assert speeds[0] == pytest.approx(3 * speeds[2])
    c = drive.fleet.views()[2].view
    assert c.decode_slowdown == pytest.approx(3)
    assert c.token_us == pytest.approx(3 * DECODE_US)


def test_of_many_answers_between_two_ticks_a_few_are_compared() -> None:
    drive = Drive("ab")
    drive.factors["b"] = 3.0
    drive.compare = lambda: None  # type: ignore[method-assign]

    for _ in range(2 * 40):
        drive.answer()
    at_once = drive.slowdowns()
    for _ in range(PRIOR_ANSWERS):
        for _ in range(2 * ANSWERS_PER_TICK):
            drive.answer()
        by_and_by = drive.slowdowns()

    assert at_once == {"a": 1, "b": 1}  # so few are no evidence
    assert by_and_by == {"a": 1, "b": 3}


def test_of_two_replicas_the_slow_one_is_known() -> None:
    drive = Drive("ab")
    drive.factors["b"] = 2.0

    for _ in range(2 * 20):
        drive.answer()

    assert drive.slowdowns() == {"a": 1, "b": 2}


def test_little_is_no_evidence() -> None:
    drive = Drive("ab")
    drive.factors["b"] = 3.0

    for _ in range(2 * (PRIOR_ANSWERS - 1)):
        drive.answer()

    assert drive.slowdowns() == {"a": 1, "b": 1}


@pytest.mark.parametrize(("factor", "seen"), [(1.35, 1), (0.75, 1), (1.5, 1.5), (0.5, 0.5)])
def test_dead_band_hides_small_differences(factor: float, seen: float) -> None:
    drive = Drive("abc")
    drive.factors["b"] = factor

    for _ in range(3 * 20):
        drive.answer()

    assert drive.slowdowns()["b"] == seen


def test_large_fixed_cost_is_not_taken_for_slowness_of_who_computes_little() -> None:
    drive = Drive("ab")

    for _ in range(40):
        drive.answer(prompt_tokens=100)  # to a, for it goes in turn
        drive.answer(prompt_tokens=10_000)  # to b

    assert drive.slowdowns() == {"a": 1, "b": 1}


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32))
def test_even_fleet_with_noise_and_outliers_stays_even(seed: int) -> None:
    noise = random.Random(seed)
    drive = Drive("abcd", rate_window_s=1e6)

    for _ in range(200):
        is_odd = noise.random() < 0.1
        drive.answer(
            prompt_tokens=noise.choice((500, 2_000, 8_000)),
            noise=100.0 if is_odd else noise.lognormvariate(0, 0.3),
        )

    assert set(drive.slowdowns().values()) == {1}


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32))
def test_outliers_do_not_hide_a_slow_replica(seed: int) -> None:
    noise = random.Random(seed)
    drive = Drive("abcd", rate_window_s=1e6)
    drive.factors["c"] = 3.0

    for _ in range(4 * 40):
        is_odd = noise.random() < 0.1
        drive.answer(noise=100.0 if is_odd else noise.lognormvariate(0, 0.2))

    slowdowns = drive.slowdowns()
    assert 2 < slowdowns.pop("c") < 5
    assert set(slowdowns.values()) == {1}


def test_slow_replica_that_gets_no_requests_gets_another_chance_after_the_window() -> None:
    drive = Drive("abc")
    drive.factors["c"] = 3.0
    for _ in range(3 * 20):
        drive.answer()
    assert drive.slowdowns()["c"] == 3

    drive.now_us += WINDOW_US

    assert drive.slowdowns()["c"] == 1
    assert [status.view.token_us for status in drive.fleet.views()] == [None] * 3


def test_restarted_replica_is_as_fast_as_any() -> None:
    drive = Drive("abc")
    drive.factors["c"] = 3.0
    drive.fleet.on_report(make_report("c", prefill_tokens_per_s=6_000.0), 0, 0)
    drive.fleet.tick(0)  # those who do not tell are taken for as fast
    for _ in range(3 * 20):
        drive.answer()
    assert drive.slowdowns()["c"] == 3

    again = make_report("c", incarnation="second", prefill_tokens_per_s=6_000.0)
    drive.fleet.on_report(again, 0, drive.now_us)

    assert drive.slowdowns()["c"] == 1
    assert drive.fleet.views()[2].view.prefill_tokens_per_s == 6_000


def test_report_that_tells_of_a_slow_replica_leaves_nothing_to_learn() -> None:
    drive = Drive("abc")
    drive.factors["c"] = 3.0
    for replica_id, tokens_per_s in (("a", 9_000.0), ("b", 9_000.0), ("c", 3_000.0)):
        report = make_report(replica_id, prefill_tokens_per_s=tokens_per_s)
        drive.fleet.on_report(report, 0, 0)

    for number in range(180):  # each replica gets both, and c's of 2,000 are a's of 6,000
        drive.answer(prompt_tokens=2_000 if number % 2 else 6_000)

    assert drive.slowdowns() == {"a": 1, "b": 1, "c": 1}
    assert drive.fleet.views()[2].view.prefill_tokens_per_s == 3_000


@pytest.mark.parametrize("tokens_per_s", [5e-324, 1e308])
def test_absurd_speed_in_a_report_stops_no_tick(tokens_per_s: float) -> None:
    drive = Drive("ab")
    drive.fleet.on_report(make_report("a", prefill_tokens_per_s=tokens_per_s), 0, 0)

    for _ in range(20):
        drive.answer()

    assert drive.slowdowns() == {"a": 1, "b": 1}


@pytest.mark.parametrize(
    ("stream", "outcome"),
    [
        (False, AttemptOutcome.OK),
        (True, AttemptOutcome.CANCELLED),
        (True, AttemptOutcome.SERVER_ERROR),
    ],
)
def test_only_whole_streams_are_learned_from(stream: bool, outcome: AttemptOutcome) -> None:
    drive = Drive("ab", breaker_failures=1_000, breaker_window_requests=1_000)
    drive.factors["b"] = 3.0

    for _ in range(40):
        drive.answer(stream=stream, outcome=outcome)

    assert drive.slowdowns() == {"a": 1, "b": 1}


def test_what_the_engine_had_cached_is_no_work() -> None:
    drive = Drive("ab")
    cached = Usage(4_000, OUTPUT_TOKENS, 0, PromptTokensDetails(3_900))

    for number in range(40):  # b had it cached, though the gateway did not know: so it is not fast
        is_b = number % 2 == 1
        drive.answer(noise=0.12 if is_b else 1.0, usage=cached if is_b else None)

    assert drive.slowdowns() == {"a": 1, "b": 1}


def test_short_answers_say_nothing_of_decoding() -> None:
    drive = Drive("ab")

    for _ in range(40):
        drive.answer(num_chunks=2)

    drive.fleet.tick(drive.now_us)
    assert [status.view.token_us for status in drive.fleet.views()] == [None] * 2


def test_nothing_is_learned_where_that_is_turned_off() -> None:
    drive = Drive("ab", learn_rates=False)
    drive.factors["b"] = 3.0

    for _ in range(40):
        drive.answer()

    assert drive.slowdowns() == {"a": 1, "b": 1}


def test_decisions_go_by_what_was_learned() -> None:
    drive = Drive("abc")
    drive.factors["c"] = 3.0
    for _ in range(3 * 20):
        drive.answer()
    drive.fleet.tick(drive.now_us)
    drive.fleet.policy = build_policy("prefix_load")

    burst = [RouteRequest(f"burst {number}", "m", 1_000) for number in range(12)]
    picks = Counter(chosen(drive.fleet.decide(request, drive.now_us)) for request in burst)

    assert picks["c"] < 12 / 3 / 2


def test_memory_is_bounded_in_answers_and_in_classes_of_work() -> None:
    peers, pace = Peers(SECOND), Pace()

    for number in range(2 * CLASSES_MAX):
        peers.compare(f"model {number}", 1.0, 1.0, pace, number)

    assert len(peers._classes) == CLASSES_MAX
    assert len(pace._took_us) == ANSWERS_KEPT


def test_replica_that_alone_does_so_much_work_is_compared_with_nobody() -> None:
    peers, slow, fast = Peers(SECOND), Pace(), Pace()
    for number in range(20):
        peers.compare("m", 10.0, 30.0, slow, number)
        peers.compare("m", 10.0, 10.0, fast, number)
    for number in range(20, 50):  # its queue is longer than any other's
        peers.compare("m", 1_000.0, 3_000.0, slow, number)

    slow.update(0)

    assert slow.slowdown == pytest.approx(3)


def test_fleet_that_tells_no_speed_is_believed_as_fast_as_its_answers_show() -> None:
    drive = Drive("abcd")
    drive.factors["c"] = 3.0

    for _ in range(4 * 20):
        drive.answer(prompt_tokens=8_000)
    drive.fleet.tick(drive.now_us)

    speeds = [status.view.prefill_tokens_per_s for status in drive.fleet.views()]
    real = 8_000 / (STEP_US + 8_000 * TOKEN_US) * 1e6
    assert speeds == pytest.approx([real, real, real / 3, real], rel=0.01)


def test_speed_that_one_replica_tells_is_not_overruled_for_any_of_its_model() -> None:
    drive = Drive("ab")
    drive.fleet.on_report(make_report("a", prefill_tokens_per_s=5_000.0), 0, 0)

    for _ in range(2 * 20):
        drive.answer(prompt_tokens=8_000)
    drive.fleet.tick(drive.now_us)

    assert [status.view.prefill_tokens_per_s for status in drive.fleet.views()] == [5_000] * 2


def test_short_prompts_do_not_make_a_fleet_look_slow() -> None:
    drive = Drive("ab")

    for _ in range(2 * 20):
        drive.answer(prompt_tokens=20)
    drive.fleet.tick(drive.now_us)

    prior = RoutingConfig().prefill_tokens_per_s
    assert [status.view.prefill_tokens_per_s for status in drive.fleet.views()] == [prior] * 2


def test_speed_is_that_of_the_fast_even_where_half_the_answers_are_of_the_slow() -> None:
    drive = Drive("ab")
    drive.factors["b"] = 3.0

    for _ in range(2 * 60):
        drive.answer(prompt_tokens=8_000)
        drive.fleet.tick(drive.now_us)

    speeds = [status.view.prefill_tokens_per_s for status in drive.fleet.views()]
    real = 8_000 / (STEP_US + 8_000 * TOKEN_US) * 1e6
    assert speeds == pytest.approx([real, real / 3], rel=0.01)


def test_wait_for_what_is_ahead_is_not_taken_for_slowness() -> None:
    fleet, now_us = make_fleet("ab", policy="round_robin"), 0

    for number in range(20):
        long, tiny, short, alone = (
            lease_of(fleet.decide(RouteRequest(f"{number} {n}", "m", tokens, stream=True), now_us))
            for n, tokens in enumerate((8_000, 1, 1_000, 1_000))
        )
        alone.first_byte(now_us + 40_000)
        long.first_byte(now_us + 200_000)
        short.first_byte(now_us + 240_000)  # behind the long one, on the other replica
        now_us += SECOND
        for lease in (long, tiny, short, alone):
            lease.end(AttemptOutcome.OK, now_us)
    fleet.tick(now_us)

    assert [status.view.prefill_slowdown for status in fleet.views()] == [1, 1]
