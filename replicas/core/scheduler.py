"""Continuous batching over a paged KV cache: which tokens the next step computes.

Block for block the scheduler of vLLM V1 (chunked prefill on, async scheduling off); recordings of
the real one are replayed in the tests. Its rules:

1. Running sequences come first, in order, then waiting ones. A decode is no special case: it is
   a sequence that lacks one token.
2. A running sequence that finds no block preempts the lowest-ranked running one, itself if need
   be. The victim loses its blocks and waits again. After a preemption nothing is admitted.
3. The head of the waiting line blocks those behind it. It is admitted when all its known tokens
   would fit, though only the chunk of this step is allocated.
4. At least one token is always computed, so a prompt that is cached whole computes its last block
   again.
5. Blocks are sealed when they are scheduled, so a second identical sequence in the same step hits.
"""

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter

from replicas.core.block_pool import BlockPool
from replicas.core.scheduler_config import Admission, Batching, SchedulerConfig, SchedulingPolicy
from replicas.core.sequence import FinishReason, Sequence, SequenceStatus
from replicas.core.step_time import StepLoad

RUNNING = SequenceStatus.RUNNING
rank_of = attrgetter("rank")

Sample = Callable[[Sequence], int]
"""Gives the next token id of a sequence whose known tokens are all computed."""


class NeverFitsError(ValueError):
    """A sequence that no amount of waiting could serve; the scheduler is as it was."""


@dataclass(slots=True, eq=False)
class StepPlan:
    """One step: how many tokens of which sequences, in order, and what it took to place them."""

    started_us: int
    budget_left: int  # tokens
    num_tokens: dict[Sequence, int] = field(default_factory=dict)
    admitted: list[Sequence] = field(default_factory=list)  # for the first time
    resumed: list[Sequence] = field(default_factory=list)  # after a preemption
    preempted: list[Sequence] = field(default_factory=list)
    new_blocks: dict[Sequence, list[int]] = field(default_factory=dict)  # of those that ran before
    load: StepLoad = field(default_factory=StepLoad)


@dataclass(slots=True, eq=False)
class StepOutput:
    """What one step produced. A finished sequence's last token is among the new ones."""

    new_tokens: dict[Sequence, int] = field(default_factory=dict)
    finished: list[Sequence] = field(default_factory=list)  # each with its finish_reason


