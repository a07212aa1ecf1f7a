"""A dict by block hash that never takes long: instead of one that grows it has several that split.

To grow, a dict of 200,000 entries is copied in one go, which takes 10 ms. Here a dict that is full
is split in two by the next bit of its hashes, as in extendible hashing (Fagin et al., 1979): no
more than ``DICT_ENTRIES_MAX`` entries are touched at once, however many there are.

    directory[upper bits of the hash] -> dict; one that has not been split so often stands in a row
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from contract.blocks import BlockHash

DICT_ENTRIES_MAX = 1_024
"""Split in a tenth of a millisecond, in half of one where memory is cold. Tables of the same blocks
split in the same call; of one table few dicts are full at once, as hashes are evenly spread."""

DEPTH_MAX = 16  # bits looked at; more help only where hashes are not evenly spread
_HASH_BITS = 64

V = TypeVar("V")


class BlockTable(Generic[V]):
    """Values by block hash, in no order."""

    __slots__ = ("_directory", "_mask", "_shift", "get", "pop")

    get: Callable[[BlockHash], V | None]
    """Return the value of a block, None if there is none."""

    pop: Callable[[BlockHash, None], V | None]
    """Take the value of a block out and return it, or the None that is handed in."""

    def __init__(self) -> None:
        self._directory: list[dict[BlockHash, V]] = [{}]
        self._shift = _HASH_BITS
        self._mask = 0
        self._bind()

    def __contains__(self, block: BlockHash) -> bool:
        return block in self._directory[block >> self._shift & self._mask]

    def __getitem__(self, block: BlockHash) -> V:
        return self._directory[block >> self._shift & self._mask][block]

    def __len__(self) -> int:
        return sum(map(len, self._dicts()))

    def put(self, block: BlockHash, value: V) -> None:
        """Put in a value, in place of the one that was there."""
        # A method, as Python calls it in half the time that it takes for an operator.
        entries = self._directory[block >> self._shift & self._mask]
        entries[block] = value
        if not len(entries) % DICT_ENTRIES_MAX:
            self._split(block)

    def values(self) -> Iterator[V]:
        """Yield every value."""
        for entries in self._dicts():
            yield from entries.values()

    def items(self) -> Iterator[tuple[BlockHash, V]]:
        """Yield every block and its value."""
        for entries in self._dicts():
            yield from entries.items()

    def isdisjoint(self, blocks: Iterable[BlockHash]) -> bool:
        """Say whether none of ``blocks`` is in here."""
        if not self._mask:
            return self._directory[0].keys().isdisjoint(blocks)
        return not self.known(blocks)

    def known(self, blocks: Iterable[BlockHash]) -> list[BlockHash]:
        """Return those of ``blocks`` that are in here, in their order."""
        directory, shift, mask = self._directory, self._shift, self._mask
        return [block for block in blocks if block in directory[block >> shift & mask]]

    def take_some(self, num_taken: int) -> list[V]:
        """Take so many values out, any."""
        taken: list[V] = []
        for entries in self._dicts():
            while entries and len(taken) < num_taken:
                taken.append(entries.popitem()[1])
        return taken

    def _dicts(self) -> Iterator[dict[BlockHash, V]]:
        last = None
        for entries in self._directory:
            if entries is not last:
                yield entries
            last = entries

    def _bind(self) -> None:
        """Make ``get`` and ``pop``: those of the dict while there is one, which take a third."""
        directory, shift, mask = self._directory, self._shift, self._mask
        if not mask:
            self.get, self.pop = directory[0].get, directory[0].pop
            return

        def get(block: BlockHash) -> V | None:
            return directory[block >> shift & mask].get(block)

        def pop(block: BlockHash, default: None) -> V | None:
            return directory[block >> shift & mask].pop(block, default)

        self.get, self.pop = get, pop  # not of ``self``: there would be a cycle to collect

    def _split(self, block: BlockHash) -> None:
        """Split the dict where ``block`` is, if there is a bit left to split it by."""
        index = block >> self._shift & self._mask
        entries = self._directory[index]
        begin = end = index
        while begin and self._directory[begin - 1] is entries:
            begin -= 1
        while end < len(self._directory) and self._directory[end] is entries:
            end += 1
        if end - begin == 1:
            if len(self._directory) == 1 << DEPTH_MAX:
                return
            self._directory = [each for each in self._directory for _ in range(2)]
            self._shift -= 1
            self._mask = len(self._directory) - 1
            begin, end = 2 * begin, 2 * end
        middle = (begin + end) // 2
        shift, mask = self._shift, self._mask
        # Two passes take half as long as one that looks at each which half it goes to.
        lower = {each: v for each, v in entries.items() if each >> shift & mask < middle}
        upper = {each: v for each, v in entries.items() if each >> shift & mask >= middle}
        self._directory[begin:middle] = [lower] * (middle - begin)
        self._directory[middle:end] = [upper] * (end - middle)
        self._bind()
