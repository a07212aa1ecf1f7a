"""Routing runs of the real decide() and policies against tables drawn by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.options import SettingError
from router.core.policy import POLICIES
from simulator.routing import (
    DEFAULT_CHOICES,
    PolicyChoice,
    RoutingSettings,
    fnv1a_32,
    parse_choice,
    plan_routing,
)

ROUND_ROBIN, PREFIX_HASH, PREFIX_CAPPED = DEFAULT_CHOICES


def test_fnv1a_gives_the_published_vectors() -> None:
    assert fnv1a_32(b"") == 0x811C9DC5
    assert fnv1a_32(b"a") == 0xE40C292C
    assert fnv1a_32(b"foobar") == 0xBF9CF968


def test_round_robin_over_two_replicas_computes_each_tenant_twice() -> None:
    # A A B B A B on 0 1 0 1 0 1: only the last two find their tenant's 10 tokens.
    run = plan_routing(RoutingSettings("AABBAB", 10, 3, 2), ROUND_ROBIN)

    assert run.chosen_replicas == (0, 1, 0, 1, 0, 1)
    assert run.prompt_tokens == 6 * 13
    assert run.prefill_tokens == 4 * 13 + 2 * 3
    assert run.saved_share == pytest.approx(20 / 78)


def test_the_cap_of_two_moves_the_third_of_a_tenant_and_ties_go_to_the_lowest() -> None:
    # A A fill replica 0 to 2 against 0, so the third goes to 1; then 0 leads by 1 only.
    run = plan_routing(RoutingSettings("AAAA", 10, 3, 2), PREFIX_CAPPED)

    assert run.chosen_replicas == (0, 0, 1, 0)
    assert run.prefill_tokens == 13 + 3 + 13 + 3


def test_prefix_hash_follows_the_hash_of_the_tenants_name() -> None:
    run = plan_routing(RoutingSettings("AxA,B,AxA", 10, 3, 5), PREFIX_HASH)

    homes = {name: fnv1a_32(f"system-prompt-{name}".encode()) % 5 for name in ("AxA", "B")}
    assert run.chosen_replicas == (homes["AxA"], homes["B"], homes["AxA"])
    assert run.requests_per_replica[homes["AxA"]] >= 2


def test_more_than_nine_replicas_keep_the_order_of_their_numbers() -> None:
    run = plan_routing(RoutingSettings("ABCDEFGHIJKL", 1, 1, 12), ROUND_ROBIN)

    assert run.chosen_replicas == tuple(range(12))


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_can_be_planned_and_accounts_for_every_request(policy: str) -> None:
    run = plan_routing(RoutingSettings("ABCABCABCABC", 8, 2, 4), PolicyChoice(policy))

    assert sum(run.requests_per_replica) == 12
    assert 3 * 10 + 9 * 2 <= run.prefill_tokens <= run.prompt_tokens == 120


@given(
    tenants=st.text("ABC", min_size=1, max_size=20),
    system_tokens=st.integers(0, 20),
    own_tokens=st.integers(1, 5),
    replicas=st.integers(1, 4),
    choice=st.sampled_from(DEFAULT_CHOICES),
)
def test_what_is_computed_is_one_system_prompt_per_tenant_and_replica_used(
    tenants: str, system_tokens: int, own_tokens: int, replicas: int, choice: PolicyChoice
) -> None:
    run = plan_routing(RoutingSettings(tenants, system_tokens, own_tokens, replicas), choice)

    pairs = set(zip(tenants, run.chosen_replicas, strict=True))
    assert run.prefill_tokens == len(tenants) * own_tokens + len(pairs) * system_tokens
    assert sum(run.requests_per_replica) == len(tenants)


def test_a_choice_is_read_back_from_its_text() -> None:
    for choice in DEFAULT_CHOICES:
        assert parse_choice(choice.text) == choice


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nearest", "no policy 'nearest'; known: .*round_robin"),
        ("prefix_hash:load", r"policy 'prefix_hash:load' has 'load', expected setting=value"),
        ("prefix_hash:weight=1", "has no setting 'weight'; known: load_factor"),
        ("prefix_hash:load_factor=half", "load_factor is 'half', expected"),
    ],
)
def test_a_choice_that_cannot_be_built_says_what_is_known(text: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        parse_choice(text)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("", 1, 1, 1), "tenants is '', must name a tenant for each request"),
        (("A,,B", 1, 1, 1), "tenants is 'A,,B', must name"),
        (("A", 1, 0, 1), "own_tokens is 0, must be above 0"),
        (("A", 1, 1, 1_001), "replicas is 1001, must be at most 1000"),
        (("AB", 1_000_000, 1, 1), "the prompts have 2000002 tokens, must be at most 2000000"),
    ],
)
def test_impossible_figures_are_refused_by_name(
    settings: tuple[str, int, int, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        RoutingSettings(*settings)
