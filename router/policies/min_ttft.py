"""Least TTFT: where the first token comes soonest, counted in the steps of the engine."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf, sqrt
from typing import ClassVar

from contract.options import option
from router.core.policy import CostPolicy, register
from router.core.view import ReplicaView, RouteRequest


@dataclass(frozen=True, slots=True)
class TtftTerms:
    """What the cost of one replica is made of. Milliseconds."""

    steps_ms: float  # until the step that gives the first token has ended
    prefill_ms: float  # of this prompt
    interference_ms: float  # what that prefill costs those who are there
    requests_ms: float  # what those who are there are worth

    @property
    def total_ms(self) -> float:
        """Return the cost."""
        return self.steps_ms + self.prefill_ms + self.interference_ms + self.requests_ms


@register
@dataclass(frozen=True)
class MinTtft(CostPolicy):
    """Choose the fewest steps to the first token, then the least prefill.

        n            = requests on the replica
        steps        = ceil((ahead + uncached) / step_tokens) * step_tokens
        prefill      = uncached
        interference = uncached * interference * sqrt(n + 1)
        requests     = request_tokens * n
        cost         = (steps + prefill + interference + requests) / speed

    Unit: seconds. ``ahead``: tokens accepted there and not yet computed; ``uncached``: this
    prompt's tokens that are not cached there; ``speed``: the replica's prefill tokens per second.
    An engine answers at the end of a step, and a step that has room costs a newcomer nothing more:
    so 7,000 tokens ahead are no reason to leave a warm replica whose step takes 8,192, and 8,100
    may be. What tells equal steps apart is the prefill itself, which also takes room in a cache.

    A prompt of 2,100 tokens, of which the warm replica holds 2,000 and has 2 requests with 7,000
    tokens ahead, at 8,000 tokens/s: warm 8,192 + 100 + 17 + 200 tokens or 1.064 s, an idle cold one
    8,192 + 2,100 + 210 or 1.313 s, so warm. With 8,100 ahead it needs a second step, 2.088 s, so
    it spreads.

    Failure mode: it takes every step for a full one, so where the engine's steps are shorter than
    ``step_tokens`` or their time follows their tokens closely, a wait is rounded up, and short
    prompts see one step everywhere and follow their prefix. Source: this project's own study of
    rules on recorded traffic (``python -m bench.policies``): ``prefix_load`` with whole steps for
    ``ahead``, which there gave more reuse and an earlier first token at once.
    """

    name: ClassVar[str] = "min_ttft"
    unit: ClassVar[str] = "s"

    step_tokens: int = option(
        8_192, "tokens", "what a step of the engine computes at most: its max_num_batched_tokens"
    )
    interference: float = option(
        0.1,
        "",
        "how much a prefill costs the requests already there; little, as steps count already",
    )
    request_tokens: float = option(
        100.0, "tokens", "prefill that one request on the replica stands for"
    )

    def __post_init__(self) -> None:
        if self.step_tokens < 1:
            raise ValueError(f"step_tokens is {self.step_tokens}, must be 1 or more")
        for name in ("interference", "request_tokens"):
            value = getattr(self, name)
            if not 0 <= value < inf:
                raise ValueError(f"{name} is {value}, must be a number of 0 or more")

    def cost(self, request: RouteRequest, replica: ReplicaView) -> float:
        return self.terms(request, replica).total_ms / 1_000

    def terms(self, request: RouteRequest, replica: ReplicaView) -> TtftTerms:
        """Return the cost of ``replica`` in its parts."""
        uncached_tokens = request.uncached_tokens(replica)
        requests = replica.requests
        steps = ceil((replica.ahead_tokens + uncached_tokens) / self.step_tokens)
        token_ms = 1_000 / replica.prefill_tokens_per_s
        return TtftTerms(
            steps_ms=steps * self.step_tokens * token_ms,
            prefill_ms=uncached_tokens * token_ms,
            interference_ms=uncached_tokens * self.interference * sqrt(requests + 1) * token_ms,
            requests_ms=self.request_tokens * requests * token_ms,
        )

    def costs(self, request: RouteRequest, eligible: Sequence[ReplicaView]) -> list[float]:
        # Every request pays this for every replica: no calls, not even of properties.
        prompt_tokens, matched_tokens = request.prompt_tokens, request.matched_tokens
        step_tokens, interference = self.step_tokens, self.interference
        request_tokens = self.request_tokens
        costs = []
        for replica in eligible:
            requests = replica.own_requests + replica.foreign_requests
            uncached_tokens = prompt_tokens
            if replica.slot in matched_tokens:
                uncached_tokens -= matched_tokens[replica.slot]
            ahead_tokens = replica.own_ahead_tokens + replica.foreign_ahead_tokens
            tokens = (
                -(-(ahead_tokens + uncached_tokens) // step_tokens) * step_tokens
                + uncached_tokens * (1.0 + interference * sqrt(requests + 1))
                + request_tokens * requests
            )
            costs.append(tokens / replica.prefill_tokens_per_s)
        return costs
