"""Paged KV blocks of one replica: who holds them, what they cache, which one goes next.

A block is free (no hash, nobody holds it), cached (a hash, nobody holds it: reusable and
evictable) or held (a reference for each sequence or shared prefix). Exactly one of the three,
always: check() asserts it. Free and cached blocks stand in one queue, taken from its head.

Whoever holds a block holds what comes before it in its chain, and gives it back behind it in the
queue. So a prefix is evicted from its end, and where a block is cached its whole prefix is.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from contract.blocks import BlockHash
from contract.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent


@dataclass(slots=True, eq=False)
class SharedPrefix:
    """A cached chain that some sequences hold. Together they have one reference to each block, so
    one more holder costs the same however long the prefix is."""

    blocks: list[int]
    num_holders: int = 0


class BlockPool:
    """Allocator and prefix cache in one, with the order of reuse of vLLM's block pool.

    Blocks are numbered 1 .. num_blocks - 1. Block 0 is reserved, as in vLLM (padding slots point
    at it), and is never given out.
    """

    def __init__(self, num_blocks: int, keep_events: bool = True) -> None:
        assert num_blocks >= 2
        self.num_usable = num_blocks - 1
        self._references = [0] * num_blocks
        self._hash_of: list[BlockHash | None] = [None] * num_blocks
        # The block that a hit shares, and identical ones computed later, oldest first. Copies are
        # not merged: a block table that is being read by a step can only grow.
        self._block_of: dict[BlockHash, int] = {}
        self._copies_of: dict[BlockHash, list[int]] = {}
        self._prefix_to: dict[int, SharedPrefix] = {}  # by the last block of each
        # An OrderedDict is a doubly linked list in C: both ends and any member in O(1).
        self._queue: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        self._keep_events = keep_events
        self._events: list[KvEvent] = []

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds; cached ones count, as they can be evicted."""
        return len(self._queue)

    @property
    def num_held(self) -> int:
        """Blocks held by at least one sequence."""
        return self.num_usable - len(self._queue)

    def free_queue(self) -> list[int]:
        """Return the blocks that nobody holds, the next to be taken first."""
        return list(self._queue)

    def cached_hashes(self) -> list[BlockHash]:
        """Return every hash that a new sequence could share, oldest first."""
        return list(self._block_of)

    def drain_events(self) -> list[KvEvent]:
        """Return the events since the last call, oldest first, and forget them.

        They are complete: a set that applies them, and nothing else, equals cached_hashes(). Where
        nobody asks for them they should not be kept.
        """
        events, self._events = self._events, []
        return events

    def num_matching(self, hashes: Sequence[BlockHash], num_blocks_max: int) -> int:
        """Return how many blocks match() would find, in a few look-ups."""
        block_of = self._block_of
        # By halves: where a block is cached its whole prefix is.
        low, high = 0, min(len(hashes), num_blocks_max)
        while low < high:
            middle = (low + high) // 2
            if hashes[middle] in block_of:
                low = middle + 1
            else:
                high = middle
        return low

    def match(self, hashes: Sequence[BlockHash], num_blocks_max: int) -> list[int]:
        """Return the blocks that hold the longest cached beginning of ``hashes``, at most
        ``num_blocks_max`` of them. They are not held yet."""
        num_hits = self.num_matching(hashes, num_blocks_max)
        if not num_hits:
            return []
        # While a prefix is held none of its blocks can be evicted, so it is still what these
        # hashes lead to.
        prefix = self._prefix_to.get(self._block_of[hashes[num_hits - 1]])
        if prefix is not None:
            return prefix.blocks
        return list(map(self._block_of.__getitem__, hashes[:num_hits]))

    def num_unheld(self, blocks: Sequence[int]) -> int:
        """Count the blocks that nobody holds: sharing those uses up free blocks."""
        return [*map(self._references.__getitem__, blocks)].count(0)

    def share(self, blocks: list[int]) -> SharedPrefix:
        """Hold what match() found, at least one block; release() takes what this returns."""
        prefix = self._prefix_to.get(blocks[-1])
        if prefix is None:
            prefix = self._prefix_to[blocks[-1]] = SharedPrefix(blocks)
            references = self._references
            for block in blocks:
                assert self._hash_of[block] is not None, f"block {block} caches nothing"
                if not references[block]:
                    del self._queue[block]
                references[block] += 1
        prefix.num_holders += 1
        return prefix

    def take(self, num_blocks: int) -> list[int]:
        """Hold ``num_blocks`` blocks from the head of the queue, evicting what they cached.

        The caller has checked num_free.
        """
        assert num_blocks <= len(self._queue), f"{num_blocks} taken, {len(self._queue)} free"
        blocks: list[int] = []
        gone: list[BlockHash] = []
        next_free, hash_of, references = self._queue.popitem, self._hash_of, self._references
        for _ in range(num_blocks):
            block, _nothing = next_free(False)
            references[block] = 1
            block_hash = hash_of[block]
            if block_hash is not None and self._forget(block, block_hash):
                gone.append(block_hash)
            blocks.append(block)
        if gone and self._keep_events:
            self._events.append(BlockRemoved(gone))
        return blocks

    def take_one(self) -> int:
        """Hold one block; take(1) for a sequence that grows by one token."""
        block, _nothing = self._queue.popitem(False)
        self._references[block] = 1
        block_hash = self._hash_of[block]
        if block_hash is not None and self._forget(block, block_hash) and self._keep_events:
            self._events.append(BlockRemoved([block_hash]))
        return block

    def seal(
        self, blocks: Sequence[int], hashes: Sequence[BlockHash], parent: BlockHash | None
    ) -> None:
        """Give held blocks, now full, their hashes; from here on they can be shared.

        ``parent`` is the hash before the first one, None where the first follows the root.
        """
        new: list[BlockHash] = []
        hash_of, block_of = self._hash_of, self._block_of
        for block, block_hash in zip(blocks, hashes, strict=True):
            assert self._references[block], f"block {block} is not held"
            assert hash_of[block] is None, f"block {block} is sealed already"
            hash_of[block] = block_hash
            if block_hash in block_of:
                self._copies_of.setdefault(block_hash, []).append(block)
                self._announce(new, parent)
                new, parent = [], block_hash
            else:
                block_of[block_hash] = block
                new.append(block_hash)
        self._announce(new, parent)

    def seal_one(self, block: int, block_hash: BlockHash, parent: BlockHash | None) -> None:
        """Seal one held block; see seal()."""
        assert self._hash_of[block] is None, f"block {block} is sealed already"
        self._hash_of[block] = block_hash
        if block_hash in self._block_of:
            self._copies_of.setdefault(block_hash, []).append(block)
        else:
            self._block_of[block_hash] = block
            if self._keep_events:
                self._events.append(BlockStored([block_hash], parent))

    def release(self, blocks: Sequence[int], prefix: SharedPrefix | None = None) -> None:
        """Give back the blocks of a sequence, in its order, the first of them held by ``prefix``.

        Cached blocks go to the back of the queue, tail first, so that eviction eats a prefix from
        its end; those that cache nothing go to the front.
        """
        if prefix is None:
            self._release(blocks)
            return
        self._release(blocks[len(prefix.blocks) :])
        assert prefix.num_holders, "prefix released twice"
        prefix.num_holders -= 1
        if not prefix.num_holders:
            del self._prefix_to[prefix.blocks[-1]]
            self._release(prefix.blocks)

    def _release(self, blocks: Sequence[int]) -> None:
        references, hash_of, queue = self._references, self._hash_of, self._queue
        unheld: list[int] = []
        for block in blocks:
            count = references[block] - 1
            assert count >= 0, f"block {block} released twice"
            references[block] = count
            if not count:
                unheld.append(block)
        for block in reversed(unheld):
            queue[block] = None
        for block in unheld:
            if hash_of[block] is None:
                queue.move_to_end(block, last=False)

    def reset(self) -> bool:
        """Forget all cached blocks. False, with nothing changed, while any block is held."""
        if self.num_held:
            return False
        self._hash_of = [None] * len(self._hash_of)
        self._block_of.clear()
        self._copies_of.clear()
        if self._keep_events:
            self._events.append(AllBlocksCleared())
        return True

    def check(self) -> None:
        """Assert the partition in this file's docstring, and that both hash tables agree."""
        unheld = {block for block, count in enumerate(self._references) if not count}
        assert unheld == {0, *self._queue}
        sealed = {block for block, known in enumerate(self._hash_of) if known is not None}
        found: list[int] = []
        for block_hash, first in self._block_of.items():
            copies = [first, *self._copies_of.get(block_hash, [])]
            assert all(self._hash_of[block] == block_hash for block in copies)
            found += copies
        assert len(found) == len(sealed)
        assert set(found) == sealed
        assert all(copies for copies in self._copies_of.values())
        assert self._copies_of.keys() <= self._block_of.keys()
        for last, prefix in self._prefix_to.items():
            assert prefix.num_holders > 0
            assert prefix.blocks[-1] == last
            first_copies = [
                self._block_of.get(self._hash_of[block] or BlockHash(0)) for block in prefix.blocks
            ]
            assert first_copies == prefix.blocks

    def references_total(self) -> int:
        """Sum of all references; equals the summed lengths of all block tables."""
        shared = self._prefix_to.values()
        return sum(self._references) + sum(
            (each.num_holders - 1) * len(each.blocks) for each in shared
        )

    def _forget(self, block: int, block_hash: BlockHash) -> bool:
        """Take the hash off a block; True if no copy of it is left."""
        self._hash_of[block] = None
        copies = self._copies_of.get(block_hash)
        if copies is None:
            del self._block_of[block_hash]
            return True
        if self._block_of[block_hash] == block:
            self._block_of[block_hash] = copies.pop(0)
        else:
            copies.remove(block)
        if not copies:
            del self._copies_of[block_hash]
        return False

    def _announce(self, hashes: list[BlockHash], parent: BlockHash | None) -> None:
        if hashes and self._keep_events:
            self._events.append(BlockStored(hashes, parent))
