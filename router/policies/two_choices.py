"""Two choices: of two replicas drawn by the request, the less loaded."""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import ClassVar

from router.core.policy import Policy, draw, register
from router.core.view import ReplicaView, RouteRequest


@register
@dataclass(frozen=True)
class TwoChoices(Policy):
    """Draw two, choose the one with fewer requests; the first drawn, if they are equal.

        replica = min over 2 drawn of requests

    Unit: requests. Drawn b (4) then a (3): a. Failure mode: prefixes scatter, and of few replicas
    it overlooks an idle one as often as not. It shines where loads are stale, because a burst
    never falls on one replica. Source: M. Mitzenmacher, "The Power of Two Choices in Randomized
    Load Balancing", 2001.
    """

    name: ClassVar[str] = "two_choices"

    def choose(self, request: RouteRequest, eligible: Sequence[ReplicaView]) -> ReplicaView:
        request_id = request.request_id
        drawn = nlargest(2, eligible, key=lambda replica: draw(request_id, replica.replica_id))
        return min(drawn, key=lambda replica: replica.requests)
