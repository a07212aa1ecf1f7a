"""Applies a replica's numbered KV events to the index, and never past a gap.

While a cursor is out of sync nothing of its replica is confirmed: it may be under-credited, never
over-credited. It comes back with a snapshot, or with the first batch of a new process.
"""

from dataclasses import dataclass

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
        index.replace(slot, ())
    if not cursor.in_sync or step is Continuity.OLD:
        return cursor.in_sync
    for event in batch.events:
        match event:
            case BlockStored(block_hashes=blocks):
                index.store(slot, blocks)
            case BlockRemoved(block_hashes=blocks):
                index.remove(slot, blocks)
            case AllBlocksCleared():
                index.clear(slot)
    cursor.sequence = batch.sequence
    return True


def apply_snapshot(index: PrefixIndex, slot: int, cursor: KvCursor, snapshot: KvSnapshot) -> bool:
    """Take in a snapshot of the process that ``cursor`` follows, unless it is behind.

    Returns whether the cursor is in sync after it. Batches after the snapshot that were refused
    before must be offered again; those that it includes are dropped as old.
    """
    if cursor.incarnation is None:
        restart(cursor, snapshot.incarnation)
        cursor.in_sync = False
    if snapshot.incarnation != cursor.incarnation:
        return cursor.in_sync
    if cursor.in_sync and snapshot.sequence <= cursor.sequence:
        return True
    index.replace(slot, snapshot.block_hashes)
    cursor.sequence = snapshot.sequence
    cursor.in_sync = True
    return True


def restart(cursor: KvCursor, incarnation: str | None) -> None:
    """Follow another process, whose first batch is number 0."""
    cursor.incarnation = incarnation
    cursor.sequence = -1
    cursor.in_sync = True
