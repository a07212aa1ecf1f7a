"""Continuous batching over a paged KV cache: which tokens the next step computes.

Block for block the scheduler of vLLM V1 (chunked prefill on, async scheduling off); recordings of
the real one are replayed in the tests. Its rules:

1. Running sequences come first, in order, then waiting ones. A decode is no special case: it is
   a sequence that lacks one token.
2. A running sequence that finds no block preempts the lowest-ranked running one, itself if need
   be. The victim loses its blocks and waits again. After a preemption nothing is admitted.
3. The head of the waiting line blocks those behind it. It is admitted when all its known tokens
   would fit, though only the chunk of this step is allocated. Only a sequence whose adapter would
   be one too many is passed over; it keeps its place.
4. At least one token is always computed, so a prompt that is cached whole computes its last block
   again.
5. Blocks are sealed when they are scheduled, so a second identical sequence in the same step hits.

It follows that of the running ones only the last can lack more than one token: it was admitted
with less than it lacks because the budget was used up, and until it has caught up it uses up each
following one.
"""

from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter

from contract.blocks import BlockHash
from replicas.core.block_pool import BlockPool
from replicas.core.sampling import Sample
from replicas.core.scheduler_config import Admission, Batching, SchedulerConfig, SchedulingPolicy
from replicas.core.sequence import FinishReason, Sequence, SequenceStatus
from replicas.core.step_time import StepLoad

