"""Sticky until saturated: only warm replicas, until their queue costs too much time."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import ClassVar

from contract.options import check_not_negative, check_shares, option
from router.core.policy import Policy, register
from router.core.view import ReplicaView, RouteRequest
from router.policies.picks import least_cost


@register
@dataclass(frozen=True)
class StickyUntilSaturated(Policy):
    """Choose the fewest uncached tokens among the warm, or among all once the warm are late.

        warm       = those with matched / prompt >= affinity_threshold
        ttft       = ahead / speed
        late       = least ttft of warm - least ttft of the others > ttft_penalty_s
        candidates = warm, if there is any and it is not late, else all
        replica    = least (ahead + uncached) of candidates

    Unit: seconds for the release, tokens for the choice. At 15,928 tokens/s and a penalty of 18 s
    the warm replica is left when it has 286,704 tokens more ahead than the best cold one. Among all
    it may still win: its own uncached tokens are fewer.

    Failure mode: 18 s is a long time; with short prompts it stands for hundreds of requests, so a
    hot prefix is served by one replica while the others idle. Below the threshold a match counts
    only by its tokens. Source: llm-d's recommended profile since August 2026,
    ``prefix-cache-affinity-filter`` with ``token-load-scorer``, and their defaults; they are
    measured for one model on one GPU, and llm-d says not to carry them elsewhere. Left out: the
    share of requests that explore, which is 0 there.
    """

    name: ClassVar[str] = "sticky_until_saturated"

    affinity_threshold: float = option(0.8, "0..1", "share of the prompt that makes a replica warm")
    ttft_penalty_s: float = option(18.0, "s", "wait beyond that of a cold replica to put up with")
    prefill_tokens_per_s: float | None = option(
        15_928.0, "tokens/s", "prefill speed of every replica; none: what each reports"
    )

    def __post_init__(self) -> None:
        check_shares(self, "affinity_threshold")
        check_not_negative(self, "ttft_penalty_s")
        speed = self.prefill_tokens_per_s
        if speed is not None and not 0 < speed < inf:
            raise ValueError(f"prefill_tokens_per_s is {speed}, must be a number above 0, or none")

    def choose(self, request: RouteRequest, eligible: Sequence[ReplicaView]) -> ReplicaView:
        threshold_tokens = self.affinity_threshold * request.prompt_tokens
        matched = request.matched_tokens
        warm = [r for r in eligible if matched.get(r.slot, 0) >= threshold_tokens]
        cold = [r for r in eligible if matched.get(r.slot, 0) < threshold_tokens]
        if warm and cold:
            lead_s = min(map(self._ttft_s, warm)) - min(map(self._ttft_s, cold))
            if lead_s > self.ttft_penalty_s:
                warm = []
        candidates = warm or eligible
        loads = [r.ahead_tokens + request.uncached_tokens(r) for r in candidates]
        return least_cost(request, candidates, loads)

    def _ttft_s(self, replica: ReplicaView) -> float:
        return replica.ahead_tokens / (self.prefill_tokens_per_s or replica.prefill_tokens_per_s)
