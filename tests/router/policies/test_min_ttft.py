"""The cost of `min_ttft` in its parts, worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.options import SettingError
from router.core.policy import build_policy
from router.core.view import pressure_of
from router.policies.min_ttft import MinTtft
from router.policies.prefix_load import PrefixLoad
from tests.router.policies.making import request, view

PROMPT = request(tokens=2100, a=2000)
WHOLE_STEPS = MinTtft(step_share=1.0)


@pytest.mark.parametrize(
    ("name", "requests", "ahead_tokens", "tokens"),
    [
        ("a", 2, 1000, (1000, 100, 212.76, 51.96, 22.5, 0, 200)),
        ("a", 2, 8092, (8092, 100, 0, 51.96, 65.66, 0, 200)),  # 8,192: the step is just full
        ("a", 2, 8093, (8093, 100, 245.73, 51.96, 65.66, 0, 200)),
        ("b", 0, 0, (0, 2100, 182.76, 630, 0, 0, 0)),
        ("b", 8, 20_000, (20_000, 2100, 74.28, 1890, 1643.48, 0, 800)),
    ],
)
def test_terms_are_tokens_over_speed(
    name: str, requests: int, ahead_tokens: int, tokens: tuple[float, ...]
) -> None:
    terms = MinTtft().terms(PROMPT, view(name, requests, ahead_tokens=ahead_tokens))

    assert list(terms) == [
        *("ahead", "prefill", "rounding", "interference", "crowding"),
        *("eviction", "requests", "memory"),
    ]
    assert [8000 * term for term in terms.values()] == pytest.approx((*tokens, 0), abs=0.01)


def test_a_cache_that_sequences_hold_nearly_whole_costs_a_wait() -> None:
    policy = MinTtft(kv_pressure_s=0.01)
    costs = []
    for usage in (0.0, 0.5, 0.97, 1.0):
        replica = view("a")
        replica.kv_pressure = pressure_of(usage)
        costs.append(policy.cost(PROMPT, replica))

    assert [cost - costs[0] for cost in costs] == pytest.approx([0, 0.01, 0.31, 0.31])


def test_a_replica_tells_its_steps_and_where_it_does_not_the_settings_do() -> None:
    silent, telling = view("b"), view("b")
    telling.step_tokens, telling.step_share = 2_048, 1.0

    rounding = [MinTtft().terms(PROMPT, each)["rounding"] * 8_000 for each in (silent, telling)]

    assert rounding == pytest.approx([0.03 * (8_192 - 2_100), 4_096 - 2_100])


@pytest.mark.parametrize(("ahead_tokens", "pick"), [(0, "a"), (8000, "a"), (8100, "b")])
def test_where_steps_cost_the_same_the_warm_replica_is_left_for_a_step_and_not_for_tokens(
    ahead_tokens: int, pick: str
) -> None:
    replicas = [view("a", 2, ahead_tokens=ahead_tokens), view("b")]

    assert WHOLE_STEPS.choose(PROMPT, replicas).replica_id == pick


@pytest.mark.parametrize(("ahead_tokens", "pick"), [(0, "a"), (2300, "a"), (2500, "b")])
def test_the_warm_replica_is_left_when_waiting_costs_more_than_computing_again(
    ahead_tokens: int, pick: str
) -> None:
    replicas = [view("a", 2, ahead_tokens=ahead_tokens), view("b")]

    assert MinTtft().choose(PROMPT, replicas).replica_id == pick


def test_the_costs_of_its_docstring() -> None:
    cost = MinTtft().cost

    assert cost(PROMPT, view("a", 2, ahead_tokens=1000)) == pytest.approx(0.198, abs=0.001)
    assert cost(PROMPT, view("b")) == pytest.approx(0.364, abs=0.001)
    assert cost(PROMPT, view("a", 2, ahead_tokens=2500)) == pytest.approx(0.383, abs=0.001)


def test_where_all_have_queues_a_prefix_is_computed_again_later_than_where_one_is_idle() -> None:
    def is_left_at(queue_elsewhere: int) -> int:
        cold = view("b", ahead_tokens=queue_elsewhere)
        return next(
            ahead_tokens - queue_elsewhere
            for ahead_tokens in range(queue_elsewhere, 100_000, 50)
            if MinTtft().choose(PROMPT, [view("a", ahead_tokens=ahead_tokens), cold]) is cold
        )

    beyond = [is_left_at(queue) for queue in (0, 1000, 4000, 16_000)]

    assert beyond == sorted(set(beyond))


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
    step_share=st.floats(0, 1),
)
def test_the_loop_over_replicas_adds_up_the_same_terms(
    prompt_tokens: int,
    share: float,
    own: int,
    foreign: int,
    ahead_tokens: int,
    step_tokens: int,
    step_share: float,
) -> None:
    replica = view("a", own, ahead_tokens=ahead_tokens)
    replica.foreign_requests = foreign
    replica.foreign_ahead_tokens = ahead_tokens // 3
    prompt = request(tokens=prompt_tokens, a=int((prompt_tokens - 1) * share))
    policy = MinTtft(step_share=step_share, step_tokens=step_tokens, eviction=0.5)

    (cost,) = policy.costs(prompt, [replica])

    assert cost == pytest.approx(sum(policy.terms(prompt, replica).values()), rel=1e-9)


@given(
    own_tokens=st.integers(1, 50_000),
    requests=st.integers(0, 300),
    ahead_tokens=st.integers(0, 10**6),
)
def test_without_steps_it_is_prefix_load(own_tokens: int, requests: int, ahead_tokens: int) -> None:
    prompt, replica = request(tokens=own_tokens), view("b", requests, ahead_tokens=ahead_tokens)

    cost = MinTtft(step_share=0.0, crowding=0.0).cost(prompt, replica)

    assert cost == pytest.approx(PrefixLoad().cost(prompt, replica), rel=1e-9)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("step_share", 1.1),
        ("step_tokens", 0),
        ("crowding_tokens", 0),
        ("crowding", -0.1),
        ("interference", -1.0),
        ("request_tokens", float("inf")),
    ],
)
def test_impossible_option_is_refused_by_name(setting: str, value: object) -> None:
    with pytest.raises(SettingError, match=setting):
        build_policy("min_ttft", {setting: value})
