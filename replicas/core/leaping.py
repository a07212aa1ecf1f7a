"""The scheduler of a simulated engine: the same steps, without touching who only decodes.

A sequence that decodes gets one token in each step, so after any number of steps its length is
known. It is touched only in the steps in which it does more than that:

    computed tokens    step + origin                        origin never changes
    fills a block      computed = a multiple of the block size
    needs a block      one step later
    ends               computed = all tokens but the last   which is returned, never computed

So a sequence stands in one of as many lists as a block has tokens, and is touched twice in as many
steps. Steps in which all that run decode, and nobody ends, are taken in one leap, which costs time
for who is touched and nothing for the rest. A step has a plan only if somebody is admitted,
prefills or is resumed in it.

A step that must preempt does not fit this picture: everything is settled, and the Scheduler plans
it as any other.
"""

from dataclasses import dataclass
from operator import attrgetter

from contract.blocks import BlockHash
from replicas.core.event_times import Touch
from replicas.core.sampling import Extend, Sample
from replicas.core.scheduler import Scheduler, StepOutput, StepPlan
from replicas.core.scheduler_config import Batching, SchedulerConfig
from replicas.core.sequence import FinishReason, Sequence, SequenceStatus
from replicas.core.step_time import StepLoad


@dataclass(slots=True, eq=False)
class Decode:
    """A running sequence that decodes, and all that it will do."""

    sequence: Sequence
    hashes: list[BlockHash]  # of the whole blocks of all tokens that it will have
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
    brings them up to date.
    """

    def __init__(self, config: SchedulerConfig, sample: Sample, extend: Extend) -> None:
        super().__init__(config)
        self._sample_one = sample
        self._extend = extend
        self._decodes: dict[Sequence, Decode] = {}
        self._origins = 0  # their sum
        # Those that fill a block when the step, divided by the block size, leaves the index. Each
        # list is in the order of the running, as they join in it.
        self._filling: list[list[Decode]] = [[] for _ in range(config.block_size)]
        self._residues = 0  # bit set of the lists that are not empty
        self._ending: dict[int, list[Decode]] = {}  # by step
        self._next_due = 0  # first step, after those planned, in which somebody is due; 0: unknown
        self._next_ending = 0  # first step of _ending; 0: unknown
        self._num_planned = 0  # steps
        self._num_completed = 0
        self._is_gathered = False  # all that decode are in _decodes
        self.left_out: list[Sequence] = []  # run, and got nothing in the last plan
        self._is_stuck = False  # nobody can be admitted until somebody leaves or comes
        self._wanted: frozenset[BlockHash] = frozenset()  # or one of these blocks is sealed

    @property
    def num_decoding(self) -> int:
        """Sequences that get a token in each step without being in its plan."""
        return len(self._decodes)

    @property
    def ends_somebody(self) -> bool:
        """Whether the decode step under way gives somebody the last token."""
        return self._num_planned in self._ending

    def is_silent(self, plan: StepPlan) -> bool:
        """Whether ``plan``, under way, is nothing but chunks of prompts that go on after it."""
        return all(each.num_computed_tokens < each.num_tokens for each in plan.num_tokens)

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
            if not self._ending[decode.end_step]:
                del self._ending[decode.end_step]
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
        self._residues = 0
        self._ending.clear()
        self._origins = 0
        self._is_gathered = False
        self._is_stuck = False

    def begin_step(self, now_us: int) -> StepPlan | None:
        """Plan the next step as plan_step() does. The plan leaves out who only decodes, and its
        load includes them."""
        if not self.running and not self.waiting:
            return None
        step = self._num_planned + 1
        if self.left_out:  # their next tokens are to be told
            return self._plan_all(step, now_us)
        if not self._is_gathered:
            self._gather()
        due = self._due(step)
        if self._num_blocks_needed(due, step) > self.pool.num_free:
            self.scatter()
            return self._plan_all(step, now_us)
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

    def end_step(self, plan: StepPlan) -> StepOutput:
        """Complete the step under way. Its output leaves out the tokens of who only decodes."""
        self._num_completed = self._num_planned
        output = StepOutput()
        self._end_due(output.finished)
        self._sample(plan, self._sample_one, output)
        if output.finished:
            self._drop_finished(output.finished)
            self._is_stuck = False
        if self._is_gathered:
            for sequence in output.new_tokens:
                if sequence.status is SequenceStatus.RUNNING:
                    self._join(sequence)
        return output

    def begin_decode_step(self) -> bool:
        """Begin the next step, which num_decode_steps() counts; False, with nothing done, if it
        lacks blocks or is to admit somebody after all."""
        step = self._num_planned + 1
        if self._first_due() == step and not self._touch_if_plain(step):
            return False
        self._num_planned = step
        return True

    def end_decode_step(self) -> list[Sequence]:
        """Complete such a step; return who has finished."""
        self._num_completed = self._num_planned
        finished: list[Sequence] = []
        if self._num_completed in self._ending:
            self._end_due(finished)
            self._drop_finished(finished)
            self._is_stuck = False
        return finished

    def num_decode_steps(self) -> int:
        """Return how many steps in a row do nothing but decode, up to the first that ends somebody.

        0 if not even the next one. Lack of blocks may end them before.
        """
        config, num_running = self.config, len(self.running)
        if not self._is_gathered or not num_running or num_running > len(self._decodes):
            return 0
        if config.batching is Batching.STATIC:
            return 0  # each step may open the batch to others
        has_room = num_running < min(config.max_num_seqs, config.max_num_batched_tokens)
        if self.waiting and has_room and not self._is_stuck:
            return 0
        return self.num_steps_to_end()

    def num_steps_to_end(self) -> int:
        """Return how many steps there are up to the first that gives a decode its last token."""
        return self._first_ending() - self._num_planned

    def num_untold_steps(self) -> int:
        """Return how many decode steps in a row leave the blocks as they are."""
        return self._first_due() - self._num_planned - 1

    def decode_load(self) -> StepLoad:
        """Return the load of the next step, which is a decode step."""
        num_decoding = len(self._decodes)
        context = self._origins + num_decoding * self._num_planned
        return StepLoad(0, 0, 0.0, num_decoding, context, self.padded_slots)

    def is_certain(self, num_steps: int) -> bool:
        """Whether so many decode steps follow whatever blocks they fill: none will lack a block,
        and nobody waits for one that is filled. False where that would have to be counted."""
        if self._is_stuck and self._wanted:
            return False
        blocks_each = num_steps // self.config.block_size + 1
        return blocks_each * len(self._decodes) <= self.pool.num_free

    def leap(self, num_steps: int, touches: list[Touch] | None = None) -> int:
        """Take up to so many decode steps in which nobody ends; return how many were taken.

        Those in which blocks changed are added to ``touches``.
        """
        first = self._num_planned
        last = min(first + num_steps, self._first_ending() - 1)
        while (step := self._first_due()) <= last:
            if not self._touch_if_plain(step):
                last = step - 1
                break
            self._num_planned = step
            if touches is not None:
                touches.append(Touch(step - first, self.pool.num_events))
        self._num_planned = self._num_completed = last
        return last - first

    def _plan_all(self, step: int, now_us: int) -> StepPlan | None:
        self._num_planned = step
        plan = super().plan_step(now_us)
        if plan is not None:
            self.left_out = [each for each in self.running if each not in plan.num_tokens]
        return plan

    def _gather(self) -> None:
        self._is_gathered = True
        for sequence in self.running:
            lacking = sequence.num_tokens - sequence.num_computed_tokens
            if lacking == 1 and sequence.num_computed_tokens >= sequence.num_prompt_tokens:
                self._join(sequence)
        assert len(self.running) - len(self._decodes) <= 1

    def _join(self, sequence: Sequence) -> None:
        block_size = self.config.block_size
        caching = self.config.enable_prefix_caching
        num_tokens = sequence.foresee(self._extend, block_size if caching else None)
        computed = sequence.num_computed_tokens
        origin = computed - self._num_completed
        end_step = num_tokens - 1 - origin
        decode = Decode(
            sequence,
            sequence.block_hashes(block_size) if caching else [],
            sequence.admission_index,
            origin,
            len(sequence.block_table) * block_size,
            # Of all its tokens the last is never computed, so this is never reached.
            (sequence.num_sealed_blocks + 1) * block_size if caching else num_tokens,
            end_step,
        )
        self._decodes[sequence] = decode
        self._origins += origin
        residue = -origin % block_size
        self._filling[residue].append(decode)
        self._residues |= 1 << residue
        self._ending.setdefault(end_step, []).append(decode)
        self._next_due = self._next_ending = 0

    def _leave(self, decode: Decode) -> None:
        del self._decodes[decode.sequence]
        self._next_due = self._next_ending = 0
        self._origins -= decode.origin
        residue = -decode.origin % self.config.block_size
        filling = self._filling[residue]
        filling.remove(decode)
        if not filling:
            self._residues ^= 1 << residue

    def _settle(self, decode: Decode) -> None:
        decode.sequence.reveal(decode.origin + self._num_completed + 1)
        decode.sequence.num_computed_tokens = decode.origin + self._num_planned

    def _end_due(self, finished: list[Sequence]) -> None:
        """End who has all its tokens with the step that was completed last."""
        for decode in sorted(self._ending.pop(self._num_completed, ()), key=order_of):
            sequence = decode.sequence
            self._settle(decode)
            self._leave(decode)
            # What it generates again and again, or nothing, stops no sequence.
            stops = sequence.stop_token_ids
            stopped = bool(stops) and sequence.tokens[-1] in stops
            self._finish(sequence, FinishReason.STOP if stopped else FinishReason.LENGTH)
            finished.append(sequence)

    def _first_ending(self) -> int:
        """Return the next step that somebody ends in."""
        if not self._next_ending:
            self._next_ending = min(self._ending)
        return self._next_ending

    def _first_due(self) -> int:
        """Return the first step after those planned in which _due() finds somebody.

        The lists that are not empty, and those one later, as bits; turned so that the next step is
        the lowest.
        """
        step = self._num_planned
        if self._next_due <= step:
            size, bits = self.config.block_size, self._residues
            due = (bits | bits << 1 | bits >> (size - 1)) & ((1 << size) - 1)
            turned = (due << size | due) >> (step + 1) % size
            self._next_due = step + (turned & -turned).bit_length()
        return self._next_due

    def _due(self, step: int) -> list[Decode]:
        """Return who fills a block in ``step`` or has done so in the one before, in order."""
        block_size = self.config.block_size
        filling = self._filling[step % block_size]
        if block_size == 1:
            return filling
        due = filling + self._filling[(step - 1) % block_size]
        if len(due) > 1:
            due.sort(key=order_of)
        return due

    def _num_blocks_needed(self, due: list[Decode], step: int) -> int:
        """Count the blocks that running sequences need in ``step``."""
        num_blocks = sum([decode.origin + step > decode.room for decode in due])
        if len(self.running) > len(self._decodes):
            last = self.running[-1]
            budget = self.config.max_num_batched_tokens - len(self._decodes)
            num_tokens = min(last.num_tokens, last.num_computed_tokens + budget)
            num_blocks += max(0, self.config.blocks_for(num_tokens) - len(last.block_table))
        return num_blocks

    def _touch_if_plain(self, step: int) -> bool:
        """Touch who is due in a decode step. False, with nothing done, if it is none after all: it
        lacks blocks, or fills one that the head of the waiting line waits for."""
        due = self._due(step)
        if not due:
            return True
        if self._num_blocks_needed(due, step) > self.pool.num_free:
            return False
        if self._is_stuck and self._wanted:
            filled = (
                decode.hashes[decode.sequence.num_sealed_blocks]
                for decode in due
                if decode.origin + step == decode.next_seal
            )
            if not self._wanted.isdisjoint(filled):
                return False
        self._touch(due, step)
        return True

    def _touch(self, due: list[Decode], step: int) -> None:
        """Do what these sequences do in ``step`` beside decoding."""
        block_size, pool = self.config.block_size, self.pool
        for decode in due:
            computed = decode.origin + step
            if computed > decode.room:
                decode.sequence.block_table += pool.take(1)
                decode.room += block_size
            if computed == decode.next_seal:
                sequence = decode.sequence
                index = sequence.num_sealed_blocks
                block_hash = decode.hashes[index]
                parent = decode.hashes[index - 1] if index else None
                pool.seal((sequence.block_table[index],), (block_hash,), parent)
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
