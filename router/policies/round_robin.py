"""Round robin: in turn, whatever they hold and however busy they are."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from router.core.policy import Policy, register
from router.core.view import ReplicaView, RouteRequest


@register
@dataclass(frozen=True)
class RoundRobin(Policy):
    """Choose the replicas in turn.

        replica = eligible by id [arrival_index mod n]

    Unit: none. Three replicas a, b, c and the model's requests 0, 1, 2, 3: a, b, c, a. Failure
    mode: a prefix is computed once on every replica, and a slow or stuck replica gets as many
    requests as a fast one. Source: the default of most load balancers; here as the baseline.
    """

    name: ClassVar[str] = "round_robin"
    counts_arrivals: ClassVar[bool] = True

    def choose(self, request: RouteRequest, eligible: Sequence[ReplicaView]) -> ReplicaView:
        by_id = sorted(eligible, key=lambda replica: replica.replica_id)
        return by_id[request.arrival_index % len(by_id)]
