"""Steps that several policies share: who is warmest, who has least to do, who costs least."""

from collections.abc import Sequence
from dataclasses import dataclass

from router.core.policy import draw_one
from router.core.view import ReplicaView, RouteRequest


@dataclass(frozen=True, slots=True)
class Warmest:
    """The longest match, in tokens, and all replicas that have it."""

    matched_tokens: int
    replicas: list[ReplicaView]


def warmest(request: RouteRequest, replicas: Sequence[ReplicaView]) -> Warmest:
    """Return the replicas with the longest match: all of them where nothing matches anywhere."""
    matched = [request.matched_tokens.get(replica.slot, 0) for replica in replicas]
    most = max(matched)
    pairs = zip(replicas, matched, strict=True)
    return Warmest(most, [replica for replica, tokens in pairs if tokens == most])


def least_loaded(request: RouteRequest, replicas: Sequence[ReplicaView]) -> ReplicaView:
    """Return one with the fewest requests; the request draws among equals."""
    return least_cost(request, replicas, [replica.requests for replica in replicas])


def least_cost(
    request: RouteRequest, replicas: Sequence[ReplicaView], costs: Sequence[float]
) -> ReplicaView:
    """Return the one whose cost is least; the request draws among equals."""
    least = min(costs)
    pairs = zip(replicas, costs, strict=True)
    return draw_one(request, [replica for replica, cost in pairs if cost == least])
