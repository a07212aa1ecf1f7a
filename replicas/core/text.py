"""What a replica answers: a text that looks random and is fixed by everything before it.

It behaves like a greedy model: word k is a function of the prompt and of words 0..k-1, so a
request that goes on from a prompt and part of its answer gets the rest of that answer, on any
replica. A lost, doubled or foreign word in an answer can therefore be found without a record of it.

    Rule: padding is no part of what stands before. "hello" is padded to two words, and "hello"
          with two words of its answer behind it is padded elsewhere; both must go on alike.
"""

import sys
from array import array
from dataclasses import dataclass

from xxhash import xxh3_64

from contract.blocks import TOKEN_BYTES

MEAN_WORDS = 100
"""Mean length of an answer whose request sets no limit; lengths are geometric."""

_CONSONANTS = "bcdfghjklmnpqrstvwxyz"
_VOWELS = "aeiou"


@dataclass(frozen=True, slots=True)
class Word:
    """One token: its text, and its id, which is that text read as a little-endian number."""

    text: bytes
    token_id: int


WORDS = tuple(
    Word(word.encode(), int.from_bytes(word.encode(), "little"))
    for word in (f"{a}{v}{b} " for a in _CONSONANTS for v in _VOWELS for b in _CONSONANTS)
)
END_OF_TEXT = Word(b"", 0)
"""Ends an answer, as a model's end token does: it is counted, and it has no text."""

_PADDING = b"\0"
_WORD_TEXTS = frozenset(word.text for word in WORDS)

assert all(len(word.text) == TOKEN_BYTES for word in WORDS)


class Text:
    """The continuation of one prompt (whole 4-byte words). Other choices are other texts."""

    __slots__ = ("_begun", "_digest", "_update")

    def __init__(self, prompt: bytes, choice: int = 0) -> None:
        assert len(prompt) % TOKEN_BYTES == 0
        before = prompt.replace(_PADDING, b"")
        state = xxh3_64(before, seed=choice)
        self._digest = state.intdigest
        self._update = state.update
        # What ends in a word of ours is an answer that has begun, and may be at its end.
        self._begun = before[-TOKEN_BYTES:] in _WORD_TEXTS

    def next_word(self) -> Word:
        """Return the next word, never the end of the text."""
        word = WORDS[self._digest() % len(WORDS)]
        self._update(word.text)
        return word

    def next_word_or_end(self) -> Word:
        """Return the next word or END_OF_TEXT; an answer has at least one word."""
        digest = self._digest()
        # The end is drawn from other bits than the word, or some words would never follow others.
        if self._begun and (digest >> 32) % MEAN_WORDS == 0:
            return END_OF_TEXT
        self._begun = True
        word = WORDS[digest % len(WORDS)]
        self._update(word.text)
        return word


def expected_text(prompt: bytes, num_tokens: int, choice: int = 0) -> str:
    """Return the answer to a rendered prompt that asks for exactly ``num_tokens`` tokens."""
    text = Text(prompt, choice)
    return b"".join(text.next_word().text for _ in range(num_tokens)).decode()


def expected_open_text(prompt: bytes, num_tokens_max: int, choice: int = 0) -> str:
    """Return the answer that ends by itself, or after ``num_tokens_max`` tokens."""
    text = Text(prompt, choice)
    words = (text.next_word_or_end() for _ in range(num_tokens_max))
    pieces: list[bytes] = []
    for word in words:
        if word is END_OF_TEXT:
            break
        pieces.append(word.text)
    return b"".join(pieces).decode()


def token_ids(prompt: bytes) -> "array[int]":
    """Return the words of a rendered prompt as token ids."""
    words = array("I")
    words.frombytes(prompt)
    if sys.byteorder == "big":
        words.byteswap()
    return words
