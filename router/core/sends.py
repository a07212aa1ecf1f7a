"""What was sent to one replica: the parts of prompts that it did not have, by their last use.

Whenever a prompt rests on sends, these are moved behind it in the queue, the first send last; one
that it uses in part is split there, as in a radix tree. So the end of a prefix always goes before
its beginning, as in an engine, and a hot prefix costs one move per send.

A send has a number for a name and no object: of a hundred thousand objects the garbage collector
would look at each in every full round, which holds up all else for 50 ms.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from contract.blocks import BlockHash
from router.core.block_runs import BLOCK_BYTES, BlockRuns, block_at, common_bytes, num_blocks


class Sends:
    """The sends of one replica; ``bit`` stands for it in the runs.

    Predictions are looked up by their last block, as events tell of it.
    """

    __slots__ = (
        *("_at", "_awaited", "_last_number", "_runs", "_sends", "_used_us"),
        *("are_predictions", "bit", "num_blocks"),
    )

    def __init__(self, runs: BlockRuns, bit: int, *, are_predictions: bool) -> None:
        self.are_predictions = are_predictions
        self.bit = bit
        self.num_blocks = 0
        self._last_number = 0
        self._runs = runs
        self._sends: OrderedDict[int, bytes] = OrderedDict()  # by number, least recently used first
        self._used_us: dict[int, int] = {}  # by number
        self._at: dict[BlockHash, int] = {}  # numbers by the first block
        self._awaited: dict[BlockHash, int] = {}  # numbers by the last block

    def __len__(self) -> int:
        return len(self._sends)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._sends.values())

    @property
    def oldest_us(self) -> int | None:
        """When the send was used that has not been for longest."""
        return self._used_us[next(iter(self._sends))] if self._sends else None

    def add(self, chain: Sequence[BlockHash], packed: bytes, at: int, now_us: int) -> None:
        """Note that the part of a prompt from byte ``at`` on was sent."""
        fresh = chain[at // BLOCK_BYTES :]
        if not self._at.keys().isdisjoint(fresh):
            # Held beyond a hole, where it counts for nothing, or where nobody looked.
            for number in [self._at[block] for block in fresh if block in self._at]:
                self._give_up(number, 0)
        for blocks in self._runs.put(packed[at:], fresh, self.bit):
            number = self._insert(blocks, now_us)
            if self.are_predictions:
                self._awaited[_last(blocks)] = number
            self.num_blocks += num_blocks(blocks)

    def use(self, chain: Sequence[BlockHash], packed: bytes, now_us: int) -> int | None:
        """Note that a prompt was sent, and move the sends that it rests on behind it.

        Returns when the last of these was used before, None if it rests on none.
        """
        used: list[int] = []
        at, last_us = 0, None
        while at < len(packed):
            number = self._at.get(chain[at // BLOCK_BYTES])
            if number is None:
                break
            blocks, last_us = self._sends[number], self._used_us[number]
            length = len(blocks)
            if not packed.startswith(blocks, at):
                length = common_bytes(blocks, packed, at)
                self._runs.cut_at(chain, packed, at + length)
                number = self._split(number, length)
            used.append(number)
            at += length
        if at < len(packed):
            self.add(chain, packed, at, now_us)
        for number in reversed(used):
            self._used_us[number] = now_us
            self._sends.move_to_end(number)
        return last_us

    def come_true(self, blocks: Sequence[BlockHash]) -> None:
        """Drop the sends whose last block is among ``blocks``, of which an event has told."""
        if self._awaited.keys().isdisjoint(blocks):
            return
        for block in blocks:
            if block in self._awaited:
                self._give_up(self._awaited[block], 0)

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
                    self._give_up(number, at)

    def evict(self, num_evicted: int, num_sends_max: int) -> int:
        """Give up the last blocks of the oldest sends; return how many of ``num_evicted``."""
        gone = 0
        while gone < num_evicted and self._sends and num_sends_max > 0:
            number, blocks = next(iter(self._sends.items()))
            kept = max(0, len(blocks) - (num_evicted - gone) * BLOCK_BYTES)
            gone += self._give_up(number, kept)
            num_sends_max -= 1
        return gone

    def drop_until(self, used_us: int, num_sends_max: int) -> None:
        """Give up sends that were not used after ``used_us``."""
        while num_sends_max > 0 and self._sends:
            number = next(iter(self._sends))
            if self._used_us[number] > used_us:
                return
            self._give_up(number, 0)
            num_sends_max -= 1

    def shed(self, num_sends: int) -> None:
        """Give up so many sends, the oldest first."""
        for _ in range(min(num_sends, len(self._sends))):
            self._give_up(next(iter(self._sends)), 0)

    def _give_up(self, number: int, kept: int) -> int:
        """Forget a send but for its first ``kept`` bytes; return how many blocks that were."""
        blocks = self._sends[number]
        gone = self._runs.take(blocks, self.bit, kept)
        if self.are_predictions:
            del self._awaited[_last(blocks)]
        if kept:
            self._sends[number] = blocks[:kept]
            if self.are_predictions:
                self._awaited[_last(blocks[:kept])] = number
        else:
            del self._at[block_at(blocks, 0)]
            del self._sends[number], self._used_us[number]
            self._runs.num_parts -= 1
        self.num_blocks -= gone
        return gone

    def _insert(self, blocks: bytes, used_us: int) -> int:
        number = self._last_number = self._last_number + 1
        self._sends[number] = blocks
        self._used_us[number] = used_us
        self._at[block_at(blocks, 0)] = number
        self._runs.num_parts += 1
        return number

    def _split(self, number: int, length: int) -> int:
        """Make a new send of the first bytes of one, which keeps the rest and its place."""
        blocks = self._sends[number]
        first = self._insert(blocks[:length], self._used_us[number])
        self._sends[number] = blocks[length:]
        self._at[block_at(blocks, length)] = number
        return first


def _last(blocks: bytes) -> BlockHash:
    return block_at(blocks, len(blocks) - BLOCK_BYTES)
