"""Replays a recording of vLLM's scheduler and lists where this engine differs from it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

from contract.blocks import root_hash
from replicas.core.engine import Engine
from replicas.core.scheduler import StepOutput, StepPlan
from replicas.core.scheduler_config import SchedulerConfig, SchedulingPolicy
from replicas.core.sequence import Sequence
from replicas.core.step_time import FixedStepTime


class RecordedRequest(TypedDict):
    """A request and the step before which it was added; ids are numbers in order of arrival."""

    id: str
    at_step: int
    prompt: list[int]
    max_tokens: int
    priority: int


class RecordedAbort(TypedDict):
    """The step before which a request was aborted, if it was live."""

    id: str
    at_step: int


class Recording(TypedDict):
    """One workload and what vLLM did. A step maps each observed field to its value."""

    num_blocks: int
    block_size: int
    max_num_batched_tokens: int
    max_num_seqs: int
    policy: str
    requests: list[RecordedRequest]
    aborts: list[RecordedAbort]
    steps: list[Mapping[str, Any]]
    free_queue_at_end: list[int]


@dataclass(frozen=True)
class Difference:
    """One observed field of one step that is not what was recorded."""

    step: int
    field: str
    expected: object
    got: object


def replay(recording: Recording) -> list[Difference]:
    """Run the workload of ``recording`` and compare every field of every step.

    Empty means equal: tokens, block ids, hits, victims, both lines, free blocks and their order.
    """
    engine = Engine(_config_of(recording), FixedStepTime(1, 1), _recorded_sample)
    recorded = {int(step["step"]): step for step in recording["steps"]}
    # A step in which nothing is live is not recorded, but an abort may still come before it.
    events = [*recording["requests"], *recording["aborts"]]
    num_steps = 1 + max([*recorded, *(event["at_step"] for event in events)], default=-1)
    differences: list[Difference] = []
    for step in range(num_steps):
        aborted = _apply_arrivals_and_aborts(engine, recording, step)
        got = _run_step(engine, step)
        if got and aborted:
            got["aborted"] = aborted
        differences += _compare(step, recorded.get(step, {}), got)
    free_queue = engine.scheduler.pool.free_queue()
    expected_queue = recording["free_queue_at_end"]
    return differences + _compare(
        num_steps, {"free_queue_at_end": expected_queue}, {"free_queue_at_end": free_queue}
    )


def _compare(step: int, expected: Mapping[str, Any], got: Mapping[str, Any]) -> list[Difference]:
    differences = []
    for name in [*expected, *(name for name in got if name not in expected)]:
        wanted, found = expected.get(name), got.get(name)
        # Two mappings are equal in any order, but the order of placing is part of a plan.
        same_order = not isinstance(wanted, dict) or list(wanted) == list(found or ())
        if wanted != found or not same_order:
            differences.append(Difference(step, name, wanted, found))
    return differences


def _config_of(recording: Recording) -> SchedulerConfig:
    return SchedulerConfig(
        num_blocks=recording["num_blocks"],
        block_size=recording["block_size"],
        max_num_batched_tokens=recording["max_num_batched_tokens"],
        max_num_seqs=recording["max_num_seqs"],
        policy=SchedulingPolicy(recording["policy"]),
    )


def _recorded_sample(sequence: Sequence) -> int:
    """The rule by which the recorder faked sampling."""
    return 1000 + len(sequence.tokens)


def _apply_arrivals_and_aborts(engine: Engine, recording: Recording, step: int) -> list[str]:
    """Return the ids of the sequences that were live and got aborted."""
    arrivals = [request for request in recording["requests"] if request["at_step"] == step]
    for request in sorted(arrivals, key=lambda request: int(request["id"])):
        sequence = Sequence(
            request["id"],
            request["prompt"],
            request["max_tokens"],
            root_hash("recorded"),
            request["priority"],
        )
        engine.add(sequence, now_us=step)
    aborts = [abort["id"] for abort in recording["aborts"] if abort["at_step"] == step]
    return [each for each in aborts if engine.abort(each, now_us=step) is not None]


def _run_step(engine: Engine, step: int) -> dict[str, Any]:
    plan = engine.plan_step(now_us=step)
    if plan is None:
        return {}
    placed = _describe_plan(step, plan)
    output = engine.complete_step(plan, now_us=step + 1)
    return placed | _describe_end(engine, output)


def _describe_plan(step: int, plan: StepPlan) -> dict[str, Any]:
    """Must be read before the step is completed, which frees the blocks of those that end."""
    return {
        "step": step,
        "scheduled": {each.sequence_id: chunk for each, chunk in plan.num_tokens.items()},
        "new": [
            {
                "id": each.sequence_id,
                "blocks": list(each.block_table),
                "cached": each.num_cached_tokens,
            }
            for each in plan.admitted
        ],
        "more": [
            {"id": each.sequence_id, "blocks": blocks} for each, blocks in plan.new_blocks.items()
        ],
        "resumed": {
            each.sequence_id: each.num_computed_tokens - plan.num_tokens[each]
            for each in plan.resumed
        },
        "preempted": sorted(each.sequence_id for each in plan.preempted),
    }


def _describe_end(engine: Engine, output: StepOutput) -> dict[str, Any]:
    scheduler = engine.scheduler
    return {
        "finished": [
            [each.sequence_id, each.finish_reason and each.finish_reason.value]
            for each in output.finished
        ],
        "free": scheduler.pool.num_free,
        "running": [each.sequence_id for each in scheduler.running],
        "waiting": [each.sequence_id for each in scheduler.waiting],
    }
