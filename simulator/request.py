"""One request of a workload, in numbers: what a trace row or a generator says, and no text.

A prompt is a row of segments. Every token of a segment is the segment's id, so two prompts share
exactly the tokens that their rows of segments share, whatever the engine's block size. The tokens
that a request generates are a segment too, so that a later prompt can continue the answer.
"""

from array import array
from dataclasses import dataclass

SEGMENT_ID_MAX = 2**32 - 1
"""A segment's id is its tokens' id, and a token is four bytes."""


@dataclass(frozen=True, slots=True)
class Segment:
    """``num_tokens`` tokens that are all ``segment_id``."""

    segment_id: int  # 1..SEGMENT_ID_MAX
    num_tokens: int  # at least 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SimRequest:
    """One request. It is sent at ``arrival_us``, or ``think_us`` after the end of ``after``.

    ``arrival_us`` counts from the workload's start. A request with ``after`` is closed loop: it
    waits for the answer of the request of that id, which stands before it in the workload.
    """

    request_id: str
    segments: tuple[Segment, ...]
    output_tokens: int  # at least 1
    output_id: int  # segment id of what is generated
    arrival_us: int = 0
    after: str | None = None
    think_us: int = 0
    model: str | None = None
    tenant: str | None = None
    session: str | None = None
    priority: int = 0
    patience_us: int | None = None  # its client leaves when it has waited so long for its end

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return sum(segment.num_tokens for segment in self.segments)

    def tokens(self) -> "array[int]":
        """Return the prompt's token ids."""
        tokens = array("I")
        for segment in self.segments:
            tokens.extend(array("I", (segment.segment_id,)) * segment.num_tokens)
        return tokens


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in the order of their arrival; closed-loop ones after the one they wait for.

    ``provenance`` says in one line where they come from, and what was changed (rate, jitter).
    """

    name: str
    provenance: str
    requests: tuple[SimRequest, ...]
