"""What a driver sees of the engine: aborts in every phase, times, counters, events."""

from dataclasses import replace

import pytest

from contract.kv_events import BlockStored
from replicas.core.engine import Engine
from replicas.core.scheduler_config import Batching, SchedulerConfig
from replicas.core.sequence import FinishReason, SequenceStatus
from tests.replicas.core import drive

CONFIG = SchedulerConfig(
    num_blocks=12, block_size=16, max_num_batched_tokens=8_192, max_num_seqs=16
)


def test_an_abort_while_waiting_leaves_the_line() -> None:
    driven = drive.engine(CONFIG)
    sequence = drive.sequence("0", [1, 2, 3])
    driven.add(sequence, now_us=0)

    aborted = driven.abort("0", now_us=5)

    assert aborted is sequence
    assert (sequence.finish_reason, sequence.finished_us) == (FinishReason.ABORT, 5)
    assert driven.plan_step(now_us=6) is None


def test_an_abort_while_preempted_leaves_the_line() -> None:
    driven = drive.engine(CONFIG)
    first = drive.sequence("0", range(64), 40)
    second = drive.sequence("1", range(100, 196), 40)
    driven.add(first, now_us=0)
    driven.add(second, now_us=0)
    while second.status is not SequenceStatus.PREEMPTED:
        drive.step(driven)

    driven.abort("1", now_us=0)

    assert driven.scheduler.waiting == []
    assert drive.run(driven).keys() == {"0"}


@pytest.mark.parametrize("num_steps", [1, 2, 3])
def test_an_abort_while_running_frees_its_blocks_at_once(num_steps: int) -> None:
    driven = drive.engine(replace(CONFIG, max_num_batched_tokens=64))
    driven.add(drive.sequence("0", range(100), 9), now_us=0)  # two steps of prefill, then decode
    for _ in range(num_steps):
        drive.step(driven)

    driven.abort("0", now_us=0)

    assert driven.stats().kv_blocks_used == 0
    driven.scheduler.check()


def test_an_abort_during_a_step_ignores_that_sequences_result() -> None:
    driven = drive.engine(CONFIG)
    kept, aborted = drive.sequence("kept", [1], 3), drive.sequence("aborted", [2], 1)
    driven.add(kept, now_us=0)
    driven.add(aborted, now_us=0)
    plan = driven.plan_step(now_us=0)
    assert plan is not None

    driven.abort("aborted", now_us=1)
    used = driven.stats().kv_blocks_used
    output = driven.complete_step(plan, now_us=2)

    assert used == 1
    assert list(output.new_tokens) == [kept]
    assert output.finished == []
    assert aborted.num_output_tokens == 0
    assert driven.stats().aborted_total == 1


def test_an_id_may_be_used_again_while_its_aborted_owners_step_is_under_way() -> None:
    driven = drive.engine(CONFIG)
    driven.add(drive.sequence("0", [1], 1), now_us=0)
    plan = driven.plan_step(now_us=0)
    assert plan is not None
    driven.abort("0", now_us=1)
    again = drive.sequence("0", [2], 1)
    driven.add(again, now_us=1)

    driven.complete_step(plan, now_us=2)

    assert drive.run(driven) == {"0": 1}
    assert again.finish_reason is FinishReason.LENGTH


def test_an_abort_of_an_unknown_or_ended_sequence_is_nothing() -> None:
    driven = drive.engine(CONFIG)
    driven.add(drive.sequence("0", [1], 1), now_us=0)
    drive.run(driven)
    before = driven.stats()

    assert driven.abort("0", now_us=0) is None
    assert driven.abort("never seen", now_us=0) is None
    assert driven.stats() == before


def test_an_abort_of_the_longest_member_ends_a_static_batch() -> None:
    driven = drive.engine(replace(CONFIG, max_num_seqs=2, batching=Batching.STATIC))
    driven.add(drive.sequence("short", [1], 1), now_us=0)
    driven.add(drive.sequence("long", [2], 99), now_us=0)
    driven.add(drive.sequence("next", [3], 1), now_us=0)
    drive.step(driven)

    driven.abort("long", now_us=0)

    assert drive.run(driven) == {"next": 1}


def test_a_sequence_carries_the_times_of_its_life() -> None:
    driven = drive.engine(replace(CONFIG, max_num_batched_tokens=32))
    sequence = drive.sequence("0", range(60), 3)
    driven.add(sequence, now_us=1)

    for now_us in (10, 30, 50, 70):
        drive.step(driven, now_us)

    # A step takes 10 us; two of them prefill, the second gives the first of three tokens.
    assert sequence.arrival_us == 1
    assert sequence.admitted_us == 10
    assert sequence.first_token_us == 40
    assert sequence.finished_us == 80


