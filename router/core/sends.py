"""What was sent to one replica: the parts of prompts that it did not have, by their last use.

Whenever a prompt rests on sends, these are moved behind it in the queue, the first send last; one
that it uses in part is split there, as in a radix tree. So the end of a prefix always goes before
its beginning, as in an engine, and a hot prefix costs one move per send.
"""

from collections.abc import Iterator, Sequence

from contract.blocks import BlockHash
from router.core.block_runs import (
    BLOCK_BYTES,
    BlockRuns,
    block_at,
    common_bytes,
    last_block,
    num_blocks,
)
from router.core.block_table import BlockTable
from router.core.use_order import UseOrder


class Sends:
    """The sends of one replica; ``bit`` stands for it in the runs.

    Predictions are looked up by their last block, as events tell of it.
    """

    __slots__ = (
        *("_at", "_awaited", "_runs", "_sends"),
        *("are_predictions", "bit", "num_blocks"),
    )

    def __init__(self, runs: BlockRuns, bit: int, *, are_predictions: bool) -> None:
        self.are_predictions = are_predictions
        self.bit = bit
        self.num_blocks = 0
        self._runs = runs
        self._sends = UseOrder()
        self._at: BlockTable[int] = BlockTable()  # numbers by the first block
        self._awaited: BlockTable[int] = BlockTable()  # numbers by the last block

    def __len__(self) -> int:
        return len(self._sends)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._sends)

    @property
    def oldest_us(self) -> int | None:
        """When the send was used that has not been for longest."""
        oldest = self._sends.oldest()
        return None if oldest is None else self._sends.used_us(oldest)

    def add(self, chain: Sequence[BlockHash], packed: bytes, at: int, now_us: int) -> None:
        """Note that the part of a prompt from byte ``at`` on was sent."""
        fresh = chain[at // BLOCK_BYTES :] if at else chain
        blocks = packed[at:]
        if self._runs.put_new(blocks, fresh, self.bit):  # as with most prompts' ends
            self._note(blocks, now_us)
            return
        # Held beyond a hole, where it counts for nothing, or where nobody looked.
        for block in self._at.known(fresh):
            self._give_up_whole(self._at[block])
        for part in self._runs.put(blocks, fresh, self.bit):
            self._note(part, now_us)

    def use(self, chain: Sequence[BlockHash], packed: bytes, now_us: int) -> int | None:
        """Note that a prompt was sent, and move the sends that it rests on behind it.

        Returns when the last of these was used before, None if it rests on none.
        """
        used: list[tuple[BlockHash, int]] = []  # their first blocks and numbers
        at, last_us = 0, None
        while at < len(packed):
            first = chain[at // BLOCK_BYTES]
            number = self._at.get(first)
            if number is None:
                break
            blocks, last_us = self._sends[number], self._sends.used_us(number)
            length = len(blocks)
            if not packed.startswith(blocks, at):
                length = common_bytes(blocks, packed, at)
                self._runs.cut_at(chain, packed, at + length)
                number = self._split(number, length)
            used.append((first, number))
            at += length
        if at < len(packed):
            self.add(chain, packed, at, now_us)
        for first, number in reversed(used):
            self._at.put(first, self._sends.move_to_end(number, now_us))
        return last_us

    def come_true(self, blocks: Sequence[BlockHash]) -> None:
        """Drop the sends whose last block is among ``blocks``, of which an event has told."""
        if not self._awaited.isdisjoint(blocks):
            for block in self._awaited.known(blocks):
                self._give_up_whole(self._awaited[block])

    def cut(self, chain: Sequence[BlockHash], num_kept: int) -> None:
        """Give up what was sent of ``chain`` beyond its first ``num_kept`` blocks."""
        for index, block in enumerate(chain):
            number = self._at.get(block)
            if number is None:
                continue
            blocks = self._sends[number]
            kept = max(0, num_kept - index)
            if kept < num_blocks(blocks) and index + kept < len(chain):
                at = kept * BLOCK_BYTES
                if block_at(blocks, at) == chain[index + kept]:
                    self._give_up(number, blocks, at)

    def evict(self, num_evicted: int, num_sends_max: int) -> int:
        """Give up the last blocks of the oldest sends; return how many of ``num_evicted``."""
        gone = 0
        while gone < num_evicted and num_sends_max > 0:
            number = self._sends.oldest()
            if number is None:
                break
            blocks = self._sends[number]
            kept = max(0, len(blocks) - (num_evicted - gone) * BLOCK_BYTES)
            gone += self._give_up(number, blocks, kept)
            num_sends_max -= 1
        return gone

    def drop_until(self, used_us: int, num_sends_max: int) -> None:
        """Give up sends that were not used after ``used_us``."""
        for _ in range(num_sends_max):
            number = self._sends.oldest()
            if number is None or self._sends.used_us(number) > used_us:
                return
            self._give_up_whole(number)

    def shed(self, num_sends: int) -> None:
        """Give up so many sends, the oldest first."""
        for _ in range(min(num_sends, len(self._sends))):
            number = self._sends.oldest()
            assert number is not None
            self._give_up_whole(number)

    def _give_up_whole(self, number: int) -> None:
        self._give_up(number, self._sends[number], 0)

    def _give_up(self, number: int, blocks: bytes, kept: int) -> int:
        """Forget a send but for its first ``kept`` bytes; return how many blocks that were."""
        gone = self._runs.take(blocks, self.bit, kept)
        if self.are_predictions:
            self._awaited.pop(last_block(blocks), None)
        if kept:
            self._sends.put(number, blocks[:kept])
            if self.are_predictions:
                self._awaited.put(last_block(blocks[:kept]), number)
        else:
            self._at.pop(block_at(blocks, 0), None)
            self._sends.remove(number)
            self._runs.num_parts -= 1
        self.num_blocks -= gone
        return gone

    def _note(self, blocks: bytes, now_us: int) -> None:
        """Keep a part that the runs have taken in."""
        number = self._insert(blocks, now_us)
        if self.are_predictions:
            self._awaited.put(last_block(blocks), number)
        self.num_blocks += len(blocks) // BLOCK_BYTES

    def _insert(self, blocks: bytes, used_us: int) -> int:
        number = self._sends.append(blocks, used_us)
        self._at.put(block_at(blocks, 0), number)
        self._runs.num_parts += 1
        return number

    def _split(self, number: int, length: int) -> int:
        """Make a new send of the first bytes of one, which keeps the rest; return its number."""
        blocks = self._sends[number]
        self._sends.put(number, blocks[length:])
        self._at.put(block_at(blocks, length), number)
        return self._insert(blocks[:length], self._sends.used_us(number))
