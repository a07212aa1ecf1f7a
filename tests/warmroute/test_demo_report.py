"""What the demo prints: sums, percentiles and the arithmetic of one decision, checked by hand."""

from collections import Counter

from router.policies.prefix_load import PrefixLoad
from warmroute.demo.replay import Answer, ReplayResult
from warmroute.demo.report import summarise, table, verdict, worked_decision
from warmroute.demo.workload import TraceRequest

REQUEST = TraceRequest("r", 0.0, "text", 1, 1)


def answer(ttft_s: float, cached: int, predicted: int, replica: str) -> Answer:
    return Answer(REQUEST, None, replica, ttft_s, 2 * ttft_s, 100, cached, predicted)


def result(*answers: Answer) -> ReplayResult:
    errors = Counter(a.error for a in answers if a.error is not None)
    return ReplayResult(list(answers), 1.0, 0.0, errors)


def test_a_row_sums_tokens_and_takes_nearest_rank_percentiles() -> None:
    answers = [answer(0.1 * n, 10 * n, 10 * n + 5, f"replica-{n % 2}") for n in range(1, 5)]

    row = summarise("p", result(*answers, Answer(REQUEST, error="status 503")))

    assert (row.requests, row.errors) == (5, 1)
    assert row.errors_by_kind == {"status 503": 1}
    assert (row.prefill_tokens_computed, row.prefill_tokens_saved) == (300, 100)
    assert row.hit_rate_actual == 0.25
    assert row.hit_rate_predicted == 0.30
    assert row.ttft_p50_s == 0.1 * 3
    assert row.ttft_p99_s == 0.1 * 4
    assert row.requests_per_replica == {"replica-0": 2, "replica-1": 2}


def test_a_run_without_a_good_answer_is_a_row_of_zeros() -> None:
    row = summarise("p", result(Answer(REQUEST, error="status 503")))

    assert (row.requests, row.errors, row.hit_rate_actual, row.ttft_p50_s) == (1, 1, 0.0, 0.0)
    assert "503" not in table([row])


def test_the_verdict_compares_the_last_policy_with_the_first() -> None:
    rows = [summarise("a", result(answer(0.2, 10, 0, "x")))]
    rows.append(summarise("b", result(answer(0.1, 40, 0, "x"))))

    assert verdict(rows) == (
        "b against a: -33% prefill tokens computed, 4.0 x the hit rate, TTFT p50 -50%."
    )


def test_the_decision_shows_its_arithmetic() -> None:
    candidate = {
        "replica_id": "replica-0",
        "ahead_tokens": 1000,
        "uncached_tokens": 500,
        "matched_tokens": 1500,
        "prefill_tokens_per_s": 10_000.0,
        "requests": 3,
        "cost": 0.21,
    }
    explanation = {
        "policy": "prefix_load",
        "request_id": "r",
        "prompt_tokens": 2000,
        "candidates": [candidate],
        "chosen": "replica-0",
        "reason": "warm",
    }

    text = worked_decision(explanation, PrefixLoad(interference=0.3, request_tokens=100))

    # (1,000 + 500 x (1 + 0.3 x sqrt(3 + 1)) + 100 x 3) / 10,000
    assert "( 1,000 +   500 x 1.60 +   300) / 10,000 = 210.0 ms" in text
    assert "<- chosen: warm" in text
