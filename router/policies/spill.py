"""Spill: the warm replica, until that one is too far above the mean load."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import ClassVar

from contract.options import check_not_negative, check_shares, option
from router.core.policy import Policy, register
from router.core.view import ReplicaView, RouteRequest
from router.policies.picks import least_cost, warmest

_KV_USAGE_MAX = 0.999  # a full cache weighs much, and not infinitely


@register
@dataclass(frozen=True)
class Spill(Policy):
    """Choose the shortest expected wait among the warm replicas that are not overloaded.

        overloaded = requests > mean + balance_abs and requests > mean * balance_rel
        warm       = those with the longest match, if it is > cache_threshold of the prompt
        wait       = ahead / speed + kv_pressure_s * k / (1 - k)
        replica    = least wait of the warm, else of all, without the overloaded

    Unit: seconds. ``ahead``: tokens accepted and not yet computed; ``speed``: prefill tokens per
    second; ``k``: share of KV blocks in use as last reported, 0 where nothing is. 8,000 ahead at
    8,000 tokens/s and half of the cache in use: 1 + 0.15 * 1 = 1.15 s. Loads 120, 10, 10, 10 with
    a mean of 37.5: the first is above 101.5 and above 56.25, so its prompts spill, and nobody
    else's do. Failure mode: on a small fleet a replica can hardly be 64 above a mean that it
    raises itself, so a hot prefix queues; and the wait does not know what this prompt costs there.
    Source: SMG, ``cache_aware`` since the per-request gate of its issue 2161 (September 2026), with
    ``least_load`` for the last step and its defaults; its tree is this gateway's index here.
    """

    name: ClassVar[str] = "spill"

    cache_threshold: float = option(0.3, "0..1", "share of the prompt that makes a replica warm")
    balance_abs: int = option(64, "requests", "lead over the mean that may be overload")
    balance_rel: float = option(1.5, "", "how many times the mean may be overload")
    kv_pressure_s: float = option(
        0.15, "s", "wait that a cache half in use stands for; it rises without end as it fills"
    )

    def __post_init__(self) -> None:
        check_shares(self, "cache_threshold")
        if self.balance_abs < 0:
            raise ValueError(f"balance_abs is {self.balance_abs}, must be 0 or more")
        if not 1 <= self.balance_rel < inf:
            raise ValueError(f"balance_rel is {self.balance_rel}, must be a number of 1 or more")
        check_not_negative(self, "kv_pressure_s")

    def choose(self, request: RouteRequest, eligible: Sequence[ReplicaView]) -> ReplicaView:
        mean = sum(replica.requests for replica in eligible) / len(eligible)
        limit = max(mean + self.balance_abs, mean * self.balance_rel)
        # Somebody is at or below the mean, so not all are overloaded.
        candidates = [replica for replica in eligible if replica.requests <= limit]
        warm = warmest(request, eligible)
        if warm.matched_tokens > self.cache_threshold * request.prompt_tokens:
            candidates = [r for r in warm.replicas if r.requests <= limit] or candidates
        return least_cost(request, candidates, [self.wait_s(replica) for replica in candidates])

    def wait_s(self, replica: ReplicaView) -> float:
        """Return the expected wait on ``replica``, in seconds."""
        kv_usage = min(replica.kv_usage or 0.0, _KV_USAGE_MAX)
        pressure_s = self.kv_pressure_s * kv_usage / (1 - kv_usage)
        return replica.ahead_tokens / replica.prefill_tokens_per_s + pressure_s
