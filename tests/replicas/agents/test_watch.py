"""One engine over time: which process answers, and what its reports say."""

from dataclasses import replace

import pytest

from contract.load_report import LoadReport, decode_report, encode_report
from replicas.agents.engines.figures import Figures
from replicas.agents.engines.prefill_rate import WINDOW_TOKENS, WINDOWS_MAX, PrefillRate
from replicas.agents.engines.watch import EngineIdentity, EngineWatch

SILENT = Figures(running_requests=1, prompt_tokens_total=100, cached_tokens_total=40)
"""An engine that does not say when it was started."""

DATED = replace(SILENT, started_s=1_796_007_122.71)


def make_watch(agent_id: str = "agent", first_sequence: int = 0) -> EngineWatch:
    return EngineWatch(EngineIdentity("r1", "http://engine:8000"), agent_id, first_sequence)


def answered(watch: EngineWatch, figures: Figures) -> LoadReport:
    return watch.answered(figures, ["m"])


def test_a_report_says_what_is_known_and_no_more() -> None:
    report = make_watch().answered(
        Figures(running_requests=3, block_size=32, kv_blocks_total=100, kv_blocks_used=50),
        ["llama", "adapter"],
    )

    assert decode_report(encode_report(report)) == LoadReport(
        replica_id="r1",
        url="http://engine:8000",
        model="llama",
        aliases=["adapter"],
        incarnation="agent-0",
        sequence=1,
        running_requests=3,
        block_size=32,
        kv_blocks_total=100,
        kv_blocks_used=50,
    )


def test_reports_are_numbered_from_above_the_agent_s_beginning() -> None:
    watch = make_watch(first_sequence=1_000)

    assert [answered(watch, SILENT).sequence for _ in range(3)] == [1_001, 1_002, 1_003]


def test_a_sleeping_engine_takes_no_requests() -> None:
    assert answered(make_watch(), replace(SILENT, is_asleep=True)).draining


@pytest.mark.parametrize(
    "gone_back",
    [replace(SILENT, prompt_tokens_total=99), replace(SILENT, cached_tokens_total=0)],
    ids=["prompt tokens", "cached tokens"],
)
def test_a_counter_that_goes_back_is_another_process(gone_back: Figures) -> None:
    watch = make_watch()
    first = answered(watch, SILENT)

    second = answered(watch, gone_back)

    assert second.incarnation != first.incarnation
    assert second.sequence > first.sequence


def test_counters_that_grow_or_become_unknown_are_the_same_process() -> None:
    watch = make_watch()
    first = answered(watch, SILENT)

    later = [
        answered(watch, replace(SILENT, prompt_tokens_total=200)),
        answered(watch, Figures()),
        answered(watch, replace(SILENT, prompt_tokens_total=300)),
    ]

    assert {report.incarnation for report in later} == {first.incarnation}


def test_whoever_answers_where_nobody_listened_is_another_process() -> None:
    watch = make_watch()
    first = answered(watch, SILENT)
    watch.gone()
    watch.gone()

    second, third = answered(watch, SILENT), answered(watch, SILENT)

    assert second.incarnation != first.incarnation
    assert third.incarnation == second.incarnation


def test_an_engine_that_was_away_before_it_was_ever_seen_has_not_restarted() -> None:
    watch = make_watch()
    watch.gone()

    assert answered(watch, SILENT).incarnation == "agent-0"


def test_a_process_that_tells_its_start_is_known_by_it() -> None:
    watch = make_watch()
    first = answered(watch, DATED)
    watch.gone()

    same = answered(watch, replace(DATED, prompt_tokens_total=0))
    other = answered(watch, replace(DATED, started_s=1_796_007_999.0))

    assert same.incarnation == first.incarnation
    assert other.incarnation != first.incarnation


