"""The cost of `min_ttft` in its parts, worked out by hand."""

from dataclasses import astuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.options import SettingError
from router.core.policy import build_policy
from router.policies.min_ttft import MinTtft
from tests.router.policies.making import request, view

PROMPT = request(tokens=2100, a=2000)


@pytest.mark.parametrize(
    ("name", "requests", "ahead_tokens", "tokens"),
    [
        ("a", 2, 7000, (8192, 100, 17.32, 200)),
        ("a", 2, 8092, (8192, 100, 17.32, 200)),  # 8,192 together: the step is just full
        ("a", 2, 8093, (16384, 100, 17.32, 200)),
        ("b", 0, 0, (8192, 2100, 210, 0)),
        ("b", 8, 20_000, (24576, 2100, 630, 800)),
    ],
)
def test_terms_are_tokens_over_speed(
    name: str, requests: int, ahead_tokens: int, tokens: tuple[float, ...]
) -> None:
    terms = MinTtft().terms(PROMPT, view(name, requests, ahead_tokens=ahead_tokens))

    assert astuple(terms) == pytest.approx([each / 8 for each in tokens], abs=0.01)  # 8 a ms
    assert terms.total_ms == pytest.approx(sum(tokens) / 8, abs=0.01)


@pytest.mark.parametrize(("ahead_tokens", "pick"), [(0, "a"), (7000, "a"), (8100, "b")])
def test_the_warm_replica_is_left_for_a_step_and_not_for_tokens(
    ahead_tokens: int, pick: str
) -> None:
    replicas = [view("a", 2, ahead_tokens=ahead_tokens), view("b")]

    assert MinTtft().choose(PROMPT, replicas).replica_id == pick


def test_the_costs_of_its_docstring() -> None:
    cost = MinTtft().cost

    assert cost(PROMPT, view("a", 2, ahead_tokens=7000)) == pytest.approx(1.064, abs=0.001)
    assert cost(PROMPT, view("b")) == pytest.approx(1.313, abs=0.001)
    assert cost(PROMPT, view("a", 2, ahead_tokens=8100)) == pytest.approx(2.088, abs=0.001)


def test_an_idle_replica_wins_where_nothing_else_differs() -> None:
    assert MinTtft().choose(request(tokens=1), [view("a", 3), view("b", 1)]).replica_id == "b"


def test_the_faster_replica_wins() -> None:
    slow, fast = view("a"), view("b")
    slow.prefill_tokens_per_s = 3000.0

    assert MinTtft().choose(request(), [slow, fast]) is fast


@given(
    prompt_tokens=st.integers(1, 100_000),
    share=st.floats(0, 1),
    own=st.integers(0, 300),
    foreign=st.integers(0, 300),
    ahead_tokens=st.integers(0, 10**6),
    step_tokens=st.integers(1, 20_000),
)
def test_the_loop_over_replicas_adds_up_the_same_terms(
    prompt_tokens: int, share: float, own: int, foreign: int, ahead_tokens: int, step_tokens: int
) -> None:
    replica = view("a", own, ahead_tokens=ahead_tokens)
    replica.foreign_requests = foreign
    replica.foreign_ahead_tokens = ahead_tokens // 3
    prompt = request(tokens=prompt_tokens, a=int((prompt_tokens - 1) * share))
    policy = MinTtft(step_tokens=step_tokens)

    (cost,) = policy.costs(prompt, [replica])

    assert cost == pytest.approx(policy.cost(prompt, replica), rel=1e-9)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("step_tokens", 0), ("interference", -1.0), ("request_tokens", float("inf"))],
)
def test_impossible_option_is_refused_by_name(setting: str, value: object) -> None:
    with pytest.raises(SettingError, match=setting):
        build_policy("min_ttft", {setting: value})
