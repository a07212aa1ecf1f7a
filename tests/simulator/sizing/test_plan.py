"""The search for the fewest replicas: on made-up fleets of known answers, then on real ones."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import router.policies  # noqa: F401
from contract.hardware import Precision, find_gpu, find_model
from contract.options import SettingError
from simulator.request import Segment, SimRequest
from simulator.sizing.bracket import MeanLoad, bracket
from simulator.sizing.plan import plan_size
from simulator.sizing.prices import USD_PER_HOUR, prices_of
from simulator.sizing.question import Question
from simulator.sizing.search import (
    each_of,
    fewest_replicas,
    remembered,
    run_together,
    with_one_lost,
)
from simulator.sizing.settings import SizeSettings
from simulator.sizing.side import SweepRow, gone, mark_front
from simulator.sizing.trial import Candidate, Limits, Trial, TrialResult, run_trial
from simulator.sizing.window import Cut, Window, take

CANDIDATE = Candidate(
    model=find_model("Llama-3.1-8B"),
    gpu=find_gpu("L4"),
    gpus=1,
    precision=Precision.BF16,
    kv_precision=Precision.BF16,
    kv_tokens=20_000,
)
ASKED = Trial(
    candidate=CANDIDATE,
    replicas=0,
    policy="prefix_load",
    cut=Cut(0, 0, 10_000_000),
    limits=Limits(500_000, 100_000),
    requests_max=1_000,
)


def result(late: int = 0, ttft_p99_ms: float = 100.0) -> TrialResult:
    return TrialResult(
        requests=100,
        late_ttft=late,
        late_itl=0,
        unanswered=0,
        broken=0,
        ttft_p50_ms=ttft_p99_ms / 2,
        ttft_p99_ms=ttft_p99_ms,
        itl_p99_ms=20.0,
        hit_rate=0.5,
        prompt_tokens_per_s=1_000.0,
        output_tokens_per_s=100.0,
        busiest_replica="replica-1",
    )


class Oracle:
    """Fleets that hold from a number of replicas on, which may differ by seed and by a loss."""

    def __init__(self, least: Sequence[int], with_loss: int = 0) -> None:
        self.least, self.with_loss = least, with_loss
        self.asked: list[Trial] = []

    def __call__(self, trials: Sequence[Trial]) -> list[TrialResult]:
        self.asked += trials
        return [result(0 if self._holds(trial) else 50) for trial in trials]

    def _holds(self, trial: Trial) -> bool:
        least = self.least[trial.seed] + (self.with_loss if trial.crashed else 0)
        return trial.replicas >= least


@given(least=st.lists(st.integers(1, 40), min_size=1, max_size=4), begin=st.integers(1, 60))
def test_the_search_finds_the_fewest_that_hold_for_all_seeds_and_ran_one_less(
    least: list[int], begin: int
) -> None:
    oracle = Oracle(least)

    (found,) = run_together([fewest_replicas(ASKED, begin, len(least), 64)], oracle)

    assert found.replicas == max(least)
    assert found.holds
    assert len(found.runs) == len(least)
    assert (found.one_less is None) == (max(least) == 1)
    assert found.one_less is None or not found.one_less.holds
    assert any(trial.replicas == max(least) - 1 for trial in oracle.asked) == (max(least) > 1)


def test_the_search_gives_up_at_the_most_replicas_and_says_so() -> None:
    (found,) = run_together([fewest_replicas(ASKED, 2, 1, 8)], Oracle([9]))

    assert (found.replicas, found.holds) == (8, False)


def test_a_good_guess_costs_few_runs() -> None:
    oracle = Oracle([20])

    run_together([fewest_replicas(ASKED, 19, 1, 64)], oracle)

    assert len(oracle.asked) <= 5


def test_equal_trials_of_several_searches_are_run_once() -> None:
    oracle = Oracle([1])
    trials = [replace(ASKED, replicas=1)]

    both = run_together([each_of(trials), each_of(trials)], remembered(oracle))

    assert both[0] == both[1]
    assert len(oracle.asked) == 1


def test_the_lost_replica_is_the_busiest_one_and_costs_as_many_as_it_takes() -> None:
    oracle = Oracle([3], with_loss=2)

    (found,) = run_together([with_one_lost(ASKED, 3, 1, 64)], oracle)

    assert (found.replicas, found.holds) == (5, True)
    assert {trial.crashed for trial in oracle.asked} == {None, "replica-1"}


def test_one_in_a_hundred_may_be_late_but_not_two() -> None:
    assert result(late=1).holds
    assert not result(late=2).holds
    assert not replace(result(), late_itl=2).holds
    assert not replace(result(), stopped=True).holds


def requests(count: int, gap_us: int, *, output: int = 20) -> tuple[SimRequest, ...]:
    return tuple(
        SimRequest(
            request_id=f"q{n}",
            segments=(Segment(1 + n % 5, 800), Segment(100 + n, 100)),
            output_tokens=output,
            output_id=10_000 + n,
            arrival_us=n * gap_us,
        )
        for n in range(count)
    )


def window_of(count: int, gap_us: int) -> Window:
    return take(requests(count, gap_us), replace(ASKED.cut, window_us=count * gap_us), 1_000)


def test_a_hopeless_run_is_stopped_and_does_not_hold() -> None:
    window = window_of(200, 10_000)

    stopped = run_trial(replace(ASKED, replicas=1), window)
    whole = run_trial(replace(ASKED, replicas=1, may_stop=False), window)

    assert stopped.stopped
    assert not stopped.holds
    assert not whole.holds
    assert (stopped.requests < 200, whole.requests) == (True, 200)


def test_whether_a_run_may_stop_changes_nothing_in_one_that_holds() -> None:
    window = window_of(40, 300_000)
    asked = replace(ASKED, replicas=2)

    assert run_trial(asked, window) == run_trial(replace(asked, may_stop=False), window)
    assert run_trial(asked, window).holds


def test_broken_answers_are_counted_and_not_held_against_the_fleet() -> None:
    window = Window(requests(40, 300_000, output=100), 0, 6_000_000)
    asked = replace(ASKED, replicas=4)
    calm = run_trial(asked, window)

    lost = run_trial(replace(asked, crashed=calm.busiest_replica, may_stop=False), window)

    assert calm.broken == 0
    assert lost.broken >= 2
    assert max(lost.late_ttft, lost.late_itl) < lost.broken
    assert lost.output_tokens_per_s < calm.output_tokens_per_s


def test_warm_up_is_not_judged() -> None:
    window = take(requests(40, 300_000), Cut(0, 6_000_000, 6_000_000), 1_000)

    judged = run_trial(replace(ASKED, replicas=2), window)

    assert judged.requests == 20
    assert judged.hit_rate > 0.8


def test_arithmetic_names_what_can_never_hold() -> None:
    load = MeanLoad.of(window_of(100, 100_000), 10_000_000)

    def impossible(limits: Limits = ASKED.limits, **changes: int) -> str | None:
        return bracket(replace(CANDIDATE, **changes), load, limits, 64).impossible  # type: ignore[arg-type]

    assert impossible() is None
    assert "KV cache 800" in (impossible(kv_tokens=800) or "")
    assert "more than the ITL limit" in (impossible(Limits(1e6, 1_000)) or "")


def test_arithmetic_asks_for_more_replicas_for_more_load() -> None:
    loads = [MeanLoad.of(window_of(100, gap), 100 * gap) for gap in (200_000, 20_000, 5_000)]

    asked = [bracket(CANDIDATE, load, ASKED.limits, 64).replicas for load in loads]

    assert asked == sorted(asked)
    assert asked[0] < asked[-1]


def test_the_means_are_those_of_the_judged_requests() -> None:
    window = take(requests(40, 250_000), Cut(0, 5_000_000, 5_000_000), 1_000)

    load = MeanLoad.of(window, 5_000_000)

    assert (load.requests_per_s, load.prompt_tokens, load.output_tokens) == (4, 900, 20)
    assert load.hit_rate == pytest.approx(800 / 900)
    assert load.repeated_tokens == 5 * 800


def row(gpu: str, usd: float | None, ttft_ms: float = 0.0) -> SweepRow:
    if usd is None:
        return SweepRow(gpu, 1, None, None, None, "no")
    return SweepRow(gpu, 1, 2, usd, result(ttft_p99_ms=ttft_ms))


def test_the_front_has_no_row_that_is_both_dearer_and_slower() -> None:
    rows = mark_front(
        [row("a", 300, 50), row("b", 100, 90), row("c", 200, 95), row("d", None), row("e", 150, 70)]
    )

    assert [each.gpu for each in rows] == ["b", "e", "c", "a", "d"]
    assert [each.gpu for each in rows if each.on_front] == ["b", "e", "a"]


def test_without_a_gpu_type_the_cheapest_other_one_is_named() -> None:
    rows = gone(mark_front([row("a", 100, 90), row("b", 200, 50)]))

    assert [each.change for each in rows] == ["no a to be had", "no b to be had"]
    assert [each.usd_per_month for each in rows] == [200, 100]


def test_prices_are_inputs_with_defaults() -> None:
    prices = prices_of(["h100=2.5", "L40S=1"])

    assert prices == {**USD_PER_HOUR, "H100": 2.5, "L40S": 1.0}


@pytest.mark.parametrize("item", ["h100", "h100=", "h100=-1", "nothing=2", "h100=nan"])
def test_what_is_no_price_is_refused_by_its_text(item: str) -> None:
    with pytest.raises(SettingError, match=item):
        prices_of([item])


def question(**changes: object) -> Question:
    values: dict[str, object] = {
        "model": "llama-3.1-8b",
        "gpu": "l4",
        "rate": 4.0,
        "seeds": 2,
        "window_s": 8.0,
        "warm_up_s": 2.0,
        "sweep": ("l4", "a100"),
        "itl_p99_ms": 100.0,
    }
    settings = SizeSettings(**(values | changes))  # type: ignore[arg-type]
    return Question(
        settings=settings,
        model=find_model(settings.model),
        gpu=find_gpu(settings.gpu),
        prices=USD_PER_HOUR,
        requests=requests(120, 250_000),
        is_drawn=True,
    )


def test_a_plan_is_whole_and_its_money_adds_up() -> None:
    asked = question()

    def measure(trials: Sequence[Trial]) -> list[TrialResult]:
        return [run_trial(t, take(asked.requests, t.cut, t.requests_max)) for t in trials]

    plan = plan_size(asked, measure)

    chosen = plan.chosen
    assert chosen.holds
    assert plan.spare.replicas >= chosen.replicas
    assert plan.tensor_parallel == 1
    assert chosen.usd_per_month == pytest.approx(chosen.gpus * 0.80 * 730)
    assert chosen.usd_per_million_tokens < chosen.usd_per_million_output_tokens
    assert plan.saved_gpus == plan.baseline.gpus - chosen.gpus
    assert [row.rate_scale for row in plan.rates] == [0.5, 0.75, 1.0, 1.25, 1.5, 2.0]
    assert not any(row.run.stopped for row in plan.rates)  # figures of a whole run each
    assert plan.knee is not None
    assert plan.knee >= 4 * 0.9
    assert {row.gpu for row in plan.sweep} == {"L4", "A100-80"}
    assert plan.what_if[0].change == "as asked"
    assert plan == plan_size(asked, measure)  # equal question, equal plan


def test_a_limit_that_no_fleet_can_hold_is_an_error_that_says_what_would() -> None:
    asked = question(itl_p99_ms=5.0)

    with pytest.raises(SettingError, match="more than the ITL limit; use more GPUs per replica"):
        plan_size(asked, Oracle([1, 1]))


def test_arithmetic_counts_on_all_caches_of_a_fleet_together() -> None:
    load = MeanLoad.of(window_of(100, 100_000), 10_000_000)
    wide = replace(load, repeated_tokens=60_000)

    asked = [bracket(CANDIDATE, each, ASKED.limits, 64).replicas for each in (load, wide)]

    assert asked[0] < asked[1] < 64
