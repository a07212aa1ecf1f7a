"""The rules of other routers, with the numbers of their docstrings and of their own sources."""

from collections import Counter
from math import exp
from typing import Any

import pytest

from contract.options import SettingError
from router.core.config import RoutingConfig
from router.core.policy import build_policy
from router.core.request import route_request
from router.core.view import ReplicaView
from router.policies.cache_aware import CacheAware
from router.policies.chwbl import Chwbl
from router.policies.dynamo_cost import DynamoCost
from router.policies.lmetric import LMetric
from router.policies.preble import Preble
from router.policies.session import Fallback, Session
from router.policies.spill import Spill
from router.policies.sticky_until_saturated import StickyUntilSaturated
from tests.router.policies.making import request, view


@pytest.mark.parametrize(
    ("loads", "matched_tokens", "pick"),
    [
        ((100, 20), 50, "b"),  # 80 apart, and 100 > 1.5 * 20
        ((80, 20), 50, "a"),  # 60 apart
        ((84, 20), 50, "a"),  # 64 apart is not more than 64
        ((265, 200), 50, "a"),  # 65 apart, but 265 < 1.5 * 200
        ((80, 20), 30, "b"),  # 0.3 is not more than the threshold
        ((80, 20), 31, "a"),
    ],
)
def test_cache_aware_goes_by_load_while_the_fleet_is_unbalanced_or_the_match_is_short(
    loads: tuple[int, int], matched_tokens: int, pick: str
) -> None:
    replicas = [view("a", loads[0]), view("b", loads[1])]

    chosen = CacheAware().choose(request(tokens=100, a=matched_tokens), replicas)

    assert chosen.replica_id == pick


def test_cache_aware_takes_the_affinity_of_all_away_for_one_hot_replica() -> None:
    replicas = [view("a", 100), view("b", 2), view("c", 1)]

    assert CacheAware().choose(request(b=90), replicas).replica_id == "c"
    assert Spill().choose(request(b=90), replicas).replica_id == "b"


@pytest.mark.parametrize(
    ("hot", "pick"),
    [(120, "b"), (96, "b"), (95, "a")],  # means 37.5, 31.5, 31.25: limits 101.5, 95.5, 95.25
)
def test_spill_leaves_a_replica_too_far_above_the_mean(hot: int, pick: str) -> None:
    replicas = [view("a", hot), view("b", 10, ahead_tokens=1)]
    replicas += [view("c", 10, ahead_tokens=9), view("d", 10, ahead_tokens=9)]

    assert Spill().choose(request(a=90), replicas).replica_id == pick


def test_spill_at_high_loads_needs_the_ratio_as_well() -> None:
    replicas = [view("a", 290), view("b", 190), view("c", 200)]  # mean 226.7: 290 < 1.5 * 226.7

    assert Spill().choose(request(a=90), replicas).replica_id == "a"


def test_spill_waits_for_tokens_ahead_and_for_a_full_cache() -> None:
    busy = view("a", ahead_tokens=8000)
    busy.kv_usage = 0.5
    full = view("b")
    full.kv_usage = 1.0

    assert Spill().wait_s(busy) == pytest.approx(1.15)
    assert Spill().wait_s(full) == pytest.approx(0.15 * 999)
    assert Spill().wait_s(view("c")) == 0.0
    assert Spill().choose(request(), [busy, full]) is busy


def test_spill_keeps_among_the_warm_while_one_of_them_is_not_overloaded() -> None:
    replicas = [view("a", 200), view("b", 5, ahead_tokens=900), view("c", 0)]

    assert Spill().choose(request(a=90, b=90), replicas).replica_id == "b"


def dynamo_replica(name: str, blocks_used: int, ahead_tokens: int = 0) -> ReplicaView:
    replica = view(name, 3, ahead_tokens=ahead_tokens)
    replica.kv_block_tokens = 16
    replica.kv_blocks_used = blocks_used
    return replica


@pytest.mark.parametrize(
    ("settings", "cost"),
    [
        ({}, 70 + 550),
        ({"overlap_weight": 0.5}, 110 + 550),
        ({"overlap_weight": 2.0}, 0 + 550),  # 2,400 - 2,560 tokens: never less than nothing
        ({"prefill_scale": 2.0}, 140 + 550),
        ({"request_weight": 10.0}, 70 + 550 + 30),
    ],
)
def test_dynamo_cost_is_what_its_docstring_works_out(
    settings: dict[str, float], cost: float
) -> None:
    prompt = request(tokens=1600, a=1280)
    replica = dynamo_replica("a", 400, ahead_tokens=800)

    assert DynamoCost(**settings).cost(prompt, replica) == pytest.approx(cost)


def test_dynamo_cost_lets_a_long_answer_outweigh_a_prefix() -> None:
    prompt = request(tokens=1600, a=1280)  # 80 blocks saved

    decoding = [dynamo_replica("a", 81), dynamo_replica("b", 0)]
    lighter = [dynamo_replica("a", 79), dynamo_replica("b", 0)]

    assert DynamoCost().choose(prompt, decoding).replica_id == "b"
    assert DynamoCost().choose(prompt, lighter).replica_id == "a"


