"""Hot prefixes and skewed load: affinity that yields in time, and cold prompts that find room.

Method: the fleet's beliefs and decisions as the gateway makes them, in virtual time.
"""

from collections import Counter

import pytest

from router.core.health import AttemptOutcome
from tests.router.core.making import chosen, lease_of, make_fleet, make_request

POLICIES = ["prefix_load", "min_ttft"]
SYSTEM = "s" * 16  # 4 k characters


@pytest.mark.parametrize("policy", POLICIES)
def test_hot_01_a_common_prefix_is_served_by_all_under_load(policy: str) -> None:
    fleet = make_fleet("abcd", policy=policy)

    picks = Counter(
        chosen(fleet.decide(make_request(f"{n}", SYSTEM + chr(300 + n)), 0)) for n in range(64)
    )

    assert max(picks.values()) <= 1.5 * 16


@pytest.mark.parametrize("policy", POLICIES)
def test_hot_02_unseen_prompts_go_to_the_idle_replica_whatever_it_holds(policy: str) -> None:
    fleet = make_fleet("ab", policy=policy)
    for number in range(50):
        prompt = make_request(f"held{number}", chr(300 + number) * 4)
        lease_of(fleet.decide(prompt, 0, ["a"])).end(AttemptOutcome.OK, 0)
    for number in range(8):
        lease_of(fleet.decide(make_request(f"h{number}", chr(500 + number) * 4), 0, ["b"]))

    picks: Counter[str] = Counter()
    for number in range(20):
        decision = fleet.decide(make_request(f"n{number}", chr(700 + number) * 4), 1)
        picks[chosen(decision)] += 1
        lease_of(decision).end(AttemptOutcome.OK, 1)

    assert picks["b"] >= 18


@pytest.mark.parametrize("policy", POLICIES)
def test_hot_04_new_groups_spread_and_then_stay(policy: str) -> None:
    fleet = make_fleet("abcd", policy=policy)
    homes: dict[int, str] = {}
    for turn in range(3):
        for group in range(40):
            request = make_request(f"{group}-{turn}", chr(300 + group) * 8 + "ab"[turn % 2])
            decision = fleet.decide(request, turn)
            lease_of(decision).end(AttemptOutcome.OK, turn)
            assert homes.setdefault(group, chosen(decision)) == chosen(decision)

    sizes = Counter(homes.values()).values()
    assert len(sizes) == 4
    assert min(sizes) >= 7
    assert max(sizes) <= 13
