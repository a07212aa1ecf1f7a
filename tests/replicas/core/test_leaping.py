"""Goal: advance() is stepping, only faster. Method: two engines, the same traffic, one of them
stepped; all that can be seen of them is compared whenever something comes from outside."""

from collections import Counter
from dataclasses import astuple, dataclass, field, replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.core.engine import Engine
from replicas.core.engine_stats import Progress
from replicas.core.sampling import extend_with_own_token, own_token
from replicas.core.scheduler import NeverFitsError, StepPlan
from replicas.core.scheduler_config import Admission, Batching, SchedulerConfig, SchedulingPolicy
from replicas.core.sequence import Sequence
from replicas.core.step_time import FixedStepTime, StepLoad, StepTime
from tests.examples import examples
from tests.replicas.core import drive

LATER_US = 10_000_000
BLOCK_SIZES = st.sampled_from([1, 2, 4])
CONFIGS = st.builds(
    SchedulerConfig,
    num_blocks=st.integers(6, 40),
    block_size=BLOCK_SIZES,
    max_num_batched_tokens=st.integers(2, 24),
    max_num_seqs=st.integers(1, 6),
    max_model_len=st.just(60),
    policy=st.sampled_from(SchedulingPolicy),
    batching=st.sampled_from([Batching.CONTINUOUS, Batching.CONTINUOUS, Batching.STATIC]),
    enable_prefix_caching=st.sampled_from([True, True, True, False]),
    max_loras=st.sampled_from([None, 1, 2]),
) | st.builds(
    SchedulerConfig,
    num_blocks=st.integers(31, 70),
    block_size=st.just(2),
    max_num_batched_tokens=st.integers(2, 24),
    max_num_seqs=st.integers(1, 6),
    max_model_len=st.just(60),
    batching=st.sampled_from(Batching),
    admission=st.just(Admission.RESERVE),
)


class UnevenSteps(StepTime):
    """Every field of the load is part of a step's time, so none can be wrong unseen."""

    def step_time_us(self, load: StepLoad) -> int:
        weights = (3, 5, 0.5, 7, 11, 13)
        weighted: list[float] = [w * v for w, v in zip(weights, astuple(load), strict=False)]
        return 1 + round(sum(weighted) % 37)


@dataclass
class Arrival:
    """A new sequence, or, where there is no prompt, an abort of an earlier one."""

    gap_us: int
    prompt: list[int]
    max_tokens: int
    priority: int = 0
    adapter: str | None = None
    pooling: bool = False
    stop_token_ids: frozenset[int] = frozenset()
    aborted: int | None = None


GAPS = st.sampled_from([0, 0, 1, 5, 20, 100, 400])
ARRIVALS = st.builds(
    Arrival,
    gap_us=GAPS,
    prompt=st.builds(
        lambda same, own, token: [7] * same + [token] * own,
        st.integers(1, 12),
        st.integers(0, 9),
        st.integers(7, 9),
    ),
    max_tokens=st.integers(1, 40),
    priority=st.integers(0, 2),
    adapter=st.sampled_from([None, None, "a", "b", "c"]),
    pooling=st.sampled_from([False, False, False, True]),
    stop_token_ids=st.sampled_from([frozenset(), frozenset(), frozenset(), frozenset({8})]),
)
ABORTS = st.builds(
    lambda gap_us, aborted: Arrival(gap_us, [], 1, aborted=aborted), GAPS, st.integers(0, 9)
)


@dataclass
class Stepped:
    """The meaning of Engine.advance(), spelt out with plan_step() and complete_step()."""

    engine: Engine
    plan: StepPlan | None = None
    begins_us: int = 0
    ends_us: int = 0
    times: dict[str, list[int]] = field(default_factory=dict)  # of the tokens of each
    gaps: Counter[int] = field(default_factory=Counter)  # of whole answers

    def advance(self, until_us: int) -> Progress:
        progress = Progress()
        while True:
            if self.plan is None:
                if self.begins_us >= until_us or not self.engine.num_live:
                    return progress
                self.plan = self.engine.plan_step(self.begins_us)
                assert self.plan is not None
                self.ends_us = self.begins_us + self.engine.step_time_us(self.plan)
            if self.ends_us > until_us:
                return progress
            output = self.engine.complete_step(self.plan, self.ends_us)
            self.plan, self.begins_us = None, self.ends_us
            for each in output.new_tokens:
                self.times.setdefault(each.sequence_id, []).append(self.ends_us)
                if len(self.times[each.sequence_id]) == 1:
                    progress.first_tokens.append(each)
            progress.finished += output.finished
            for each in output.finished:
                times = self.times.get(each.sequence_id, [])
                self.gaps.update(after - before for before, after in pairwise(times))
            progress.num_steps += 1

    def add(self, sequence: Sequence, now_us: int) -> None:
        if not self.engine.num_live and self.plan is None:
            self.begins_us = now_us
        self.engine.add(sequence, now_us)