class Scheduler:
    """plan_step() decides, the caller lets the step's time pass, complete_step() takes tokens."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.pool = BlockPool(config.num_blocks)
        self.waiting: list[Sequence] = []  # by rank
        self.running: list[Sequence] = []  # by order of admission
        self.padded_slots = 0  # of members that left a static batch which still runs
        self._batch_is_open = True  # a static batch takes more members
        self._num_arrivals = 0

    def add(self, sequence: Sequence) -> None:
        """Put a new sequence in the waiting line.

        Raises NeverFitsError, with nothing changed, if it is longer than the engine can hold.
        """
        assert sequence.status is SequenceStatus.WAITING
        self._check_fits(sequence)
        # Arrival order alone gives first come, first served: the last admitted is the last
        # arrived, so putting a victim back by rank is putting it at the head of the line.
        by_priority = self.config.policy is SchedulingPolicy.PRIORITY
        sequence.rank = (sequence.priority if by_priority else 0, self._num_arrivals)
        self._num_arrivals += 1
        sequence.num_matched_tokens = len(self._match(sequence)) * self.config.block_size
        insort(self.waiting, sequence, key=rank_of)

    def abort(self, sequence: Sequence) -> None:
        """End a waiting or running sequence now. Its part of a step under way is ignored."""
        if sequence.status is RUNNING:
            self.running.remove(sequence)
            self._leave_slots(1)
        else:
            del self.waiting[bisect_left(self.waiting, sequence.rank, key=rank_of)]
        self._finish(sequence, FinishReason.ABORT)

    def plan_step(self, now_us: int) -> StepPlan | None:
        """Choose the tokens of the next step and hold their blocks. None if all is done."""
        if not self.running and not self.waiting:
            return None
        plan = StepPlan(now_us, self.config.max_num_batched_tokens)
        self._place_running(plan)
        # Without this, a victim would take back its blocks in the step that preempted it.
        if not plan.preempted and (self._batch_is_open or not self.running):
            self._admit_waiting(plan)
        if self.config.batching is Batching.STATIC:
            # Only the token budget lets a batch fill over several steps; slots, blocks or an
            # empty line close it until its longest member has ended.
            self._batch_is_open = plan.budget_left == 0
        self._advance(plan)
        return plan

    def complete_step(self, plan: StepPlan, sample: Sample) -> StepOutput:
        """Take one token of each sequence whose known tokens are all computed."""
        output = StepOutput()
        new_tokens = output.new_tokens
        for sequence in plan.num_tokens:
            tokens = sequence.tokens
            # An aborted one is finished; one that lacks tokens has computed a chunk of its prompt.
            if sequence.status is not RUNNING or sequence.num_computed_tokens < len(tokens):
                continue
            token = new_tokens[sequence] = sample(sequence)
            tokens.append(token)
            if token in sequence.stop_token_ids:
                self._finish(sequence, FinishReason.STOP)
            elif len(tokens) == sequence.num_tokens_max:
                self._finish(sequence, FinishReason.LENGTH)
            else:
                continue
            output.finished.append(sequence)
        if output.finished:
            self.running = [each for each in self.running if each.status is RUNNING]
            self._leave_slots(len(output.finished))
        return output

    def check(self) -> None:
        """Assert the pool's partition, and that sequences hold what the pool believes."""
        self.pool.check()
        held = sum(len(sequence.block_table) for sequence in self.running)
        assert self.pool.references_total() == held
        for each in self.waiting:
            assert not each.block_table
            assert each.num_sealed_blocks == each.num_computed_tokens == 0
        assert len(self.running) + self.padded_slots <= self.config.max_num_seqs
        assert self.waiting == sorted(self.waiting, key=rank_of)

    def _check_fits(self, sequence: Sequence) -> None:
        config = self.config
        length = sequence.num_tokens_max
        if length > config.max_model_len:
            raise NeverFitsError(
                f"{sequence.num_prompt_tokens} prompt tokens and {sequence.max_tokens} output "
                f"tokens make {length}, the context is {config.max_model_len}; shorten the "
                "prompt or lower max_tokens"
            )
        num_blocks = config.blocks_for(length - 1)  # the last token is returned, never computed
        if num_blocks > self.pool.num_usable:
            raise NeverFitsError(
                f"{length} tokens need {num_blocks} KV blocks of {config.block_size}, the engine "
                f"has {self.pool.num_usable}; shorten the prompt or lower max_tokens"
            )

    def _place_running(self, plan: StepPlan) -> None:
        block_size = self.config.block_size
        num_tokens, running = plan.num_tokens, self.running
        # All before this one are in the plan, also after a preemption has removed some of them.
        while plan.budget_left and len(num_tokens) < len(running):
            sequence = running[len(num_tokens)]
            computed = sequence.num_computed_tokens
            chunk = len(sequence.tokens) - computed
            if chunk > plan.budget_left:
                chunk = plan.budget_left
            end = computed + chunk
            if end > len(sequence.block_table) * block_size and not self._grow(plan, sequence, end):
                break
            num_tokens[sequence] = chunk
            plan.budget_left -= chunk
            if end >= (sequence.num_sealed_blocks + 1) * block_size:
                self._seal(sequence, end)

    def _grow(self, plan: StepPlan, sequence: Sequence, num_tokens: int) -> bool:
        """Give a running sequence room for ``num_tokens``; False if it became the victim."""
        num_missing = self.config.blocks_for(num_tokens) - len(sequence.block_table)
        while num_missing > self.pool.num_free:
            victim = max(self.running, key=rank_of)
            self._preempt(plan, victim)
            if victim is sequence:
                return False
        blocks = self.pool.take(num_missing)
        sequence.block_table += blocks
        plan.new_blocks[sequence] = blocks
        return True

    def _preempt(self, plan: StepPlan, victim: Sequence) -> None:
        self.running.remove(victim)
        self._leave_slots(1)
        # A victim of low priority may stand before the sequence being placed. What it sealed in
        # this step stays cached though it will not be computed, as in vLLM.
        plan.budget_left += plan.num_tokens.pop(victim, 0)
        plan.new_blocks.pop(victim, None)
        plan.preempted.append(victim)
        self._release(victim)
        victim.status = SequenceStatus.PREEMPTED
        victim.num_computed_tokens = 0
        victim.num_matched_tokens = 0
        victim.num_preemptions += 1
        insort(self.waiting, victim, key=rank_of)

    def _admit_waiting(self, plan: StepPlan) -> None:
        slots_left = self.config.max_num_seqs - len(self.running) - self.padded_slots
        while self.waiting and plan.budget_left and slots_left:
            if not self._admit(plan, self.waiting[0]):
                break
            del self.waiting[0]
            slots_left -= 1

    def _admit(self, plan: StepPlan, sequence: Sequence) -> bool:
        config, pool = self.config, self.pool
        hits = self._match(sequence)
        known = len(sequence.tokens)
        reserving = config.admission is Admission.RESERVE
        num_reserved = config.blocks_for(config.max_model_len if reserving else known)
        # A hit that nobody holds is in the queue of free blocks, so sharing it takes one.
        if num_reserved - len(hits) + pool.num_unheld(hits) > pool.num_free:
            return False
        cached = len(hits) * config.block_size
        chunk = min(known - cached, plan.budget_left)
        num_blocks = num_reserved if reserving else config.blocks_for(cached + chunk)
        pool.share(hits)  # before anything is evicted
        sequence.block_table = hits + pool.take(num_blocks - len(hits))
        sequence.num_sealed_blocks = len(hits)
        sequence.num_computed_tokens = cached
        self._seal(sequence, cached + chunk)
        self._note_admission(plan, sequence, cached)
        plan.num_tokens[sequence] = chunk
        plan.budget_left -= chunk
        self.running.append(sequence)
        return True

    def _note_admission(self, plan: StepPlan, sequence: Sequence, cached: int) -> None:
        if sequence.status is SequenceStatus.PREEMPTED:
            plan.resumed.append(sequence)
            plan.new_blocks[sequence] = list(sequence.block_table)
        else:
            plan.admitted.append(sequence)
            sequence.num_cached_tokens = cached
            sequence.admitted_us = plan.started_us
        sequence.status = RUNNING

    def _match(self, sequence: Sequence) -> list[int]:
        if not self.config.enable_prefix_caching:
            return []
        block_size = self.config.block_size
        # One token at least is left to compute: the next token comes out of its computation.
        num_blocks_max = (len(sequence.tokens) - 1) // block_size
        return self.pool.match(sequence.block_hashes(block_size), num_blocks_max)

    def _seal(self, sequence: Sequence, num_tokens: int) -> None:
        """Publish the blocks that are full once ``num_tokens`` of the sequence are computed."""
        if not self.config.enable_prefix_caching:
            return
        first, end = sequence.num_sealed_blocks, num_tokens // self.config.block_size
        if first == end:
            return
        hashes = sequence.block_hashes(self.config.block_size)
        parent = hashes[first - 1] if first else None
        self.pool.seal(sequence.block_table[first:end], hashes[first:end], parent)
        sequence.num_sealed_blocks = end

    def _advance(self, plan: StepPlan) -> None:
        """Count the plan's tokens as computed, and sum up what they cost."""
        prefill = prefill_context = decode = decode_context = 0
        pairs = 0.0
        for sequence, chunk in plan.num_tokens.items():
            context = sequence.num_computed_tokens
            sequence.num_computed_tokens = context + chunk
            if chunk == 1 and context >= sequence.num_prompt_tokens:
                decode += 1
                decode_context += context
            else:
                prefill += chunk
                prefill_context += context
                pairs += chunk * (context + chunk / 2)
        plan.load = StepLoad(
            prefill, prefill_context, pairs, decode, decode_context, self.padded_slots
        )

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        self._release(sequence)
        sequence.status = SequenceStatus.FINISHED
        sequence.finish_reason = reason

    def _release(self, sequence: Sequence) -> None:
        self.pool.release(sequence.block_table)
        sequence.block_table = []
        sequence.num_sealed_blocks = 0

    def _leave_slots(self, num_slots: int) -> None:
        """Called after ``num_slots`` sequences have left ``running``."""
        if self.config.batching is Batching.STATIC:
            self.padded_slots = self.padded_slots + num_slots if self.running else 0
