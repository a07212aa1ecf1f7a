"""Numbers for segments, and the prompts that are made of them."""

from simulator.request import SEGMENT_ID_MAX, Segment


class SegmentIds:
    """Hands out segment ids, from 1 upwards."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last = 0

    def new(self) -> int:
        """Return an id that no other segment has."""
        self._last += 1
        assert self._last <= SEGMENT_ID_MAX, "a workload of more than four billion segments"
        return self._last

    def fresh(self, num_tokens: int) -> Segment:
        """Return a segment that no other prompt shares."""
        return Segment(self.new(), num_tokens)


def clipped(segments: tuple[Segment, ...], tokens_max: int) -> tuple[Segment, ...]:
    """Return the first ``tokens_max`` tokens: a prefix stays a prefix."""
    kept: list[Segment] = []
    left = tokens_max
    for segment in segments:
        if segment.num_tokens >= left:
            kept.append(Segment(segment.segment_id, left))
            break
        kept.append(segment)
        left -= segment.num_tokens
    return tuple(kept)
