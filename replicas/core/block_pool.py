"""Paged KV blocks of one replica: who holds them, what they cache, which one goes next.

A block is free (no hash, nobody holds it), cached (a hash, nobody holds it: reusable and
evictable) or held (one reference for each sequence). Exactly one of the three, always: check()
asserts it. Free and cached blocks stand in one queue; the next block to be taken is its head.
"""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice, takewhile

from contract.blocks import BlockHash
from contract.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent


class BlockPool:
    """Allocator and prefix cache in one, with the order of reuse of vLLM's block pool.

    Blocks are numbered 1 .. num_blocks - 1. Block 0 is reserved, as in vLLM (padding slots point
    at it), and is never given out.
    """

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks >= 2
        self.num_usable = num_blocks - 1
        self._references = [0] * num_blocks
        self._hash_of: list[BlockHash | None] = [None] * num_blocks
        # The block that a hit shares, and identical ones computed later, oldest first. Copies are
        # not merged: a block table that is being read by a step can only grow.
        self._block_of: dict[BlockHash, int] = {}
        self._copies_of: dict[BlockHash, list[int]] = {}
        # An OrderedDict is a doubly linked list in C: both ends and any member in O(1).
        self._queue: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
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

        They are complete: a set that applies them, and nothing else, equals cached_hashes().
        """
        events, self._events = self._events, []
        return events

    def match(self, hashes: Sequence[BlockHash], num_blocks_max: int) -> list[int]:
        """Return the blocks that hold the longest cached beginning of ``hashes``, at most
        ``num_blocks_max`` of them. They are not held yet."""
        block_of = self._block_of
        candidates = islice(hashes, num_blocks_max)
        return [block_of[known] for known in takewhile(block_of.__contains__, candidates)]

    def num_unheld(self, blocks: Sequence[int]) -> int:
        """Count the blocks that nobody holds: sharing those uses up free blocks."""
        references = self._references
        return sum(1 for block in blocks if not references[block])

    def share(self, blocks: Sequence[int]) -> None:
        """Hold cached blocks once more."""
        for block in blocks:
            assert self._hash_of[block] is not None, f"block {block} caches nothing"
            if not self._references[block]:
                del self._queue[block]
            self._references[block] += 1

    def take(self, num_blocks: int) -> list[int]:
        """Hold ``num_blocks`` blocks from the head of the queue, evicting what they cached.

        The caller has checked num_free.
        """
        assert num_blocks <= len(self._queue), f"{num_blocks} taken, {len(self._queue)} free"
        blocks: list[int] = []
        gone: list[BlockHash] = []
        for _ in range(num_blocks):
            block, _nothing = self._queue.popitem(last=False)
            self._references[block] = 1
            block_hash = self._hash_of[block]
            if block_hash is not None and self._forget(block, block_hash):
                gone.append(block_hash)
            blocks.append(block)
        if gone:
            self._events.append(BlockRemoved(gone))
        return blocks

    def seal(
        self, blocks: Sequence[int], hashes: Sequence[BlockHash], parent: BlockHash | None
    ) -> None:
        """Give held blocks, now full, their hashes; from here on they can be shared.

        ``parent`` is the hash before the first one, None where the first follows the root.
        """
        new: list[BlockHash] = []
        for block, block_hash in zip(blocks, hashes, strict=True):
            assert self._references[block], f"block {block} is not held"
            assert self._hash_of[block] is None, f"block {block} is sealed already"
            self._hash_of[block] = block_hash
            if block_hash in self._block_of:
                self._copies_of.setdefault(block_hash, []).append(block)
                self._announce(new, parent)
                new, parent = [], block_hash
            else:
                self._block_of[block_hash] = block
                new.append(block_hash)
        self._announce(new, parent)

    def release(self, blocks: Sequence[int]) -> None:
        """Undo one take() or share() of each block of a sequence, given in sequence order.

        Cached blocks go to the back of the queue, tail first, so that eviction eats a prefix from
        its end; those that cache nothing go to the front.
        """
        worthless: list[int] = []
        for block in reversed(blocks):
            references = self._references[block] - 1
            assert references >= 0, f"block {block} released twice"
            self._references[block] = references
            if references:
                continue
            if self._hash_of[block] is None:
                worthless.append(block)
            else:
                self._queue[block] = None
        for block in reversed(worthless):
            self._queue[block] = None
            self._queue.move_to_end(block, last=False)

    def reset(self) -> bool:
        """Forget all cached blocks. False, with nothing changed, while any block is held."""
        if self.num_held:
            return False
        self._hash_of = [None] * len(self._hash_of)
        self._block_of.clear()
        self._copies_of.clear()
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

    def references_total(self) -> int:
        """Sum of all references; equals the summed lengths of all block tables."""
        return sum(self._references)

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
        if hashes:
            self._events.append(BlockStored(hashes, parent))
