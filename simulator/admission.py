"""How many sequences a KV cache takes in: whole contexts reserved, against blocks as needed.

The engine's own scheduler is offered more sequences than could fit, all at once, and decides.
"""

from dataclasses import dataclass

from contract.blocks import root_hash
from contract.options import option
from replicas.core.scheduler import Scheduler
from replicas.core.scheduler_config import Admission, SchedulerConfig
from replicas.core.sequence import Sequence
from simulator.figures import check_above_zero, figure

KV_BLOCKS_MAX = 2_000_000
"""Blocks of one run; each takes about 150 bytes of this process's memory."""

SEQUENCES_MAX = 50_000
"""Sequences of one run; taking them in costs time in proportion to their square."""


@dataclass(frozen=True)
class AdmissionSettings:
    """`plan admission`: a KV cache, and sequences of one length."""

    kv_tokens: int = option(1_330_566, "tokens", "that the KV cache holds")
    reserve: int = option(8_192, "tokens", "longest context, held from the start when reserving")
    used: int = option(1_800, "tokens", "that a sequence has in the cache")
    block_size: int = option(16, "tokens", "tokens in one KV block")

    def __post_init__(self) -> None:
        check_above_zero(self)
        if self.used >= self.reserve:
            # A sequence that has filled its context has no room for the token it is run for.
            raise ValueError(f"used is {self.used}, must be below reserve, which is {self.reserve}")
        reserved_blocks = -(-self.reserve // self.block_size)
        if reserved_blocks > self.kv_blocks:
            raise ValueError(
                f"reserve is {self.reserve}, one sequence takes {reserved_blocks} blocks of "
                f"{self.block_size} and kv_tokens make {self.kv_blocks}; lower reserve"
            )
        if self.kv_blocks > KV_BLOCKS_MAX:
            raise ValueError(
                f"kv_tokens make {self.kv_blocks} blocks, must be at most {KV_BLOCKS_MAX}; "
                "raise block_size"
            )
        if self.offered > SEQUENCES_MAX:
            raise ValueError(
                f"the cache could hold {self.offered - 1} sequences, must be fewer than "
                f"{SEQUENCES_MAX}; raise used"
            )

    @property
    def kv_blocks(self) -> int:
        """Whole blocks that the cache makes."""
        return self.kv_tokens // self.block_size

    @property
    def offered(self) -> int:
        """One sequence more than could possibly fit."""
        return self.kv_tokens // self.used + 1


@dataclass(frozen=True)
class AdmissionPlan:
    """What the scheduler admitted, and how much of the cache was put to use."""

    kv_blocks: int = figure("KV blocks", "blocks", "KV tokens / block size, rounded down")
    reserved_sequences: int = figure(
        "admitted, reserving", "sequences", "replicas.core.scheduler, filled: admission 'reserve'"
    )
    reserved_use: float = figure(
        "cache used, reserving", "share", "sequences x used / tokens in KV"
    )
    paged_sequences: int = figure(
        "admitted, paged", "sequences", "replicas.core.scheduler, filled: admission 'paged'"
    )
    paged_use: float = figure("cache used, paged", "share", "sequences x used / tokens in KV")


def plan_admission(settings: AdmissionSettings) -> AdmissionPlan:
    """Return how many sequences each way of admission takes in."""
    reserved = _admitted(settings, Admission.RESERVE)
    paged = _admitted(settings, Admission.PAGED)
    return AdmissionPlan(
        kv_blocks=settings.kv_blocks,
        reserved_sequences=reserved,
        reserved_use=reserved * settings.used / settings.kv_tokens,
        paged_sequences=paged,
        paged_use=paged * settings.used / settings.kv_tokens,
    )


def _admitted(settings: AdmissionSettings, admission: Admission) -> int:
    scheduler = Scheduler(
        SchedulerConfig(
            num_blocks=settings.kv_blocks + 1,  # one is reserved and holds nothing
            block_size=settings.block_size,
            max_num_batched_tokens=settings.offered * settings.used,
            max_num_seqs=settings.offered,
            max_model_len=settings.reserve,
            admission=admission,
            enable_prefix_caching=False,  # equal prompts must not share their blocks
        )
    )
    root = root_hash("plan")
    prompt = [0] * settings.used  # the values of the tokens do not matter
    for index in range(settings.offered):
        scheduler.add(Sequence(str(index), prompt, 1, root))
    plan = scheduler.plan_step(now_us=0)
    assert plan is not None
    assert scheduler.waiting, "all that were offered fit, so more might"
    return len(plan.admitted)
