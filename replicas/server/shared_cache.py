"""What the data-parallel engines of one replica cache together, as one reader is to see it."""

from collections.abc import Sequence

from contract.blocks import BlockHash
from contract.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent, in_runs


class SharedCache:
    """A union of caches: a block is stored when the first engine stores it, and removed when the
    last one removes it.

    A set that applies the merged events, and nothing else, equals hashes().
    """

    def __init__(self) -> None:
        self._holders: dict[BlockHash, int] = {}  # one bit for each rank
        self._parents: dict[BlockHash, BlockHash | None] = {}  # of the first block of each event

    def hashes(self) -> list[BlockHash]:
        """Return every block that some rank holds, the longest held first."""
        return list(self._holders)

    def runs(self) -> list[BlockStored]:
        """Return the same as events that would store it, consecutive blocks in one."""
        return in_runs(self.hashes(), self._parents)

    def merge(self, rank: int, events: Sequence[KvEvent]) -> list[KvEvent]:
        """Return what the events of ``rank`` change in the union, in their order."""
        merged: list[KvEvent] = []
        for event in events:
            match event:
                case BlockStored():
                    self._store(1 << rank, event, merged)
                case BlockRemoved():
                    gone = [each for each in event.block_hashes if self._drop(1 << rank, each)]
                    if gone:
                        merged.append(BlockRemoved(gone))
                case AllBlocksCleared():
                    self._clear(1 << rank, merged)
        return merged

    def _store(self, bit: int, event: BlockStored, merged: list[KvEvent]) -> None:
        holders, new, parent = self._holders, list[BlockHash](), event.parent_hash
        last = parent
        for each in event.block_hashes:
            known = holders.get(each, 0)
            holders[each] = known | bit
            if known:
                self._tell(new, parent, merged)
                new = []
            else:
                if not new:
                    parent = last
                new.append(each)
            last = each
        self._tell(new, parent, merged)

    def _tell(self, new: list[BlockHash], parent: BlockHash | None, merged: list[KvEvent]) -> None:
        if new:
            merged.append(BlockStored(new, parent))
            self._parents[new[0]] = parent

    def _drop(self, bit: int, block_hash: BlockHash) -> bool:
        """Take one holder away; True if there is no other."""
        left = self._holders[block_hash] & ~bit
        if left:
            self._holders[block_hash] = left
            return False
        del self._holders[block_hash]
        self._parents.pop(block_hash, None)
        return True

    def _clear(self, bit: int, merged: list[KvEvent]) -> None:
        held = [each for each, holders in self._holders.items() if holders & bit]
        gone = [each for each in held if self._drop(bit, each)]
        if not self._holders:
            merged.append(AllBlocksCleared())
        elif gone:
            merged.append(BlockRemoved(gone))
