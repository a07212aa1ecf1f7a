"""A request as the engine sees it: its tokens, its blocks, how far it is computed."""

from array import array
from collections.abc import Iterable
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
    ``prompt_hashes`` are those of the prompt's first blocks, from who has computed them already.
    """

    sequence_id: str
    prompt: InitVar[Iterable[int]]
    max_tokens: int
    root: BlockHash
    priority: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    adapter: str | None = None
    pooling: bool = False
    prompt_hashes: InitVar[Iterable[BlockHash]] = ()

    tokens: "array[int]" = field(init=False)  # the prompt, then the output
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
    token_times: "array[int] | None" = field(init=False, default=None)  # in us, if they are kept

    _hashes: list[BlockHash] = field(init=False)

    def __post_init__(self, prompt: Iterable[int], prompt_hashes: Iterable[BlockHash]) -> None:
        self._hashes = [*prompt_hashes]
        self.tokens = array("I", prompt)
        self.num_prompt_tokens = len(self.tokens)
        self.num_tokens_max = self.num_prompt_tokens + self.max_tokens
        assert self.num_prompt_tokens > 0
        assert self.max_tokens > 0

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def output_tokens(self) -> "array[int]":
        """A copy of the tokens generated so far."""
        return self.tokens[self.num_prompt_tokens :]

    def block_hashes(self, block_size: int) -> list[BlockHash]:
        """Return the hashes of all whole blocks of the known tokens.

        The list is the sequence's own: it is extended as tokens come, never recomputed. Every
        call must give the same ``block_size``.
        """
        hashes = self._hashes
        start = len(hashes) * block_size
        if len(self.tokens) - start >= block_size:
            parent = hashes[-1] if hashes else self.root
            hashes += chain_tokens(self.tokens[start:], block_size, parent)
        return hashes
