"""The scheduler of a simulated engine: the same steps, without touching who only decodes.

A sequence that decodes gets one token in each step, so after any number of steps its length is
known. It is touched only in the steps in which it does more than that:

    computed tokens    step + origin                        origin never changes
    fills a block      computed = a multiple of the block size
    needs a block      one step later
    ends               computed = all tokens but the last   which is returned, never computed

So a sequence stands in one of as many lists as a block has tokens, and is touched twice in as many
steps. A step costs time for these and for what is not decoding: being admitted, prefilling,
resumed. Where a list is empty nothing but the context grows: such steps are taken in one leap.

A step that must preempt does not fit this picture: everything is settled, and the Scheduler plans
it as any other.
"""

from array import array
from dataclasses import dataclass
from operator import attrgetter

from contract.blocks import BlockHash
from replicas.core.sampling import Extend, Sample
from replicas.core.scheduler import Scheduler, StepOutput, StepPlan
from replicas.core.scheduler_config import Batching, SchedulerConfig
from replicas.core.sequence import FinishReason, Sequence, SequenceStatus
from replicas.core.step_time import StepLoad


@dataclass(slots=True, eq=False)
class Decode:
    """A running sequence that decodes, and all that it will do."""

    sequence: Sequence
    tokens: "array[int]"  # all that it will have
    hashes: list[BlockHash]  # of their whole blocks
    order: int  # among the running
    origin: int  # see above
    room: int  # tokens that its block table holds
    next_seal: int  # computed tokens at which a block is full
    end_step: int


order_of = attrgetter("order")


