"""The engine of one replica, as its driver sees it: the live worker or the simulator.

A driver repeats: plan = plan_step(now_us), let step_time_us(plan) pass, complete_step(plan,
now_us). Sequences may be added and aborted at any moment, also while a step is under way.
"""

from dataclasses import dataclass

from contract.blocks import BlockHash
from contract.kv_events import KvEvent
from replicas.core.scheduler import Sample, Scheduler, StepOutput, StepPlan
from replicas.core.scheduler_config import SchedulerConfig
from replicas.core.sequence import Sequence
from replicas.core.step_time import StepTime


@dataclass(frozen=True, slots=True)
class EngineStats:
    """State and counters at one moment; those that end in ``_total`` only grow.

    ``waiting_prefill_tokens`` is work accepted and not yet computed: what waiting sequences will
    compute before their next token, less what was cached when they arrived, and what running ones
    still lack of their prompts.
    """

    waiting_requests: int
    running_requests: int
    padded_slots: int
    waiting_prefill_tokens: int
    kv_blocks_total: int
    kv_blocks_used: int  # held by sequences
    prompt_tokens_total: int  # of admitted sequences, each counted once
    cached_tokens_total: int  # of those, taken from the prefix cache
    computed_prefill_tokens_total: int
    output_tokens_total: int
    finished_total: int  # aborted ones are counted apart
    aborted_total: int
    preemptions_total: int
    steps_total: int
    step_time_us: int | None  # the last step, from its plan to its completion


class Engine:
    """Scheduler, step time and counters in one."""

    def __init__(self, config: SchedulerConfig, step_time: StepTime, sample: Sample) -> None:
        self.scheduler = Scheduler(config)
        self._step_time = step_time
        self._sample = sample
        self._sequences: dict[str, Sequence] = {}
        self._in_flight: StepPlan | None = None
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._prefill_tokens = 0
        self._output_tokens = 0
        self._finished = 0
        self._aborted = 0
        self._preemptions = 0
        self._steps = 0
        self._last_step_us: int | None = None

    def add(self, sequence: Sequence, now_us: int) -> None:
        """Accept a new sequence. Its id must not be that of a live one.

        Raises NeverFitsError, with nothing changed, if it is longer than the engine can hold.
        """
        assert sequence.sequence_id not in self._sequences, f"{sequence.sequence_id} is live"
        self.scheduler.add(sequence)
        sequence.arrival_us = now_us
        self._sequences[sequence.sequence_id] = sequence

    def abort(self, sequence_id: str, now_us: int) -> Sequence | None:
        """End a sequence in any phase and free its blocks at once. None if it is not live.

        In a step under way its tokens are still paid for, but no result of it is given.
        """
        sequence = self._sequences.pop(sequence_id, None)
        if sequence is not None:
            self.scheduler.abort(sequence)
            sequence.finished_us = now_us
            self._aborted += 1
        return sequence

    def plan_step(self, now_us: int) -> StepPlan | None:
        """Plan the next step, None if no sequence is live. The last plan must be completed."""
        assert self._in_flight is None
        plan = self._in_flight = self.scheduler.plan_step(now_us)
        if plan is not None:
            self._preemptions += len(plan.preempted)
            self._prefill_tokens += plan.load.prefill_tokens
            for sequence in plan.admitted:
                self._prompt_tokens += sequence.num_prompt_tokens
                self._cached_tokens += sequence.num_cached_tokens or 0
        return plan

    def step_time_us(self, plan: StepPlan) -> int:
        """Return how long the step takes, in microseconds, at least 1."""
        return self._step_time.step_time_us(plan.load)

    def complete_step(self, plan: StepPlan, now_us: int) -> StepOutput:
        """End the step under way: its new tokens, in the order of the plan, and who finished."""
        assert plan is self._in_flight
        self._in_flight = None
        output = self.scheduler.complete_step(plan, self._sample)
        for sequence in output.new_tokens:
            if sequence.first_token_us is None:
                sequence.first_token_us = now_us
        for sequence in output.finished:
            sequence.finished_us = now_us
            del self._sequences[sequence.sequence_id]
        self._output_tokens += len(output.new_tokens)
        self._finished += len(output.finished)
        self._steps += 1
        self._last_step_us = now_us - plan.started_us
        return output

    def drain_events(self) -> list[KvEvent]:
        """Return what happened to the prefix cache since the last call, oldest first."""
        return self.scheduler.pool.drain_events()

    def cached_hashes(self) -> list[BlockHash]:
        """Return all cached blocks, for a reader of events that comes late."""
        return self.scheduler.pool.cached_hashes()

    def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks. False, with nothing changed, while any block is held."""
        return self.scheduler.pool.reset()

    def stats(self) -> EngineStats:
        """Count. Costs time in proportion to the number of live sequences."""
        scheduler = self.scheduler
        return EngineStats(
            waiting_requests=len(scheduler.waiting),
            running_requests=len(scheduler.running),
            padded_slots=scheduler.padded_slots,
            waiting_prefill_tokens=self._waiting_prefill_tokens(),
            kv_blocks_total=scheduler.pool.num_usable,
            kv_blocks_used=scheduler.pool.num_held,
            prompt_tokens_total=self._prompt_tokens,
            cached_tokens_total=self._cached_tokens,
            computed_prefill_tokens_total=self._prefill_tokens,
            output_tokens_total=self._output_tokens,
            finished_total=self._finished,
            aborted_total=self._aborted,
            preemptions_total=self._preemptions,
            steps_total=self._steps,
            step_time_us=self._last_step_us,
        )

    def _waiting_prefill_tokens(self) -> int:
        # A preempted sequence computes its output again too, so all its tokens count.
        waiting = sum(len(each.tokens) - each.num_matched_tokens for each in self.scheduler.waiting)
        uncomputed = (
            each.num_prompt_tokens - each.num_computed_tokens for each in self.scheduler.running
        )
        return waiting + sum(tokens for tokens in uncomputed if tokens > 0)
