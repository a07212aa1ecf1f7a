"""What the end of an attempt teaches the prefix index: the engine's own word against our belief."""

from contract.openai_api import Usage
from router.core.belief import Belief
from router.core.health import AttemptOutcome
from router.core.ledger import Lease
from router.core.prefix_index import PrefixIndex

UNCACHED_IN_A_ROW_MAX = 3
"""From so many on, a replica is taken for one that does not cache prefixes at all."""

_REFUSALS = (
    AttemptOutcome.CLIENT_ERROR,
    AttemptOutcome.BACK_PRESSURE,
    AttemptOutcome.SERVER_ERROR,
)


def learn_from_end(
    index: PrefixIndex,
    belief: Belief,
    lease: Lease,
    outcome: AttemptOutcome,
    usage: Usage | None,
) -> None:
    """Take back what a refused prompt was expected to leave; else compare with ``usage``."""
    lost = outcome is AttemptOutcome.TRANSPORT_ERROR and lease.first_byte_us is None
    if outcome in _REFUSALS or lost:
        index.correct(belief.view.slot, lease.chain, lease.matched_blocks)
    elif usage is not None and usage.cached_tokens is not None:
        _compare(index, belief, lease, usage.cached_tokens, usage.prompt_tokens)


def _compare(
    index: PrefixIndex, belief: Belief, lease: Lease, cached_tokens: int, prompt_tokens: int
) -> None:
    """Draw the conclusion where the engine had less cached than we believed.

    The prompt itself is in its cache now, so it stays believed. But a block that was gone was
    evicted, and so, in an engine that evicts by age, was all that had been used before it. Only
    an engine that never has anything cached loses the prompt too.
    """
    if prompt_tokens <= 0 or lease.matched_last_used_us is None:
        return  # nonsense, nothing matched, or what matched was still being computed
    cached_tokens = min(max(cached_tokens, 0), prompt_tokens)
    cached_blocks = cached_tokens * len(lease.chain) // prompt_tokens
    if cached_tokens:
        belief.uncached_in_a_row = 0
    if cached_blocks >= lease.matched_blocks - 1:  # engines cut in blocks of their own size
        return
    index.forget_older(belief.view.slot, lease.matched_last_used_us)
    if not cached_tokens:
        belief.uncached_in_a_row += 1
        if belief.uncached_in_a_row >= UNCACHED_IN_A_ROW_MAX:
            index.correct(belief.view.slot, lease.chain, 0)
