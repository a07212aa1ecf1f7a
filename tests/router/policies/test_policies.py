"""Each policy's own rule, with the numbers of its docstring."""

from collections import Counter

import pytest

from contract.options import SettingError
from router.core.policy import build_policy
from router.policies.hash_ring import hash_text, points_of, walk_ring
from router.policies.least_loaded import LeastLoaded
from router.policies.prefix_capped import PrefixCapped, Tie
from router.policies.prefix_hash import Key, Placement, PrefixHash
from router.policies.prefix_load import PrefixLoad
from router.policies.round_robin import RoundRobin
from router.policies.two_choices import TwoChoices
from tests.router.policies.making import request, view


def test_round_robin_takes_turns_by_id() -> None:
    replicas = [view("c"), view("a"), view("b")]
    picks = []
    for index in range(4):
        arrival = request()
        arrival.arrival_index = index
        picks.append(RoundRobin().choose(arrival, replicas).replica_id)

    assert picks == ["a", "b", "c", "a"]


def test_least_loaded_takes_the_fewest_requests() -> None:
    replicas = [view("a", 3), view("b", 1), view("c", 2)]

    assert LeastLoaded().choose(request(), replicas).replica_id == "b"


def test_two_choices_overlooks_the_least_loaded_where_it_is_not_drawn() -> None:
    replicas = [view("a", 0), view("b", 5), view("c", 5), view("d", 5)]

    picks = Counter(TwoChoices().choose(request(f"{n}"), replicas).replica_id for n in range(400))

    assert picks["a"] == pytest.approx(200, abs=40)  # drawn in one of two cases


def test_prefix_load_costs_what_its_docstring_works_out() -> None:
    prompt = request(tokens=2100, a=2000)
    cost = PrefixLoad().cost

    assert cost(prompt, view("a", 2, ahead_tokens=1000)) == pytest.approx(0.169, abs=0.001)
    assert cost(prompt, view("b")) == pytest.approx(0.341, abs=0.001)
    assert cost(prompt, view("a", 2, ahead_tokens=2500)) == pytest.approx(0.356, abs=0.001)


def test_prefix_load_prefers_the_faster_replica() -> None:
    slow, fast = view("a"), view("b")
    slow.prefill_tokens_per_s = 3000.0

    assert PrefixLoad().choose(request(), [slow, fast]) is fast


def test_prefix_load_prefers_an_idle_replica_where_nothing_else_differs() -> None:
    no_prompt = request(tokens=1)

    assert PrefixLoad().choose(no_prompt, [view("a", 3), view("b", 1)]).replica_id == "b"


@pytest.mark.parametrize(("lead", "pick"), [(1, "a"), (2, "b")])
def test_prefix_capped_leaves_the_warm_replica_at_its_lead(lead: int, pick: str) -> None:
    replicas = [view("a", 1 + lead), view("b", 1)]

    assert PrefixCapped(ahead_max=2).choose(request(a=64), replicas).replica_id == pick


def test_prefix_capped_takes_another_warm_replica_before_a_cold_one() -> None:
    replicas = [view("a", 9), view("b", 1), view("c", 0)]
    policy = PrefixCapped(tie=Tie.LOWEST_SLOT)

    assert policy.choose(request(a=64, b=64), replicas).replica_id == "b"


def test_prefix_hash_keeps_a_key_on_one_replica_and_uses_all() -> None:
    replicas = [view(name) for name in "abcd"]
    policy = PrefixHash(load_factor=None)

    homes = {
        key: {policy.choose(request(f"{n}", key=key << 56), replicas).replica_id for n in range(5)}
        for key in range(256)
    }

    assert all(len(home) == 1 for home in homes.values())
    shares = Counter(name for home in homes.values() for name in home)
    assert set(shares) == set("abcd")


def test_the_walk_round_the_ring_meets_each_replica_once_from_its_home_on() -> None:
    walks = [list(walk_ring(key << 56, ("a", "b", "c"), points=8)) for key in range(256)]

    assert all(sorted(walk) == ["a", "b", "c"] for walk in walks)
    assert {walk[0] for walk in walks} == {walk[1] for walk in walks} == {"a", "b", "c"}


