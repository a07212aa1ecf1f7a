"""What one replica's events say that its cache holds, in parts: consecutive blocks of a prompt.

Parts are known by their last block. That is where a prompt goes on, and where an engine that
forgets the end of a prefix before its beginning takes blocks away.
"""

from collections.abc import Iterator, Sequence

from contract.blocks import BlockHash
from router.core.block_runs import BLOCK_BYTES, BlockRuns, block_at, num_blocks, pack, unpack

PART_BLOCKS_MAX = 1_024
"""A part that is told block by block is copied as it grows, so it must not be long."""


class ToldParts:
    """The parts of one replica; ``bit`` stands for it in the runs."""

    __slots__ = ("_parts", "_run_at", "_runs", "bit", "num_blocks")

    def __init__(self, runs: BlockRuns, bit: int) -> None:
        self.bit = bit
        self.num_blocks = 0
        self._runs = runs
        self._parts: dict[BlockHash, bytes] = {}  # by the last block
        self._run_at: dict[BlockHash, BlockHash] = {}  # -> of the run put in last, to lengthen

    def __len__(self) -> int:
        return len(self._parts)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._parts.values())

    def store(self, blocks: Sequence[BlockHash], parent: BlockHash | None) -> None:
        """Take in ``blocks``, which follow ``parent``."""
        packed = pack(blocks)
        before = b"" if parent is None else self._parts.get(parent, b"")
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
        in either order. Only what was forgotten from the middle of a part has to be searched for.
        """
        missing = self._remove_ends(blocks)
        if missing:
            missing = self._remove_ends(missing[::-1])
        if missing and self._parts:
            self._remove_inside(frozenset(missing))

    def shed(self, num_parts: int) -> None:
        """Take out so many parts, any."""
        for _ in range(min(num_parts, len(self._parts))):
            last, blocks = self._parts.popitem()
            del self._run_at[last]
            self._runs.num_parts -= 1
            self.num_blocks -= self._runs.take(blocks, self.bit)

    def _grow(self, part: bytes, block: bytes) -> bool:
        first = self._run_at[_last(part)]
        if not self._runs.grow(first, part[-BLOCK_BYTES:], block, self.bit):
            return False
        self._pop(part)
        self._add(part + block, first)
        self.num_blocks += 1
        return True

    def _remove_ends(self, blocks: Sequence[BlockHash]) -> list[BlockHash]:
        """Take out those that are ends of parts when their turn comes; return the others."""
        missing: list[BlockHash] = []
        index = 0
        while index < len(blocks):
            held = self._parts.get(blocks[index])
            index += 1
            if held is None:
                missing.append(blocks[index - 1])
                continue
            kept = len(held) - BLOCK_BYTES
            while kept and index < len(blocks) and blocks[index] == _last(held[:kept]):
                kept -= BLOCK_BYTES
                index += 1
            first = self._pop(held)
            self.num_blocks -= self._runs.take(held, self.bit, kept)
            if kept:
                self._add(held[:kept], first)
        return missing

    def _remove_inside(self, lost: frozenset[BlockHash]) -> None:
        """Cut the parts that have some of ``lost`` in the middle."""
        runs, bit = self._runs, self.bit
        for held in list(self._parts.values()):
            blocks = [BlockHash(block) for block in unpack(held)]
            if lost.isdisjoint(blocks):
                continue
            self._pop(held)
            begin = 0
            for index, block in enumerate(blocks):
                if block not in lost:
                    continue
                at = index * BLOCK_BYTES
                # Put in again, so that it is a run of its own before it is taken out.
                runs.take(held, bit, at)
                runs.put(held[at : at + BLOCK_BYTES], [block], bit)
                if rest := blocks[index + 1 :]:
                    runs.put(held[at + BLOCK_BYTES :], rest, bit)
                runs.take(held[at : at + BLOCK_BYTES], bit)
                self.num_blocks -= 1
                if begin < at:
                    self._add(held[begin:at], block_at(held, begin))
                begin = at + BLOCK_BYTES
            if begin < len(held):
                self._add(held[begin:], block_at(held, begin))

    def _add(self, part: bytes, run_first: BlockHash) -> None:
        last = _last(part)
        other = self._parts.get(last)
        if other is not None:
            # Told twice, once without what it follows: the longer one knows more.
            short, part = sorted((other, part), key=len)
            self._pop(other)
            self.num_blocks -= self._runs.take(short, self.bit)
        self._parts[last] = part
        self._run_at[last] = run_first
        self._runs.num_parts += 1

    def _pop(self, part: bytes) -> BlockHash:
        """Take a part off the list; return where the run begins that may be lengthened."""
        last = _last(part)
        del self._parts[last]
        self._runs.num_parts -= 1
        return self._run_at.pop(last)


def _last(blocks: bytes) -> BlockHash:
    return block_at(blocks, len(blocks) - BLOCK_BYTES)
