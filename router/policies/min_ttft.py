"""Least TTFT: where the first token comes soonest, at the least cost to those running there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from typing import ClassVar

from contract.options import check_not_negative, check_shares, option
from router.core.policy import CostPolicy, draw_one_with_room, register
from router.core.view import ReplicaView, RouteRequest


@register
@dataclass(frozen=True)
class MinTtft(CostPolicy):
    """Choose the least time to the first token and delay of others.

        n            = requests on the replica
        tokens       = ahead + uncached
        rounding     = step_share * (ceil(tokens / step_tokens) * step_tokens - tokens)
        interference = interference * sqrt(n + 1) * uncached
        crowding     = crowding * ahead / (ahead + crowding_tokens) * uncached
        eviction     = eviction * uncached
        requests     = request_tokens * n
        memory       = kv_pressure_s * k / (1 - k)
        cost         = (ahead + uncached + rounding + interference + crowding + eviction
                       + requests) / speed + memory

    Unit: seconds. ``ahead``: tokens accepted there and not yet computed; ``uncached``: this
    prompt's tokens that are not cached there; ``speed``: the replica's prefill tokens per second;
    ``k``: share of the KV blocks that sequences hold, as last reported.
    The wait ahead is paid once, by this request. Its own prefill is paid by it and, as longer
    steps, by every sequence running there; so that alone grows with n, by the root, in which this
    request counts too: else to wait for a prefix that is being computed would cost the same as to
    compute it again, and the siblings of a burst would scatter.

    Who joins a queue delays all that come before it is empty, and the longer it is, the more these
    are: ``crowding``. So where all replicas have queues, a prefix is computed again more seldom
    than where one of them is idle; and where nothing is shared, the length of a queue weighs more
    than the number of those that run.

    An engine answers at the end of a step. ``step_share`` of a full step's time is there whatever
    the step computes (both as the replica reports); where it is 1, a step with room costs a
    newcomer nothing more, and 8,000 tokens ahead are no reason to leave a warm replica whose step
    takes 8,192. On GPUs it is small. A prefill also takes room in the cache, from what others would
    have found there; in most weathers to count that (``eviction``) costs more than it saves, as a
    hot prefix then spreads too late. Where sequences hold nearly all blocks, a newcomer waits until
    one of them ends, however little is ahead: ``memory``, which is next to nothing before that.

    A prompt of 2,100 tokens, of which the warm replica holds 2,000 and has 2 requests with 1,000
    tokens ahead, at 8,000 tokens/s: warm (1,000 + 100 + 213 + 52 + 23 + 200) / 8,000 = 0.198 s, an
    idle cold one (2,100 + 183 + 630) / 8,000 = 0.364 s, so warm. With 2,500 ahead 0.383 s, so it
    spreads.

    Failure mode: where answers are long and prefill is cheap, requests weigh too little and one
    replica collects the streams of a hot prefix (raise ``request_tokens``); and 8,192 is too much
    for an engine that computes less in a step and does not tell. Source: ahead plus uncached is the
    cost of NVIDIA Dynamo's KV router and of Preble (Srivatsa et al., 2024), without their weights;
    the root, and the weight 1 of what is ahead, are from this project's own studies: discounts on
    it fail on a hot prefix. Beside ``prefix_load``, which it is where all three are 0, it knows
    ``step_share``, ``crowding`` and ``kv_pressure_s``.
    """

    name: ClassVar[str] = "min_ttft"
    unit: ClassVar[str] = "s"
    looks_at: ClassVar[tuple[str, ...]] = (
        *("requests", "prefill_tokens_per_s", "step_tokens", "step_share", "kv_pressure"),
    )

    step_share: float = option(
        0.03,
        "0..1",
        "part of a full step's time that it takes whatever it computes, where a replica does not "
        "tell: by the step-time model 0.03 on H100, 0.07 to 0.15 on GPUs whose steps take 2,048 "
        "tokens",
    )
    step_tokens: int = option(
        8_192,
        "tokens",
        "what a step computes at most, where a replica does not tell: its max_num_batched_tokens",
    )
    interference: float = option(
        0.3, "", "how much a prefill costs the requests already there; 0: only its own time"
    )
    crowding: float = option(
        0.9, "", "how much a prefill costs those that come while there is a long queue; 0: nothing"
    )
    crowding_tokens: int = option(
        3_000, "tokens", "queue from which on a prefill costs half of that: a few usual prompts"
    )
    eviction: float = option(
        0.0,
        "",
        "what the room of a prefill in the cache is worth, its own time being 1; above 0 only "
        "where caches are much too small, or a step costs the same whatever it computes",
    )
    kv_pressure_s: float = option(
        0.01, "s", "wait that a cache half held by sequences stands for; 16 times that at 94 %"
    )
    request_tokens: float = option(
        100.0, "tokens", "prefill that one request on the replica stands for"
    )

    def __post_init__(self) -> None:
        check_shares(self, "step_share")
        for name in ("step_tokens", "crowding_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, must be 1 or more")
        names = ("interference", "crowding", "eviction", "kv_pressure_s", "request_tokens")
        check_not_negative(self, *names)

    def cost(self, request: RouteRequest, replica: ReplicaView) -> float:
        return self.costs(request, (replica,))[0]

    def terms(self, request: RouteRequest, replica: ReplicaView) -> Mapping[str, float]:
        ahead_tokens, uncached_tokens = replica.ahead_tokens, request.uncached_tokens(replica)
        tokens = ahead_tokens + uncached_tokens
        step_tokens = replica.step_tokens or self.step_tokens
        step_share = self.step_share if replica.step_share is None else replica.step_share
        room_tokens = ceil(tokens / step_tokens) * step_tokens - tokens
        crowd = ahead_tokens / (ahead_tokens + self.crowding_tokens)
        requests = replica.requests
        parts = {
            "ahead": ahead_tokens,
            "prefill": uncached_tokens,
            "rounding": step_share * room_tokens,
            "interference": self.interference * sqrt(requests + 1) * uncached_tokens,
            "crowding": self.crowding * crowd * uncached_tokens,
            "eviction": self.eviction * uncached_tokens,
            "requests": self.request_tokens * requests,
        }
        terms = {name: part / replica.prefill_tokens_per_s for name, part in parts.items()}
        return terms | {"memory": self.kv_pressure_s * replica.kv_pressure}

    def costs(self, request: RouteRequest, eligible: Sequence[ReplicaView]) -> list[float]:
        # Every request pays this for every replica: no calls, not even of properties.
        prompt_tokens, matched_tokens = request.prompt_tokens, request.matched_tokens
        assumed_tokens, assumed_share = self.step_tokens, self.step_share
        interference, request_tokens = self.interference, self.request_tokens
        eviction, kv_pressure_s = self.eviction, self.kv_pressure_s
        crowding, crowding_tokens = self.crowding, self.crowding_tokens
        costs = []
        for replica in eligible:
            requests = replica.own_requests + replica.foreign_requests
            uncached_tokens = prompt_tokens
            if replica.slot in matched_tokens:
                uncached_tokens -= matched_tokens[replica.slot]
            ahead_tokens = replica.own_ahead_tokens + replica.foreign_ahead_tokens
            tokens = ahead_tokens + uncached_tokens
            weight = interference * sqrt(requests + 1) + eviction
            weight += crowding * ahead_tokens / (ahead_tokens + crowding_tokens)
            share = replica.step_share
            room_tokens = -tokens % (replica.step_tokens or assumed_tokens)  # of the last step
            parts = (
                tokens
                + (assumed_share if share is None else share) * room_tokens
                + weight * uncached_tokens
                + request_tokens * requests
            )
            memory_s = kv_pressure_s * replica.kv_pressure
            costs.append(parts / replica.prefill_tokens_per_s + memory_s)
        return costs

    def break_tie(self, request: RouteRequest, replicas: Sequence[ReplicaView]) -> ReplicaView:
        return draw_one_with_room(request, replicas)
