"""From the events of the block pool to those that vLLM publishes, which say more.

The pool's events name blocks by their hash; vLLM's say what is in them. The tokens are looked up
in the sequences of the step that caused the events, so nothing is kept for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from contract import vllm_events
from contract.blocks import BlockHash
from contract.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent
from replicas.core.scheduler import StepPlan
from replicas.core.sequence import Sequence as EngineSequence
from replicas.server.generation import ServedSequence

GROUP = 0
"""All layers have full attention, so their blocks are one group."""


def translated(
    events: Sequence[KvEvent], plan: StepPlan | None, block_size: int
) -> list[vllm_events.Event]:
    """Return vLLM's events. ``plan`` is of the step that caused them; a reset has no step."""
    # A chained hash names all that is before it, so who has the last block of a run has them all.
    lasts = {event.block_hashes[-1] for event in events if isinstance(event, BlockStored)}
    found = _positions(lasts, plan, block_size) if plan is not None and lasts else {}
    return [_translated(event, found, block_size) for event in events]


@dataclass(frozen=True, slots=True)
class _Position:
    """Where a run of blocks ends in a sequence."""

    sequence: EngineSequence
    end: int  # the index after that of the last block


def _positions(
    lasts: set[BlockHash], plan: StepPlan, block_size: int
) -> dict[BlockHash, _Position]:
    found: dict[BlockHash, _Position] = {}

    def look(sequence: EngineSequence, first: int, end: int) -> None:
        hashes = sequence.block_hashes(block_size)
        for index in range(first, min(end, len(hashes))):
            if hashes[index] in lasts:
                found[hashes[index]] = _Position(sequence, index + 1)

    for sequence, num_tokens in plan.num_tokens.items():
        computed = sequence.num_computed_tokens
        look(sequence, (computed - num_tokens) // block_size, computed // block_size)
    # What a victim stored before it was chosen stays cached; how far it was is not known any more.
    for sequence in plan.preempted:
        look(sequence, 0, len(sequence.tokens) // block_size)
    return found


def _translated(
    event: KvEvent, found: dict[BlockHash, _Position], block_size: int
) -> vllm_events.Event:
    match event:
        case BlockStored(block_hashes=block_hashes):
            return _stored(event, found[block_hashes[-1]], block_size)
        case BlockRemoved(block_hashes=block_hashes):
            return vllm_events.BlockRemoved(
                block_hashes=[*block_hashes], medium=vllm_events.GPU_MEDIUM, group_idx=GROUP
            )
        case AllBlocksCleared():
            return vllm_events.AllBlocksCleared()


def _stored(event: BlockStored, position: _Position, block_size: int) -> vllm_events.Event:
    sequence, end = position.sequence, position.end
    first = end - len(event.block_hashes)
    tokens = sequence.tokens[first * block_size : end * block_size]
    return vllm_events.BlockStored(
        block_hashes=[*event.block_hashes],
        parent_block_hash=event.parent_hash,
        token_ids=tokens.tolist(),
        block_size=block_size,
        lora_id=None,  # vLLM keeps it for old readers only
        medium=vllm_events.GPU_MEDIUM,
        lora_name=sequence.adapter,
        extra_keys=[_extra_keys(sequence, index) for index in range(first, end)],
        group_idx=GROUP,
        kv_cache_spec_kind=vllm_events.FULL_ATTENTION,
    )


def _extra_keys(sequence: EngineSequence, block_index: int) -> list[str] | None:
    """Return what names a block beside its tokens: the salt is in the first one only."""
    keys = [] if sequence.adapter is None else [sequence.adapter]
    salt = sequence.cache_salt if isinstance(sequence, ServedSequence) else None
    if salt and not block_index:
        keys.append(salt)
    return keys or None
