"""LMetric: what must be computed there, times how many share it."""

from dataclasses import dataclass
from typing import ClassVar

from router.core.policy import CostPolicy, register
from router.core.view import ReplicaView, RouteRequest


@register
@dataclass(frozen=True)
class LMetric(CostPolicy):
    """Choose the least product of prefill and batch.

        cost = (ahead + uncached) * (requests + 1)

    Unit: tokens times requests. Of a prompt of 2,100 tokens the warm replica holds 2,000: with 4
    requests and nothing ahead there, (0 + 100) * 5 = 500, against 2,100 * 1 on an idle one; with
    1,000 ahead it is 5,500 and the idle one wins. It has no setting, and no scale: double all
    lengths and nothing changes.

    Failure mode: the wait is multiplied too, so behind a long prefill a few more requests count
    for as much as a long prefix, and the slowest answers come late. Source: LMetric (arXiv
    2603.15202, 2026), whose batch size is taken here as requests sent and not yet ended; also a
    mode of NVIDIA Dynamo's router, there with decode blocks for requests.
    """

    name: ClassVar[str] = "lmetric"
    unit: ClassVar[str] = "tokens x requests"
    looks_at: ClassVar[tuple[str, ...]] = ("requests",)

    def cost(self, request: RouteRequest, replica: ReplicaView) -> float:
        tokens = replica.ahead_tokens + request.uncached_tokens(replica)
        return tokens * (replica.requests + 1)
