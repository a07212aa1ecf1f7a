"""Why a request went where it went: every candidate as it was believed to be, and what it cost.

One value for all who ask: the admin port, the header of an answer, and the simulator.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from router.core.policy import CostPolicy, Policy
from router.core.reason import Ineligible, Reason
from router.core.view import ReplicaView, RouteRequest

MS_PER_S = 1_000


@dataclass(frozen=True, slots=True)
class Candidate:
    """One eligible replica at the moment of the decision."""

    replica_id: str
    matched_tokens: int
    uncached_tokens: int
    ahead_tokens: int
    requests: int
    kv_usage: float | None
    prefill_tokens_per_s: float
    cost: float | None  # None: the policy chooses without costs
    terms: Mapping[str, float]  # what the cost is the sum of


@dataclass(frozen=True, slots=True)
class Explanation:
    """How one request was, or would be, decided. Candidates are in the order of their ids."""

    request_id: str
    policy: str
    cost_unit: str | None
    model: str | None
    prompt_tokens: int
    reason: Reason
    chosen: str | None
    candidates: Sequence[Candidate]
    ineligible: Mapping[str, Ineligible]

    def best_first(self) -> list[Candidate]:
        """Return the candidates, the chosen one first, then by cost; ties by id."""
        return sorted(
            self.candidates,
            key=lambda each: (
                each.replica_id != self.chosen,
                inf if each.cost is None else each.cost,
                each.replica_id,
            ),
        )

    def in_milliseconds(self) -> "Explanation":
        """Return the same with costs in milliseconds, if they are in seconds."""
        if self.cost_unit != "s":
            return self
        candidates = [
            replace(
                each,
                cost=None if each.cost is None else each.cost * MS_PER_S,
                terms={name: value * MS_PER_S for name, value in each.terms.items()},
            )
            for each in self.candidates
        ]
        return replace(self, cost_unit="ms", candidates=candidates)


def explain_choice(
    policy: Policy,
    request: RouteRequest,
    reason: Reason,
    chosen: ReplicaView | None,
    eligible: Sequence[ReplicaView],
    ineligible: Mapping[str, Ineligible],
) -> Explanation:
    """Write down a choice before its lease is booked; ``request`` has its match."""
    return Explanation(
        request_id=request.request_id,
        policy=policy.name,
        cost_unit=policy.unit if isinstance(policy, CostPolicy) else None,
        model=request.model,
        prompt_tokens=request.prompt_tokens,
        reason=reason,
        chosen=None if chosen is None else chosen.replica_id,
        candidates=[
            _candidate(policy, request, view)
            for view in sorted(eligible, key=lambda view: view.replica_id)
        ],
        ineligible=dict(sorted(ineligible.items())),
    )


def _candidate(policy: Policy, request: RouteRequest, view: ReplicaView) -> Candidate:
    costs = policy if isinstance(policy, CostPolicy) else None
    return Candidate(
        replica_id=view.replica_id,
        matched_tokens=request.matched_tokens.get(view.slot, 0),
        uncached_tokens=request.uncached_tokens(view),
        ahead_tokens=view.ahead_tokens,
        requests=view.requests,
        kv_usage=view.kv_usage,
        prefill_tokens_per_s=view.prefill_tokens_per_s,
        cost=None if costs is None else costs.cost(request, view),
        terms={} if costs is None else dict(costs.terms(request, view)),
    )