def sequence_of(index: int, arrival: Arrival) -> Sequence:
    return Sequence(
        str(index),
        arrival.prompt,
        arrival.max_tokens,
        drive.ROOT,
        arrival.priority,
        arrival.stop_token_ids,
        arrival.adapter,
        arrival.pooling,
    )


def seen(each: Sequence) -> tuple[object, ...]:
    return (
        each.sequence_id,
        list(each.tokens),
        each.num_computed_tokens,
        list(each.block_table),
        each.num_sealed_blocks,
        each.status,
        each.finish_reason,
        each.num_cached_tokens,
        each.num_preemptions,
        (each.arrival_us, each.admitted_us, each.first_token_us, each.finished_us),
    )


def assert_equal(leaping: Engine, stepped: Engine) -> None:
    leaping.settle()
    leaping.scheduler.check()
    assert leaping.stats() == stepped.stats()
    assert leaping.prefilling_prompt_tokens == stepped.prefilling_prompt_tokens
    assert leaping.drain_events() == stepped.drain_events()
    assert leaping.cached_hashes() == stepped.cached_hashes()
    assert leaping.scheduler.pool.free_queue() == stepped.scheduler.pool.free_queue()
    for ours, theirs in (
        (leaping.scheduler.running, stepped.scheduler.running),
        (leaping.scheduler.waiting, stepped.scheduler.waiting),
    ):
        assert [seen(each) for each in ours] == [seen(each) for each in theirs]


def advance_both(leaping: Engine, stepped: Stepped, until_us: int) -> None:
    ours, theirs = leaping.advance(until_us), stepped.advance(until_us)

    assert ours.num_steps == theirs.num_steps
    for some, same in (
        (ours.first_tokens, theirs.first_tokens),
        (ours.finished, theirs.finished),
    ):
        assert [seen(each)[:1] for each in some] == [seen(each)[:1] for each in same]
    for mine, its in zip(ours.finished, theirs.finished, strict=True):
        assert seen(mine) == seen(its)


def position(each: Sequence) -> int:
    """Two tokens only: outputs collide too, so that generated blocks are shared."""
    return 7 + len(each.tokens) % 2


@settings(max_examples=examples(3))
@given(CONFIGS, st.lists(ARRIVALS | ARRIVALS | ABORTS, max_size=14), st.data())
def test_advancing_is_stepping(
    config: SchedulerConfig, arrivals: list[Arrival], data: st.DataObject
) -> None:
    leaping = Engine(config, UnevenSteps(), position, count_token_gaps=True)
    stepped = Stepped(Engine(config, UnevenSteps(), position))
    now_us = 0
    for index, arrival in enumerate(arrivals):
        now_us += arrival.gap_us
        advance_both(leaping, stepped, now_us)
        if data.draw(st.booleans()):
            assert_equal(leaping, stepped.engine)
        if arrival.aborted is not None:
            for engine in (leaping, stepped.engine):
                engine.abort(str(arrival.aborted), now_us)
            continue
        try:
            leaping.add(sequence_of(index, arrival), now_us)
        except NeverFitsError:
            continue
        stepped.add(sequence_of(index, arrival), now_us)

    advance_both(leaping, stepped, LATER_US)

    assert leaping.num_live == 0
    assert leaping.take_token_gaps() == stepped.gaps
    assert_equal(leaping, stepped.engine)


LONG = SchedulerConfig(num_blocks=200, block_size=4, max_num_batched_tokens=64, max_num_seqs=8)


def counting_engine() -> tuple[Engine, list[int]]:
    """An engine of constant steps, and the sizes of the runs of tokens that it asks for."""
    asked: list[int] = []

    def extend(each: Sequence, num_tokens: int) -> None:
        asked.append(num_tokens)
        extend_with_own_token(each, num_tokens)

    return Engine(LONG, FixedStepTime(0, 10), own_token, extend), asked


