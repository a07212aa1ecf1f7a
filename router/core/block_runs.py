"""Runs of prompt blocks, and the set of holders of each run: the shared half of the prefix index.

    first block of a run -> (its blocks packed, 8 bytes each; bit set of those who hold all of them)

A block's hash names its whole prefix, so a run needs no link to the one before it: whoever follows
a prompt looks up its next block. Where a prompt leaves a run in the middle, it goes on with a run
of its own that begins there, and the longer one stays whole. A run is cut in two only where some
holder's part ends.

Invariant: what a holder puts in begins and ends where runs do, so that it can be taken out again
by its first block. A run of 60 blocks costs about 11 bytes a block where an entry for each block
would cost 110; and it is compared at once, as memory.
"""

from array import array
from collections.abc import Collection, Iterator, Sequence
from struct import Struct

from contract.blocks import BlockHash
from router.core.block_table import BlockTable

BLOCK_BYTES = 8  # of a packed hash
_MASK = (1 << 64) - 1
_read_word = Struct("=Q").unpack_from

Run = tuple[bytes, int]
"""Blocks and holders."""


def pack(blocks: Collection[BlockHash]) -> bytes:
    """Return hashes as 8-byte words. Of a number that is none, the lower 64 bits are taken."""
    try:
        return array("Q", blocks).tobytes()
    except OverflowError:
        return array("Q", [block & _MASK for block in blocks]).tobytes()


def unpack(packed: bytes) -> "array[int]":
    """Return the hashes again."""
    blocks = array("Q")
    blocks.frombytes(packed)
    return blocks


def block_at(packed: bytes, at: int) -> BlockHash:
    """Return the hash that begins at byte ``at``."""
    block: BlockHash = _read_word(packed, at)[0]
    return block


def last_block(packed: bytes) -> BlockHash:
    """Return the last hash."""
    return block_at(packed, len(packed) - BLOCK_BYTES)


def num_blocks(packed: bytes) -> int:
    """Return how many blocks are packed there."""
    return len(packed) // BLOCK_BYTES