def test_dynamo_cost_of_a_replica_that_tells_nothing_is_in_blocks_of_16() -> None:
    assert DynamoCost().cost(request(tokens=160), view("a")) == 10 + 10


def test_dynamo_temperature_draws_by_the_softmax_of_the_costs() -> None:
    """Costs over their range: 0, 0.5 and 1."""
    replicas = [dynamo_replica(name, used) for name, used in (("a", 0), ("b", 50), ("c", 100))]
    policy = DynamoCost(temperature=0.5)

    picks = Counter(policy.choose(request(f"{n}"), replicas).replica_id for n in range(4000))

    whole = 1 + exp(-1) + exp(-2)
    for name, weight in (("a", 1), ("b", exp(-1)), ("c", exp(-2))):
        assert picks[name] == pytest.approx(4000 * weight / whole, abs=130)  # 4 deviations


def test_dynamo_temperature_draws_evenly_among_equals() -> None:
    replicas = [dynamo_replica(name, 7) for name in "abcd"]
    policy = DynamoCost(temperature=0.5)

    picks = Counter(policy.choose(request(f"{n}"), replicas).replica_id for n in range(4000))

    assert all(count == pytest.approx(1000, abs=110) for count in picks.values())


@pytest.mark.parametrize(
    ("ahead_tokens", "cost", "pick"), [(0, 500, "a"), (1000, 5500, "b"), (320, 2100, "tie")]
)
def test_lmetric_multiplies_tokens_by_requests(ahead_tokens: int, cost: float, pick: str) -> None:
    prompt = request(tokens=2100, a=2000)
    replicas = [view("a", 4, ahead_tokens=ahead_tokens), view("b")]

    assert LMetric().cost(prompt, replicas[0]) == cost
    assert LMetric().cost(prompt, replicas[1]) == 2100
    if pick != "tie":
        assert LMetric().choose(prompt, replicas).replica_id == pick


@pytest.mark.parametrize(
    ("ahead_tokens", "pick"),
    [
        (286_704, "a"),  # exactly 18 s
        (286_705, "b"),
    ],
)
def test_sticky_leaves_the_warm_replica_beyond_18_s_of_prefill(
    ahead_tokens: int, pick: str
) -> None:
    replicas = [view("a", ahead_tokens=ahead_tokens), view("b")]

    assert StickyUntilSaturated().choose(request(a=80), replicas).replica_id == pick


def test_sticky_goes_by_the_replicas_own_speed_if_told_to() -> None:
    replicas = [view("a", ahead_tokens=8000 * 18 + 1), view("b")]
    policy = StickyUntilSaturated(prefill_tokens_per_s=None)

    assert policy.choose(request(a=80), replicas).replica_id == "b"


def test_sticky_below_the_threshold_counts_uncached_tokens() -> None:
    replicas = [view("a", ahead_tokens=70), view("b", ahead_tokens=0), view("c", ahead_tokens=20)]

    # 70 + 21, 0 + 100, 20 + 100: nobody holds 80 of 100.
    assert StickyUntilSaturated().choose(request(a=79), replicas).replica_id == "a"
    assert StickyUntilSaturated().choose(request(a=20), replicas).replica_id == "b"


def test_sticky_takes_the_shortest_queue_of_the_warm_before_any_idle_cold_one() -> None:
    replicas = [view("a", ahead_tokens=900), view("b", ahead_tokens=800), view("c")]

    assert StickyUntilSaturated().choose(request(a=90, b=80), replicas).replica_id == "b"


def chat(user: str, system: str = "", request_id: str = "r") -> Any:
    messages = [{"role": "system", "content": system}] if system else []
    body = {"model": "m", "messages": [*messages, {"role": "user", "content": user}]}
    return route_request(
        "/v1/chat/completions", str(body).replace("'", '"').encode(), request_id, RoutingConfig()
    )


def test_chwbl_hashes_the_first_100_bytes_of_the_first_user_message() -> None:
    replicas = [view(name) for name in "abcdefgh"]
    beginning = "x" * 100
    home = Chwbl().choose(chat(beginning), replicas)

    others = {
        Chwbl().choose(chat(f"{'x' * 99}{letter}"), replicas).replica_id for letter in "yzuvw"
    }

    assert Chwbl().choose(chat(beginning + " and more"), replicas) is home
    assert Chwbl().choose(chat(beginning, system="be kind"), replicas) is home
    assert others != {home.replica_id}


