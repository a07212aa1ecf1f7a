"""Answers in the index, on replicas that tell of no blocks: the prompt of the next turn holds them.

A prompt ends where its answer begins, so an answer that has ended is put behind its prompt: the
same blocks, by the same hashes, that the next turn's prompt will have there. An engine frees what
a request holds when it ends, so the prompt counts as used then, too.

Not every engine finds an answer again: one that leaves out what was thought in between, or whose
template writes it otherwise, has the prompt before it and no more. That tells nothing about what
else was evicted, so where answers begin is remembered until that has been seen.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from contract.blocks import BlockHash, chain_bytes
from router.core.prefix_index import PrefixIndex
from router.core.view import ChainKey, RouteRequest

BEGINNINGS_MAX = 16_384
"""Answers that wait for their next turn, whose beginnings are known; about 100 bytes each."""

MEAN_OVER = 64
"""Answers that the mean length is mostly of."""


class LearnedAnswers:
    """Puts answers into the index, and knows where they begin until a next turn has shown them."""

    def __init__(self, index: PrefixIndex) -> None:
        self._index = index
        self._beginnings: dict[BlockHash, None] = {}  # first blocks of answers, the oldest first
        self.mean_blocks = 0.0  # of an answer, of the last ones more than of those before

    @property
    def num_beginnings(self) -> int:
        """Answers that wait for their next turn."""
        return len(self._beginnings)

    def place_after(
        self, request: RouteRequest, slot: int, key: ChainKey, chain: Sequence[BlockHash]
    ) -> "AnswerPlace | None":
        """Return where the answer to ``request`` goes on; None if no prompt will hold it so.

        ``chain`` is the prompt's, by ``key``.
        """
        answer_at, block_bytes = request.answer_at, key[0]
        if answer_at is None or answer_at > len(request.prompt):  # of a long one part is known
            return None
        num_blocks = answer_at // block_bytes
        begun = request.prompt[num_blocks * block_bytes : answer_at]
        if num_blocks < len(chain):  # its last block is whole by its padding only
            chain = chain[:num_blocks]
        parent = chain[-1] if chain else request.root
        epoch = self._index.epoch(slot)
        return AnswerPlace(self, slot, epoch, block_bytes, chain, parent, bytes(begun))

    def learn(self, place: "AnswerPlace", text: bytes, now_us: int) -> None:
        """See ``AnswerPlace.learn``."""
        index, slot = self._index, place.slot
        if index.epoch(slot) != place.epoch:
            return
        blocks = chain_bytes(place.begun + text, place.block_bytes, place.parent)
        self.mean_blocks += (len(blocks) - self.mean_blocks) / MEAN_OVER
        if blocks:
            self._remember(blocks[0])
        index.expect(slot, [*place.chain, *blocks], len(place.chain), now_us)

    def _remember(self, beginning: BlockHash) -> None:
        beginnings = self._beginnings
        beginnings[beginning] = None
        if len(beginnings) > BEGINNINGS_MAX:
            del beginnings[next(iter(beginnings))]

    def take_last(self, chain: Sequence[BlockHash], num_blocks: int) -> int | None:
        """Return in which of the first ``num_blocks`` the last new answer begins, and forget it.

        From here on it is part of a prompt that was computed.
        """
        for at in range(num_blocks - 1, -1, -1):
            if chain[at] in self._beginnings:
                del self._beginnings[chain[at]]
                return at
        return None


@dataclass(slots=True, eq=False)
class AnswerPlace:
    """Where in the index of one replica an answer goes on; who collects it sets ``on_end``."""

    answers: LearnedAnswers
    slot: int
    epoch: int | None  # of the slot: another has begun if the replica's cache was reset
    block_bytes: int
    chain: Sequence[BlockHash]  # of the prompt
    parent: BlockHash
    begun: bytes  # what the prompt has of the block in which the answer begins
    on_end: Callable[[bool], None] | None = None  # told when the lease ends, if as it should

    def learn(self, text: bytes, now_us: int) -> None:
        """Take in that the answer was ``text``, whole. Nothing if the cache was reset since."""
        self.answers.learn(self, text, now_us)
