"""What one replica's events say that its cache holds, in parts: consecutive blocks of a prompt.

Parts are known by their last block. That is where a prompt goes on, and where an engine that
forgets the end of a prefix before its beginning takes blocks away.
"""

from collections.abc import Iterator, Sequence

from contract.blocks import BlockHash
from router.core.block_runs import (
    BLOCK_BYTES,
    BlockRuns,
    block_at,
    last_block,
    num_blocks,
    pack,
    unpack,
)
from router.core.block_table import BlockTable

PART_BLOCKS_MAX = 1_024
"""A part that is told block by block is copied as it grows, so it must not be long."""

SEARCHED_PER_CALL = 100
"""Parts that one call looks through for blocks that are gone from their middle, in 0.2 ms: an
engine may tell with every step of blocks that were never told of, as there was no room for them."""


class ToldParts:
    """The parts of one replica; ``bit`` stands for it in the runs."""

    __slots__ = (
        *("_lost", "_lost_next", "_num_parts", "_parts", "_run_at", "_runs", "_unsearched"),
        *("bit", "num_blocks"),
    )

    def __init__(self, runs: BlockRuns, bit: int) -> None:
        self.bit = bit
        self.num_blocks = 0
        self._runs = runs
        self._num_parts = 0
        self._parts: BlockTable[bytes] = BlockTable()  # by the last block
        # Where the run begins that was put in last, to lengthen it; unless the part begins there.
        self._run_at: BlockTable[BlockHash] = BlockTable()
        self._lost: set[BlockHash] = set()  # gone, but from the middle of which part?
        self._lost_next: set[BlockHash] = set()  # to be searched for after these
        self._unsearched: list[bytes] = []  # parts, some of which have changed since

    def __len__(self) -> int:
        return self._num_parts

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._parts.values())

    def store(self, blocks: Sequence[BlockHash], parent: BlockHash | None) -> None:
        """Take in ``blocks``, which follow ``parent``."""
        packed = pack(blocks)
        if self._lost:
            self._lost.difference_update(blocks)
            self._lost_next.difference_update(blocks)
        before = b"" if parent is None else self._parts.get(parent) or b""
        if len(before) >= PART_BLOCKS_MAX * BLOCK_BYTES:
            before = b""
        if before and len(blocks) == 1 and self._grow(before, packed):
            return
        for fresh in self._runs.put(packed, blocks, self.bit):
            self.num_blocks += num_blocks(fresh)
            first = block_at(fresh, 0)
            if before and packed.startswith(fresh):
                self._pop(before)
                fresh = before + fresh
            self._add(fresh, first)

    def remove(self, blocks: Sequence[BlockHash]) -> None:
        """Take ``blocks`` out.

        Engines forget a prefix from its end, one block after the other, or all of a part at once
        in either order. Only what was forgotten from the middle of a part has to be searched for:
        at once where there are few parts, else by and by, while it is still believed.
        """
        missing = self._remove_ends(blocks)
        if missing:
            missing = self._remove_ends(missing[::-1])
        if missing and self._num_parts:
            self._lost_next.update(missing)
            self.search(SEARCHED_PER_CALL)
        if not self._num_parts:
            self._settle()

    def search(self, num_parts: int) -> int:
        """Look through so many parts for blocks that are gone; return how many there were."""
        searched = 0
        while searched < num_parts:
            if not self._unsearched:
                self._lost, self._lost_next = self._lost_next, set()
                if not self._lost:
                    break
                self._unsearched = list(self._parts.values())
            while self._unsearched and searched < num_parts:
                part = self._unsearched.pop()
                searched += 1
                if self._parts.get(last_block(part)) is part:
                    self._remove_inside(part)
        if not self._num_parts:
            self._settle()
        return searched

    def shed(self, num_parts: int) -> None:
        """Take out so many parts, any."""
        for blocks in self._parts.take_some(num_parts):
            self._run_at.pop(last_block(blocks), None)
            self._num_parts -= 1
            self._runs.num_parts -= 1
            self.num_blocks -= self._runs.take(blocks, self.bit)
        if not self._num_parts:
            self._settle()

    def _settle(self) -> None:
        """Hold nothing, as there are no parts: what was told may have contradicted itself."""
        if self.num_blocks:
            self._runs.take_rest(self.bit, self.num_blocks)
            self.num_blocks = 0

    def _grow(self, part: bytes, block: bytes) -> bool:
        first = self._run_at.get(last_block(part)) or block_at(part, 0)
        if not self._runs.grow(first, part[-BLOCK_BYTES:], block, self.bit):
            return False
        self._pop(part)
        self._add(part + block, first)
        self.num_blocks += 1
        return True

    def _remove_ends(self, blocks: Sequence[BlockHash]) -> list[BlockHash]:
        """Take out those that are ends of parts when their turn comes; return the others."""
        missing: list[BlockHash] = []
        backwards = pack(blocks[::-1])  # in the order of their prompts
        index = 0
        while index < len(blocks):
            held = self._parts.get(blocks[index])
            index += 1
            if held is None:
                missing.append(blocks[index - 1])
                continue
            kept = len(held) - BLOCK_BYTES
            end = len(backwards) - index * BLOCK_BYTES
            common = min(kept, end)
            if backwards.endswith(held[kept - common : kept], 0, end):  # as mostly: all at once
                kept -= common
                index += common // BLOCK_BYTES
            while kept and index < len(blocks) and blocks[index] == last_block(held[:kept]):
                kept -= BLOCK_BYTES
                index += 1
            first = self._pop(held)
            self.num_blocks -= self._runs.take(held, self.bit, kept)
            if kept:
                self._add(held[:kept], first)
        return missing

    def _remove_inside(self, held: bytes) -> None:
        """Cut a part where it has some of what is lost."""
        runs, bit, lost = self._runs, self.bit, self._lost
        hashes = unpack(held)
        if lost.isdisjoint(hashes):
            return
        blocks = [BlockHash(block) for block in hashes]
        self._pop(held)
        begin = 0
        for index, block in enumerate(blocks):
            if block not in lost:
                continue
            at, num_held = index * BLOCK_BYTES, runs.num_held
            # Put in again, so that it is a run of its own before it is taken out.
            runs.take(held, bit, at)
            runs.put(held[at : at + BLOCK_BYTES], [block], bit)
            if rest := blocks[index + 1 :]:
                runs.put(held[at + BLOCK_BYTES :], rest, bit)
            runs.take(held[at : at + BLOCK_BYTES], bit)
            self.num_blocks += runs.num_held - num_held
            lost.discard(block)
            if begin < at:
                self._add(held[begin:at], block_at(held, begin))
            begin = at + BLOCK_BYTES
        if begin < len(held):
            self._add(held[begin:], block_at(held, begin))

    def _add(self, part: bytes, run_first: BlockHash) -> None:
        last = last_block(part)
        other = self._parts.get(last)
        if other is not None:
            # Told twice, once without what it follows: the longer one knows more.
            short, part = sorted((other, part), key=len)
            self._pop(other)
            self.num_blocks -= self._runs.take(short, self.bit)
        self._parts.put(last, part)
        if not part.startswith(pack((run_first,))):
            self._run_at.put(last, run_first)
        self._num_parts += 1
        self._runs.num_parts += 1
        if self._lost:
            self._unsearched.append(part)

    def _pop(self, part: bytes) -> BlockHash:
        """Take a part off the list; return where the run begins that may be lengthened."""
        last = last_block(part)
        self._parts.pop(last, None)
        self._num_parts -= 1
        self._runs.num_parts -= 1
        return self._run_at.pop(last, None) or block_at(part, 0)
