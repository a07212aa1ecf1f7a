"""Where to begin the search: the replicas that arithmetic asks for.

It supposes even arrivals and no queues, and a cache that keeps of what repeats as much as there is
room for, in the fleet as a whole. The search goes on from there in both directions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from replicas.core.step_time import StepLoad, StepTime
from simulator.request import SimRequest
from simulator.sizing.trial import BLOCK_SIZE, Candidate, Limits
from simulator.sizing.window import Window
from simulator.workload.reuse import ideal_reuse

BATCH_MAX = 1_024
FINE = 16
"""Batches are tried one by one up to this, then in steps of a sixteenth."""


@dataclass(frozen=True, slots=True)
class MeanLoad:
    """A load in its means. Tokens of one request; the hit rate is that of an endless cache."""

    requests_per_s: float
    prompt_tokens: float
    output_tokens: float
    hit_rate: float
    repeated_tokens: int  # of distinct segments that two prompts or more have
    longest_tokens: int

    @classmethod
    def of(cls, window: Window, window_us: int) -> "MeanLoad":
        """Return the means of the judged requests; the others have filled the cache."""
        requests = window.requests
        judged = [each for each in requests if each.arrival_us >= window.judged_us] or requests
        whole = ideal_reuse(requests, BLOCK_SIZE)
        before = ideal_reuse(requests[: len(requests) - len(judged)], BLOCK_SIZE)
        prompt_tokens = whole.prompt_tokens - before.prompt_tokens
        return cls(
            requests_per_s=len(judged) * 1e6 / window_us,
            prompt_tokens=prompt_tokens / len(judged),
            output_tokens=sum(each.output_tokens for each in judged) / len(judged),
            hit_rate=(whole.matched_tokens - before.matched_tokens) / prompt_tokens,
            repeated_tokens=_repeated_tokens(requests),
            longest_tokens=max(each.prompt_tokens + each.output_tokens for each in requests),
        )


@dataclass(frozen=True, slots=True)
class Bracket:
    """The replicas that arithmetic asks for, or why no number of them would do."""

    replicas: int
    impossible: str | None = None


def bracket(candidate: Candidate, load: MeanLoad, limits: Limits, replicas_max: int) -> Bracket:
    """Return how many of ``candidate``'s replicas should carry ``load``."""
    if load.longest_tokens > candidate.model.context_tokens_max:
        return Bracket(
            0,
            f"a request has {load.longest_tokens:,} tokens, the model's context "
            f"{candidate.model.context_tokens_max:,}",
        )
    if load.longest_tokens > candidate.kv_tokens:
        return Bracket(
            0,
            f"a request has {load.longest_tokens:,} tokens, the KV cache {candidate.kv_tokens:,}",
        )
    step_time = candidate.step_time()
    alone_us = step_time.step_time_us(StepLoad(decode_tokens=1))
    if alone_us > limits.itl_us:
        return Bracket(0, f"one step takes {alone_us / 1_000:.1f} ms, more than the ITL limit")
    low, high = 1, replicas_max + 1
    while low < high:
        middle = (low + high) // 2
        if _carries(middle, candidate, step_time, load, limits):
            high = middle
        else:
            low = middle + 1
    if low > replicas_max:
        return Bracket(0, f"arithmetic asks for more than --replicas-max, {replicas_max}")
    return Bracket(low)


def _carries(
    replicas: int, candidate: Candidate, step_time: StepTime, load: MeanLoad, limits: Limits
) -> bool:
    """Say whether some batch is large enough for the rate, and small enough for ITL and KV."""
    rate = load.requests_per_s / replicas
    batch = 1
    while batch <= BATCH_MAX:
        room = replicas * (candidate.kv_tokens - batch * _own_tokens(load))
        if room < 0:
            return False
        hit_rate = load.hit_rate * min(1.0, room / max(1, load.repeated_tokens))
        step_us = step_time.step_time_us(_mean_step(load, hit_rate, batch))
        if step_us > limits.itl_us:
            return False
        if batch * 1e6 / (step_us * load.output_tokens) >= rate:
            return True
        batch = batch + 1 if batch < FINE else batch + batch // FINE
    return False


def _own_tokens(load: MeanLoad) -> float:
    """Tokens that a half-grown sequence holds alone."""
    return load.prompt_tokens * (1 - load.hit_rate) + load.output_tokens / 2


def _mean_step(load: MeanLoad, hit_rate: float, batch: int) -> StepLoad:
    """The mean step of a steady batch: each answer that ends is followed by a prompt."""
    begun = batch / load.output_tokens
    context = load.prompt_tokens * hit_rate
    chunk = load.prompt_tokens - context
    return StepLoad(
        prefill_tokens=round(begun * chunk),
        prefill_context_tokens=round(begun * context),
        prefill_attention_pairs=begun * chunk * (context + chunk / 2),
        decode_tokens=batch,
        decode_context_tokens=round(batch * (load.prompt_tokens + load.output_tokens / 2)),
    )


def _repeated_tokens(requests: Sequence[SimRequest]) -> int:
    once: set[int] = set()
    repeated: dict[int, int] = {}
    for request in requests:
        for segment in request.segments:
            if segment.segment_id in once:
                repeated[segment.segment_id] = segment.num_tokens
            once.add(segment.segment_id)
    return sum(repeated.values())