@pytest.mark.parametrize(("home_requests", "stays"), [(19, True), (20, False)])
def test_chwbl_walks_on_where_the_next_request_would_be_above_the_limit(
    home_requests: int, stays: bool
) -> None:
    """64 under way on 4 replicas: room for 1.25 * 65 / 4 = 20.3 on each."""
    replicas = [view(name) for name in "abcd"]
    prompt = chat("hello")
    home = Chwbl().choose(prompt, replicas)
    home.own_requests = home_requests
    others = [replica for replica in replicas if replica is not home]
    for number, replica in enumerate(others):
        replica.own_requests = (64 - home_requests) // 3 + (number < (64 - home_requests) % 3)

    assert (Chwbl().choose(prompt, replicas) is home) is stays


def test_chwbl_stays_at_home_while_there_is_less_than_one_request_of_room() -> None:
    """2 under way on 8 replicas: 1.25 * 3 / 8 is less than 1 everywhere."""
    replicas = [view(name) for name in "abcdefgh"]
    prompt = chat("hello")
    home = Chwbl().choose(prompt, replicas)
    home.own_requests = 2

    assert Chwbl().choose(prompt, replicas) is home


@pytest.mark.parametrize(("matched_tokens", "pick"), [(600, "a"), (500, "b"), (400, "b")])
def test_preble_exploits_more_than_half_of_the_prompt_and_else_explores(
    matched_tokens: int, pick: str
) -> None:
    replicas = [view("a", 2, ahead_tokens=4000), view("b")]

    assert Preble().choose(request(tokens=1000, a=matched_tokens), replicas).replica_id == pick


def test_preble_load_is_prefill_and_answers() -> None:
    assert Preble().load_s(view("a", 2, ahead_tokens=4000)) == pytest.approx(0.5 + 13.5)


def test_preble_exploits_the_least_busy_of_the_longest_matches() -> None:
    replicas = [view("a", 2), view("b", 1), view("c")]

    assert Preble().choose(request(a=90, b=90, c=60), replicas).replica_id == "b"


def test_preble_explores_by_what_is_missing_where_answers_weigh_nothing() -> None:
    replicas = [view("a", 9, ahead_tokens=100), view("b")]

    # 100 + 60 against 0 + 100 tokens; 39 matched: 100 + 61.
    prompt = request(tokens=100, a=40)
    assert Preble(answer_s=0).choose(prompt, replicas).replica_id == "b"
    replicas[0].own_ahead_tokens = 39
    assert Preble(answer_s=0).choose(prompt, replicas).replica_id == "a"


def test_session_keeps_a_session_on_one_replica_whatever_its_load() -> None:
    replicas = [view(name) for name in "abcd"]
    homes = {}
    for number in range(200):
        turn = request(f"{number}")
        turn.session_key = f"session-{number}"
        home = homes[turn.session_key] = Session().choose(turn, replicas)
        home.own_requests += 1
        assert Session().choose(turn, replicas) is home

    shares = Counter(home.replica_id for home in homes.values())
    assert set(shares) == set("abcd")


def test_session_moves_only_the_sessions_of_a_replica_that_left() -> None:
    replicas = [view(name) for name in "abcd"]
    turns = [request(f"{number}") for number in range(200)]
    for turn in turns:
        turn.session_key = turn.request_id

    before = [Session().choose(turn, replicas).replica_id for turn in turns]
    after = [Session().choose(turn, replicas[:3]).replica_id for turn in turns]

    assert {b for b, a in zip(before, after, strict=True) if a != b} == {"d"}


@pytest.mark.parametrize(
    ("fallback", "pick"), [(Fallback.LEAST_LOADED, "b"), (Fallback.PREFIX_LOAD, "a")]
)
def test_session_falls_back_where_there_is_none(fallback: Fallback, pick: str) -> None:
    replicas = [view("a", 1), view("b", 0)]

    chosen = Session(fallback=fallback).choose(request(tokens=2000, a=1900), replicas)

    assert chosen.replica_id == pick


@pytest.mark.parametrize(
    ("policy", "setting", "value"),
    [
        ("cache_aware", "cache_threshold", 1.1),
        ("cache_aware", "balance_abs", -1),
        ("cache_aware", "balance_rel", 0.5),
        ("spill", "cache_threshold", -0.1),
        ("spill", "balance_abs", -1),
        ("spill", "balance_rel", float("inf")),
        ("spill", "kv_pressure_s", float("nan")),
        ("dynamo_cost", "temperature", -1.0),
        ("sticky_until_saturated", "affinity_threshold", 2.0),
        ("sticky_until_saturated", "ttft_penalty_s", -1.0),
        ("sticky_until_saturated", "prefill_tokens_per_s", 0.0),
        ("chwbl", "load_factor", 0.9),
        ("chwbl", "prefix_bytes", 0),
        ("chwbl", "ring_points", 0),
        ("preble", "exploit_threshold", 1.5),
        ("preble", "answer_s", float("inf")),
        ("session", "fallback", "anywhere"),
    ],
)
def test_impossible_option_of_a_peer_is_refused_by_name(
    policy: str, setting: str, value: object
) -> None:
    with pytest.raises(SettingError, match=setting):
        build_policy(policy, {setting: value})
