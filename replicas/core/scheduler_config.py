"""What an engine may hold and how it batches; the defaults are those of vLLM on a large GPU."""

from dataclasses import dataclass
from enum import Enum


class SchedulingPolicy(Enum):
    """Who is served first: the first arrival, or the lowest priority number."""

    FCFS = "fcfs"
    PRIORITY = "priority"


class Batching(Enum):
    """When a slot is given to the next sequence: at the end of its own, or of the whole batch."""

    CONTINUOUS = "continuous"
    STATIC = "static"


class Admission(Enum):
    """What a sequence must find free: blocks for its known tokens, or for the longest context."""

    PAGED = "paged"
    RESERVE = "reserve"


@dataclass(frozen=True)
class SchedulerConfig:
    """Limits and modes of one engine. Raises ValueError for a combination that cannot run."""

    num_blocks: int = 20_000  # one of which is reserved, as in vLLM
    block_size: int = 16  # tokens
    max_num_batched_tokens: int = 8_192  # in one step
    max_num_seqs: int = 1_024  # slots
    max_model_len: int = 131_072  # tokens of prompt and output together
    policy: SchedulingPolicy = SchedulingPolicy.FCFS
    batching: Batching = Batching.CONTINUOUS
    admission: Admission = Admission.PAGED
    enable_prefix_caching: bool = True
    enable_kv_events: bool = True  # say what happens to the prefix cache; somebody must drain them
    max_loras: int | None = None  # distinct adapters that run together; None: any number

    def __post_init__(self) -> None:
        for name in ("block_size", "max_num_batched_tokens", "max_num_seqs", "max_model_len"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, must be at least 1")
        if self.max_loras is not None and self.max_loras < 1:
            raise ValueError(f"max_loras is {self.max_loras}, must be at least 1 or None")
        if self.num_blocks < 2:
            raise ValueError(f"num_blocks is {self.num_blocks}, must be at least 2")
        needed = self.blocks_for(self.max_model_len)
        if self.admission is Admission.RESERVE and needed > self.num_blocks - 1:
            raise ValueError(
                f"admission 'reserve' with max_model_len {self.max_model_len} needs {needed} "
                f"blocks for one sequence, num_blocks {self.num_blocks} leaves "
                f"{self.num_blocks - 1}; lower max_model_len or raise num_blocks"
            )

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold ``num_tokens`` tokens."""
        return -(-num_tokens // self.block_size)