def test_waiting_prefill_tokens_are_net_of_what_is_cached() -> None:
    driven = drive.engine(replace(CONFIG, max_num_batched_tokens=32, max_num_seqs=1))
    driven.add(drive.sequence("0", range(50)), now_us=0)
    first = driven.stats().waiting_prefill_tokens
    drive.step(driven)
    half_done = driven.stats().waiting_prefill_tokens
    driven.add(drive.sequence("1", range(50)), now_us=0)
    with_a_second = driven.stats().waiting_prefill_tokens

    drive.run(driven)

    assert first == 50
    assert half_done == 18
    assert with_a_second == 18 + 18  # 32 tokens of the same prompt are cached by now
    assert driven.stats().waiting_prefill_tokens == 0


def test_waiting_prefill_tokens_count_no_decode_and_all_tokens_of_a_victim() -> None:
    driven = drive.engine(CONFIG)
    first = drive.sequence("0", range(64), 40)
    second = drive.sequence("1", [*range(16), *range(100, 148)], 40)  # one block is the first's
    driven.add(first, now_us=0)
    drive.step(driven)
    driven.add(second, now_us=0)
    while second.status is not SequenceStatus.PREEMPTED:
        drive.step(driven)

    waiting_tokens = driven.stats().waiting_prefill_tokens

    assert first.num_output_tokens > 1
    assert waiting_tokens == len(second.tokens) > 64


def test_events_of_one_sequence_are_one_chain() -> None:
    driven = drive.engine(replace(CONFIG, max_num_batched_tokens=40))
    driven.add(drive.sequence("0", range(60), 50), now_us=0)
    drive.run(driven)

    events = driven.drain_events()

    parent = None
    assert len(events) > 3  # two chunks of the prompt, then a block at a time
    for event in events:
        assert isinstance(event, BlockStored)
        assert event.parent_hash == parent
        parent = event.block_hashes[-1]


@pytest.mark.parametrize("leap", [False, True])
def test_without_events_nothing_is_announced_and_the_cache_is_the_same(leap: bool) -> None:
    silent = drive.engine(replace(CONFIG, enable_kv_events=False))
    telling = drive.engine(CONFIG)
    for driven in (silent, telling):
        for index in range(4):  # the last ones evict the first
            tokens = range(100 * index, 100 * index + 90)
            driven.add(drive.sequence(str(index), tokens, 40), now_us=0)
            if leap:
                driven.advance(1_000_000)
            drive.run(driven)

    assert silent.cached_hashes() == telling.cached_hashes() != []
    assert silent.reset_prefix_cache()
    assert (silent.drain_events(), len(telling.drain_events()) > 0) == ([], True)


def test_counters_add_up_over_two_equal_prompts() -> None:
    driven = drive.engine(CONFIG)
    driven.add(drive.sequence("0", range(100), 2), now_us=0)
    drive.run(driven)
    driven.add(drive.sequence("1", range(100), 2), now_us=0)
    drive.run(driven)

    stats = driven.stats()

    assert stats.prompt_tokens_total == 200
    assert stats.cached_tokens_total == 96
    assert stats.computed_prefill_tokens_total == 104
    assert stats.output_tokens_total == 4
    assert stats.finished_total == 2
    assert stats.steps_total == 4
    assert (stats.kv_blocks_total, stats.kv_blocks_used) == (11, 0)


def test_the_last_step_time_is_from_its_plan_to_its_completion() -> None:
    driven = drive.engine(CONFIG)
    driven.add(drive.sequence("0", [1]), now_us=0)
    assert driven.stats().step_time_us is None
    plan = driven.plan_step(now_us=100)
    assert plan is not None

    driven.complete_step(plan, now_us=117)

    assert driven.stats().step_time_us == 17


def test_a_reset_is_refused_until_the_last_sequence_ends() -> None:
    driven = drive.engine(CONFIG)
    driven.add(drive.sequence("0", range(40), 2), now_us=0)
    drive.step(driven)
    cached = driven.cached_hashes()

    assert not driven.reset_prefix_cache()
    assert driven.cached_hashes() == cached != []
    drive.run(driven)

    assert driven.reset_prefix_cache()
    assert driven.cached_hashes() == []


def test_a_live_id_is_not_accepted_twice() -> None:
    driven: Engine = drive.engine(CONFIG)
    driven.add(drive.sequence("0", [1]), now_us=0)

    with pytest.raises(AssertionError, match="0 is live"):
        driven.add(drive.sequence("0", [1]), now_us=0)
