"""Prefix and load: where the first token comes soonest, at the least cost to those running."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

from contract.options import check_not_negative, option
from router.core.policy import CostPolicy, draw_one_with_room, register
from router.core.view import ReplicaView, RouteRequest


@register
@dataclass(frozen=True)
class PrefixLoad(CostPolicy):
    """Choose the least time to the first token, weighted for the delay it causes to others.

        n    = requests on the replica
        cost = (ahead + uncached * (1 + interference * sqrt(n + 1)) + request_tokens * n) / speed

    Unit: seconds. ``ahead``: tokens accepted there and not yet computed; ``uncached``: this
    prompt's tokens that are not cached there; ``speed``: the replica's prefill tokens per second.
    The wait ahead is paid once, by this request. Its own prefill is paid by it and, as longer
    steps, by every sequence running there; so that alone grows with n. This request is counted
    too: else to wait for a prefix that is being computed would cost the same as to compute it
    again, and the siblings of a burst would scatter. The last term makes an idle replica win
    where nothing else differs.

    A prompt of 2,100 tokens, of which the warm replica holds 2,000 and has 2 requests with 1,000
    tokens ahead, at 8,000 tokens/s: warm (1,000 + 100 * 1.52 + 200) / 8,000 = 0.169 s, an idle
    cold one 2,100 * 1.3 / 8,000 = 0.341 s, so warm. With 2,500 ahead: 0.356 s, so it spreads.

    Failure mode: where answers are long and prefill is cheap, requests weigh too little and one
    replica collects the streams of a hot prefix (raise ``request_tokens``). Source: ahead plus
    uncached is the cost of NVIDIA Dynamo's KV router and of Preble (Srivatsa et al., 2024), without
    their weights; the root from this project's own study of 42 workloads, where a product of
    uncached and n, as in LMetric, was as good for TTFT and worse for E2E in its tail.
    """

    name: ClassVar[str] = "prefix_load"
    unit: ClassVar[str] = "s"
    looks_at: ClassVar[tuple[str, ...]] = ("requests", "prefill_tokens_per_s")

    interference: float = option(
        0.3, "", "how much a prefill costs the requests already there; 0: only its own time"
    )
    request_tokens: float = option(
        100.0, "tokens", "prefill that one request on the replica stands for"
    )

    def __post_init__(self) -> None:
        check_not_negative(self, *vars(self))

    def cost(self, request: RouteRequest, replica: ReplicaView) -> float:
        return self.costs(request, (replica,))[0]

    def terms(self, request: RouteRequest, replica: ReplicaView) -> Mapping[str, float]:
        uncached_tokens, requests = request.uncached_tokens(replica), replica.requests
        parts = {
            "ahead": replica.ahead_tokens,
            "prefill": uncached_tokens,
            "interference": self.interference * sqrt(requests + 1) * uncached_tokens,
            "requests": self.request_tokens * requests,
        }
        return {name: part / replica.prefill_tokens_per_s for name, part in parts.items()}

    def costs(self, request: RouteRequest, eligible: Sequence[ReplicaView]) -> list[float]:
        # Every request pays this for every replica: no calls, not even of properties.
        prompt_tokens, matched_tokens = request.prompt_tokens, request.matched_tokens
        interference, request_tokens = self.interference, self.request_tokens
        costs = []
        for replica in eligible:
            requests = replica.own_requests + replica.foreign_requests
            uncached_tokens = prompt_tokens
            if replica.slot in matched_tokens:
                uncached_tokens -= matched_tokens[replica.slot]
            tokens = (
                replica.own_ahead_tokens
                + replica.foreign_ahead_tokens
                + uncached_tokens * (1.0 + interference * sqrt(requests + 1))
                + request_tokens * requests
            )
            costs.append(tokens / replica.prefill_tokens_per_s)
        return costs

    def break_tie(self, request: RouteRequest, replicas: Sequence[ReplicaView]) -> ReplicaView:
        return draw_one_with_room(request, replicas)
