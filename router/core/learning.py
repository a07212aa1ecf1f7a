"""What the end of an attempt teaches the prefix index: the engine's own word against our belief."""

from dataclasses import dataclass

from contract.openai_api import Usage
from router.core.belief import Belief
from router.core.health import AttemptOutcome
from router.core.ledger import Lease
from router.core.prefix_index import PrefixIndex

UNCACHED_IN_A_ROW_MAX = 3
"""From so many on, a replica is taken for one that does not cache prefixes at all."""

_REFUSALS = (
    AttemptOutcome.CLIENT_ERROR,
    AttemptOutcome.NOT_FOUND,
    AttemptOutcome.BACK_PRESSURE,
    AttemptOutcome.SERVER_ERROR,
)


@dataclass(slots=True)
class PredictionErrors:
    """How far the engines' own words were from what we believed. Tokens of prompts."""

    over_tokens: int = 0  # believed cached, and were not
    under_tokens: int = 0  # were cached beyond what we believed
    corrections: int = 0  # times that the index forgot something for it


def learn_from_end(
    index: PrefixIndex,
    errors: PredictionErrors,
    belief: Belief,
    lease: Lease,
    outcome: AttemptOutcome,
    usage: Usage | None,
) -> None:
    """Take back what a refused prompt was expected to leave; else compare with ``usage``."""
    lost = outcome is AttemptOutcome.TRANSPORT_ERROR and lease.first_byte_us is None
    if outcome in _REFUSALS or lost:
        index.correct(belief.view.slot, lease.chain, lease.matched_blocks)
    elif usage is not None and (cached_tokens := usage.cached_tokens) is not None:
        _compare(index, errors, belief, lease, cached_tokens, usage.prompt_tokens)


def _compare(
    index: PrefixIndex,
    errors: PredictionErrors,
    belief: Belief,
    lease: Lease,
    cached_tokens: int,
    prompt_tokens: int,
) -> None:
    """Draw the conclusion where the engine had less cached than we believed.

    The prompt itself is in its cache now, so it stays believed. But a block that was gone was
    evicted, and so, in an engine that evicts by age, was all that had been used before it. Only
    an engine that never has anything cached loses the prompt too.
    """
    if prompt_tokens <= 0:
        return  # nonsense
    if not 0 <= cached_tokens <= prompt_tokens:
        cached_tokens = prompt_tokens if cached_tokens > 0 else 0
    # Our tokens are bytes over a number; the engine's are what it computes with.
    believed = lease.matched_tokens * prompt_tokens
    believed //= lease.matched_tokens + lease.uncached_tokens or 1
    if believed > cached_tokens:
        errors.over_tokens += believed - cached_tokens
    else:
        errors.under_tokens += cached_tokens - believed
    if lease.matched_last_used_us is None:
        return  # nothing matched, or what matched was still being computed
    cached_blocks = cached_tokens * len(lease.chain) // prompt_tokens
    if cached_tokens:
        belief.uncached_in_a_row = 0
    if cached_blocks >= lease.matched_blocks - 1:  # engines cut in blocks of their own size
        return
    errors.corrections += 1
    index.forget_older(belief.view.slot, lease.matched_last_used_us)
    if not cached_tokens:
        belief.uncached_in_a_row += 1
        if belief.uncached_in_a_row >= UNCACHED_IN_A_ROW_MAX:
            index.correct(belief.view.slot, lease.chain, 0)