def test_the_gap_of_one_that_a_step_had_no_token_left_for_is_as_long_as_it_was() -> None:
    """The step that preempts somebody leaves out who stands behind, and the next one does not."""
    config = SchedulerConfig(
        num_blocks=28,
        block_size=4,
        max_num_batched_tokens=7,
        max_num_seqs=4,
        max_model_len=60,
        policy=SchedulingPolicy.PRIORITY,
        enable_prefix_caching=False,
    )
    leaping = Engine(config, UnevenSteps(), position, count_token_gaps=True)
    stepped = Stepped(Engine(config, UnevenSteps(), position))
    now_us = 0
    for index, (gap_us, num_tokens, max_tokens, priority) in enumerate(
        [(0, 6, 24, 0), (0, 9, 21, 1), (0, 9, 22, 0), (400, 12, 3, 0)]
    ):
        now_us += gap_us
        advance_both(leaping, stepped, now_us)
        arrival = Arrival(0, [7] * num_tokens, max_tokens, priority)
        for engine in (leaping, stepped):
            engine.add(sequence_of(index, arrival), now_us)

    advance_both(leaping, stepped, LATER_US)

    assert leaping.take_token_gaps() == stepped.gaps


def test_tokens_are_asked_for_once_per_sequence() -> None:
    engine, asked = counting_engine()
    engine.add(drive.sequence("0", range(10), 300), now_us=0)
    engine.add(drive.sequence("1", range(20), 200), now_us=0)

    engine.advance(LATER_US)

    assert asked == [299, 199]


def test_the_next_turn_hits_what_its_own_token_generated() -> None:
    engine, _ = counting_engine()
    turn, other = drive.sequence("turn", range(8), 9), drive.sequence("other", range(8), 9)
    for each in (turn, other):
        engine.add(each, now_us=0)
    engine.advance(LATER_US)
    next_turn = drive.sequence("next", [*turn.tokens, 1, 2, 3])

    engine.add(next_turn, LATER_US)
    engine.advance(2 * LATER_US)

    assert turn.output_tokens != other.output_tokens
    assert next_turn.num_cached_tokens == 16  # of 17; the last one was never computed


class CountingSteps(StepTime):
    """Counts the steps that are timed one by one."""

    num_timed = 0

    def step_time_us(self, _load: StepLoad) -> int:
        self.num_timed += 1
        return 10

    def decode_run_us(self, _load: StepLoad, num_steps: int) -> list[int]:
        return [10] * num_steps


def test_who_ends_does_not_stop_the_leaps_of_the_others() -> None:
    steps = CountingSteps()
    engine = Engine(LONG, steps, own_token, extend_with_own_token)
    for name, max_tokens in (("0", 20), ("1", 300)):
        engine.add(drive.sequence(name, range(4), max_tokens), now_us=0)

    engine.advance(LATER_US)

    assert (steps.num_timed, engine.stats().finished_total) == (1, 2)


def test_one_that_joins_fills_its_blocks_in_its_own_time() -> None:
    """Its first block is full long before that of the one that was there is."""
    config = replace(LONG, block_size=16)
    leaping = Engine(config, FixedStepTime(1, 10), own_token)
    stepped = Stepped(Engine(config, FixedStepTime(1, 10), own_token))
    for engine in (leaping, stepped):
        engine.add(drive.sequence("0", range(2), 60), 0)
    advance_both(leaping, stepped, 25)
    for engine in (leaping, stepped):
        engine.add(drive.sequence("1", range(100, 114), 60), 25)
    advance_both(leaping, stepped, 90)
    assert_equal(leaping, stepped.engine)

    advance_both(leaping, stepped, LATER_US)

    assert_equal(leaping, stepped.engine)


def test_what_comes_as_a_step_ends_is_in_time_for_the_next_one() -> None:
    engine, _ = counting_engine()
    first, second = drive.sequence("0", range(4), 9), drive.sequence("1", range(9, 13), 9)
    engine.add(first, now_us=5)
    ends_us = engine.next_end_us()
    assert ends_us is not None

    engine.advance(ends_us)
    engine.add(second, now_us=ends_us)
    engine.advance(LATER_US)

    assert second.admitted_us == ends_us


def test_the_end_of_the_step_under_way_is_known_and_then_nothing() -> None:
    engine, _ = counting_engine()
    idle_us = engine.next_end_us()
    engine.add(drive.sequence("0", range(4), 2), now_us=100)

    first_us = engine.next_end_us()
    engine.advance(first_us or 0)
    second_us = engine.next_end_us()
    engine.advance(second_us or 0)

    assert (idle_us, first_us, second_us) == (None, 101, 111)  # prefill costs nothing here
    assert engine.next_end_us() is None


def test_a_leap_passes_no_step_that_ends_too_late() -> None:
    engine, _ = counting_engine()
    sequence = drive.sequence("0", range(4), 50)
    engine.add(sequence, now_us=0)

    progress = engine.advance(1 + 10 * 7 + 9)
    engine.settle()

    assert progress.num_steps == 8
    assert sequence.num_output_tokens == 8


