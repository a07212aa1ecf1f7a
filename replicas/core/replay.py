"""Replays a recording of vLLM's scheduler and lists where this engine differs from it."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from contract.blocks import root_hash
from replicas.core.leaping import LeapingScheduler
from replicas.core.recording import RecordedAbort, RecordedRequest, Recording
from replicas.core.sampling import one_by_one
from replicas.core.scheduler import NeverFitsError, StepOutput, StepPlan
from replicas.core.scheduler_config import SchedulingPolicy
from replicas.core.sequence import Sequence, SequenceStatus

FIELDS = frozenset(
    {
        *("step", "scheduled", "new", "more", "resumed", "preempted"),
        *("finished", "aborted", "free", "running", "waiting"),
    }
)
"""Of a step; what else a recording holds of one is not compared, and is named."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One observed field of one step that is not what was recorded."""

    step: int
    field: str
    expected: object
    got: object


@dataclass(slots=True)
class Replayed:
    """What came of one replay. No differences means equal: tokens and their order, block ids,
    hits, victims, both lines, free blocks and, at the end, the order in which they are taken."""

    num_steps: int = 0
    differences: list[Difference] = field(default_factory=list)
    fields_ignored: set[str] = field(default_factory=set)


def replay(recording: Recording, *, leap: bool = False) -> Replayed:
    """Run the workload of ``recording`` and compare every field of every step.

    With ``leap`` the steps are taken as a simulator takes them: see LeapingScheduler. Raises
    RecordingError if the recorded limits cannot run.
    """
    return _Replay(recording, leap).run()


def _recorded_sample(sequence: Sequence) -> int:
    """The rule by which the recorder faked sampling."""
    return 1000 + len(sequence.tokens)


