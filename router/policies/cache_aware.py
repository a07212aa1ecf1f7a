"""Cache-aware, with a switch: the warm replica, unless the fleet as a whole is out of balance."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import ClassVar

from contract.options import check_shares, option
from router.core.policy import Policy, register
from router.core.view import ReplicaView, RouteRequest
from router.policies.picks import least_loaded, warmest


@register
@dataclass(frozen=True)
class CacheAware(Policy):
    """Choose the longest match, by fewest requests while loads differ too much.

        unbalanced = most - fewest > balance_abs and most > balance_rel * fewest
        warm       = longest match / prompt > cache_threshold
        replica    = warmest if warm and not unbalanced, else one with the fewest requests

    Unit: requests. Loads 100 and 20, the first holds half of the prompt: 80 apart, and 100 is
    above 1.5 * 20, so the second, for every prompt there is. Loads 80 and 20: only 60 apart, so
    the first. Of several warmest the one with the fewest requests.

    Failure mode: one hot replica takes the affinity of all others away; short of that its queue
    may grow to 64 requests, whatever they cost. Source: ``cache_aware`` of SGLang's model gateway
    and of vLLM's router, ``src/policies/cache_aware.rs`` in both, 2025 to August 2026, with the
    defaults of their command lines. They match in a tree of characters of their own, of which
    each node knows one owner; here this gateway's index stands for it, which knows all owners
    and what they have evicted: a kinder judge than the original's.
    """

    name: ClassVar[str] = "cache_aware"

    cache_threshold: float = option(0.3, "0..1", "share of the prompt that makes a replica warm")
    balance_abs: int = option(64, "requests", "distance between loads that may be unbalanced")
    balance_rel: float = option(1.5, "", "how many times the fewest may be unbalanced")

    def __post_init__(self) -> None:
        check_shares(self, "cache_threshold")
        if self.balance_abs < 0:
            raise ValueError(f"balance_abs is {self.balance_abs}, must be 0 or more")
        if not 1 <= self.balance_rel < inf:
            raise ValueError(f"balance_rel is {self.balance_rel}, must be a number of 1 or more")

    def choose(self, request: RouteRequest, eligible: Sequence[ReplicaView]) -> ReplicaView:
        loads = [replica.requests for replica in eligible]
        most, fewest = max(loads), min(loads)
        if most - fewest > self.balance_abs and most > self.balance_rel * fewest:
            return least_loaded(request, eligible)
        warm = warmest(request, eligible)
        if warm.matched_tokens > self.cache_threshold * request.prompt_tokens:
            return least_loaded(request, warm.replicas)
        return least_loaded(request, eligible)
