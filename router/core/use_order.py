"""Parts of prompts in the order of their last use, the oldest first, and when that was.

A part has a number for a name, which says its place: whatever is used again gets a new one. Parts
stand in segments by their numbers, so that no dict is large: to let a large one grow takes long,
and so does to find its first entry where the ones before it are gone. There is no object for each
part either: of a hundred thousand objects the garbage collector would look at each in every full
round, which holds up all else for 50 ms.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

SEGMENT_PARTS = 64
THINNED_OUT = (SEGMENT_PARTS // 4, SEGMENT_PARTS // 16)
"""With so few parts left a segment is copied, as a dict does not shrink by itself."""


@dataclass(slots=True, eq=False)
class _Segment:
    blocks: dict[int, bytes] = field(default_factory=dict)
    used_us: dict[int, int] = field(default_factory=dict)


class UseOrder:
    """Parts by number."""

    __slots__ = ("_next_number", "_num_parts", "_segments")

    def __init__(self) -> None:
        self._next_number = 0
        self._num_parts = 0
        self._segments: dict[int, _Segment] = {}  # none of them empty

    def __len__(self) -> int:
        return self._num_parts

    def __iter__(self) -> Iterator[bytes]:
        for segment in self._segments.values():
            yield from segment.blocks.values()

    def __getitem__(self, number: int) -> bytes:
        return self._segments[number // SEGMENT_PARTS].blocks[number]

    def put(self, number: int, blocks: bytes) -> None:
        """Put other blocks in a part's place."""
        self._segments[number // SEGMENT_PARTS].blocks[number] = blocks

    def oldest(self) -> int | None:
        """Return the part that was not used for longest."""
        for segment in self._segments.values():
            for number in segment.blocks:
                return number
        return None

    def used_us(self, number: int) -> int:
        """Return when a part was used last."""
        return self._segments[number // SEGMENT_PARTS].used_us[number]

    def append(self, blocks: bytes, used_us: int) -> int:
        """Put in a part as the one that was used last; return its number."""
        number = self._next_number
        self._next_number = number + 1
        segment = self._segments.get(number // SEGMENT_PARTS)
        if segment is None:
            segment = self._segments[number // SEGMENT_PARTS] = _Segment()
        segment.blocks[number] = blocks
        segment.used_us[number] = used_us
        self._num_parts += 1
        return number

    def move_to_end(self, number: int, used_us: int) -> int:
        """Make a part the one that was used last; return its new number."""
        return self.append(self.remove(number), used_us)

    def remove(self, number: int) -> bytes:
        """Take a part out and return its blocks."""
        segment = self._segments[number // SEGMENT_PARTS]
        parts = segment.blocks
        blocks = parts.pop(number)
        del segment.used_us[number]
        self._num_parts -= 1
        if not parts:
            del self._segments[number // SEGMENT_PARTS]
        elif len(parts) in THINNED_OUT:
            segment.blocks = dict(parts)
            segment.used_us = dict(segment.used_us)
        return blocks
