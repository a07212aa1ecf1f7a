"""A request as the engine sees it: its tokens, its blocks, how far it is computed."""

from array import array
from collections.abc import Callable, Iterable, Sized
from dataclasses import InitVar, dataclass, field
from enum import Enum

from contract.blocks import BlockHash, chain_tokens
from replicas.core.block_pool import SharedPrefix


class SequenceStatus(Enum):
    """Where a sequence is in its life; a preempted one waits again, without its blocks."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class FinishReason(Enum):
    """Why a sequence ended; the values of LENGTH and STOP are OpenAI's ``finish_reason``."""

    LENGTH = "length"
    STOP = "stop"
    ABORT = "abort"


@dataclass(eq=False, slots=True)
class Sequence:
    """One prompt and the tokens generated for it. Compared and hashed by identity.

    ``root`` seeds its chain of block hashes (contract.blocks.root_hash), so sequences of other
    adapters, salts or tenants never share blocks with it. A lower ``priority`` is served first.
    ``adapter`` counts against SchedulerConfig.max_loras. A ``pooling`` sequence (an embedding, a
    score) ends when its prompt is computed and gets no token, whatever its ``max_tokens``.
    """

    sequence_id: str
    prompt: InitVar[Iterable[int]]
    max_tokens: int
    root: BlockHash
    priority: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    adapter: str | None = None
    pooling: bool = False

    tokens: "array[int]" = field(init=False)  # the prompt, then the output
    num_tokens: int = field(init=False)  # of both, known so far
    num_prompt_tokens: int = field(init=False)
    num_tokens_max: int = field(init=False)  # prompt and output
    status: SequenceStatus = field(init=False, default=SequenceStatus.WAITING)
    finish_reason: FinishReason | None = field(init=False, default=None)
    rank: tuple[int, int] = field(init=False, default=(0, 0))  # lowest is served first
    admission_index: int = field(init=False, default=0)  # the running stand in its order

    num_computed_tokens: int = field(init=False, default=0)  # after the last planned step
    block_table: list[int] = field(init=False, default_factory=list)
    shared_prefix: SharedPrefix | None = field(init=False, default=None)  # its first blocks
    num_sealed_blocks: int = field(init=False, default=0)  # the first of the table, with a hash
    num_matched_tokens: int = field(init=False, default=0)  # cached on arrival; may be evicted
    num_cached_tokens: int | None = field(init=False, default=None)  # at first admission
    num_preemptions: int = field(init=False, default=0)

    arrival_us: int = field(init=False, default=0)
    admitted_us: int | None = field(init=False, default=None)  # first admission
    first_token_us: int | None = field(init=False, default=None)
    finished_us: int | None = field(init=False, default=None)

    _hashes: list[BlockHash] = field(init=False, default_factory=list)
    _future: "array[int] | None" = field(init=False, default=None)  # all tokens, once foreseen

    def __post_init__(self, prompt: Iterable[int]) -> None:
        self.tokens = array("I", prompt)
        self._begin(len(self.tokens))

    def _begin(self, num_prompt_tokens: int) -> None:
        assert num_prompt_tokens > 0
        assert self.max_tokens > 0
        self.num_tokens = self.num_prompt_tokens = num_prompt_tokens
        self.num_tokens_max = num_prompt_tokens + self.max_tokens

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return self.num_tokens - self.num_prompt_tokens

    @property
    def output_tokens(self) -> "array[int]":
        """A copy of the tokens generated so far."""
        return self.tokens[self.num_prompt_tokens :]

    def block_hashes(self, block_size: int) -> list[BlockHash]:
        """Return the hashes of all whole blocks of the known tokens.

        The list is the sequence's own: it is extended as tokens come, never recomputed. Every
        call must give the same ``block_size``.
        """
        self._hash(self.tokens, block_size)
        return self._hashes

    def append(self, token: int) -> None:
        """Take in one more token."""
        self.tokens.append(token)
        self.num_tokens += 1

    def foresee(self, extend: "Callable[[Sequence, int], None]", block_size: int | None) -> int:
        """Let ``extend`` give all tokens to come; return how many there will be in all.

        They are known when they are revealed. With a ``block_size`` the hashes of their blocks are
        there from now on.
        """
        future = self._future
        if future is None:
            known = self.tokens
            future = self._future = self.tokens = known[:]
            extend(self, self.num_tokens_max - self.num_tokens)
            self.tokens = known
            for index in range(self.num_tokens, len(future)) if self.stop_token_ids else ():
                if future[index] in self.stop_token_ids:
                    del future[index + 1 :]
                    break
        if block_size is not None:
            self._hash(future, block_size)
        return len(future)

    def reveal(self, num_tokens: int) -> None:
        """Know ``num_tokens`` tokens in all, of those foreseen."""
        assert self._future is not None
        self.tokens += self._future[self.num_tokens : num_tokens]
        self.num_tokens = num_tokens

    def _hash(self, tokens: "array[int]", block_size: int) -> None:
        hashes = self._hashes
        start = len(hashes) * block_size
        if len(tokens) - start >= block_size:
            parent = hashes[-1] if hashes else self.root
            hashes += chain_tokens(tokens[start:], block_size, parent)


@dataclass(eq=False, slots=True)
class CountedSequence(Sequence):
    """A sequence whose tokens are counted and not kept, for who knows what its blocks will be.

    Of ``prompt`` only the length is taken. ``hashes`` are those of all whole blocks of the prompt
    and of the ``max_tokens`` of output; none where prefixes are not cached.
    """

    hashes: InitVar[list[BlockHash]] = field(kw_only=True)

    def __post_init__(  # type: ignore[override]
        self, prompt: Sized, hashes: list[BlockHash]
    ) -> None:
        self.tokens = _NO_TOKENS
        self._hashes = hashes
        self._begin(len(prompt))

    def block_hashes(self, _block_size: int) -> list[BlockHash]:
        """See Sequence."""
        return self._hashes

    def append(self, _token: int) -> None:
        """See Sequence."""
        self.num_tokens += 1

    def foresee(self, _extend: "Callable[[Sequence, int], None]", _block_size: int | None) -> int:
        """See Sequence."""
        return self.num_tokens_max

    def reveal(self, num_tokens: int) -> None:
        """See Sequence."""
        self.num_tokens = num_tokens


_NO_TOKENS = array("I")
