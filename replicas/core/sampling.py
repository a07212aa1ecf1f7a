"""Where the tokens of a sequence come from, one at a time or many at once."""

from array import array
from collections.abc import Callable

from xxhash import xxh3_64_intdigest

from replicas.core.sequence import Sequence

Sample = Callable[[Sequence], int]
"""Gives the next token id of a sequence whose known tokens are all computed."""

Extend = Callable[[Sequence, int], None]
"""Appends that many tokens to a sequence: what as many calls of a Sample would give."""

_TOKEN_MAX = 2**32 - 1


def one_by_one(sample: Sample) -> Extend:
    """Return the Extend that calls ``sample`` for each token."""

    def extend(sequence: Sequence, num_tokens: int) -> None:
        for _ in range(num_tokens):
            sequence.tokens.append(sample(sequence))

    return extend


def own_token(sequence: Sequence) -> int:
    """Return the one token that ``sequence`` generates again and again, made of its id.

    For runs in which lengths matter and texts do not. Blocks of generated tokens still have an
    identity of their own, so that the next turn of a conversation hits them.
    """
    return xxh3_64_intdigest(sequence.sequence_id.encode()) & _TOKEN_MAX


def extend_with_own_token(sequence: Sequence, num_tokens: int) -> None:
    """Append what as many calls of own_token() would give."""
    sequence.tokens.extend(array("I", [own_token(sequence)]) * num_tokens)
