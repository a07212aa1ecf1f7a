"""What a workload is like: its lengths and arrivals, and the most that a prefix cache can save."""

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass

from simulator.request import Segment, SimRequest


@dataclass(frozen=True, slots=True)
class Reuse:
    """Prompt tokens of a workload, and those that one endless cache would not have to compute."""

    prompt_tokens: int
    matched_tokens: int

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens that even such a cache leaves to compute."""
        return self.prompt_tokens - self.matched_tokens

    @property
    def share(self) -> float:
        """Matched tokens of all prompt tokens, 0..1."""
        return self.matched_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


def ideal_reuse(requests: Iterable[SimRequest], block_size: int) -> Reuse:
    """Return what one endless cache saves that has finished each request before the next comes.

    Whole blocks only, and never a prompt's last token, as in vLLM. Answers are cached with their
    prompts, but for their last token, which no step has read.
    """
    cached: dict[Hashable, int] = {}  # (parent block, contents) -> block
    prompt_tokens = matched_tokens = 0
    for request in requests:
        answer = Segment(request.output_id, request.output_tokens)
        length = request.prompt_tokens
        matchable = (length - 1) // block_size
        parent = 0
        held = _held(request.segments, answer)
        for index, contents in enumerate(_blocks(held, block_size)):
            key = (parent, contents)
            # Behind a block that is not cached every parent is new, so no later block is found.
            if index < matchable and key in cached:
                matched_tokens += block_size
            parent = cached.setdefault(key, len(cached) + 1)
        prompt_tokens += length
    return Reuse(prompt_tokens, matched_tokens)


def _held(segments: tuple[Segment, ...], answer: Segment) -> Iterator[Segment]:
    yield from segments
    if answer.num_tokens > 1:
        yield Segment(answer.segment_id, answer.num_tokens - 1)


def _blocks(segments: Iterable[Segment], block_size: int) -> Iterator[tuple[int, ...]]:
    """Yield the whole blocks: (segment id, tokens) after (segment id, tokens), flattened."""
    block: list[int] = []
    room = block_size
    for segment in segments:
        left = segment.num_tokens
        while left:
            taken = min(left, room)
            if block and block[-2] == segment.segment_id:
                block[-1] += taken
            else:
                block += (segment.segment_id, taken)
            left -= taken
            room -= taken
            if not room:
                yield tuple(block)
                block, room = [], block_size
