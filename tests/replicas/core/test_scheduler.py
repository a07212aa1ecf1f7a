"""Scheduling rules by example: batching, admission, hits, preemption, limits."""

from dataclasses import replace

import pytest

from replicas.core.engine import Engine
from replicas.core.scheduler_config import Admission, Batching, SchedulerConfig, SchedulingPolicy
from replicas.core.sequence import FinishReason, Sequence, SequenceStatus
from tests.replicas.core import drive

CONFIG = SchedulerConfig(
    num_blocks=64, block_size=16, max_num_batched_tokens=8_192, max_num_seqs=16
)
OUTPUT_LENGTHS = (5, 40, 8, 12, 30, 6, 20, 10)


def start(driven: Engine, *sequences: Sequence) -> list[Sequence]:
    for each in sequences:
        driven.add(each, now_us=0)
    return list(sequences)


def ids(sequences: list[Sequence]) -> list[str]:
    return [each.sequence_id for each in sequences]


# Batching


@pytest.mark.parametrize(
    ("batching", "ends", "mean_end", "slot_use"),
    [
        (Batching.CONTINUOUS, [5, 40, 8, 12, 35, 14, 32, 24], 21.25, 0.819),
        (Batching.STATIC, [5, 40, 8, 12, 70, 46, 60, 50], 36.375, 0.468),
    ],
)
def test_a_slot_is_free_at_its_sequences_end_or_at_the_batchs(
    batching: Batching, ends: list[int], mean_end: float, slot_use: float
) -> None:
    driven = drive.engine(replace(CONFIG, max_num_seqs=4, batching=batching))
    lengths = enumerate(OUTPUT_LENGTHS)
    # A prompt of one token, so a sequence of n output tokens takes exactly n steps.
    start(driven, *(drive.sequence(str(i), [i], max_tokens=length) for i, length in lengths))

    ended = drive.run(driven)

    assert [ended[str(i)] for i in range(len(OUTPUT_LENGTHS))] == ends
    assert sum(ends) / len(ends) == pytest.approx(mean_end)
    assert sum(OUTPUT_LENGTHS) / (4 * max(ends)) == pytest.approx(slot_use, abs=0.0005)


def test_a_static_batch_fills_over_several_steps_when_tokens_are_short() -> None:
    config = replace(CONFIG, max_num_seqs=4, max_num_batched_tokens=32, batching=Batching.STATIC)
    driven = drive.engine(config)
    start(driven, *(drive.sequence(str(i), [i] * 30, max_tokens=20) for i in range(3)))

    drive.step(driven)
    drive.step(driven)
    drive.step(driven)

    assert ids(driven.scheduler.running) == ["0", "1", "2"]


def test_a_static_batch_with_a_free_slot_takes_nobody_once_it_runs() -> None:
    driven = drive.engine(replace(CONFIG, max_num_seqs=4, batching=Batching.STATIC))
    start(driven, drive.sequence("early", [1], max_tokens=3))
    drive.step(driven)
    start(driven, drive.sequence("late", [2], max_tokens=1))

    ended = drive.run(driven)

    assert ended == {"early": 2, "late": 3}


def test_padded_slots_are_part_of_a_static_steps_load() -> None:
    driven = drive.engine(replace(CONFIG, max_num_seqs=2, batching=Batching.STATIC))
    start(driven, drive.sequence("short", [1], max_tokens=1), drive.sequence("long", [2], 3))
    drive.step(driven)

    plan = driven.plan_step(now_us=0)

    assert plan is not None
    assert plan.load.padded_slots == driven.stats().padded_slots == 1


def test_a_slot_freed_while_a_static_batch_still_fills_stays_held() -> None:
    config = replace(CONFIG, max_num_seqs=2, max_num_batched_tokens=32, batching=Batching.STATIC)
    driven = drive.engine(config)
    start(driven, drive.sequence("short", [1] * 30), drive.sequence("long", [2] * 20, 9))
    start(driven, drive.sequence("next", [3]))
    drive.step(driven)

    drive.step(driven)

    assert ids(driven.scheduler.running) == ["long"]
    assert ids(driven.scheduler.waiting) == ["next"]


# Chunks and load


def test_a_prompt_is_computed_in_chunks_behind_the_decodes() -> None:
    driven = drive.engine(replace(CONFIG, max_num_batched_tokens=32))
    first, second = start(driven, drive.sequence("a", [1] * 4, 9), drive.sequence("b", [2] * 60))
    chunks = []

    for _ in range(3):
        plan = driven.plan_step(now_us=0)
        assert plan is not None
        chunks.append((plan.num_tokens.get(first), plan.num_tokens.get(second)))
        driven.complete_step(plan, now_us=1)

    assert chunks == [(4, 28), (1, 31), (1, 1)]
    assert second.finish_reason is FinishReason.LENGTH


