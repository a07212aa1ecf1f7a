"""Static against continuous batching: the engine's own scheduler, stepped over given lengths."""

from dataclasses import dataclass

from contract.blocks import root_hash
from contract.options import option
from replicas.core.scheduler import Scheduler
from replicas.core.scheduler_config import Batching, SchedulerConfig
from replicas.core.sequence import Sequence
from simulator.figures import check_above_zero, figure

OUTPUT_TOKENS_MAX = 2_000_000
"""Output tokens of one run; each is a step of one sequence, about a microsecond of real time."""


@dataclass(frozen=True)
class BatchingSettings:
    """`plan batching`: answers that are all there at the start, and the slots they share."""

    lengths: tuple[int, ...] = option(
        (5, 40, 8, 12, 30, 6, 20, 10), "tokens", "length of each answer, in the order of arrival"
    )
    slots: int = option(4, "sequences", "sequences that run at a time")

    def __post_init__(self) -> None:
        check_above_zero(self)
        if not self.lengths:
            raise ValueError("lengths is empty, must name at least one answer's length")
        if min(self.lengths) < 1:
            raise ValueError(f"lengths has {min(self.lengths)}, must be whole numbers above 0")
        if sum(self.lengths) > OUTPUT_TOKENS_MAX:
            raise ValueError(
                f"lengths add up to {sum(self.lengths)}, must be at most {OUTPUT_TOKENS_MAX}"
            )


@dataclass(frozen=True)
class BatchingRun:
    """What one way of batching did."""

    lengths: tuple[int, ...] = figure("output tokens", "list", "as given")
    finished_at_step: tuple[int, ...] = figure(
        "finished at step", "list", "replicas.core.scheduler, stepped; in the order of arrival"
    )
    steps: int = figure("steps", "steps", "replicas.core.scheduler, stepped to the end")
    mean_finished_at_step: float = figure("mean finish", "steps", "mean of the list above")
    slot_use: float = figure("slot use", "share", "output tokens / (slots x steps)")


def plan_batching(settings: BatchingSettings) -> dict[str, BatchingRun]:
    """Return what static and continuous batching did, by name."""
    return {batching.value: _run(settings, batching) for batching in reversed(Batching)}


def _run(settings: BatchingSettings, batching: Batching) -> BatchingRun:
    scheduler = _scheduler(settings, batching)
    root = root_hash("plan")
    # A prompt of one token: prefill and first token are one step, so a length is a time.
    sequences = [Sequence(str(n), (0,), length, root) for n, length in enumerate(settings.lengths)]
    for sequence in sequences:
        scheduler.add(sequence)
    finished: dict[Sequence, int] = {}
    steps = output_tokens = 0
    while (plan := scheduler.plan_step(now_us=steps)) is not None:
        steps += 1
        output = scheduler.complete_step(plan, lambda _: 0)
        output_tokens += len(output.new_tokens)
        finished.update(dict.fromkeys(output.finished, steps))
    assert output_tokens == sum(settings.lengths)
    finished_at_step = tuple(finished[sequence] for sequence in sequences)
    return BatchingRun(
        lengths=settings.lengths,
        finished_at_step=finished_at_step,
        steps=steps,
        mean_finished_at_step=sum(finished_at_step) / len(finished_at_step),
        slot_use=output_tokens / (settings.slots * steps),
    )


def _scheduler(settings: BatchingSettings, batching: Batching) -> Scheduler:
    """Only the slots are short: there are blocks and budget for all sequences at once."""
    longest = max(settings.lengths) + 1
    return Scheduler(
        SchedulerConfig(
            num_blocks=len(settings.lengths) + 1,
            block_size=longest,
            max_num_batched_tokens=len(settings.lengths),
            max_num_seqs=settings.slots,
            max_model_len=longest,
            batching=batching,
            enable_prefix_caching=False,
        )
    )
