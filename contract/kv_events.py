"""What a replica says of its prefix cache: blocks stored, blocks removed, all cleared.

Batches of one incarnation are numbered 0, 1, 2, ... A reader that misses one knows less than it
believes, so the gap rule is: forget that replica's blocks and read its snapshot, then go on with
the batch that follows the snapshot.
"""

from enum import Enum

import msgspec

from contract.blocks import BlockHash

KV_EVENTS_SCHEMA = 1


class BlockStored(msgspec.Struct, frozen=True, tag="stored", array_like=True):
    """These blocks, each the child of the one before, can now be shared.

    ``parent_hash`` is the block before the first, or None where the first follows the root.
    """

    block_hashes: list[BlockHash]
    parent_hash: BlockHash | None = None


class BlockRemoved(msgspec.Struct, frozen=True, tag="removed", array_like=True):
    """No copy of these blocks is left."""

    block_hashes: list[BlockHash]


class AllBlocksCleared(msgspec.Struct, frozen=True, tag="cleared", array_like=True):
    """The whole cache was reset."""


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared


class KvEventBatch(msgspec.Struct, frozen=True):
    """Events in the order in which they happened."""

    incarnation: str
    sequence: int
    events: list[KvEvent]


class KvSnapshot(msgspec.Struct, frozen=True):
    """All cached blocks after the batch ``sequence`` (-1: before the first)."""

    incarnation: str
    sequence: int
    block_hashes: list[BlockHash]


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