def test_a_steps_load_counts_tokens_and_the_context_behind_them() -> None:
    driven = drive.engine(replace(CONFIG, max_num_batched_tokens=32))
    start(driven, drive.sequence("a", [1] * 4, 9), drive.sequence("b", [2] * 60))
    drive.step(driven)

    plan = driven.plan_step(now_us=0)

    assert plan is not None
    load = plan.load
    assert (load.decode_tokens, load.decode_context_tokens) == (1, 4)
    assert (load.prefill_tokens, load.prefill_context_tokens) == (31, 28)
    assert load.prefill_attention_pairs == 31 * (28 + 15.5)


def test_the_last_token_of_a_prompt_is_prefill_even_when_it_comes_alone() -> None:
    driven = drive.engine(replace(CONFIG, max_num_batched_tokens=32))
    start(driven, drive.sequence("0", range(33), 2))
    drive.step(driven)

    plan = driven.plan_step(now_us=0)

    assert plan is not None
    assert (plan.load.prefill_tokens, plan.load.decode_tokens) == (1, 0)


# Prefix cache


def test_a_second_identical_prompt_in_the_same_step_hits() -> None:
    driven = drive.engine(CONFIG)
    first, second = start(driven, drive.sequence("0", range(100)), drive.sequence("1", range(100)))

    plan = driven.plan_step(now_us=0)

    assert plan is not None
    assert first.block_table == [1, 2, 3, 4, 5, 6, 7]
    assert second.block_table == [1, 2, 3, 4, 5, 6, 8]
    assert (second.num_cached_tokens, plan.num_tokens[second]) == (96, 4)


def test_a_prompt_cached_whole_computes_its_last_block_again() -> None:
    driven = drive.engine(CONFIG)
    start(driven, drive.sequence("0", range(96)))
    drive.run(driven)
    (again,) = start(driven, drive.sequence("1", range(96)))

    plan = driven.plan_step(now_us=0)

    assert plan is not None
    assert (again.num_cached_tokens, plan.num_tokens[again]) == (80, 16)
    assert again.block_table == [1, 2, 3, 4, 5, 7]


def test_sequences_of_another_root_share_nothing() -> None:
    driven = drive.engine(CONFIG)
    start(driven, drive.sequence("0", range(96)))
    drive.run(driven)
    stranger = Sequence("1", range(96), 1, root=drive.ROOT ^ 1)  # type: ignore[arg-type]
    start(driven, stranger)

    drive.run(driven)

    assert stranger.num_cached_tokens == 0


def test_output_is_cached_for_the_next_turn_of_a_conversation() -> None:
    driven = drive.engine(CONFIG)
    (turn,) = start(driven, drive.sequence("0", range(40), max_tokens=25))
    drive.run(driven)
    (next_turn,) = start(driven, drive.sequence("1", [*turn.tokens, 5, 6, 7]))

    drive.run(driven)

    assert next_turn.num_cached_tokens == 64  # of 65; the last one was never computed


def test_without_prefix_caching_nothing_hits_and_nothing_is_announced() -> None:
    driven = drive.engine(replace(CONFIG, enable_prefix_caching=False))
    _, second = start(driven, drive.sequence("0", range(100)), drive.sequence("1", range(100)))

    drive.run(driven)

    assert second.num_cached_tokens == 0
    assert driven.drain_events() == []


# Admission and preemption


def test_a_prompt_is_admitted_only_when_all_of_it_would_fit() -> None:
    driven = drive.engine(replace(CONFIG, num_blocks=12, max_num_batched_tokens=32))
    start(driven, drive.sequence("a", [1] * 64, 9), drive.sequence("b", range(128)))

    for _ in range(4):  # 6 to 9 blocks are free, more than any chunk needs
        drive.step(driven)

    assert ids(driven.scheduler.waiting) == ["b"]


def test_the_head_of_the_line_blocks_a_smaller_one_behind_it() -> None:
    driven = drive.engine(replace(CONFIG, num_blocks=12))
    start(
        driven,
        drive.sequence("running", [1] * 64, 9),
        drive.sequence("large", range(128)),
        drive.sequence("small", [2]),
    )

    drive.step(driven)

    assert ids(driven.scheduler.running) == ["running"]
    assert ids(driven.scheduler.waiting) == ["large", "small"]


def test_reserving_holds_the_longest_context_from_the_start() -> None:
    config = replace(
        CONFIG, num_blocks=21, max_model_len=160, admission=Admission.RESERVE, max_num_seqs=4
    )
    driven = drive.engine(config)
    start(driven, *(drive.sequence(str(i), [i], max_tokens=9) for i in range(3)))

    drive.step(driven)

    assert ids(driven.scheduler.running) == ["0", "1"]
    assert driven.stats().kv_blocks_used == 20