class BlockRuns:
    """All runs, by their first block. Byte offsets stand for blocks throughout."""

    def __init__(self) -> None:
        self.num_held = 0  # (block, holder) pairs
        self.num_parts = 0  # that holders keep a list of; counted by those who do
        # Two tables of plain values, which the garbage collector does not look into: for a hundred
        # thousand pairs it would hold up all else for 20 ms in every full round.
        self._runs: BlockTable[bytes] = BlockTable()
        self._holders: BlockTable[int] = BlockTable()

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return ((blocks, self._holders[first]) for first, blocks in self._runs.items())

    def follow(self, chain: Sequence[BlockHash], packed: bytes) -> Iterator[Run]:
        """Yield the runs along a prompt, each as far as the prompt goes, until one is missing."""
        runs, holders = self._runs, self._holders
        at = 0
        while at < len(packed):
            first = chain[at // BLOCK_BYTES]
            blocks = runs.get(first)
            if blocks is None:
                return
            if not packed.startswith(blocks, at):
                blocks = blocks[: common_bytes(blocks, packed, at)]
            yield blocks, holders[first]
            at += len(blocks)

    def put(self, blocks: bytes, chain: Sequence[BlockHash], holder: int) -> list[bytes]:
        """Let ``holder`` (one bit) hold ``blocks``; return those parts that it did not before.

        ``chain`` is the same, unpacked.
        """
        if self.put_new(blocks, chain, holder):
            return [blocks]
        runs = self._runs
        fresh: list[bytes] = []
        begins = frozenset(runs.known(chain))
        at = begin = 0  # of the part that is fresh
        while at < len(blocks):
            index = at // BLOCK_BYTES
            first = chain[index]
            held = runs.get(first)
            if held is None:
                known = (i for i in range(index + 1, len(chain)) if chain[i] in begins)
                end = next(known, len(chain)) * BLOCK_BYTES
                runs.put(first, blocks[at:end])
                self._holders.put(first, holder)
                self.num_held += (end - at) // BLOCK_BYTES
                at = end
                continue
            length = len(held)
            if not blocks.startswith(held, at):
                self._cut(first, common_bytes(held, blocks, at))
                length = len(runs[first])  # less than that, if the run came back to its beginning
            if self._holders[first] & holder:
                if begin < at:
                    fresh.append(blocks[begin:at])
                begin = at + length
            else:
                self._holders.put(first, self._holders[first] | holder)
                self.num_held += length // BLOCK_BYTES
            at += length
        if begin < at:
            fresh.append(blocks[begin:at])
        return fresh

    def put_new(self, blocks: bytes, chain: Sequence[BlockHash], holder: int) -> bool:
        """Do as ``put`` if no run begins within ``blocks``; return whether that is so."""
        runs = self._runs
        if not runs.isdisjoint(chain):
            return False
        first = chain[0]
        runs.put(first, blocks)
        self._holders.put(first, holder)
        self.num_held += len(chain)
        return True

    def take(self, blocks: bytes, holder: int, kept: int = 0) -> int:
        """Let ``holder`` hold no more than the first ``kept`` bytes of ``blocks``.

        Return how many blocks it gave up.
        """
        runs = self._runs
        first = block_at(blocks, 0)
        if runs.get(first) == blocks and self._holders.get(first) == holder:  # as with most
            if kept:
                runs.put(first, blocks[:kept])
            else:
                runs.pop(first, None)
                self._holders.pop(first, None)
            gone = (len(blocks) - kept) // BLOCK_BYTES
            self.num_held -= gone
            return gone
        gone = at = 0
        while at < len(blocks):
            first = block_at(blocks, at)
            holders = self._holders.get(first) or 0
            if not holders & holder:
                at += BLOCK_BYTES
                continue
            length = len(runs[first])
            for limit in (kept, len(blocks)):
                if at < limit < at + length:
                    length = limit - at
            if length < len(runs[first]):
                self._cut(first, length)
                length = len(runs[first])
            if at >= kept:
                if holders == holder:
                    self._forget(first)
                else:
                    self._holders.put(first, holders & ~holder)
                gone += length // BLOCK_BYTES
            at += length
        self.num_held -= gone
        return gone

    def take_rest(self, holder: int, num_counted: int) -> None:
        """Let ``holder``, for whom so many blocks are still counted, hold nothing at all.

        For one whose parts are gone and who yet holds some: it has told of a block after two
        parents, or twice, and runs were merged or cut where its parts do not say so.
        """
        for first, holders in list(self._holders.items()):
            if holders == holder:
                self._forget(first)
            elif holders & holder:
                self._holders.put(first, holders & ~holder)
        self.num_held -= num_counted

    def grow(self, first: BlockHash, parent: bytes, block: bytes, holder: int) -> bool:
        """Lengthen the run ``first`` by a block, if it is the holder's and ends with ``parent``."""
        runs = self._runs
        blocks = runs.get(first)
        if blocks is None or self._holders[first] != holder or not blocks.endswith(parent):
            return False
        if block_at(block, 0) in runs:
            return False
        runs.put(first, blocks + block)
        self.num_held += 1
        return True

    def cut_at(self, chain: Sequence[BlockHash], packed: bytes, at: int) -> None:
        """Make a run of this prompt end before byte ``at``, if one goes over it."""
        begin = 0
        for blocks, _ in self.follow(chain, packed):
            end = begin + len(blocks)
            if end >= at:
                first = chain[begin // BLOCK_BYTES]
                if len(self._runs[first]) > at - begin:
                    self._cut(first, at - begin)
                return
            begin = end

    def _forget(self, first: BlockHash) -> None:
        self._runs.pop(first, None)
        self._holders.pop(first, None)

    def _cut(self, first: BlockHash, length: int) -> None:
        """Let a run end after ``length`` bytes; the rest goes on as another with equal holders."""
        blocks = self._runs[first]
        self._runs.put(first, blocks[:length])
        self._merge(blocks[length:], self._holders[first])

    def _merge(self, blocks: bytes, holders: int) -> None:
        """Put in a run where, by a hole in what somebody told, another may begin already."""
        while blocks:
            first = block_at(blocks, 0)
            other = self._runs.get(first)
            if other is None:
                self._runs.put(first, blocks)
                self._holders.put(first, holders)
                return
            length = common_bytes(other, blocks, 0)
            if length < len(other):
                self._cut(first, length)
                length = len(self._runs[first])
            self._holders.put(first, self._holders[first] | holders)
            blocks = blocks[length:]


def common_bytes(run: bytes, packed: bytes, at: int) -> int:
    """Return the bytes that ``run`` has in common with ``packed`` from ``at`` on.

    Found by halving, and compared as memory: block for block, since a replica may tell of equal
    hashes after different ones.
    """
    low, high = 0, min(len(run), len(packed) - at) // BLOCK_BYTES
    while low < high:
        middle = (low + high) // 2
        begin, end = low * BLOCK_BYTES, (middle + 1) * BLOCK_BYTES
        if packed.startswith(run[begin:end], at + begin):
            low = middle + 1
        else:
            high = middle
    return low * BLOCK_BYTES