def test_a_process_that_tells_its_start_outlives_the_agent() -> None:
    before = answered(make_watch("one", first_sequence=1_000), DATED)
    after = answered(make_watch("two", first_sequence=2_000), DATED)

    assert after.incarnation == before.incarnation
    assert after.sequence > before.sequence


def test_a_process_that_does_not_is_new_to_each_agent() -> None:
    incarnations = {answered(make_watch(agent), SILENT).incarnation for agent in ("one", "two")}

    assert len(incarnations) == 2


@pytest.mark.parametrize(
    ("told", "expected"), [(None, (1, 5_000, None)), (100, (16, 100, 30))], ids=["silent", "told"]
)
def test_the_configured_cache_size_is_for_an_engine_that_does_not_tell(
    told: int | None, expected: tuple[int, int, int | None]
) -> None:
    watch = EngineWatch(EngineIdentity("r1", "http://e:1", kv_tokens=5_000), "agent", 0)
    figures = Figures() if told is None else Figures(None, None, 16, told, 30)

    report = answered(watch, figures)

    assert (report.block_size, report.kv_blocks_total, report.kv_blocks_used) == expected


def prefilled(tokens: int, seconds: float) -> Figures:
    return Figures(prefilled_tokens_total=tokens, prefill_seconds_total=seconds)


def test_the_prefill_rate_is_unknown_until_enough_was_computed() -> None:
    rate = PrefillRate()

    for tokens in (50_000, 50_000 + WINDOW_TOKENS - 1):
        rate.observe(prefilled(tokens, tokens / 1e4))
    rate.observe(Figures())

    assert rate.tokens_per_s is None


def test_the_prefill_rate_is_of_what_was_computed_since_the_agent_looks() -> None:
    rate = PrefillRate()

    rate.observe(prefilled(1_000_000, 1.0))
    for step in range(1, 4):
        rate.observe(prefilled(1_000_000 + step * 512, 1.0 + step * 0.25))

    assert rate.tokens_per_s == 2_048


def test_the_best_of_the_last_windows_is_the_prefill_rate() -> None:
    rate = PrefillRate()
    tokens, seconds = 0, 0.0
    rate.observe(prefilled(tokens, seconds))
    rates = []

    for speed in (4_096, *[1_024] * (WINDOWS_MAX - 1), 512):
        tokens, seconds = tokens + WINDOW_TOKENS, seconds + WINDOW_TOKENS / speed
        rate.observe(prefilled(tokens, seconds))
        rates.append(rate.tokens_per_s)

    assert rates == [4_096] * WINDOWS_MAX + [1_024]


@pytest.mark.parametrize(("speed", "told"), [(11_000, 8_192), (12_000, 16_384), (20_000, 16_384)])
def test_the_prefill_rate_is_rounded_so_that_engines_of_one_kind_are_equal(
    speed: int, told: int
) -> None:
    rate = PrefillRate()

    rate.observe(prefilled(0, 0.0))
    rate.observe(prefilled(speed, 1.0))

    assert rate.tokens_per_s == told


def test_a_restarted_engine_s_prefill_rate_is_measured_anew() -> None:
    watch = make_watch()
    answered(watch, prefilled(0, 0.0))
    before = answered(watch, prefilled(2_000, 1.0)).prefill_tokens_per_s

    watch.gone()
    after = answered(watch, prefilled(9_000, 2.0)).prefill_tokens_per_s

    assert (before, after) == (2_048, None)


def test_the_prefill_rate_outlives_a_break_that_was_no_restart() -> None:
    watch = make_watch()
    answered(watch, replace(prefilled(0, 0.0), started_s=1.0))
    answered(watch, replace(prefilled(2_000, 1.0), started_s=1.0))
    watch.gone()

    same = answered(watch, replace(prefilled(2_000, 1.0), started_s=1.0))
    other = answered(watch, replace(prefilled(2_000, 1.0), started_s=2.0))

    assert (same.prefill_tokens_per_s, other.prefill_tokens_per_s) == (2_048, None)