def test_paged_admission_holds_what_is_used() -> None:
    driven = drive.engine(replace(CONFIG, num_blocks=21, max_model_len=160))
    start(driven, *(drive.sequence(str(i), [i], max_tokens=9) for i in range(3)))

    drive.step(driven)

    assert driven.stats().kv_blocks_used == 3


def test_first_come_preempts_the_last_admitted_and_resumes_it_first() -> None:
    driven = drive.engine(replace(CONFIG, num_blocks=12))
    prompts = [range(start, start + 48) for start in (0, 100, 200)]
    sequences = start(
        driven, *(drive.sequence(str(i), prompt, 40) for i, prompt in enumerate(prompts))
    )
    preempted_at: dict[str, int] = {}
    resumed_with: dict[str, tuple[int, int]] = {}  # step, tokens to compute

    for index in range(1, drive.STEPS_MAX):
        plan = driven.plan_step(now_us=index)
        if plan is None:
            break
        preempted_at |= {each.sequence_id: index for each in plan.preempted}
        resumed_with |= {each.sequence_id: (index, plan.num_tokens[each]) for each in plan.resumed}
        driven.complete_step(plan, now_us=index)

    # Seen in vLLM 0.32 on the same workload.
    assert preempted_at == {"2": 2, "1": 34}
    assert resumed_with == {"1": (41, 1), "2": (41, 49)}
    assert index - 1 == 79
    assert [each.num_preemptions for each in sequences] == [0, 1, 1]
    assert driven.stats().preemptions_total == 2


def test_priority_preempts_the_least_urgent_though_it_came_first() -> None:
    config = replace(CONFIG, num_blocks=12, policy=SchedulingPolicy.PRIORITY)
    driven = drive.engine(config)
    low, high = start(
        driven,
        drive.sequence("low", range(64), 40, priority=5),
        drive.sequence("high", range(100, 180), 40, priority=0),
    )

    ended = drive.run(driven)

    assert (low.num_preemptions, high.num_preemptions) == (1, 0)
    assert ended["high"] < ended["low"]


def test_a_victim_that_was_placed_already_gives_back_its_tokens_and_blocks() -> None:
    config = replace(
        CONFIG, num_blocks=8, max_num_batched_tokens=40, policy=SchedulingPolicy.PRIORITY
    )
    driven = drive.engine(config)
    (low,) = start(driven, drive.sequence("low", range(10), 20, priority=5))
    drive.step(driven)
    (high,) = start(driven, drive.sequence("high", range(100, 176), 20, priority=0))
    for _ in range(6):
        drive.step(driven)
    assert (low.num_computed_tokens, high.num_computed_tokens) == (16, 80)

    plan = driven.plan_step(now_us=0)  # one block is free, and both are due another: low is first

    assert plan is not None
    assert plan.preempted == [low]
    assert plan.num_tokens == {high: 1}
    assert plan.budget_left == 39
    assert plan.new_blocks.keys() == {high}


def test_priority_serves_the_lowest_number_first_then_the_first_arrival() -> None:
    config = replace(CONFIG, max_num_seqs=1, policy=SchedulingPolicy.PRIORITY)
    driven = drive.engine(config)
    arrivals = [("a", 1), ("b", 0), ("c", 1), ("d", 0)]
    start(driven, *(drive.sequence(each, [1], priority=number) for each, number in arrivals))

    ended = drive.run(driven)

    assert sorted(ended, key=ended.__getitem__) == ["b", "d", "a", "c"]


def test_first_come_ignores_priorities() -> None:
    driven = drive.engine(replace(CONFIG, max_num_seqs=1))
    start(driven, drive.sequence("a", [1], priority=5), drive.sequence("b", [1], priority=0))

    assert drive.run(driven) == {"a": 1, "b": 2}


def test_a_preempted_victim_keeps_its_output_and_its_first_admission() -> None:
    config = replace(CONFIG, num_blocks=12, policy=SchedulingPolicy.PRIORITY)
    driven = drive.engine(config)
    (low,) = start(driven, drive.sequence("low", range(64), 40, priority=5))
    drive.step(driven, now_us=7)
    start(driven, drive.sequence("high", range(100, 192), 40, priority=0))
    while low.status is not SequenceStatus.PREEMPTED:
        drive.step(driven, now_us=100)
    output = list(low.output_tokens)

    drive.run(driven)

    assert list(low.output_tokens)[: len(output)] == output
    assert low.num_output_tokens == 40
    assert (low.admitted_us, low.num_cached_tokens) == (7, 0)
