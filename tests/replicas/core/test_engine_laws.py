"""The engine under any traffic, in a pool so small that it evicts and preempts all the time.

Oracles, none of which looks into the engine's bookkeeping of the thing it checks: what each block
really contains, written down as steps are planned; the holders counted from the block tables; a
set that applies the cache events and nothing else.
"""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from contract.blocks import BlockHash, root_hash
from contract.kv_events import AllBlocksCleared, BlockStored
from replicas.core.engine import Engine
from replicas.core.scheduler import NeverFitsError, StepPlan
from replicas.core.scheduler_config import Admission, Batching, SchedulerConfig, SchedulingPolicy
from replicas.core.sequence import Sequence, SequenceStatus
from tests.examples import examples
from tests.replicas.core import drive

BLOCK_SIZE = 2
# Few distinct prompts, so that prefixes collide: uniform ones almost never share a block.
PROMPTS = st.builds(
    lambda same, own, token: [7] * same + [token] * own,
    st.integers(1, 9),
    st.integers(0, 4),
    st.integers(8, 9),
)
CONFIGS = st.builds(
    SchedulerConfig,
    num_blocks=st.integers(6, 12),
    block_size=st.just(BLOCK_SIZE),
    max_num_batched_tokens=st.integers(2, 12),
    max_num_seqs=st.integers(1, 5),
    max_model_len=st.just(20),
    policy=st.sampled_from(SchedulingPolicy),
    batching=st.sampled_from(Batching),
    enable_prefix_caching=st.sampled_from([True, True, True, False]),
    max_loras=st.sampled_from([None, None, 1, 2]),
) | st.builds(
    SchedulerConfig,
    num_blocks=st.integers(11, 25),
    block_size=st.just(BLOCK_SIZE),
    max_num_batched_tokens=st.integers(2, 12),
    max_num_seqs=st.integers(1, 5),
    max_model_len=st.just(20),
    batching=st.sampled_from(Batching),
    admission=st.just(Admission.RESERVE),
)


