"""The blocks that nobody holds, in the order in which they are given out again.

    blank                 cache nothing, the last one put back goes first
    run, run, ...         cached; the oldest run goes first, and each from its end

A run is what one sequence gave back at once, so blocks go in and out as slices of lists. One that
is shared before its turn stays in its run, where its place no longer counts: a block stands in the
run that ``_place`` says. Such leftovers are swept out when they are more than the blocks.
"""

from collections import deque
from collections.abc import Iterable

HELD, BLANK = 0, -1
"""Places of a block that stands in no run; the runs are numbered from 1."""


class FreeQueue:
    """Blocks 1 .. num_blocks - 1, at first all blank, in their order."""

    def __init__(self, num_blocks: int) -> None:
        self.num_free = num_blocks - 1
        self._blank = list(range(num_blocks - 1, 0, -1))
        self._place = [BLANK] * num_blocks
        self._runs: deque[list[int]] = deque()
        self._first_run = 1  # number of the oldest
        self.num_places = 0  # in all runs, leftovers included

    def blocks(self) -> list[int]:
        """Return all, the next to be given out first."""
        return self._blank[::-1] + self._cached()

    def is_held(self, block: int) -> bool:
        """Whether a block is not in here."""
        return self._place[block] == HELD

    def num_held(self, blocks: Iterable[int]) -> int:
        """Return how many of ``blocks`` are not in here."""
        return [*map(self._place.__getitem__, blocks)].count(HELD)

    def take(self, num_blocks: int) -> list[int]:
        """Return the next ``num_blocks``, which are no longer in here; there must be as many."""
        assert num_blocks <= self.num_free, f"{num_blocks} taken, {self.num_free} free"
        blank, place = self._blank, self._place
        blocks: list[int] = []
        if blank and num_blocks:
            blocks = blank[: -num_blocks - 1 : -1]
            del blank[-num_blocks:]
        while len(blocks) < num_blocks:
            run, number, missing = self._runs[0], self._first_run, num_blocks - len(blocks)
            places = run[: -missing - 1 : -1]
            del run[-missing:]
            self.num_places -= len(places)
            blocks += [block for block in places if place[block] == number]
            if not run:
                self._runs.popleft()
                self._first_run += 1
        for block in blocks:
            place[block] = HELD
        self.num_free -= num_blocks
        return blocks

    def remove(self, block: int) -> None:
        """Take a cached block out of its turn."""
        assert self._place[block] > 0, f"block {block} is in no run"
        self._place[block] = HELD
        self.num_free -= 1

    def put_blank(self, blocks: Iterable[int]) -> None:
        """Put back blocks that cache nothing; the last of them goes first."""
        for block in blocks:
            self._place[block] = BLANK
            self._blank.append(block)
            self.num_free += 1

    def put_cached(self, blocks: list[int]) -> None:
        """Put back cached blocks, the last of which goes first, behind all others.

        The list is the queue's from now on.
        """
        place, number = self._place, self._first_run + len(self._runs)
        for block in blocks:
            place[block] = number
        self._runs.append(blocks)
        self.num_free += len(blocks)
        self.num_places += len(blocks)
        if self.num_places > 2 * len(place):
            self._sweep()

    def reset(self) -> None:
        """Take all for blank; the order is kept."""
        self._blank = self.blocks()[::-1]
        self._runs.clear()
        self.num_places = 0
        for block in self._blank:
            self._place[block] = BLANK

    def check(self) -> None:
        """Assert that every block is in one place, and that the counts are right."""
        blocks = self.blocks()
        assert len(set(blocks)) == len(blocks) == self.num_free
        assert self.num_places == sum(map(len, self._runs))
        assert all(self._place[block] == BLANK for block in self._blank)
        assert all(self._place[block] != HELD for block in blocks)
        assert self._place[1:].count(HELD) == len(self._place) - 1 - len(blocks)

    def _cached(self) -> list[int]:
        place = self._place
        return [
            block
            for number, run in enumerate(self._runs, self._first_run)
            for block in reversed(run)
            if place[block] == number
        ]

    def _sweep(self) -> None:
        blocks = self._cached()
        blocks.reverse()
        self._runs.clear()
        self.num_places = 0
        self.num_free -= len(blocks)
        self.put_cached(blocks)
