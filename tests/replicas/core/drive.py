"""Drives an engine step by step on a clock of its own; what the tests of this folder share."""

from collections.abc import Iterable

from contract.blocks import root_hash
from replicas.core.engine import Engine
from replicas.core.sampling import Sample
from replicas.core.scheduler import StepOutput
from replicas.core.scheduler_config import SchedulerConfig
from replicas.core.sequence import Sequence
from replicas.core.step_time import FixedStepTime

ROOT = root_hash("model")
STEPS_MAX = 10_000  # far above what any test needs: reaching it is a livelock


def sequence(
    sequence_id: str, prompt: Iterable[int], max_tokens: int = 1, priority: int = 0
) -> Sequence:
    return Sequence(sequence_id, prompt, max_tokens, ROOT, priority)


def position(each: Sequence) -> int:
    return 1_000 + len(each.tokens)


def engine(config: SchedulerConfig, sample: Sample = position) -> Engine:
    """An engine whose steps take 10 us for prefill and 10 us for decode."""
    return Engine(config, FixedStepTime(10, 10), sample)


def step(driven: Engine, now_us: int = 0) -> StepOutput:
    plan = driven.plan_step(now_us)
    assert plan is not None
    output = driven.complete_step(plan, now_us + driven.step_time_us(plan))
    driven.scheduler.check()
    return output


def run(driven: Engine) -> dict[str, int]:
    """Step until nothing is live; return the step, counted from 1, in which each one ended."""
    ended: dict[str, int] = {}
    for step_index in range(1, STEPS_MAX):
        plan = driven.plan_step(now_us=step_index)
        if plan is None:
            return ended
        output = driven.complete_step(plan, now_us=step_index + 1)
        driven.scheduler.check()
        for each in output.finished:
            assert each.sequence_id not in ended
            ended[each.sequence_id] = step_index
    raise AssertionError(f"no end after {STEPS_MAX} steps")
