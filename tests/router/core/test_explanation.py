"""What an explanation holds, and that it is of the moment before the lease."""

from dataclasses import dataclass
from typing import ClassVar

import pytest

from router.core.explanation import explain_choice
from router.core.fleet import FleetState
from router.core.policy import CostPolicy
from router.core.reason import Ineligible, Reason
from router.core.view import ReplicaView, RouteRequest
from tests.router.core.making import chosen, make_fleet, make_request


@dataclass(frozen=True)
class Priced(CostPolicy):
    """Costs the load ahead, in the unit of the class."""

    name: ClassVar[str] = "priced"
    unit: ClassVar[str] = "s"

    def cost(self, request: RouteRequest, replica: ReplicaView) -> float:
        return sum(self.terms(request, replica).values())

    def terms(self, request: RouteRequest, replica: ReplicaView) -> dict[str, float]:
        return {"ahead": replica.ahead_tokens / 1000, "own": request.uncached_tokens(replica) / 2}


class PricedInTokens(Priced):
    """The same figures, which are no time."""

    unit: ClassVar[str] = "tokens"


REQUEST = RouteRequest("r", "m", 10, matched_tokens={1: 4})
VIEWS = [
    ReplicaView("c", 2, "http://c", own_ahead_tokens=1),
    ReplicaView("b", 1, "http://b", own_ahead_tokens=3000),
    ReplicaView("a", 0, "http://a"),
]


def test_candidates_are_by_id_with_their_terms_and_by_cost_where_asked() -> None:
    explanation = explain_choice(Priced(), REQUEST, Reason.SPREAD, VIEWS[1], VIEWS, {})

    assert [each.replica_id for each in explanation.candidates] == ["a", "b", "c"]
    assert [each.replica_id for each in explanation.best_first()] == ["b", "a", "c"]
    b = explanation.candidates[1]
    assert (b.cost, b.terms) == (6, {"ahead": 3, "own": 3})
    assert (b.matched_tokens, b.uncached_tokens, b.ahead_tokens) == (4, 6, 3000)


@pytest.mark.parametrize(
    ("policy", "unit", "cost"), [(Priced(), "ms", 6000), (PricedInTokens(), "tokens", 6)]
)
def test_only_seconds_become_milliseconds(policy: CostPolicy, unit: str, cost: float) -> None:
    explanation = explain_choice(policy, REQUEST, Reason.SPREAD, VIEWS[1], VIEWS, {})

    shown = explanation.in_milliseconds()

    assert shown.cost_unit == unit
    assert shown.candidates[1].cost == cost == sum(shown.candidates[1].terms.values())
    assert explanation.candidates[1].cost == 6


def test_policy_without_costs_still_shows_what_is_believed() -> None:
    fleet = make_fleet("ab", policy="round_robin")

    explanation = fleet.explain(make_request("1", "pp"))

    assert explanation.cost_unit is None
    assert [(each.cost, each.terms) for each in explanation.candidates] == [(None, {})] * 2
    assert explanation.in_milliseconds() is explanation


def decide_explained(fleet: FleetState, request: RouteRequest) -> None:
    """Decide, and check that the explanation is what ``explain`` would have said before."""
    request.is_explained = True
    expected = fleet.explain(request)

    decision = fleet.decide(request, 0)

    assert decision.explanation == expected
    assert expected.chosen == chosen(decision)


@pytest.mark.parametrize("policy", ["prefix_load", "round_robin", "least_loaded"])
def test_decision_explains_itself_as_of_before_its_lease(policy: str) -> None:
    fleet = make_fleet("abc", policy=policy)
    fleet.drain("c", True)

    for number in range(10):
        decide_explained(fleet, make_request(f"{number}", "pppp"))

    excluded = fleet.explain(make_request("last")).ineligible
    assert excluded == {"c": Ineligible.DRAINING}


def test_nobody_asks_nothing_is_explained() -> None:
    assert make_fleet("a").decide(make_request("1", "p"), 0).explanation is None
