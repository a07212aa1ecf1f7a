"""Random: any replica, each as likely as the others, whatever it holds and however busy it is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from router.core.policy import Policy, draw_one, register
from router.core.view import ReplicaView, RouteRequest


@register
@dataclass(frozen=True)
class RandomChoice(Policy):
    """Choose one replica by an unweighted draw.

        replica = the one that the request's id draws

    Unit: none. Of n replicas each gets a share of 1/n in the mean, and of 64 requests on 4
    replicas one gets 16 +- 3.5. Failure mode: a prefix is computed on every replica, and loads
    differ by the root of their size, where turns would keep them equal. Source: the random mode of
    most load balancers; here as the baseline of llm-d's benchmarks, whose router draws at random
    among all replicas where no scorer is set.
    """

    name: ClassVar[str] = "random"

    def choose(self, request: RouteRequest, eligible: Sequence[ReplicaView]) -> ReplicaView:
        return draw_one(request, eligible)