RUNNING = SequenceStatus.RUNNING
rank_of = attrgetter("rank")
admission_index_of = attrgetter("admission_index")


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
        self.pool = BlockPool(config.num_blocks, config.enable_kv_events)
        self.waiting: list[Sequence] = []  # by rank
        self.running: list[Sequence] = []  # by order of admission
        self.padded_slots = 0  # of members that left a static batch which still runs
        self.waiting_tokens = 0  # known tokens of the waiting ones, less what they matched
        self._batch_is_open = True  # a static batch takes more members
        self._num_arrivals = 0
        self._num_admissions = 0
        self._num_returns = 0  # of victims

    def add(self, sequence: Sequence) -> None:
        """Put a new sequence in the waiting line.

        Raises NeverFitsError, with nothing changed, if it is longer than the engine can hold.
        """
        assert sequence.status is SequenceStatus.WAITING
        self._check_fits(sequence)
        sequence.rank = (sequence.priority if self._by_priority else 0, self._num_arrivals)
        self._num_arrivals += 1
        num_matched = self.pool.num_matching(*self._candidates(sequence))
        sequence.num_matched_tokens = num_matched * self.config.block_size
        self._enqueue(sequence)

    def abort(self, sequence: Sequence) -> None:
        """End a waiting or running sequence now. Its part of a step under way is ignored."""
        if sequence.status is RUNNING:
            self.running.remove(sequence)
            self._leave_slots(1)
        else:
            self._dequeue(bisect_left(self.waiting, sequence.rank, key=rank_of))
        self._finish(sequence, FinishReason.ABORT)

    def plan_step(self, now_us: int) -> StepPlan | None:
        """Choose the tokens of the next step and hold their blocks. None if all is done."""
        if not self.running and not self.waiting:
            return None
        plan = StepPlan(now_us, self.config.max_num_batched_tokens)
        self._place_running(plan)
        self._admit(plan)
        plan.load = self._advance(plan.num_tokens)
        return plan

    def complete_step(self, plan: StepPlan, sample: Sample) -> StepOutput:
        """Take one token of each sequence whose known tokens are all computed."""
        output = StepOutput()
        self._sample(plan, sample, output)
        if output.finished:
            self._drop_finished(output.finished)
        return output

    def _sample(self, plan: StepPlan, sample: Sample, output: StepOutput) -> None:
        new_tokens = output.new_tokens
        for sequence in plan.num_tokens:
            # An aborted one is finished; one that lacks tokens has computed a chunk of its prompt.
            if sequence.status is not RUNNING or sequence.num_computed_tokens < sequence.num_tokens:
                continue
            if sequence.pooling:
                self._finish(sequence, FinishReason.STOP)
                output.finished.append(sequence)
                continue
            token = new_tokens[sequence] = sample(sequence)
            sequence.append(token)
            if token in sequence.stop_token_ids:
                self._finish(sequence, FinishReason.STOP)
            elif sequence.num_tokens == sequence.num_tokens_max:
                self._finish(sequence, FinishReason.LENGTH)
            else:
                continue
            output.finished.append(sequence)

    def _drop_finished(self, finished: list[Sequence]) -> None:
        for sequence in finished:
            index = bisect_left(self.running, sequence.admission_index, key=admission_index_of)
            del self.running[index]
        self._leave_slots(len(finished))

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
        assert self.waiting_tokens == sum(
            each.num_tokens - each.num_matched_tokens for each in self.waiting
        )

    @property
    def _by_priority(self) -> bool:
        return self.config.policy is SchedulingPolicy.PRIORITY

    def _check_fits(self, sequence: Sequence) -> None:
        config = self.config
        length = sequence.num_prompt_tokens if sequence.pooling else sequence.num_tokens_max
        if length > config.max_model_len:
            raise NeverFitsError(
                f"{sequence.num_prompt_tokens} prompt tokens and {sequence.max_tokens} output "
                f"tokens make {length}, the context is {config.max_model_len}; shorten the "
                "prompt or lower max_tokens"
            )
        # The last token of an answer is returned, never computed.
        num_blocks = config.blocks_for(length if sequence.pooling else length - 1)
        if num_blocks > self.pool.num_usable:
            raise NeverFitsError(
                f"{length} tokens need {num_blocks} KV blocks of {config.block_size}, the engine "
                f"has {self.pool.num_usable}; shorten the prompt or lower max_tokens"
            )

    def _place_running(self, plan: StepPlan) -> None:
        num_tokens, running = plan.num_tokens, self.running
        # All before this one are in the plan, also after a preemption has removed some of them.
        while plan.budget_left and len(num_tokens) < len(running):
            if not self._place(plan, running[len(num_tokens)]):
                break

    def _place(self, plan: StepPlan, sequence: Sequence) -> bool:
        """Put a running sequence into the plan; False if it became the victim."""
        block_size = self.config.block_size
        computed = sequence.num_computed_tokens
        chunk = sequence.num_tokens - computed
        if chunk > plan.budget_left:
            chunk = plan.budget_left
        end = computed + chunk
        if end > len(sequence.block_table) * block_size and not self._grow(plan, sequence, end):
            return False
        plan.num_tokens[sequence] = chunk
        plan.budget_left -= chunk
        if end >= (sequence.num_sealed_blocks + 1) * block_size:
            self._seal(sequence, end)
        return True

    def _grow(self, plan: StepPlan, sequence: Sequence, num_tokens: int) -> bool:
        """Give a running sequence room for ``num_tokens``; False if it became the victim."""
        num_missing = self.config.blocks_for(num_tokens) - len(sequence.block_table)
        while num_missing > self.pool.num_free:
            victim = max(self.running, key=rank_of) if self._by_priority else self.running[-1]
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
        if not self._by_priority:
            # To the very head of the line. By its arrival it could stand behind a sequence that
            # was passed over for its adapter.
            self._num_returns += 1
            victim.rank = (0, -self._num_returns)
        self._enqueue(victim)

    def _enqueue(self, sequence: Sequence) -> None:
        insort(self.waiting, sequence, key=rank_of)
        self.waiting_tokens += sequence.num_tokens - sequence.num_matched_tokens

    def _dequeue(self, index: int) -> None:
        sequence = self.waiting.pop(index)
        self.waiting_tokens -= sequence.num_tokens - sequence.num_matched_tokens

    def _admit(self, plan: StepPlan) -> None:
        """Fill the step with waiting sequences, if it may take any."""
        # Without this, a victim would take back its blocks in the step that preempted it.
        if not plan.preempted and (self._batch_is_open or not self.running):
            self._admit_waiting(plan)
        if self.config.batching is Batching.STATIC:
            # Only the token budget lets a batch fill over several steps; slots, blocks or an
            # empty line close it until its longest member has ended.
            self._batch_is_open = plan.budget_left == 0

    def _admit_waiting(self, plan: StepPlan) -> None:
        slots_left = self.config.max_num_seqs - len(self.running) - self.padded_slots
        max_loras = self.config.max_loras
        adapters: set[str | None] = set()
        if max_loras is not None:
            adapters = {None, *(each.adapter for each in self.running)}
        index = 0  # of the first that was not passed over
        while index < len(self.waiting) and plan.budget_left and slots_left:
            sequence = self.waiting[index]
            # ``adapters`` always holds None, the model itself, which is no adapter.
            if max_loras is not None and sequence.adapter not in adapters:
                if len(adapters) > max_loras:
                    index += 1
                    continue
                adapters.add(sequence.adapter)
            if not self._admit_one(plan, sequence):
                break
            self._dequeue(index)
            slots_left -= 1

    def _admit_one(self, plan: StepPlan, sequence: Sequence) -> bool:
        config, pool = self.config, self.pool
        hits = self.pool.match(*self._candidates(sequence))
        known = sequence.num_tokens
        reserving = config.admission is Admission.RESERVE
        num_reserved = config.blocks_for(config.max_model_len if reserving else known)
        # A hit that nobody holds is in the queue of free blocks, so sharing it takes one.
        if (
            num_reserved > pool.num_free
            and num_reserved - len(hits) + pool.num_unheld(hits) > pool.num_free
        ):
            return False
        cached = len(hits) * config.block_size
        chunk = min(known - cached, plan.budget_left)
        num_blocks = num_reserved if reserving else config.blocks_for(cached + chunk)
        if hits:
            sequence.shared_prefix = pool.share(hits)  # before anything is evicted
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
        sequence.admission_index = self._num_admissions
        self._num_admissions += 1

    def _candidates(self, sequence: Sequence) -> tuple[list[BlockHash], int]:
        """Return the hashes to be looked for, and how many blocks at most."""
        if not self.config.enable_prefix_caching:
            return [], 0
        block_size = self.config.block_size
        # One token at least is left to compute: the next token comes out of its computation.
        return sequence.block_hashes(block_size), (sequence.num_tokens - 1) // block_size

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

    def _advance(
        self, num_tokens: Mapping[Sequence, int], decode: int = 0, decode_context: int = 0
    ) -> StepLoad:
        """Count these tokens as computed; return what they cost, the only maker of a StepLoad.

        ``decode`` more sequences, which are not given, decode behind ``decode_context`` tokens.
        """
        prefill = prefill_context = 0
        pairs = 0.0
        for sequence, chunk in num_tokens.items():
            context = sequence.num_computed_tokens
            sequence.num_computed_tokens = context + chunk
            if chunk == 1 and context >= sequence.num_prompt_tokens:
                decode += 1
                decode_context += context
            else:
                prefill += chunk
                prefill_context += context
                pairs += chunk * (context + chunk / 2)
        return StepLoad(prefill, prefill_context, pairs, decode, decode_context, self.padded_slots)

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        self._release(sequence)
        sequence.status = SequenceStatus.FINISHED
        sequence.finish_reason = reason

    def _release(self, sequence: Sequence) -> None:
        self.pool.release(sequence.block_table, sequence.shared_prefix)
        sequence.shared_prefix = None
        sequence.block_table = []
        sequence.num_sealed_blocks = 0

    def _leave_slots(self, num_slots: int) -> None:
        """Called after ``num_slots`` sequences have left ``running``."""
        if self.config.batching is Batching.STATIC:
            self.padded_slots = self.padded_slots + num_slots if self.running else 0
