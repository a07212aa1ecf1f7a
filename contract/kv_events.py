"""What a replica says of its prefix cache: blocks stored, blocks removed, all cleared.

Batches of one incarnation are numbered 0, 1, 2, ... A reader that misses one knows less than it
believes, so the gap rule is: forget that replica's blocks and read its snapshot, then go on with
the batch that follows the snapshot.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from itertools import chain, pairwise, repeat
from typing import Annotated

import msgspec

from contract.blocks import BlockHash

Word = Annotated[BlockHash, msgspec.Meta(ge=0)]
"""A hash as it must come: readers count on 64 bits. The wire has no number above them."""


class BlockStored(msgspec.Struct, frozen=True, tag="stored", array_like=True):
    """These blocks, each the child of the one before, can now be shared.

    ``parent_hash`` is the block before the first, or None where the first follows the root.
    """

    block_hashes: list[Word]
    parent_hash: Word | None = None


class BlockRemoved(msgspec.Struct, frozen=True, tag="removed", array_like=True):
    """No copy of these blocks is left."""

    block_hashes: list[Word]


class AllBlocksCleared(msgspec.Struct, frozen=True, tag="cleared", array_like=True):
    """The whole cache was reset."""


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared


def merged(events: list[KvEvent]) -> list[KvEvent]:
    """Return fewer events with the same effect on what is held, if there are more than two.

    Blocks that follow each other are stored in one event, after all that can be removed before.
    """
    if len(events) <= 2:
        return events
    result: list[KvEvent] = []
    removed: list[BlockHash] = []
    chains: dict[BlockHash, BlockStored] = {}  # by the last block of each
    stored: set[BlockHash] = set()

    def close() -> None:
        if removed:
            result.append(BlockRemoved(removed.copy()))
        result.extend(chains.values())
        for each in (removed, chains, stored):
            each.clear()

    for event in events:
        match event:
            case BlockStored(block_hashes=[]):
                pass
            case BlockStored(block_hashes=blocks, parent_hash=parent):
                if not stored.isdisjoint(blocks):
                    close()
                before = None if parent is None else chains.pop(parent, None)
                if before is not None:
                    blocks, parent = before.block_hashes + blocks, before.parent_hash
                chains[blocks[-1]] = BlockStored(blocks, parent)
                stored.update(event.block_hashes)
            case BlockRemoved(block_hashes=blocks):
                if not stored.isdisjoint(blocks):
                    close()
                removed += blocks
            case AllBlocksCleared():
                close()
                result.append(event)
    close()
    return result


def in_runs(
    blocks: list[BlockHash], parents: Mapping[BlockHash, BlockHash | None]
) -> list[BlockStored]:
    """Return what is cached in as few events as would store it.

    ``blocks`` stand in the order in which they were stored, and ``parents`` has what the first one
    of each event followed; every other followed the one before it. Whoever forgets a chain does so
    from its end, so that this is still so of those that are left.
    """
    begins = [index for index, block in enumerate(blocks) if block in parents]
    alone = blocks[: begins[0]] if begins else blocks
    runs = [BlockStored([block]) for block in alone]
    by_last: dict[BlockHash | None, list[BlockHash]] = {}
    for begin, end in pairwise([*begins, len(blocks)]):
        run = blocks[begin:end]
        parent = parents[run[0]]
        before = by_last.pop(parent, None)
        if before is None:
            before = run
            runs.append(BlockStored(run, parent))
        else:
            before += run
        by_last[run[-1]] = before
    return runs


class KvEventBatch(msgspec.Struct, frozen=True):
    """Events in the order in which they happened."""

    incarnation: str
    sequence: int
    events: list[KvEvent]


class KvSnapshot(msgspec.Struct, frozen=True, omit_defaults=True):
    """All cached blocks after the batch ``sequence`` (-1: before the first).

    A writer that knows which block follows which says so, and readers need a tenth of the memory:
    ``block_hashes`` are then runs of ``run_lengths`` blocks, each the child of the one before, and
    the first of each run the child of its one of ``run_parents``. Of blocks beyond those runs, and
    without any, nothing is known but that they are cached.
    """

    incarnation: str
    sequence: int
    block_hashes: list[Word]
    run_lengths: list[Annotated[int, msgspec.Meta(ge=1)]] = []
    run_parents: list[Word | None] = []

    @classmethod
    def of_runs(cls, incarnation: str, sequence: int, runs: Iterable[BlockStored]) -> "KvSnapshot":
        """Return the snapshot of a cache that ``runs`` would fill."""
        runs = list(runs)
        return cls(
            incarnation,
            sequence,
            [block for run in runs for block in run.block_hashes],
            [len(run.block_hashes) for run in runs],
            [run.parent_hash for run in runs],
        )

    def runs(self) -> Iterator[BlockStored]:
        """Yield what is cached as if it were stored now, in the snapshot's order."""
        start = 0
        parents = chain(self.run_parents, repeat(None))
        for length, parent in zip(self.run_lengths, parents, strict=False):
            yield BlockStored(self.block_hashes[start : start + length], parent)
            start += length
        for block in self.block_hashes[start:]:
            yield BlockStored([block])


class Continuity(Enum):
    """How a batch stands to what its reader has already applied."""

    NEXT = "next"
    OLD = "old"
    GAP = "gap"
    RESTART = "restart"


def continuity(
    incarnation: str | None, last_sequence: int, batch: KvEventBatch | KvSnapshot
) -> Continuity:
    """Say what a reader at (``incarnation``, ``last_sequence``) must do with ``batch``.

    NEXT apply it; OLD drop it; GAP forget and resync; RESTART forget, then treat it as the first.
    """
    if batch.incarnation != incarnation:
        return Continuity.RESTART
    if batch.sequence <= last_sequence:
        return Continuity.OLD
    return Continuity.NEXT if batch.sequence == last_sequence + 1 else Continuity.GAP


encode_batch = msgspec.msgpack.Encoder().encode
decode_batch = msgspec.msgpack.Decoder(KvEventBatch).decode
encode_snapshot = msgspec.msgpack.Encoder().encode
decode_snapshot = msgspec.msgpack.Decoder(KvSnapshot).decode
