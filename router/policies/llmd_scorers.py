"""llm-d's scorers: what is cached, free memory and few requests, each from 0 to 1, weighted."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from contract.options import check_not_negative, option
from router.core.policy import Policy, draw_one, register
from router.core.view import ReplicaView, RouteRequest


class Match(Enum):
    """How a match becomes a score."""

    RELATIVE = "relative"  # 0 for the least of those with any, 1 for the most: llm-d's precise one
    SHARE = "share"  # of the prompt's tokens: the approximate one


@register
@dataclass(frozen=True)
class LlmdScorers(Policy):
    """Choose the highest sum of weighted scores; equals are drawn.

        score = prefix_weight * prefix + kv_weight * (1 - kv_usage)
              + requests_weight * (1 - requests / most)

    ``prefix`` is ``matched`` between the least and the most of the replicas that have any, 1 where
    these are equal; or ``matched / prompt``. ``matched`` counts up to ``match_tokens_max``,
    ``most`` is the most requests on any of the replicas. Unit: none, which is its weakness.

    Weights 2, 1, 1: of a prompt of 100 tokens a holds 80 and has 4 requests at 0.9 KV usage, b
    holds 40 and has 2 at 0.5, c holds none and is idle. Relative: a 2 + 0.1 + 0 = 2.1, b 0 + 0.5
    + 0.5 = 1, c 0 + 1 + 1 = 2, so a. By share: a 1.7, b 1.8, c 2, so c.

    Failure mode: a relative match knows no amount, so one token more than the others have counts
    as much as the whole prompt; nor does the queue, so 1 request against 2 counts as much as 100
    against 200. Source: llm-d/llm-d-inference-scheduler, pkg/plugins/scorer (precise_prefix_cache,
    active_request and utils.go) and kubernetes-sigs/gateway-api-inference-extension (prefix plugin,
    kvcache utilization scorer, max score picker), both of 2025; weights 2, 1, 1 and the request
    scorer as in llm-d-kv-cache-manager, benchmarking/37-capacity, commit edb766f.
    """

    name: ClassVar[str] = "llmd_scorers"

    prefix_weight: float = option(2.0, "", "what the match counts")
    kv_weight: float = option(1.0, "", "what unused KV memory counts")
    requests_weight: float = option(1.0, "", "what it counts to have few requests")
    match: Match = option(Match.RELATIVE, "", "how a match becomes a score")
    match_tokens_max: int | None = option(
        None, "tokens", "of a match that count; llm-d's approximate index reads 256 blocks"
    )

    def __post_init__(self) -> None:
        check_not_negative(self, "prefix_weight", "kv_weight", "requests_weight")
        if self.match_tokens_max is not None and self.match_tokens_max < 1:
            raise ValueError(f"match_tokens_max is {self.match_tokens_max}, must be 1 or more")

    def choose(self, request: RouteRequest, eligible: Sequence[ReplicaView]) -> ReplicaView:
        scores = self.scores(request, eligible)
        best = max(scores)
        pairs = zip(eligible, scores, strict=True)
        return draw_one(request, [replica for replica, score in pairs if score == best])

    def scores(self, request: RouteRequest, eligible: Sequence[ReplicaView]) -> list[float]:
        """Return the score of each of ``eligible``."""
        most = max(replica.requests for replica in eligible) or 1
        prefixes = self._prefix_scores(request, eligible)
        return [
            self.prefix_weight * prefix
            + self.kv_weight * (1 - (replica.kv_usage or 0.0))
            + self.requests_weight * (1 - replica.requests / most)
            for replica, prefix in zip(eligible, prefixes, strict=True)
        ]

    def _prefix_scores(self, request: RouteRequest, eligible: Sequence[ReplicaView]) -> list[float]:
        limit = self.match_tokens_max or request.prompt_tokens
        matched = [min(request.matched_tokens.get(replica.slot, 0), limit) for replica in eligible]
        if self.match is Match.SHARE:
            return [tokens / min(limit, request.prompt_tokens) for tokens in matched]
        least = min((tokens for tokens in matched if tokens), default=0)
        spread = max(matched) - least
        return [
            0.0 if not tokens else (tokens - least) / spread if spread else 1.0
            for tokens in matched
        ]
