"""Prefix, capped: the warm replica, until it is too far ahead of the least loaded one."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from contract.options import option
from router.core.policy import Policy, draw_one, register
from router.core.view import ReplicaView, RouteRequest


class Tie(Enum):
    """Who wins among equals."""

    DRAW = "draw"  # by the request id: equals are used equally
    LOWEST_SLOT = "lowest_slot"  # always the same: for worked examples


@register
@dataclass(frozen=True)
class PrefixCapped(Policy):
    """Choose the replica with the most of the prompt cached, within a limit on its load.

        warm    = those with the most matched_tokens and requests < fewest + ahead_max
        replica = one of warm, if there is any, else one of those with the fewest requests

    Unit: requests. Warm has 3, least has 1, ``ahead_max`` 2: least. Nothing matched anywhere:
    least. Failure mode: the limit knows neither the length of the prefix nor that of the queue,
    so a hot prefix is computed again on an idle replica whether that is worth 100 or 100,000
    tokens; and at load differences below the limit a slow replica keeps its prefixes. Source: the
    cache-aware mode of SGLang's router, which compares loads in the same way.
    """

    name: ClassVar[str] = "prefix_capped"

    ahead_max: int = option(
        2, "requests", "lead at which a warm replica is left; few, as a lead is a queue at once"
    )
    tie: Tie = option(Tie.DRAW, "", "who wins among equals")

    def __post_init__(self) -> None:
        if self.ahead_max < 1:
            raise ValueError(f"ahead_max is {self.ahead_max}, must be 1 or more")

    def choose(self, request: RouteRequest, eligible: Sequence[ReplicaView]) -> ReplicaView:
        fewest = min(replica.requests for replica in eligible)
        matched = request.matched_tokens
        most = max(matched.get(replica.slot, 0) for replica in eligible)
        warm = [r for r in eligible if matched.get(r.slot, 0) == most] if most else []
        warm = [replica for replica in warm if replica.requests - fewest < self.ahead_max]
        return self._one_of(request, warm or [r for r in eligible if r.requests == fewest])

    def _one_of(self, request: RouteRequest, equals: Sequence[ReplicaView]) -> ReplicaView:
        if self.tie is Tie.LOWEST_SLOT:
            return min(equals, key=lambda replica: replica.slot)
        return draw_one(request, equals)