class LeapingScheduler(Scheduler):
    """A Scheduler with a second way to step: begin_step() and end_step(), and leap().

    Both ways give the same results and may be mixed between steps. In this second way the tokens
    and computed tokens of a live sequence are as they were when it was last touched; settle()
    brings them up to date. With ``keep_times`` it keeps the end of every step, 8 bytes each, for
    the token_times of sequences that have them.
    """

    def __init__(
        self, config: SchedulerConfig, sample: Sample, extend: Extend, keep_times: bool = False
    ) -> None:
        super().__init__(config)
        self._times = array("q") if keep_times else None
        self._sample_one = sample
        self._extend = extend
        self._decodes: dict[Sequence, Decode] = {}
        self._futures: dict[Sequence, array[int]] = {}  # all tokens of those that ever decoded
        self._origins = 0  # their sum
        # Those that fill a block when the step, divided by the block size, leaves the index. Each
        # list is in the order of the running, as they join in it.
        self._filling: list[list[Decode]] = [[] for _ in range(config.block_size)]
        self._ending: dict[int, list[Decode]] = {}  # by step
        self._num_planned = 0  # steps
        self._num_completed = 0
        self._is_gathered = False  # all that decode are in _decodes
        self._is_stuck = False  # nobody can be admitted until somebody leaves or comes
        self._wanted: frozenset[BlockHash] = frozenset()  # or one of these blocks is sealed

    @property
    def num_decoding(self) -> int:
        """Sequences that get a token in each step without being in its plan."""
        return len(self._decodes)

    def is_decoding(self, sequence: Sequence) -> bool:
        """Say whether it is one of those."""
        return sequence in self._decodes

    def add(self, sequence: Sequence) -> None:
        """See Scheduler."""
        super().add(sequence)
        self._is_stuck = False

    def abort(self, sequence: Sequence) -> None:
        """See Scheduler."""
        decode = self._decodes.get(sequence)
        if decode is not None:
            self._settle(decode)
            self._leave(decode)
            self._ending[decode.end_step].remove(decode)
        super().abort(sequence)
        self._is_stuck = False

    def settle(self) -> None:
        """Bring the tokens and the computed tokens of all sequences up to date."""
        for decode in self._decodes.values():
            self._settle(decode)

    def scatter(self) -> None:
        """Settle, and leave every sequence to Scheduler.plan_step(). Not while a step is on."""
        assert self._num_planned == self._num_completed
        self.settle()
        self._decodes.clear()
        self._filling = [[] for _ in self._filling]
        self._ending.clear()
        self._origins = 0
        self._is_gathered = False
        self._is_stuck = False

    def begin_step(self, now_us: int) -> StepPlan | None:
        """Plan the next step as plan_step() does. The plan leaves out who only decodes, and its
        load includes them."""
        if not self.running and not self.waiting:
            return None
        if not self._is_gathered:
            self._gather()
        step = self._num_planned + 1
        due = self._due(step)
        if self._num_blocks_needed(due, step) > self.pool.num_free:
            self.scatter()
            self._num_planned = step
            return super().plan_step(now_us)
        num_decoding = len(self._decodes)
        context = self._origins + num_decoding * self._num_planned
        self._num_planned = step
        plan = StepPlan(now_us, self.config.max_num_batched_tokens - num_decoding)
        self._touch(due, step)
        if len(self.running) > num_decoding:
            assert not self._is_stuck  # it has used up the budget since it was admitted
            self._place(plan, self.running[-1])
        self._admit(plan)
        plan.load = self._advance(plan.num_tokens, num_decoding, context)
        return plan

    def end_step(self, plan: StepPlan, now_us: int) -> StepOutput:
        """Complete the step under way. Its output leaves out the tokens of who only decodes."""
        self._num_completed = self._num_planned
        if self._times is not None:
            self._times.append(now_us)
        output = StepOutput()
        for decode in sorted(self._ending.pop(self._num_planned, ()), key=order_of):
            self._end(decode, output)
        self._sample(plan, self._sample_one, output)
        if output.finished:
            self._drop_finished(output)
            self._is_stuck = False
        if self._is_gathered:
            for sequence in output.new_tokens:
                if sequence.status is SequenceStatus.RUNNING:
                    self._join(sequence)
        return output

    def num_quiet_steps(self) -> int:
        """Return how many steps in a row do nothing but decode: 0 if not even the next one."""
        config, num_running = self.config, len(self.running)
        if not self._is_gathered or not num_running or num_running > len(self._decodes):
            return 0
        if config.batching is Batching.STATIC:
            return 0  # each step may open the batch to others
        has_room = num_running < min(config.max_num_seqs, config.max_num_batched_tokens)
        if self.waiting and has_room and not self._is_stuck:
            return 0
        filling, ending, size = self._filling, self._ending, config.block_size
        step = first = self._num_planned + 1
        # _due(step) without making its list: this runs once for each step.
        while step not in ending and not filling[step % size] and not filling[(step - 1) % size]:
            step += 1
        return step - first

    def quiet_load(self) -> StepLoad:
        """Return the load of the next step, which is a quiet one."""
        num_decoding = len(self._decodes)
        context = self._origins + num_decoding * self._num_planned
        return self._advance({}, num_decoding, context)

    def leap(self, ends_us: list[int]) -> None:
        """Take that many quiet steps, which end at these times."""
        self._num_planned += len(ends_us)
        self._num_completed = self._num_planned
        if self._times is not None:
            self._times.extend(ends_us)

    def _gather(self) -> None:
        self._is_gathered = True
        for sequence in self.running:
            lacking = len(sequence.tokens) - sequence.num_computed_tokens
            if lacking == 1 and sequence.num_computed_tokens >= sequence.num_prompt_tokens:
                self._join(sequence)
        assert len(self.running) - len(self._decodes) <= 1

    def _join(self, sequence: Sequence) -> None:
        block_size = self.config.block_size
        tokens = self._futures.get(sequence)
        if tokens is None:
            tokens = self._futures[sequence] = self._foresee(sequence)
        computed = sequence.num_computed_tokens
        caching = self.config.enable_prefix_caching
        origin = computed - self._num_completed
        decode = Decode(
            sequence,
            tokens,
            sequence.block_hashes(block_size) if caching else [],
            sequence.admission_index,
            origin,
            len(sequence.block_table) * block_size,
            # Of all its tokens the last is never computed, so this is never reached.
            (sequence.num_sealed_blocks + 1) * block_size if caching else len(tokens),
            len(tokens) - 1 - origin,
        )
        self._decodes[sequence] = decode
        self._origins += origin
        self._filling[-origin % block_size].append(decode)
        self._ending.setdefault(decode.end_step, []).append(decode)

    def _foresee(self, sequence: Sequence) -> "array[int]":
        """Return all tokens that a sequence will have; their hashes are its own from now on."""
        num_known = len(sequence.tokens)
        self._extend(sequence, sequence.num_tokens_max - num_known)
        tokens = sequence.tokens
        for index in range(num_known, len(tokens)) if sequence.stop_token_ids else ():
            if tokens[index] in sequence.stop_token_ids:
                del tokens[index + 1 :]
                break
        if self.config.enable_prefix_caching:
            sequence.block_hashes(self.config.block_size)
        sequence.tokens = tokens[:num_known]
        return tokens

    def _leave(self, decode: Decode) -> None:
        del self._decodes[decode.sequence]
        self._origins -= decode.origin
        self._filling[-decode.origin % self.config.block_size].remove(decode)

    def _settle(self, decode: Decode) -> None:
        sequence, completed = decode.sequence, self._num_completed
        num_known, num_tokens = len(sequence.tokens), decode.origin + completed + 1
        sequence.tokens += decode.tokens[num_known:num_tokens]
        sequence.num_computed_tokens = decode.origin + self._num_planned
        if self._times is not None and sequence.token_times is not None:
            first = completed - (num_tokens - num_known)
            sequence.token_times += self._times[first:completed]

    def _end(self, decode: Decode, output: StepOutput) -> None:
        sequence = decode.sequence
        self._settle(decode)
        self._leave(decode)
        stopped = sequence.tokens[-1] in sequence.stop_token_ids
        self._finish(sequence, FinishReason.STOP if stopped else FinishReason.LENGTH)
        output.finished.append(sequence)

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        self._futures.pop(sequence, None)
        super()._finish(sequence, reason)

    def _due(self, step: int) -> list[Decode]:
        """Return who fills a block in ``step`` or has done so in the one before, in order."""
        block_size = self.config.block_size
        filling = self._filling[step % block_size]
        if block_size == 1:
            return filling
        due = filling + self._filling[(step - 1) % block_size]
        due.sort(key=order_of)
        return due

    def _num_blocks_needed(self, due: list[Decode], step: int) -> int:
        """Count the blocks that running sequences need in ``step``."""
        num_blocks = 0
        for decode in due:
            num_blocks += decode.origin + step > decode.room
        if len(self.running) > len(self._decodes):
            last = self.running[-1]
            budget = self.config.max_num_batched_tokens - len(self._decodes)
            num_tokens = min(len(last.tokens), last.num_computed_tokens + budget)
            num_blocks += max(0, self.config.blocks_for(num_tokens) - len(last.block_table))
        return num_blocks

    def _touch(self, due: list[Decode], step: int) -> None:
        """Do what these sequences do in ``step`` beside decoding."""
        block_size = self.config.block_size
        take, seal = self.pool.take_one, self.pool.seal_one
        for decode in due:
            computed = decode.origin + step
            if computed > decode.room:
                decode.sequence.block_table.append(take())
                decode.room += block_size
            if computed == decode.next_seal:
                sequence = decode.sequence
                index = sequence.num_sealed_blocks
                block_hash = decode.hashes[index]
                parent = decode.hashes[index - 1] if index else None
                seal(sequence.block_table[index], block_hash, parent)
                sequence.num_sealed_blocks = index + 1
                decode.next_seal += block_size
                if block_hash in self._wanted:
                    self._is_stuck = False

    def _admit_waiting(self, plan: StepPlan) -> None:
        if self._is_stuck:
            return
        self._wanted = frozenset()
        super()._admit_waiting(plan)
        num_taken = len(self.running) + self.padded_slots
        has_room = plan.budget_left > 0 and num_taken < self.config.max_num_seqs
        self._is_stuck = self._is_gathered and has_room and bool(self.waiting)

    def _admit_one(self, plan: StepPlan, sequence: Sequence) -> bool:
        admitted = super()._admit_one(plan, sequence)
        if not admitted and self._is_gathered and self.config.enable_prefix_caching:
            self._wanted = frozenset(sequence.block_hashes(self.config.block_size))
        return admitted
