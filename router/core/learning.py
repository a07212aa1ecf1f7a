"""What the end of an attempt teaches the prefix index: the engine's own word against our belief."""

from dataclasses import dataclass
from itertools import islice

from contract.openai_api import Usage
from router.core.answers import LearnedAnswers
from router.core.belief import Belief
from router.core.health import AttemptOutcome
from router.core.ledger import Lease
from router.core.prefix_index import PrefixIndex

KEPT_PER_SEND = 2
"""Prompts under way that count as used again with each one that is sent to a full replica."""

KEPT_EVERY_US = 1_000_000
"""From then on a prompt under way may count as used again. No engine fills its cache in less: that
would be 400,000 tokens a second.
"""

ROUGHNESS = 8
"""What an engine had is known to an eighth, as a token is not as many bytes in every part."""

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


def keep_running(
    index: PrefixIndex, answers: LearnedAnswers, belief: Belief, lease: Lease, now_us: int
) -> None:
    """Note that ``lease`` runs, and let the index keep what runs there, as an engine does.

    Where the cache is full, the prompts of some that run count as used again; so all of those
    that run for long do, as no more requests begin than end. Of an answer under way half
    is there, as seen at any time.
    """
    running = belief.running
    index.reserve(belief.view.slot, int(len(running) * answers.mean_blocks / 2))
    if not belief.view.room_blocks:
        for other, kept_us in list(islice(running.items(), KEPT_PER_SEND)):
            if now_us - kept_us < KEPT_EVERY_US:
                break
            index.expect(belief.view.slot, other.chain, other.matched_blocks, now_us)
            del running[other]
            running[other] = now_us
    if lease.chain:
        running[lease] = now_us


def learn_from_end(
    index: PrefixIndex,
    answers: LearnedAnswers,
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
        _compare(index, answers, errors, belief, lease, cached_tokens, usage.prompt_tokens)


def _compare(
    index: PrefixIndex,
    answers: LearnedAnswers,
    errors: PredictionErrors,
    belief: Belief,
    lease: Lease,
    cached_tokens: int,
    prompt_tokens: int,
) -> None:
    """Draw the conclusion where the engine had less cached than we believed.

    The prompt itself is in its cache now, so it stays believed. But a block that was gone was
    evicted, and so, in an engine that evicts by age, was all that had been used before it; unless
    only the last answer was missed. An engine that has less again and again is taken at its word:
    only what it had stays believed, until it has more than that.
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
    cached_blocks = cached_tokens * len(lease.chain) // prompt_tokens
    if cached_tokens:
        belief.uncached_in_a_row = 0
    if cached_blocks > lease.matched_blocks + belief.engine_block:
        belief.short_in_a_row = 0
    if belief.is_taken_at_its_word:
        _keep_only(index, belief, lease, cached_blocks)
        return
    if lease.matched_last_used_us is None:
        return  # nothing matched, or what matched was still being computed
    answer_at = answers.take_last(lease.chain, lease.matched_blocks)
    if cached_blocks + belief.engine_block >= lease.matched_blocks:
        belief.short_in_a_row = 0
        if answer_at is not None and cached_blocks > answer_at:
            belief.answers_missed_in_a_row = 0
        return
    roughly = cached_blocks // ROUGHNESS + belief.engine_block
    if answer_at is not None and cached_blocks + roughly >= answer_at:
        belief.answers_missed_in_a_row += 1
        return
    errors.corrections += 1
    index.forget_older(belief.view.slot, lease.matched_last_used_us)
    belief.short_in_a_row += 1
    belief.uncached_in_a_row += not cached_tokens
    if belief.is_taken_at_its_word:
        _keep_only(index, belief, lease, cached_blocks)


def _keep_only(index: PrefixIndex, belief: Belief, lease: Lease, cached_blocks: int) -> None:
    """Believe no more of the prompt than the engine had, and nothing of the answer."""
    index.correct(belief.view.slot, lease.chain, cached_blocks)
    place, lease.answer_place = lease.answer_place, None
    if place is not None and place.on_end is not None:
        place.on_end(False)
