"""The engine of one replica, as its driver sees it: the live worker or the simulator.

The live worker repeats: plan = plan_step(now_us), let step_time_us(plan) pass, complete_step(plan,
now_us). Sequences may be added and aborted at any moment, also while a step is under way.

A simulator has no time to let pass. It repeats: advance(t), add() and abort() what happens at t.
The results are those of stepping, to the last block and microsecond, at a small part of the cost:
a call for each event instead of one for each token.
"""

from bisect import bisect_right
from collections import Counter

from contract.blocks import BlockHash
from contract.kv_events import BlockStored, KvEvent
from replicas.core.engine_stats import EngineStats, Progress
from replicas.core.event_times import EventTimes, Touch
from replicas.core.leaping import LeapingScheduler
from replicas.core.sampling import Extend, Sample, one_by_one
from replicas.core.scheduler import StepOutput, StepPlan
from replicas.core.scheduler_config import SchedulerConfig
from replicas.core.sequence import Sequence
from replicas.core.step_time import StepTime
from replicas.core.token_gaps import Ends, TokenGaps


class Engine:
    """Scheduler, step time and counters in one.

    ``sample`` gives each token. advance() asks ``extend`` for many at a time: it must append what
    as many calls of ``sample`` would give, and nothing may depend on which sequence is asked
    first. With ``count_token_gaps`` the times between tokens are counted, see take_token_gaps().
    With ``time_events`` advance() keeps events with their times, for events_until().
    """

    def __init__(
        self,
        config: SchedulerConfig,
        step_time: StepTime,
        sample: Sample,
        extend: Extend | None = None,
        *,
        count_token_gaps: bool = False,
        time_events: bool = False,
    ) -> None:
        self.scheduler = LeapingScheduler(config, sample, extend or one_by_one(sample))
        self._step_time = step_time
        self._sample = sample
        self._gaps = TokenGaps() if count_token_gaps else None
        self._sequences: dict[str, Sequence] = {}
        self._in_flight: StepPlan | None = None  # decode steps of advance() have none
        self._clock_us = 0  # of advance(): when its step under way began, else when the next does
        self._ends_us: int | None = None  # when its step under way ends
        self._held_until_us = 0
        self._foreseen_us: Ends | None = None  # ends of some decode steps that follow
        tells_events = config.enable_kv_events and config.enable_prefix_caching
        self._event_times = EventTimes(self.scheduler.pool) if time_events else None
        self._is_news_an_event = tells_events and not time_events
        self._prefilling_tokens = 0
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
        if not self._sequences and self._ends_us is None:
            self._clock_us = max(now_us, self._held_until_us)
        self._foreseen_us = None
        self._sequences[sequence.sequence_id] = sequence
        self._prefilling_tokens += sequence.num_prompt_tokens

    def abort(self, sequence_id: str, now_us: int) -> Sequence | None:
        """End a sequence in any phase and free its blocks at once. None if it is not live.

        In a step under way its tokens are still paid for, but no result of it is given.
        """
        sequence = self._sequences.get(sequence_id)
        if sequence is not None:
            self.scheduler.abort(sequence)
            self._foreseen_us = None
            if self._gaps is not None:
                self._gaps.drop(sequence)
            self._end(sequence, now_us)
            self._aborted += 1
        return sequence

    def plan_step(self, now_us: int) -> StepPlan | None:
        """Plan the next step, None if no sequence is live. The last plan must be completed."""
        assert self._in_flight is None
        self._foreseen_us = None
        if self.scheduler.num_decoding:
            self.scheduler.scatter()
        plan = self._in_flight = self.scheduler.plan_step(now_us)
        if plan is not None:
            self._count_planned(plan)
        return plan

    def step_time_us(self, plan: StepPlan) -> int:
        """Return how long the step takes, in microseconds, at least 1."""
        return self._step_time.step_time_us(plan.load)

    def complete_step(self, plan: StepPlan, now_us: int) -> StepOutput:
        """End the step under way: its new tokens, in the order of the plan, and who finished."""
        assert plan is self._in_flight
        assert self._ends_us is None
        self._in_flight = None
        self._clock_us = now_us
        output = self.scheduler.complete_step(plan, self._sample)
        self._count_steps((now_us,), plan.started_us, 0)
        self._count_tokens(output, now_us)
        self._count_finished(output.finished, now_us)
        return output

    def advance(self, until_us: int) -> Progress:
        """Take all steps that begin before ``until_us``, and complete those that end by then.

        A step begins when the one before it ends or, in an idle engine, when a sequence comes.
        What happens at ``until_us`` itself is to be told afterwards: it is in time for the step
        that begins then. Tokens of live sequences are up to date after settle().
        """
        progress = Progress()
        while True:
            if self._ends_us is None:
                if self._clock_us >= until_us or not self._sequences:
                    break
                if self._leap(until_us, progress):
                    continue
                self._begin_step()
            assert self._ends_us is not None
            if self._ends_us > until_us:
                break
            self._end_step(progress)
        return progress

    def next_end_us(self) -> int | None:
        """Return when the step of advance() that is under way, or begins now, ends.

        None in an idle engine. What comes later than this call is late for that step.
        """
        if self._ends_us is None and self._sequences:
            self._begin_step()
        return self._ends_us

    def next_news(self) -> tuple[int, bool] | None:
        """Return when advance() will next have something to tell, and whether as a step ends.

        That is so unless something comes before. Events are told when a step begins, tokens and
        finished sequences when it ends; events with times are no news. None in an idle engine.
        """
        scheduler = self.scheduler
        if self._ends_us is not None:
            if scheduler.ends_somebody or not self._sequences:
                return (self._ends_us, True)
            if self._in_flight is not None:
                if scheduler.is_silent(self._in_flight):
                    return (self._next_begins_us, False)
                return (self._ends_us, True)
        elif not self._sequences:
            return None
        ends_us = self._foresee()
        if not ends_us:
            return (self._next_begins_us, False)
        num_steps = scheduler.num_steps_to_end()
        if self._is_news_an_event or not scheduler.is_certain(num_steps):
            num_untold = scheduler.num_untold_steps()
            if num_untold < num_steps:
                index = min(num_untold, len(ends_us))
                return (ends_us[index - 1] if index else self._next_begins_us, False)
        if num_steps <= len(ends_us):
            return (ends_us[num_steps - 1], True)
        return (ends_us[-1], False)

    def hold(self, until_us: int) -> None:
        """Let advance() begin no step before ``until_us``; the one under way ends.

        Also to be called, with the present moment, when what a step's time depends on has changed.
        """
        self._held_until_us = max(self._held_until_us, until_us)
        self._foreseen_us = None
        if self._ends_us is None:
            self._clock_us = max(self._clock_us, until_us)

    def settle(self) -> None:
        """Bring the tokens of live sequences, and their times, up to date after advance()."""
        self.scheduler.settle()

    def take_token_gaps(self) -> Counter[int]:
        """Return the times between two tokens, in microseconds, of all whole answers that have
        ended since the last call."""
        assert self._gaps is not None
        return self._gaps.take()

    def drain_events(self) -> list[KvEvent]:
        """Return what happened to the prefix cache since the last call, oldest first."""
        return self.scheduler.pool.drain_events()

    def events_until(self, us: int) -> list[KvEvent]:
        """Take the steps that begin up to ``us``, which must come before any news; return the
        events of these and of earlier steps that were not told yet."""
        assert self._event_times is not None
        told = self.advance(us)
        assert not told.first_tokens + told.finished, "there was news before"
        if self._ends_us is None and self._clock_us <= us and self._sequences:
            self._begin_step()
        return self._event_times.take_until(us)

    def next_event_us(self) -> int | None:
        """Return a time before which events_until() has none, unless something comes before."""
        assert self._event_times is not None
        first_us = self._event_times.first_us
        if first_us is not None or not self._sequences:
            return first_us
        ends_us = self._foresee()
        index = min(self.scheduler.num_untold_steps(), len(ends_us)) if ends_us else 0
        return ends_us[index - 1] if index else self._next_begins_us

    def cached_hashes(self) -> list[BlockHash]:
        """Return all cached blocks, for a reader of events that comes late."""
        return self.scheduler.pool.cached_hashes()

    def cached_runs(self) -> list[BlockStored]:
        """Return the same as events that would store it, consecutive blocks in one."""
        return self.scheduler.pool.cached_runs()

    def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks. False, with nothing changed, while any block is held."""
        return self.scheduler.pool.reset()

    def stats(self) -> EngineStats:
        """Return the counters and the state; costs the same however many sequences are live."""
        scheduler = self.scheduler
        return EngineStats(
            waiting_requests=len(scheduler.waiting),
            running_requests=len(scheduler.running),
            padded_slots=scheduler.padded_slots,
            waiting_prefill_tokens=self.waiting_prefill_tokens,
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

    @property
    def num_live(self) -> int:
        """Sequences waiting or running."""
        return len(self._sequences)

    @property
    def prefilling_prompt_tokens(self) -> int:
        """Prompt tokens of the live sequences that have no token yet, computed or not.

        What vLLM compares with its max_num_queued_tokens.
        """
        return self._prefilling_tokens

    @property
    def waiting_prefill_tokens(self) -> int:
        """See EngineStats."""
        # A preempted sequence computes its output again too, so all its tokens count.
        tokens = self.scheduler.waiting_tokens
        if self.scheduler.running:
            last = self.scheduler.running[-1]  # no other one lacks any of its prompt
            tokens += max(0, last.num_prompt_tokens - last.num_computed_tokens)
        return tokens

    @property
    def _next_begins_us(self) -> int:
        """When the step after the one under way begins, if there is one to begin."""
        return self._clock_us if self._ends_us is None else max(self._ends_us, self._held_until_us)

    def _begin_step(self) -> None:
        assert self._in_flight is None
        ends_us = self._foresee()
        if ends_us and self.scheduler.begin_decode_step():
            self._ends_us, self._foreseen_us = ends_us[0], ends_us[1:]
        else:
            self._foreseen_us = None
            plan = self._in_flight = self.scheduler.begin_step(self._clock_us)
            assert plan is not None
            self._count_planned(plan)
            self._ends_us = self._clock_us + self.step_time_us(plan)
        if self._event_times is not None:
            self._event_times.note(self._clock_us, self.scheduler.pool.num_events)

    def _end_step(self, progress: Progress) -> None:
        plan, now_us, num_decoding = self._in_flight, self._ends_us, self.scheduler.num_decoding
        assert now_us is not None
        self._in_flight = self._ends_us = None
        self._count_steps((now_us,), self._clock_us, num_decoding)
        self._clock_us = max(now_us, self._held_until_us)
        progress.num_steps += 1
        if plan is None:
            finished = self.scheduler.end_decode_step()
        else:
            output = self.scheduler.end_step(plan)
            progress.first_tokens += self._count_tokens(output, now_us)
            finished = output.finished
        if finished:
            self._foreseen_us = None
            self._count_finished(finished, now_us)
            progress.finished += finished

    def _leap(self, until_us: int, progress: Progress) -> bool:
        """Take decode steps that end by ``until_us`` all at once; False if there are none."""
        foreseen_us = self._foresee()
        num_steps = bisect_right(foreseen_us, until_us)
        touches: list[Touch] | None = None if self._event_times is None else []
        if num_steps:
            num_steps = self.scheduler.leap(num_steps, touches)
        if not num_steps:
            return False
        ends_us, self._foreseen_us = foreseen_us[:num_steps], foreseen_us[num_steps:]
        if self._event_times is not None and touches:
            self._event_times.note_leap(touches, self._clock_us, ends_us)
        before_us = ends_us[-2] if num_steps > 1 else self._clock_us
        self._count_steps(ends_us, before_us, self.scheduler.num_decoding)
        self._clock_us = ends_us[-1]
        progress.num_steps += num_steps
        return True

    def _foresee(self) -> Ends:
        """Return the ends of some decode steps that follow, unless something comes between."""
        if not self._foreseen_us:
            num_steps = self.scheduler.num_decode_steps()
            if not num_steps:
                return ()
            self._foreseen_us = self._step_time.decode_ends_us(
                self.scheduler.decode_load(), num_steps, self._next_begins_us
            )
        return self._foreseen_us

    def _count_steps(self, ends_us: Ends, began_us: int, num_decoding: int) -> None:
        """Count steps that have ended, the last of which began at ``began_us``."""
        num_steps = len(ends_us)
        self._steps += num_steps
        self._last_step_us = ends_us[-1] - began_us
        self._output_tokens += num_steps * num_decoding
        if self._gaps is not None:
            self._gaps.note_steps(ends_us, num_decoding)

    def _count_planned(self, plan: StepPlan) -> None:
        self._preemptions += len(plan.preempted)
        if self._gaps is not None:
            for sequence in (*plan.preempted, *self.scheduler.left_out):
                self._gaps.note_pause(sequence)
        self._prefill_tokens += plan.load.prefill_tokens
        for sequence in plan.admitted:
            self._prompt_tokens += sequence.num_prompt_tokens
            self._cached_tokens += sequence.num_cached_tokens or 0

    def _count_tokens(self, output: StepOutput, now_us: int) -> list[Sequence]:
        """Note the times of the new tokens; return who got a first token."""
        first_tokens, gaps = [], self._gaps
        self._output_tokens += len(output.new_tokens)
        for sequence in output.new_tokens:
            if sequence.first_token_us is None:
                sequence.first_token_us = now_us
                self._prefilling_tokens -= sequence.num_prompt_tokens
                first_tokens.append(sequence)
            if gaps is not None:
                gaps.note_token(sequence)
        return first_tokens

    def _count_finished(self, finished: list[Sequence], now_us: int) -> None:
        for sequence in finished:
            if self._gaps is not None:
                self._gaps.note_whole(sequence)
            self._end(sequence, now_us)
        self._finished += len(finished)

    def _end(self, sequence: Sequence, now_us: int) -> None:
        sequence.finished_us = now_us
        if sequence.first_token_us is None:
            self._prefilling_tokens -= sequence.num_prompt_tokens
        del self._sequences[sequence.sequence_id]
