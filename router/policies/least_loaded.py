"""Least loaded: the replica with the fewest requests, whatever it holds."""

from dataclasses import dataclass
from typing import ClassVar

from router.core.policy import CostPolicy, register
from router.core.view import ReplicaView, RouteRequest


@register
@dataclass(frozen=True)
class LeastLoaded(CostPolicy):
    """Choose the fewest requests, waiting or running.

        cost = requests

    Unit: requests. Loads 3, 1, 2: the second. Failure mode: a request is a request, so one with
    30,000 tokens weighs as much as one with 30; and prefixes scatter over all replicas. Source:
    least-connections balancing, as in HAProxy and nginx.
    """

    name: ClassVar[str] = "least_loaded"
    unit: ClassVar[str] = "requests"
    looks_at: ClassVar[tuple[str, ...]] = ("requests",)

    def cost(self, request: RouteRequest, replica: ReplicaView) -> float:  # noqa: ARG002  # the seam's
        return replica.requests
