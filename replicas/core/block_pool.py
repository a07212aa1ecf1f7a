"""Paged KV blocks of one replica: who holds them, what they cache, which one goes next.

A block is free (no hash, nobody holds it), cached (a hash, nobody holds it: reusable and
evictable) or held (a reference for each sequence or shared prefix). Exactly one of the three,
always: check() asserts it. Free and cached blocks stand in one queue, taken from its head.

A prompt has hundreds of blocks, and what is done with them is done to all at once: by slices and
the bulk operations of dict, and one by one only where copies of a block or several holders need it.

Whoever holds a block holds what comes before it in its chain, and gives it back behind it in the
queue. So a prefix is evicted from its end, and where a block is cached its whole prefix is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from contract.blocks import BlockHash
from contract.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent, in_runs
from replicas.core.free_queue import FreeQueue


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
        self._free = FreeQueue(num_blocks)
        self._more_references: dict[int, int] = {}  # of blocks with several, all but the first
        self._hash_of: list[BlockHash | None] = [None] * num_blocks
        # The block that a hit shares, and identical ones computed later, oldest first. Copies are
        # not merged: a block table that is being read by a step can only grow.
        self._block_of: dict[BlockHash, int] = {}
        self._copies_of: dict[BlockHash, list[int]] = {}
        self._prefix_to: dict[int, SharedPrefix] = {}  # by the last block of each
        self._keep_events = keep_events
        self._events: list[KvEvent] = []
        # What the first block of each event follows: all that a snapshot needs beside the order.
        self._parents: dict[BlockHash, BlockHash | None] = {}

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds; cached ones count, as they can be evicted."""
        return self._free.num_free

    @property
    def num_held(self) -> int:
        """Blocks held by at least one sequence."""
        return self.num_usable - self._free.num_free

    def free_queue(self) -> list[int]:
        """Return the blocks that nobody holds, the next to be taken first."""
        return self._free.blocks()

    def cached_hashes(self) -> list[BlockHash]:
        """Return every hash that a new sequence could share, oldest first."""
        return list(self._block_of)

    def cached_runs(self) -> list[BlockStored]:
        """Return the same as events that would store it, consecutive blocks in one.

        Where no events are kept it is not known what follows what: then each block is alone.
        """
        return in_runs(self.cached_hashes(), self._parents)

    @property
    def num_events(self) -> int:
        """Events that drain_events() would return."""
        return len(self._events)

    def drain_events(self, num_events: int | None = None) -> list[KvEvent]:
        """Return the events since the last call, or the first of them, oldest first, and forget
        them.

        They are complete: a set that applies them, and nothing else, equals cached_hashes(). Where
        nobody asks for them they should not be kept.
        """
        events = self._events
        if num_events is None:
            num_events = len(events)
        self._events = events[num_events:]
        del events[num_events:]
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
        return len(blocks) - self._free.num_held(blocks)

    def share(self, blocks: list[int]) -> SharedPrefix:
        """Hold what match() found, at least one block; release() takes what this returns."""
        prefix = self._prefix_to.get(blocks[-1])
        if prefix is None:
            prefix = self._prefix_to[blocks[-1]] = SharedPrefix(blocks)
            free, more = self._free, self._more_references
            for block in blocks:
                if free.is_held(block):
                    more[block] = more.get(block, 0) + 1
                else:
                    free.remove(block)
        prefix.num_holders += 1
        return prefix

    def take(self, num_blocks: int) -> list[int]:
        """Hold ``num_blocks`` blocks from the head of the queue, evicting what they cached.

        The caller has checked num_free.
        """
        blocks = self._free.take(num_blocks)
        gone = self._evict(blocks)
        if gone and self._keep_events:
            self._events.append(BlockRemoved(gone))
            for known in self._parents.keys() & gone:
                del self._parents[known]
        return blocks

    def seal(
        self, blocks: Sequence[int], hashes: Sequence[BlockHash], parent: BlockHash | None
    ) -> None:
        """Give held blocks, now full, their hashes; from here on they can be shared.

        ``parent`` is the hash before the first one, None where the first follows the root.
        """
        assert len(blocks) == len(hashes)
        assert self._free.num_held(blocks) == len(blocks), "a block that is sealed is not held"
        hash_of, block_of = self._hash_of, self._block_of
        assert not any(map(hash_of.__getitem__, blocks)), "a block is sealed already"
        for block, block_hash in zip(blocks, hashes, strict=True):
            hash_of[block] = block_hash
        if block_of.keys().isdisjoint(hashes):
            block_of.update(zip(hashes, blocks, strict=True))
            self._announce(list(hashes), parent)
            return
        new: list[BlockHash] = []
        for block, block_hash in zip(blocks, hashes, strict=True):
            if block_hash in block_of:
                self._copies_of.setdefault(block_hash, []).append(block)
                self._announce(new, parent)
                new, parent = [], block_hash
            else:
                block_of[block_hash] = block
                new.append(block_hash)
        self._announce(new, parent)

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
        assert self._free.num_held(blocks) == len(blocks), "a block is released twice"
        if not self._more_references.keys().isdisjoint(blocks):
            blocks = [block for block in blocks if not self._drop_reference(block)]
        hash_of = self._hash_of
        cached = [block for block in blocks if hash_of[block] is not None]
        if cached:
            self._free.put_cached(cached)
        if len(cached) < len(blocks):
            self._free.put_blank([block for block in blocks if hash_of[block] is None])

    def _drop_reference(self, block: int) -> bool:
        """Take one of several references off a block; False if it has but one."""
        more = self._more_references.get(block)
        if more is None:
            return False
        if more == 1:
            del self._more_references[block]
        else:
            self._more_references[block] = more - 1
        return True

    def reset(self) -> bool:
        """Forget all cached blocks. False, with nothing changed, while any block is held."""
        if self.num_held:
            return False
        self._free.reset()
        self._hash_of = [None] * len(self._hash_of)
        self._block_of.clear()
        self._copies_of.clear()
        self._parents.clear()
        if self._keep_events:
            self._events.append(AllBlocksCleared())
        return True

    def check(self) -> None:
        """Assert the partition in this file's docstring, and that both hash tables agree."""
        self._free.check()
        assert all(map(self._free.is_held, self._more_references))
        assert all(count > 0 for count in self._more_references.values())
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
        assert self._parents.keys() <= self._block_of.keys()
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
        own = self.num_held + sum(self._more_references.values())
        return own + sum((each.num_holders - 1) * len(each.blocks) for each in shared)

    def _evict(self, blocks: Sequence[int]) -> list[BlockHash]:
        """Take the hashes off some blocks; return those of which no copy is left."""
        hash_of = self._hash_of
        hashes = [known for block in blocks if (known := hash_of[block]) is not None]
        if not hashes:
            return hashes
        if not self._copies_of.keys().isdisjoint(hashes):
            return [known for block in blocks if (known := self._forget(block)) is not None]
        block_of = self._block_of
        for block in blocks:
            hash_of[block] = None
        for known in hashes:
            del block_of[known]
        return hashes

    def _forget(self, block: int) -> BlockHash | None:
        """Take the hash off a block; return it if no copy of it is left."""
        known, self._hash_of[block] = self._hash_of[block], None
        copies = None if known is None else self._copies_of.get(known)
        if known is None or copies is None:
            if known is not None:
                del self._block_of[known]
            return known
        if self._block_of[known] == block:
            self._block_of[known] = copies.pop(0)
        else:
            copies.remove(block)
        if not copies:
            del self._copies_of[known]
        return None

    def _announce(self, hashes: list[BlockHash], parent: BlockHash | None) -> None:
        if hashes and self._keep_events:
            self._events.append(BlockStored(hashes, parent))
            self._parents[hashes[0]] = parent
