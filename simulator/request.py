"""One request of a workload, in numbers: what a trace row or a generator says, and no text.

A prompt is a row of segments. Every token of a segment is the segment's id, so two prompts share
exactly the tokens that their rows of segments share, whatever the engine's block size. The tokens
that a request generates are a segment too, so that a later prompt can continue the answer.
"""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass

from contract.blocks import TOKEN_BYTES

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

    def pieces(self) -> list[bytes]:
        """Return the tokens of each segment as contract.blocks.token_bytes() makes them."""
        return [
            each.segment_id.to_bytes(TOKEN_BYTES, "little") * each.num_tokens
            for each in self.segments
        ]

    def answer_bytes(self) -> bytes:
        """Return all tokens of the answer in the same way."""
        return self.output_id.to_bytes(TOKEN_BYTES, "little") * self.output_tokens


def whole_blocks(pieces: Iterable[bytes], block_bytes: int) -> list[bytes]:
    """Cut pieces, each of which is one token again and again, into blocks; drop what is left.

    A long piece gives one block many times, so nothing is copied where its blocks begin with it.
    """
    blocks: list[bytes] = []
    begun = b""  # of the block that the next piece goes on with
    for piece in pieces:
        if len(piece) == block_bytes and not begun:
            blocks.append(piece)
            continue
        begin = 0
        if begun:
            begin = block_bytes - len(begun)
            begun += piece[:begin]
            if len(begun) < block_bytes:
                continue
            blocks.append(begun)
        num_blocks, left = divmod(len(piece) - begin, block_bytes)
        if num_blocks:
            blocks += [piece[:block_bytes]] * num_blocks
        begun = piece[len(piece) - left :]
    return blocks


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in the order of their arrival; closed-loop ones after the one they wait for.

    ``provenance`` says in one line where they come from, and what was changed (rate, jitter).
    """

    name: str
    provenance: str
    requests: tuple[SimRequest, ...]
