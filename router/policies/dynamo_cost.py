"""Dynamo's cost: prefill blocks and decode blocks, added up."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import ClassVar

from contract.options import check_not_negative, option
from router.core.policy import CostPolicy, draw, register
from router.core.view import ReplicaView, RouteRequest
from router.policies.picks import least_cost

BLOCK_TOKENS = 16
"""Of a replica that does not say: vLLM's default on a GPU."""


@register
@dataclass(frozen=True)
class DynamoCost(CostPolicy):
    """Choose the fewest blocks to prefill and to decode.

        prefill = max(0, (ahead + prompt - overlap_weight * matched) / block)
        decode  = blocks in use + (ahead + prompt) / block
        cost    = prefill_scale * prefill + decode + request_weight * requests
        replica = least cost; with a temperature T, one drawn by exp(-cost / (range of costs * T))

    Unit: KV blocks. A prompt of 1,600 tokens in blocks of 16; a replica that holds 1,280 of them,
    has 800 tokens ahead and 400 blocks in use: prefill (800 + 1,600 - 1,280) / 16 = 70, decode
    400 + 150 = 550, cost 620. ``ahead`` counts twice, as there: it will be prefilled, and then be
    decoded on. ``blocks in use`` is as last reported and 0 where it is not; Dynamo books blocks
    when it sends a request and needs no report.

    Failure mode: a block that is decoded on weighs as much as one to compute, so one long answer
    outweighs a long prefix and reuse falls as load rises. Source: NVIDIA Dynamo 1.x (2026),
    ``lib/kv-router/src/scheduling/selector/default.rs`` at 07a6c9ce, and its defaults: weight 1
    (``overlap_score_credit``), scale 1, no weight for requests, temperature 0. Left out: credit
    for blocks in host memory and on disks, which no report tells, and the decay of the credit,
    which is off there.
    """

    name: ClassVar[str] = "dynamo_cost"
    unit: ClassVar[str] = "blocks"

    overlap_weight: float = option(1.0, "", "what a matched block takes off the prefill")
    prefill_scale: float = option(1.0, "", "what a block to prefill weighs, one in use being 1")
    request_weight: float = option(0.0, "blocks", "what a request on the replica weighs besides")
    temperature: float = option(0.0, "", "0: least cost; above: softmax, drawn by the request id")

    def __post_init__(self) -> None:
        check_not_negative(self, *vars(self))

    def cost(self, request: RouteRequest, replica: ReplicaView) -> float:
        return sum(self.terms(request, replica).values())

    def terms(self, request: RouteRequest, replica: ReplicaView) -> Mapping[str, float]:
        block_tokens = replica.kv_block_tokens or BLOCK_TOKENS
        matched_tokens = request.prompt_tokens - request.uncached_tokens(replica)
        new_tokens = replica.ahead_tokens + request.prompt_tokens
        prefill_tokens = max(0.0, new_tokens - self.overlap_weight * matched_tokens)
        return {
            "prefill": self.prefill_scale * prefill_tokens / block_tokens,
            "decode": (replica.kv_blocks_used or 0) + new_tokens / block_tokens,
            "requests": self.request_weight * replica.requests,
        }

    def choose(self, request: RouteRequest, eligible: Sequence[ReplicaView]) -> ReplicaView:
        if not self.temperature:
            return super().choose(request, eligible)
        costs = self.costs(request, eligible)
        least = min(costs)
        scale = (max(costs) - least) * self.temperature
        raced = [
            ((cost - least) / scale if scale else 0.0)
            + _noise(request.request_id, replica.replica_id)
            for replica, cost in zip(eligible, costs, strict=True)
        ]
        return least_cost(request, eligible, raced)


def _noise(request_id: str, replica_id: str) -> float:
    """Return noise whose least sum with costs is a draw from their softmax (Gumbel's trick).

    Each replica has its own hash, so neither order nor number of the others matters.
    """
    uniform = ((draw(request_id, replica_id) >> 12) + 0.5) / 2**52  # never 0, never 1
    return log(-log(uniform))
