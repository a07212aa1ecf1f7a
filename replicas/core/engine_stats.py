"""What an engine says it has done."""

from dataclasses import dataclass, field

from replicas.core.sequence import Sequence


@dataclass(frozen=True, slots=True)
class EngineStats:
    """State and counters at one moment; those that end in ``_total`` only grow.

    ``waiting_prefill_tokens`` is work accepted and not yet computed: what waiting sequences will
    compute before their next token, less what was cached when they arrived, and what running ones
    still lack of their prompts.
    """

    waiting_requests: int
    running_requests: int
    padded_slots: int
    waiting_prefill_tokens: int
    kv_blocks_total: int
    kv_blocks_used: int  # held by sequences
    prompt_tokens_total: int  # of admitted sequences, each counted once
    cached_tokens_total: int  # of those, taken from the prefix cache
    computed_prefill_tokens_total: int
    output_tokens_total: int
    finished_total: int  # aborted ones are counted apart
    aborted_total: int
    preemptions_total: int
    steps_total: int
    step_time_us: int | None  # the last step, from its plan to its completion


@dataclass(slots=True, eq=False)
class Progress:
    """What the steps of one advance() did, in order; a sequence carries the times of its life."""

    num_steps: int = 0
    first_tokens: list[Sequence] = field(default_factory=list)  # those that got theirs
    finished: list[Sequence] = field(default_factory=list)
