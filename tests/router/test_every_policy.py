"""What every policy must do, whatever its rule; a new file under router/policies is tested here."""

import random
from collections import Counter
from enum import Enum
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import router.policies  # noqa: F401  # registers the policies
from contract.options import SettingError, option_rows
from router.core.config import RoutingConfig
from router.core.fleet import FleetState
from router.core.policy import POLICIES, CostPolicy, build_policy
from router.core.request import route_request
from router.core.view import ReplicaView, RouteRequest

NAMES = sorted(POLICIES)
COSTS = [name for name in NAMES if issubclass(POLICIES[name], CostPolicy)]
# 64 hashes fall on 4 replicas as 64 throws do; only the default load factor limits that.
PLACED_BY_HASH = {"chwbl", "prefix_hash"}
# A draw's share of them is 16 +- 3.5: four standard deviations.
DRAWN = {"random"}
EDGES: dict[type, list[Any]] = {
    int: [0, 1, 2**31],
    float: [0.0, 1.0, 1e-9, 1e9, float("inf")],
    bool: [False, True],
    type(None): [0, 1, 2**31],
}


@st.composite
def replicas(draw: st.DrawFn) -> list[ReplicaView]:
    count = draw(st.integers(1, 6))
    slots = draw(st.permutations(range(count)))
    views = []
    for n, slot in enumerate(slots):
        view = ReplicaView(f"replica-{n}", slot, f"http://{n}")
        view.own_requests = draw(st.integers(0, 5))
        view.foreign_requests = draw(st.integers(0, 5))
        view.own_ahead_tokens = draw(st.integers(0, 50_000))
        view.prefill_tokens_per_s = draw(st.sampled_from([0.001, 8000.0, 1e9]))
        view.kv_usage = draw(st.sampled_from([None, 0.0, 1.0]))
        views.append(view)
    return views


@st.composite
def requests(draw: st.DrawFn) -> RouteRequest:
    tokens = draw(st.integers(1, 10_000))
    request = RouteRequest(draw(st.text()), "m", tokens)
    request.prefix_key = draw(st.none() | st.integers(0, 2**64 - 1))
    request.session_key = draw(st.none() | st.text())
    request.arrival_index = draw(st.integers(0, 100))
    matched = st.integers(1, tokens - 1) if tokens > 1 else st.just(0)
    request.matched_tokens = draw(st.dictionaries(st.integers(0, 5), matched))
    return request


@pytest.mark.parametrize("name", NAMES)
@given(eligible=replicas(), request_=requests(), seed=st.integers(0, 10))
def test_choice_is_eligible_the_same_on_replay_and_in_any_order(
    name: str, eligible: list[ReplicaView], request_: RouteRequest, seed: int
) -> None:
    policy = build_policy(name)
    shuffled = list(eligible)
    random.Random(seed).shuffle(shuffled)

    pick = policy.choose(request_, eligible)

    assert any(pick is replica for replica in eligible)
    assert policy.choose(request_, eligible) is pick
    assert policy.choose(request_, shuffled) is pick


@pytest.mark.parametrize("name", COSTS)
@given(eligible=replicas(), request_=requests())
def test_cost_is_the_sum_of_its_terms_one_by_one_and_in_a_loop(
    name: str, eligible: list[ReplicaView], request_: RouteRequest
) -> None:
    policy = build_policy(name)
    assert isinstance(policy, CostPolicy)

    costs = [policy.cost(request_, replica) for replica in eligible]

    assert policy.costs(request_, eligible) == pytest.approx(costs)
    for replica, cost in zip(eligible, costs, strict=True):
        assert sum(policy.terms(request_, replica).values()) == pytest.approx(cost)


@pytest.mark.parametrize("name", NAMES)
def test_one_replica_is_chosen_without_ado(name: str) -> None:
    only = ReplicaView("only", 0, "http://only")

    assert build_policy(name).choose(RouteRequest("r", "m", 1), [only]) is only


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("name", NAMES)
def test_burst_of_unrelated_requests_spreads_over_equal_replicas(name: str, seed: int) -> None:
    config = RoutingConfig()
    fleet = FleetState(config, build_policy(name))
    for n in range(4):
        fleet.add_static(f"http://{n}", f"replica-{n}", "m", now_us=0)

    picks: Counter[str] = Counter()
    for n in range(64):
        body = b'{"model":"m","prompt":"%d %d %s"}' % (seed, n, b"word " * 200)
        request = route_request("/v1/completions", body, f"{seed}-{n}", config, None)
        replica = fleet.decide(request, 0).replica
        assert replica is not None
        picks[replica.replica_id] += 1

    assert len(picks) == 4
    if name in PLACED_BY_HASH:
        assert max(picks.values()) <= 1.25 * 64 / 4
    elif name in DRAWN:
        assert max(picks.values()) <= 16 + 4 * 3.5
    else:
        assert max(picks.values()) <= 1.5 * min(picks.values())


@cache
def at_limits(name: str) -> list[dict[str, Any]]:
    """Return the policy's options, one at a time, at all values that it accepts at its limits."""
    accepted = []
    for row in option_rows(POLICIES[name]):
        if isinstance(row.default, Enum):
            values: list[Any] = list(type(row.default))
        else:
            values = [*EDGES[type(row.default)], *([None] if "none" in row.type_name else [])]
        for value in values:
            try:
                build_policy(name, {row.name: value})
            except SettingError:
                continue
            accepted.append({row.name: value})
    return accepted


@pytest.mark.parametrize("name", NAMES)
@given(eligible=replicas(), request_=requests())
def test_no_option_at_its_limit_makes_it_raise(
    name: str, eligible: list[ReplicaView], request_: RouteRequest
) -> None:
    for settings in at_limits(name):
        pick = build_policy(name, settings).choose(request_, eligible)
        assert any(pick is replica for replica in eligible), settings


@pytest.mark.parametrize("name", NAMES)
def test_docstring_gives_formula_unit_failure_mode_and_source(name: str) -> None:
    text = POLICIES[name].__doc__ or ""

    for part in (" = ", "Unit:", "Failure mode:", "Source:"):
        assert part in " ".join(text.split()), f"{name} lacks {part!r}"
