"""One sequence being answered: the engine's half, its text, and who receives it."""

from dataclasses import dataclass
from typing import Protocol

from contract.blocks import BlockHash
from replicas.core.sequence import FinishReason, Sequence
from replicas.core.text import END_OF_TEXT, Text, token_ids
from replicas.server.metrics import Siblings
from replicas.server.stop_strings import StopStrings


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered prompt with the identity that its blocks are chained from.

    ``root`` is made of ``adapter`` and ``cache_salt`` too; they are kept for those who tell others
    which blocks these are.
    """

    words: bytes
    root: BlockHash
    adapter: str | None = None
    cache_salt: str | None = None


@dataclass(frozen=True, slots=True)
class SamplingRules:
    """How long an answer may get. ``open_ended`` lets the text end by itself.

    ``pooling`` has no answer: the prompt is computed, and that is all.
    """

    max_tokens: int
    open_ended: bool
    stops: tuple[bytes, ...] = ()
    priority: int = 0
    pooling: bool = False


@dataclass(eq=False, slots=True)
class ServedSequence(Sequence):
    """A sequence that still knows the salt of its root."""

    cache_salt: str | None = None


class Receiver(Protocol):
    """Takes the text of an answer's choices as steps produce it."""

    def take(self, generation: "Generation", piece: bytes) -> None:
        """Take what one token adds, b"" if nothing; the last one has a finish reason.

        Called from the step loop, so it must neither block nor raise.
        """


class Generation:
    """One choice of an answer, from its prompt to its last token."""

    __slots__ = (
        *("_draw", "_piece", "_receiver", "_stops"),
        *("index", "last_token_us", "sequence", "siblings"),
    )

    def __init__(
        self,
        sequence_id: str,
        index: int,
        prompt: Prompt,
        choice: int,
        rules: SamplingRules,
        receiver: Receiver,
        siblings: Siblings | None = None,
    ) -> None:
        self.index = index  # of the choice in the answer
        self.siblings = siblings or Siblings(1, 1)
        end = frozenset({END_OF_TEXT.token_id}) if rules.open_ended else frozenset[int]()
        self.sequence = ServedSequence(
            sequence_id,
            token_ids(prompt.words),
            rules.max_tokens,
            prompt.root,
            rules.priority,
            end,
            prompt.adapter,
            rules.pooling,
            cache_salt=prompt.cache_salt,
        )
        text = Text(prompt.words, choice)
        self._draw = text.next_word_or_end if rules.open_ended else text.next_word
        self._stops = StopStrings(rules.stops) if rules.stops else None
        self._piece = b""
        self._receiver = receiver
        self.last_token_us: int | None = None

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why it ended, None before."""
        return self.sequence.finish_reason

    @property
    def stop_reason(self) -> str | None:
        """The stop string that ended it, None if another thing did."""
        return None if self._stops is None else self._stops.found_string

    def sample(self) -> int:
        """Return the next token id for the engine, and keep its text for deliver()."""
        word = self._draw()
        if self._stops is None:
            self._piece = word.text
            return word.token_id
        self._piece = self._stops.feed(word.text)
        if self._stops.found:
            # The engine ends sequences by token id, so the token that completes a stop string
            # becomes a stop token.
            self.sequence.stop_token_ids |= {word.token_id}
        return word.token_id

    def deliver(self) -> None:
        """Hand the text of the last token on."""
        piece = self._piece
        if self._stops is not None and self.finish_reason is not None:
            piece += self._stops.rest()
        self._receiver.take(self, piece)