def test_the_walk_is_that_round_a_ring_of_the_replicas_points() -> None:
    """A ring made and walked point by point."""
    ids = ("a", "b\ud800", "c")
    ring = sorted((hash_text(f"{name}\0{n}"), name) for name in ids for n in range(8))

    for key in (0, *(point + off for point, _ in ring for off in (-1, 0, 1)), 2**64 - 1):
        from_key_on = [name for point, name in ring if point >= key]
        met = dict.fromkeys([*from_key_on, *(name for _, name in ring)])
        assert list(walk_ring(key, ids, points=8)) == list(met)
        assert list(walk_ring(key, ids[::-1], points=8)) == list(met)


def test_replicas_that_come_and_go_cost_no_new_ring() -> None:
    ids = [f"r{n}" for n in range(24)]
    sets = [tuple(name for name in ids if name != left_out) for left_out in ids]
    before = points_of.cache_info().misses

    for some in sets:
        next(walk_ring(5, some, points=99))

    assert points_of.cache_info().misses - before == len(ids)


def test_prefix_hash_moves_only_the_keys_of_a_replica_that_left() -> None:
    replicas = [view(name) for name in "abcd"]
    policy = PrefixHash(load_factor=None)
    requests = [request(key=n * 2**54) for n in range(1000)]

    before = [policy.choose(r, replicas).replica_id for r in requests]
    after = [policy.choose(r, replicas[:3]).replica_id for r in requests]

    moved = [b for b, a in zip(before, after, strict=True) if a != b]
    assert set(moved) == {"d"}


def test_prefix_hash_by_modulo_is_the_key_modulo_the_replicas() -> None:
    replicas = [view(name) for name in "bca"]
    policy = PrefixHash(load_factor=None, placement=Placement.MODULO)

    assert policy.choose(request(key=7), replicas).replica_id == "b"


def test_prefix_hash_at_rest_uses_the_home_and_under_load_stays_within_its_factor() -> None:
    """HOT-06: 16 replicas, one prefix."""
    policy = PrefixHash(load_factor=1.25)
    replicas = [view(chr(ord("a") + n)) for n in range(16)]

    at_rest = {policy.choose(request(f"{n}", key=5), replicas).replica_id for n in range(50)}
    for n in range(64):
        policy.choose(request(f"{n}", key=5), replicas).own_requests += 1

    assert len(at_rest) == 1
    assert max(replica.requests for replica in replicas) <= 6


def test_prefix_hash_of_a_session_does_not_look_at_the_prompt() -> None:
    replicas = [view(name) for name in "abcd"]
    policy = PrefixHash(load_factor=None, key=Key.SESSION)
    picks = set()
    for n in range(20):
        turn = request(f"{n}", key=n << 59)
        turn.session_key = "s"
        picks.add(policy.choose(turn, replicas).replica_id)

    assert len(picks) == 1


def test_prefix_hash_without_a_prompt_goes_by_load() -> None:
    replicas = [view("a", 2), view("b", 1), view("c", 2)]

    assert PrefixHash().choose(request(), replicas).replica_id == "b"


@pytest.mark.parametrize(
    ("policy", "setting", "value"),
    [
        ("prefix_load", "interference", -0.1),
        ("prefix_load", "request_tokens", float("nan")),
        ("prefix_capped", "ahead_max", 0),
        ("prefix_capped", "tie", "heads"),
        ("prefix_hash", "load_factor", 0.9),
        ("prefix_hash", "placement", "anywhere"),
    ],
)
def test_impossible_option_is_refused_by_name(policy: str, setting: str, value: object) -> None:
    with pytest.raises(SettingError, match=setting):
        build_policy(policy, {setting: value})


def test_unbounded_hash_can_be_asked_for_in_a_file() -> None:
    policy = build_policy("prefix_hash", {"load_factor": "none", "placement": "modulo"})

    assert policy == PrefixHash(load_factor=None, placement=Placement.MODULO)
