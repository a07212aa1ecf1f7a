"""A large fleet through the frontier, against a look at every replica: the same least cost.

Method: random loads on many replicas, prompts that some of them hold in part, and policies that say
what they look at, each also with `looks_at` taken away.
"""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.choice import FRONTIER_REPLICAS_MIN
from router.core.fleet import FleetState
from router.core.health import AttemptOutcome
from router.core.ledger import Lease
from router.core.policy import POLICIES, CostPolicy, build_policy
from router.core.view import ReplicaView, RouteRequest
from tests.router.core.making import SECOND, lease_of, make_fleet, make_report, make_request

NUM_REPLICAS = 3 * FRONTIER_REPLICAS_MIN
QUICK = sorted(
    name
    for name, policy in POLICIES.items()
    if policy.looks_at is not None and issubclass(policy, CostPolicy)
)
STEPS = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from(["p", "pq", "pqr", "ps", "t", ""])), max_size=20
)


def large_fleet(policy: str = "prefix_load", *, is_reversed: bool = False) -> FleetState:
    fleet = make_fleet(policy=policy)
    for number in sorted(range(NUM_REPLICAS), reverse=is_reversed):
        speed = 8_000.0 if number % 5 else 3_000.0
        report = make_report(
            f"{number:03}", prefill_tokens_per_s=speed, running_requests=number % 3
        )
        fleet.on_report(report, 0, 0)
    return fleet


def test_two_gateways_draw_one_home_for_a_prompt_where_replicas_tell_of_no_cache() -> None:
    homes = set()
    for number in range(20):
        asked = []
        for request_id, is_reversed in (("a", False), ("b", True)):
            request = make_request(request_id, "p")
            request.prefix_key = number
            fleet = large_fleet(is_reversed=is_reversed)
            asked.append(lease_of(fleet.decide(request, 1)).replica.replica_id)
        assert asked[0] == asked[1], number
        homes.add(asked[0])

    assert len(homes) > 5


@pytest.mark.parametrize("name", QUICK)
@given(steps=STEPS)
@settings(deadline=None, max_examples=15)
def test_the_choice_costs_as_little_as_the_best_of_all(
    name: str, steps: list[tuple[int, str]]
) -> None:
    fleet = large_fleet(name)
    leases: list[Lease] = []
    for number, (action, text) in enumerate(steps):
        if action == 0 and leases:
            leases.pop(0).end(AttemptOutcome.OK, number)
        elif action == 1 and leases:
            leases[number % len(leases)].first_byte(number)
        elif action == 2:
            changed = make_report(
                f"{number % NUM_REPLICAS:03}", number + 2, running_requests=number
            )
            fleet.on_report(changed, 0, number)
        explanation = fleet.explain(make_request(f"{number}", text))  # asks every replica
        costs = {each.replica_id: each.cost for each in explanation.candidates}

        decision = fleet.decide(make_request(f"{number}", text), number)

        assert len(costs) == NUM_REPLICAS
        assert decision.replica is not None
        assert costs[decision.replica.replica_id] == min(costs.values(), key=lambda c: c or 0.0)
        leases.append(lease_of(decision))


def test_equal_replicas_share_a_burst_equally_enough() -> None:
    """STL-01 in a large fleet: a draw must not prefer the first, the last, or those beside gaps."""
    fleet = make_fleet()
    for number in range(100):
        fleet.add_static(f"http://{number}", f"{number}", "m", now_us=0)
    for number in range(0, 100, 3):
        fleet.remove(f"{number}")

    picks: Counter[str] = Counter()
    for number in range(6_600):
        decision = fleet.decide(make_request(f"{number}"), 0)
        assert decision.replica is not None
        picks[decision.replica.replica_id] += 1
        lease_of(decision).end(AttemptOutcome.OK, 0)

    assert len(picks) == 66
    assert max(picks.values()) < 1.5 * 100
    assert min(picks.values()) > 0.5 * 100


def test_a_burst_goes_once_to_each_replica_of_a_large_fleet() -> None:
    fleet = make_fleet()
    for number in range(64):
        fleet.add_static(f"http://{number}", f"{number}", "m", now_us=0)

    picks = [fleet.decide(make_request(f"{n}", chr(300 + n)), 0).replica for n in range(64)]

    assert len({replica.replica_id for replica in picks if replica}) == 64


def test_a_replica_that_leaves_or_restarts_is_not_chosen_by_its_old_state() -> None:
    fleet = large_fleet()
    fleet.decide(make_request("1", "p"), 0)
    for number in range(1, NUM_REPLICAS):
        fleet.drain(f"{number:03}", draining=True)
    fleet.on_report(make_report("000", 0, incarnation="second"), 0, 1)

    decision = fleet.decide(make_request("2", "p"), SECOND)

    assert decision.replica is not None
    assert decision.replica.replica_id == "000"


def test_a_policy_that_says_nothing_of_what_it_looks_at_sees_every_replica() -> None:
    seen: list[int] = []

    class Plain(CostPolicy):
        name = "plain"
        unit = "s"

        def cost(self, request: RouteRequest, replica: ReplicaView) -> float:
            seen.append(replica.slot)
            return -replica.slot

    fleet = large_fleet()
    fleet.policy = Plain()

    decision = fleet.decide(make_request("1", "p"), 0)

    assert sorted(seen) == list(range(NUM_REPLICAS))
    assert decision.replica is not None
    assert decision.replica.slot == NUM_REPLICAS - 1


def test_every_quick_policy_is_known() -> None:
    assert {"prefix_load", "min_ttft"} <= set(QUICK)
    assert all(build_policy(name).looks_at for name in QUICK)


def test_first_bytes_and_ends_are_seen_by_the_next_decision() -> None:
    fleet = make_fleet()
    for number in range(FRONTIER_REPLICAS_MIN):
        fleet.add_static(f"http://{number}", f"{number}", "m", now_us=0)
    leases = [
        lease_of(fleet.decide(make_request(f"{n}", chr(300 + n) * 9), 0))
        for n in range(FRONTIER_REPLICAS_MIN)
    ]

    leases[5].first_byte(1)
    after_first_byte = fleet.decide(make_request("a", "v" * 9), 1)
    leases[9].end(AttemptOutcome.OK, 2)
    after_end = fleet.decide(make_request("b", "w" * 9), 2)

    assert after_first_byte.replica is leases[5].replica
    assert after_end.replica is leases[9].replica