class _Replay:
    def __init__(self, recording: Recording, leap: bool) -> None:
        self.recording = recording
        self.scheduler = LeapingScheduler(
            recording.config(), _recorded_sample, one_by_one(_recorded_sample)
        )
        self.leap = leap
        self.result = Replayed()
        self.sequences: dict[str, Sequence] = {}
        self.arrivals: dict[int, list[RecordedRequest]] = defaultdict(list)
        self.aborts: dict[int, list[RecordedAbort]] = defaultdict(list)
        for request in sorted(recording.requests, key=lambda request: int(request.id)):
            self.arrivals[request.at_step].append(request)
        for abort in recording.aborts:
            self.aborts[abort.at_step].append(abort)
        self.recorded = {step["step"]: step for step in recording.steps}

    def run(self) -> Replayed:
        scheduler, last_step = self.scheduler, 0
        for step in self.steps():
            last_step = step
            aborted = self.abort_and_add(step)
            if not scheduler.running and not scheduler.waiting:
                self.compare(step, self.recorded.get(step, {}), {})
                continue
            seen = self.run_step(step)
            if aborted:
                seen["aborted"] = aborted
            self.compare(step, self.recorded.get(step, {}), seen)
            self.result.num_steps += 1
        self.compare(
            last_step + 1,
            {
                "complete": self.recording.complete,
                "free_queue_at_end": self.recording.free_queue_at_end,
            },
            {
                "complete": not scheduler.running and not scheduler.waiting,
                "free_queue_at_end": scheduler.pool.free_queue(),
            },
        )
        return self.result

    def steps(self) -> Iterator[int]:
        """Yield the numbers of all steps in which something is live, comes or was recorded."""
        # What did not end was cut off by the recorder, and nothing came after that.
        known = sorted(self.recorded)
        if self.recording.complete:
            known = sorted({*self.recorded, *self.arrivals, *self.aborts})
        step = 0
        for each in known:
            while step < each and (self.scheduler.running or self.scheduler.waiting):
                yield step
                step += 1
            step = each + 1
            yield each

    def abort_and_add(self, step: int) -> list[str]:
        """Return the ids of the sequences that were live and got aborted."""
        for request in self.arrivals.get(step, ()):
            sequence = self.sequences[request.id] = self.sequence_of(request)
            try:
                self.scheduler.add(sequence)
            except NeverFitsError as error:
                self.result.differences.append(
                    Difference(step, f"request {request.id}", "accepted", str(error))
                )
                sequence.status = SequenceStatus.FINISHED
        aborted = []
        for abort in self.aborts.get(step, ()):
            live = self.sequences.get(abort.id)
            if live is not None and live.status is not SequenceStatus.FINISHED:
                self.scheduler.abort(live)
                aborted.append(abort.id)
        return aborted

    def sequence_of(self, request: RecordedRequest) -> Sequence:
        priority = request.priority
        if self.recording.policy is SchedulingPolicy.PRIORITY:
            # Ties go by the time of arrival, which the recorder set to the id.
            ids_max = max(int(each.id) for each in self.recording.requests)
            priority = priority * (ids_max + 1) + int(request.id)
        return Sequence(
            request.id,
            request.prompt,
            request.max_tokens,
            root_hash("recorded", request.adapter or ""),
            priority,
            adapter=request.adapter,
            pooling=request.pooling,
        )

    def run_step(self, step: int) -> dict[str, Any]:
        scheduler = self.scheduler
        if not self.leap:
            plan = scheduler.plan_step(step)
            assert plan is not None
            planned = _describe_plan(plan, [], {})
            output = scheduler.complete_step(plan, _recorded_sample)
            return {"step": step} | planned | self.describe_end(output)
        num_blocks = {each: len(each.block_table) for each in scheduler.running}
        decodes = scheduler.num_decode_steps() > 0
        is_complete = decodes and scheduler.leap(1) > 0
        if is_complete or (decodes and scheduler.begin_decode_step()):
            more = {each: each.block_table[num_blocks[each] :] for each in scheduler.running}
            planned = _describe_plan(StepPlan(step, 0), scheduler.running, more)
            finished = [] if is_complete else scheduler.end_decode_step()
            return {"step": step} | planned | self.describe_end(StepOutput(finished=finished))
        plan = scheduler.begin_step(step)
        assert plan is not None
        decoding = [each for each in scheduler.running if scheduler.is_decoding(each)]
        more = {each: each.block_table[num_blocks[each] :] for each in decoding}
        planned = _describe_plan(plan, decoding, more)
        return {"step": step} | planned | self.describe_end(scheduler.end_step(plan))

    def describe_end(self, output: StepOutput) -> dict[str, Any]:
        scheduler = self.scheduler
        return {
            "finished": [
                [each.sequence_id, each.finish_reason and each.finish_reason.value]
                for each in output.finished
            ],
            "free": scheduler.pool.num_free,
            "running": [each.sequence_id for each in scheduler.running],
            "waiting": [each.sequence_id for each in scheduler.waiting],
        }

    def compare(self, step: int, expected: Mapping[str, Any], got: Mapping[str, Any]) -> None:
        for name in [*expected, *(name for name in got if name not in expected)]:
            if name not in FIELDS and name not in got:
                self.result.fields_ignored.add(name)
                continue
            wanted, found = expected.get(name), got.get(name)
            # Two mappings are equal in any order, but the order of placing is part of a plan.
            same_order = not isinstance(wanted, dict) or list(wanted) == list(found or ())
            if wanted != found or not same_order:
                self.result.differences.append(Difference(step, name, wanted, found))


def _describe_plan(
    plan: StepPlan, decoding: list[Sequence], more: dict[Sequence, list[int]]
) -> dict[str, Any]:
    """Must be read before the step is completed, which frees the blocks of those that end.

    ``decoding`` ones come before all that are in the plan; ``more`` are the blocks they got.
    """
    chunks = dict.fromkeys(decoding, 1) | plan.num_tokens
    return {
        "scheduled": {each.sequence_id: chunk for each, chunk in chunks.items()},
        "new": [
            {
                "id": each.sequence_id,
                "blocks": list(each.block_table),
                "cached": each.num_cached_tokens,
            }
            for each in plan.admitted
        ],
        "more": [
            {"id": each.sequence_id, "blocks": blocks}
            for each, blocks in (more | plan.new_blocks).items()
            if blocks
        ],
        "resumed": {
            each.sequence_id: each.num_computed_tokens - plan.num_tokens[each]
            for each in plan.resumed
        },
        "preempted": sorted(each.sequence_id for each in plan.preempted),
    }