class AnyTraffic(RuleBasedStateMachine):
    engine: Engine
    config: SchedulerConfig

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[str, Sequence] = {}
        self.ended: Counter[str] = Counter()
        self.num_added = 0
        self.plan: StepPlan | None = None
        self.admitted: list[int] = []  # in order of admission, by order of arrival
        self.contents: dict[int, list[int]] = {}  # block: the prefix up to its last written token
        self.mirror: set[BlockHash] = set()
        self.parents: dict[BlockHash, BlockHash | None] = {}
        self.num_steps: Counter[Sequence] = Counter()  # in which a sequence had a part

    @initialize(config=CONFIGS)
    def start(self, config: SchedulerConfig) -> None:
        self.config = config
        # Two tokens only: outputs must collide too, so that generated blocks are shared.
        self.engine = drive.engine(config, lambda each: 7 + len(each.tokens) % 2)

    @rule(
        prompt=PROMPTS,
        max_tokens=st.integers(1, 8),
        priority=st.integers(0, 2),
        adapter=st.sampled_from([None, None, "a", "b", "c"]),
        pooling=st.sampled_from([False, False, False, True]),
    )
    def add(
        self,
        prompt: list[int],
        max_tokens: int,
        priority: int,
        adapter: str | None,
        pooling: bool,
    ) -> None:
        sequence = Sequence(
            str(self.num_added),
            prompt,
            max_tokens,
            root_hash("model", adapter or ""),
            priority,
            adapter=adapter,
            pooling=pooling,
        )
        length = len(prompt) + (0 if pooling else max_tokens)
        num_computed = length if pooling else length - 1
        num_blocks = (num_computed + BLOCK_SIZE - 1) // BLOCK_SIZE
        fits = length <= self.config.max_model_len and num_blocks < self.config.num_blocks
        before = self.engine.stats()
        try:
            self.engine.add(sequence, now_us=0)
        except NeverFitsError:
            assert not fits
            assert self.engine.stats() == before
        else:
            assert fits
            self.live[sequence.sequence_id] = sequence
            self.num_added += 1

    @precondition(lambda self: self.plan is None)
    @rule()
    def plan_step(self) -> None:
        plan = self.plan = self.engine.plan_step(now_us=0)
        assert (plan is None) == (not self.live)
        if plan is not None:
            self.note_plan(plan)

    @precondition(lambda self: self.plan is not None)
    @rule()
    def complete_step(self) -> None:
        assert self.plan is not None
        due = [
            sequence
            for sequence in self.plan.num_tokens
            if sequence.sequence_id in self.live
            and not sequence.pooling
            and sequence.num_computed_tokens == len(sequence.tokens)
        ]

        output = self.engine.complete_step(self.plan, now_us=1)

        self.plan = None
        assert list(output.new_tokens) == due
        for sequence in output.finished:
            assert sequence.num_output_tokens == (not sequence.pooling) * sequence.max_tokens
            assert sequence.num_computed_tokens >= sequence.num_prompt_tokens
            self.end(sequence)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        sequence_id = data.draw(st.sampled_from(sorted(self.live)))

        sequence = self.engine.abort(sequence_id, now_us=0)

        assert sequence is self.live[sequence_id]
        assert self.engine.abort(sequence_id, now_us=0) is None
        self.end(sequence)

    @rule()
    def reset_prefix_cache(self) -> None:
        held = self.engine.stats().kv_blocks_used

        assert self.engine.reset_prefix_cache() == (held == 0)

    @invariant()
    def blocks_are_held_once_by_each_block_table(self) -> None:
        self.engine.scheduler.check()
        holders = Counter(block for each in self.live.values() for block in each.block_table)
        unheld = set(range(1, self.config.num_blocks)) - holders.keys()
        assert set(self.engine.scheduler.pool.free_queue()) == unheld
        assert self.engine.scheduler.pool.references_total() == holders.total()
        assert 0 not in holders

    @invariant()
    def events_tell_the_whole_truth(self) -> None:
        for event in self.engine.drain_events():
            if isinstance(event, AllBlocksCleared):
                self.mirror.clear()
            elif isinstance(event, BlockStored):
                assert self.mirror.isdisjoint(event.block_hashes)
                self.mirror.update(event.block_hashes)
                parents = [event.parent_hash, *event.block_hashes]
                self.parents.update(zip(event.block_hashes, parents, strict=False))
            else:
                assert self.mirror.issuperset(event.block_hashes)
                self.mirror.difference_update(event.block_hashes)
        assert self.mirror == set(self.engine.cached_hashes())
        # Where a block is cached its whole prefix is.
        assert self.mirror.issuperset(
            parent for each in self.mirror if (parent := self.parents[each]) is not None
        )
        self._snapshot_tells_what_follows_what()

    def _snapshot_tells_what_follows_what(self) -> None:
        """It does so in as few runs as chains have ends."""
        runs = self.engine.cached_runs()
        told = [
            (block, before)
            for run in runs
            for block, before in zip(
                run.block_hashes, [run.parent_hash, *run.block_hashes], strict=False
            )
        ]
        assert len(told) == len(self.engine.cached_hashes())
        assert dict(told) == {block: self.parents[block] for block in self.engine.cached_hashes()}
        lasts = {run.block_hashes[-1] for run in runs}
        assert all(run.parent_hash not in lasts for run in runs)

    @invariant()
    def every_computed_token_has_a_place_and_the_pool_is_never_overdrawn(self) -> None:
        stats = self.engine.stats()
        assert 0 <= stats.kv_blocks_used <= stats.kv_blocks_total
        for each in self.engine.scheduler.running:
            assert each.num_computed_tokens <= len(each.block_table) * BLOCK_SIZE

    @invariant()
    def only_the_last_running_one_lacks_more_than_a_token(self) -> None:
        for each in self.engine.scheduler.running[:-1]:
            assert len(each.tokens) - each.num_computed_tokens <= 1

    @invariant()
    def queued_tokens_are_counted_as_they_come_and_go(self) -> None:
        live = self.live.values()
        assert self.engine.num_live == len(live)
        assert self.engine.prefilling_prompt_tokens == sum(
            each.num_prompt_tokens for each in live if each.first_token_us is None
        )
        assert self.engine.waiting_prefill_tokens == sum(
            len(each.tokens) - each.num_matched_tokens
            if each.status is not SequenceStatus.RUNNING
            else max(0, each.num_prompt_tokens - each.num_computed_tokens)
            for each in live
        )

    def teardown(self) -> None:
        """Nobody starves: whatever happened before, all that live end, each once."""
        for _ in range(drive.STEPS_MAX):
            if self.plan is not None:
                self.complete_step()
            if not self.live:
                break
            self.plan_step()
        assert not self.live
        assert self.ended == Counter({str(index): 1 for index in range(self.num_added)})
        if self.num_added:
            assert self.engine.plan_step(now_us=0) is None
            assert self.engine.stats().kv_blocks_used == 0
            assert self.engine.scheduler.padded_slots == 0

    def end(self, sequence: Sequence) -> None:
        assert sequence.status is SequenceStatus.FINISHED
        assert sequence.block_table == []
        self.ended[sequence.sequence_id] += 1
        del self.live[sequence.sequence_id]

    def note_plan(self, plan: StepPlan) -> None:
        assert sum(plan.num_tokens.values()) <= self.config.max_num_batched_tokens
        assert len(plan.num_tokens) <= self.config.max_num_seqs
        assert all(chunk > 0 for chunk in plan.num_tokens.values())
        self.admitted += [int(sequence.sequence_id) for sequence in plan.admitted]
        self.note_victims(plan)
        if self.config.max_loras is not None:
            adapters = {each.adapter for each in self.engine.scheduler.running} - {None}
            assert len(adapters) <= self.config.max_loras
        if self.config.policy is SchedulingPolicy.FCFS:
            assert self.config.max_loras is not None or self.admitted == sorted(self.admitted)
            for sequence, chunk in plan.num_tokens.items():
                self.compute(sequence, chunk)
            for sequence in plan.num_tokens:
                self.check_contents(sequence)
        if self.config.admission is Admission.RESERVE:
            assert not plan.preempted

    def note_victims(self, plan: StepPlan) -> None:
        """Nobody is preempted twice without a step of its own in between, and first come, first
        served, nobody who stands before all others: so the first always gets on."""
        for each in plan.preempted:
            assert each.num_preemptions <= self.num_steps[each]
            if self.config.policy is SchedulingPolicy.FCFS and plan.num_tokens:
                first = self.engine.scheduler.running[0]
                assert each.admission_index > first.admission_index
        if plan.preempted:
            assert self.engine.scheduler.running, "the pool holds whoever is alone"
        self.num_steps.update(plan.num_tokens.keys())

    def compute(self, sequence: Sequence, chunk: int) -> None:
        end = sequence.num_computed_tokens
        for position in range(end - chunk, end):
            block = sequence.block_table[position // BLOCK_SIZE]
            self.contents[block] = list(sequence.tokens[: position + 1])

    def check_contents(self, sequence: Sequence) -> None:
        """Each computed token stands in its block, behind the very prefix it was computed for.

        Not by priority: there a victim may lose its place in the step that sealed its block, and
        vLLM leaves that block cached though nothing has been computed into it.
        """
        for index in range(-(-sequence.num_computed_tokens // BLOCK_SIZE)):
            end = min((index + 1) * BLOCK_SIZE, sequence.num_computed_tokens)
            written = self.contents[sequence.block_table[index]]
            assert written[:end] == list(sequence.tokens[:end])


AnyTraffic.TestCase.settings = settings(max_examples=examples(1.5), stateful_step_count=40)
TestAnyTraffic = pytest.mark.timeout(300)(AnyTraffic.TestCase)
