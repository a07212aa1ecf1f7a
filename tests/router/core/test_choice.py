"""Why a replica was chosen, told by what the others that could be chosen have of the prompt."""

from collections.abc import Callable, Sequence

import pytest

from router.core.choice import Found, choose
from router.core.config import RoutingConfig
from router.core.fleet import FleetState
from router.core.policy import Policy
from router.core.prefix_index import slot_bit
from router.core.reason import Reason
from router.core.view import ReplicaView, RouteRequest
from router.policies.prefix_load import PrefixLoad
from tests.router.core.making import chosen, make_request

COLD, WARM, WARMER = (ReplicaView(f"r{slot}", slot, f"http://r{slot}") for slot in range(3))
FOUND = [
    Found(slot_bit(WARM.slot), 1, 300),
    Found(slot_bit(WARMER.slot), 2, 600),
]


@pytest.mark.parametrize(
    ("eligible", "expected"),
    [
        ([COLD, WARM, WARMER], Reason.WARM),
        ([COLD, WARM], Reason.WARM),
        ([COLD, ReplicaView("r3", 3, "http://r3")], Reason.COLD),
        ([COLD], Reason.ONLY_ONE),
    ],
)
def test_what_replicas_have_that_cannot_be_chosen_does_not_count(
    eligible: list[ReplicaView], expected: Reason
) -> None:
    request = RouteRequest("request", "m", 1_000, prompt=b"a prompt")

    choice = choose(PrefixLoad(), request, eligible, FOUND)

    assert choice.reason is expected
    assert request.matched_tokens == {WARM.slot: 300, WARMER.slot: 600}


Choosing = Callable[[Sequence[ReplicaView]], ReplicaView]


class Odd(Policy):
    """Chooses as it is told."""

    name = "odd"
    looks_at = ()  # so that a large fleet is not shown to it whole

    def __init__(self, choosing: Choosing) -> None:
        self.choosing = choosing

    def choose(self, request: RouteRequest, eligible: Sequence[ReplicaView]) -> ReplicaView:
        return self.choosing(eligible)


def fail(_: Sequence[ReplicaView]) -> ReplicaView:
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("choosing", "num_replicas", "in_flight_max"),
    [
        (fail, 2, 0),
        (fail, 2, 9),
        (fail, 40, 0),
        (lambda _: None, 2, 0),
        (lambda _: None, 40, 0),
        (lambda _: COLD, 2, 0),  # a stranger, of the same slot as one of the fleet
        (lambda _: COLD, 2, 9),
    ],
)
def test_a_policy_that_fails_costs_a_good_choice_and_no_request(
    choosing: Choosing, num_replicas: int, in_flight_max: int
) -> None:
    fleet = FleetState(RoutingConfig(in_flight_max=in_flight_max), Odd(choosing))
    for number in range(num_replicas):
        fleet.add_static(f"http://{number}:1", f"r{number}", "m", now_us=0)

    names = {chosen(fleet.decide(make_request(f"{n}", "ab"), 0)) for n in range(12)}

    assert len(names) > 1  # drawn
    assert fleet.policy_failures.total == 12
    (said,) = fleet.policy_failures.first.values()
    assert said.startswith("policy 'odd' failed: ")
    fleet.check()


def test_what_is_full_is_no_choice_of_a_policy_that_remembers_it() -> None:
    seen: list[ReplicaView] = []

    def first_ever(eligible: Sequence[ReplicaView]) -> ReplicaView:
        seen.extend(eligible)
        return seen[0]

    fleet = FleetState(RoutingConfig(in_flight_max=2), Odd(first_ever))
    for name in "abc":
        fleet.add_static(f"http://{name}:1", name, "m", now_us=0)

    requests = [fleet.decide(make_request(f"{n}"), 0) for n in range(6)]

    assert sorted(map(chosen, requests)) == [*"aabbcc"]
