"""Applies a replica's numbered KV events to the index, and never past a gap.

While a cursor is out of sync nothing of its replica is confirmed: it may be under-credited, never
over-credited. It comes back with a snapshot, or with the first batch of a new process. A replica
that has told of far more than its cache can hold has left out what went: it is out of sync, too,
and does not use up the room of others in the index.

Beyond what events confirm a replica is credited with predictions. One whose blocks were evicted
before an event told of the last of them is believed wrongly until it expires, and no answer takes
it back: who was sent there for it has computed it, so that it is true again.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from contract.blocks import BlockHash
from contract.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Continuity,
    KvEventBatch,
    KvSnapshot,
    continuity,
)
from router.core.prefix_index import PrefixIndex

SNAPSHOT_SLICE_BLOCKS = 64
"""Stored in about a millisecond, if they are not more runs than fit in by ``RUN_COST_BLOCKS``."""

RUN_COST_BLOCKS = 3
"""What it costs to store a run, in blocks of it: where the index is full three others must go."""


@dataclass(slots=True)
class KvCursor:
    """How far one replica's events have been applied."""

    incarnation: str | None = None
    sequence: int = -1
    in_sync: bool = True


def apply_batch(index: PrefixIndex, slot: int, cursor: KvCursor, batch: KvEventBatch) -> bool:
    """Apply ``batch`` if it is the next one. Returns False where only a snapshot helps."""
    step = continuity(cursor.incarnation, cursor.sequence, batch)
    if step is Continuity.RESTART:
        if cursor.incarnation is not None:
            index.clear(slot)
        restart(cursor, batch.incarnation)
        step = Continuity.NEXT if batch.sequence == 0 else Continuity.GAP
    if step is Continuity.GAP:
        cursor.in_sync = False
        index.clear_told(slot)
    if not cursor.in_sync or step is Continuity.OLD:
        return cursor.in_sync
    removed: list[BlockHash] = []
    for event in batch.events:
        if removed and not isinstance(event, BlockRemoved):
            index.remove(slot, removed)
            removed = []
        match event:
            case BlockStored(block_hashes=blocks, parent_hash=parent):
                index.store(slot, blocks, parent)
            case BlockRemoved(block_hashes=blocks):
                removed += blocks  # an engine may tell of each in an event of its own
            case AllBlocksCleared():
                index.clear(slot)
    if removed:
        index.remove(slot, removed)
    cursor.sequence = batch.sequence
    if index.is_overfull(slot):
        cursor.in_sync = False
        index.clear_told(slot)
    return cursor.in_sync


def load_snapshot(
    index: PrefixIndex, slot: int, cursor: KvCursor, snapshot: KvSnapshot
) -> Iterator[bool]:
    """Take in a snapshot of the process that ``cursor`` follows, unless it is behind.

    In slices, so that the caller can do other things between; each yields whether the cursor is in
    sync, which it is with the last one. Batches after the snapshot that were refused before must be
    offered again then; those that it includes are dropped as old.
    """
    if cursor.incarnation is None:
        restart(cursor, snapshot.incarnation)
        cursor.in_sync = False
    if snapshot.incarnation != cursor.incarnation:
        yield cursor.in_sync
        return
    if cursor.in_sync and snapshot.sequence <= cursor.sequence:
        yield True
        return
    index.clear_told(slot)
    cursor.in_sync = False
    room = SNAPSHOT_SLICE_BLOCKS
    for stored in _pieces(snapshot.runs()):
        if room <= 0:
            room = SNAPSHOT_SLICE_BLOCKS
            yield False
            if cursor.incarnation != snapshot.incarnation or cursor.in_sync:
                yield cursor.in_sync  # meanwhile it has been told of another process
                return
        index.store(slot, stored.block_hashes, stored.parent_hash)
        room -= len(stored.block_hashes) + RUN_COST_BLOCKS
    cursor.sequence = snapshot.sequence
    cursor.in_sync = True
    yield True


def _pieces(runs: Iterable[BlockStored]) -> Iterator[BlockStored]:
    """Cut runs that are longer than a slice."""
    for run in runs:
        blocks, parent = run.block_hashes, run.parent_hash
        for start in range(0, len(blocks), SNAPSHOT_SLICE_BLOCKS):
            piece = blocks[start : start + SNAPSHOT_SLICE_BLOCKS]
            yield BlockStored(piece, parent)
            parent = piece[-1]


def restart(cursor: KvCursor, incarnation: str | None) -> None:
    """Follow another process, whose first batch is number 0."""
    cursor.incarnation = incarnation
    cursor.sequence = -1
    cursor.in_sync = True