def test_stepping_may_go_on_where_advancing_left_off() -> None:
    engine, _ = counting_engine()
    sequence = drive.sequence("0", range(4), 30)
    engine.add(sequence, now_us=0)
    engine.advance(1 + 10 * 5)

    ended = drive.run(engine)

    assert ended == {"0": 24}
    assert set(sequence.output_tokens) == {own_token(sequence)}


def test_a_blocked_head_is_admitted_when_a_block_that_it_lacks_is_filled() -> None:
    config = SchedulerConfig(num_blocks=10, block_size=2, max_num_batched_tokens=64, max_num_seqs=4)
    engine = Engine(config, FixedStepTime(1, 10), lambda _: 7)
    engine.add(drive.sequence("writer", [7, 7], 16), now_us=0)
    engine.advance(1)
    blocked = drive.sequence("reader", [7] * 17, 1)
    engine.add(blocked, now_us=1)  # as the writer takes its second block

    engine.advance(LATER_US)

    # Nine blocks less the one that is shared are more than seven; less two they are not.
    assert blocked.admitted_us == 11
    assert blocked.num_cached_tokens == 4


def test_news_are_foreseen_up_to_the_next_block() -> None:
    engine, _ = counting_engine()
    engine.add(drive.sequence("0", range(4), 30), now_us=0)
    engine.advance(1)
    at_first = engine.next_news()
    engine.advance(11)  # the step that needs a second block

    foreseen = engine.next_news()
    engine.advance(21)

    # Two more tokens, then one fills the block.
    assert (at_first, foreseen) == ((1, False), (11 + 10 * 2, False))
    assert engine.next_news() == foreseen
    engine.add(drive.sequence("1", range(4), 30), now_us=21)
    assert engine.next_news() == (21, False)


def test_without_events_the_next_news_is_that_somebody_ends() -> None:
    config = replace(LONG, enable_kv_events=False)
    engine = Engine(config, FixedStepTime(0, 10), own_token, extend_with_own_token)
    engine.add(drive.sequence("0", range(4), 30), now_us=0)
    engine.advance(1)

    assert engine.next_news() == (1 + 10 * 29, True)


def test_events_of_one_step_are_in_the_order_of_the_running() -> None:
    config = SchedulerConfig(num_blocks=20, block_size=2, max_num_batched_tokens=64, max_num_seqs=4)
    leaping = Engine(config, FixedStepTime(1, 10), own_token)
    stepped = Stepped(Engine(config, FixedStepTime(1, 10), own_token))
    for engine in (leaping, stepped):
        engine.add(drive.sequence("fills the pool with cached blocks", range(37), 2), 0)
    advance_both(leaping, stepped, 1_000)
    assert_equal(leaping, stepped.engine)
    for engine in (leaping, stepped):
        engine.add(drive.sequence("takes", range(100, 104), 9), 1_000)
        engine.add(drive.sequence("fills a block in the same step", range(200, 203), 9), 1_000)

    advance_both(leaping, stepped, LATER_US)

    assert_equal(leaping, stepped.engine)


def test_a_held_engine_begins_no_step_before_its_time() -> None:
    engine, _ = counting_engine()
    sequence = drive.sequence("0", range(4), 5)
    engine.add(sequence, now_us=0)
    engine.advance(11)  # the first token at 1, the second at 11

    engine.hold(500)
    engine.advance(LATER_US)

    assert sequence.finished_us == 500 + 3 * 10


def test_the_step_under_way_of_a_held_engine_ends() -> None:
    engine, _ = counting_engine()
    sequence = drive.sequence("0", range(4), 3)
    engine.add(sequence, now_us=0)
    engine.advance(1)
    assert engine.next_end_us() == 11

    engine.hold(500)
    engine.advance(11)
    engine.settle()
    tokens_by_then = sequence.num_output_tokens
    engine.advance(LATER_US)

    assert (tokens_by_then, sequence.finished_us) == (2, 510)


def test_news_of_a_held_engine_are_not_before_its_time() -> None:
    engine, _ = counting_engine()
    engine.add(drive.sequence("0", range(100), 5), now_us=0)
    assert engine.next_end_us() == 1  # of the first 64 tokens

    engine.hold(500)

    assert engine.next_news() == (500, False)


def test_an_idle_engine_that_is_held_waits_with_what_comes() -> None:
    engine, _ = counting_engine()
    engine.hold(500)
    sequence = drive.sequence("0", range(4), 1)

    engine.add(sequence, now_us=100)
    engine.advance(LATER_US)

    assert sequence.finished_us == 501
