"""What bounds the index, and how it forgets: at once where that is quick, else by and by."""

from contract.blocks import BlockHash
from router.core.prefix_index import PARTS_PER_CALL, PrefixIndex
from router.core.told_parts import SEARCHED_PER_CALL
from tests.router.core.test_prefix_index import TTL_US, chain_of, learning_index

NUM_PARTS = 30 * SEARCHED_PER_CALL


def test_common_bound_evicts_the_oldest_over_all_slots() -> None:
    index = PrefixIndex(entries_max=4, prediction_ttl_us=TTL_US)
    for slot in (0, 1):
        index.open_slot(slot, 256, 100)
    index.expect(1, chain_of("ab"), 0, 1)
    index.expect(0, chain_of("cd"), 0, 2)

    index.expect(0, chain_of("e"), 0, 3)

    assert index.match(chain_of("ab"), [0, 1]) == {1: 1}
    assert index.match(chain_of("cd"), [0, 1]) == {0: 2}
    assert index.num_entries == 4


def test_events_beyond_the_bound_are_not_taken_in_but_never_believed_wrongly() -> None:
    index = PrefixIndex(entries_max=2, prediction_ttl_us=TTL_US)
    index.open_slot(0, 256, None)

    index.store(0, chain_of("abc"))

    assert index.match(chain_of("abc"), [0]) == {0: 2}
    assert index.evicted_total == 1
    index.check()


def test_size_returns_to_nothing_when_replicas_leave() -> None:
    index = PrefixIndex(1000, TTL_US)
    for slot in (0, 1):
        index.open_slot(slot, 256, None if slot else 100)
        index.expect(slot, chain_of("abab"), 0, 1)
        index.store(slot, chain_of("ba"))

    for slot in (0, 1):
        index.close_slot(slot)

    assert index.num_entries == 0
    index.check()


def test_a_cleared_slot_is_empty_at_once_though_its_parts_are_taken_out_by_and_by() -> None:
    index = learning_index(blocks_max=1000)
    for number in range(200):
        index.expect(0, [BlockHash(1_000_000 + number)], 0, number)

    index.clear(0)
    at_once = index.match([BlockHash(1_000_007)], [0])
    left = index.num_entries
    index.expect(0, [BlockHash(1_000_007)], 0, 201)
    index.expire(202)

    assert (at_once, left) == ({}, 200)
    assert index.match([BlockHash(1_000_007)], [0]) == {0: 1}
    assert index.num_entries == 1
    index.check()


def test_a_slot_cleared_again_and_again_keeps_nothing_of_before() -> None:
    index = learning_index(blocks_max=1000)
    for life in range(5):
        for number in range(100):
            index.expect(0, [BlockHash(1_000 * life + number)], 0, number)
        index.check()
        index.clear(0)

    assert all(not index.match([BlockHash(1_000 * life)], [0]) for life in range(5))
    index.check()


def test_bytes_are_bounded_under_a_flood_of_short_unique_prompts() -> None:
    index = PrefixIndex(10**9, TTL_US, bytes_max=100_000)
    for slot in range(4):
        index.open_slot(slot, 256, 10**9)

    for number in range(2_000):
        index.expect(number % 4, [BlockHash(number)], 0, number)
        assert index.num_bytes <= 100_000

    assert index.evicted_total > 1_500
    assert index.match([BlockHash(1_999)], [3]) == {3: 1}
    index.check()


def test_what_one_turn_forgets_is_bounded_over_all_slots_together() -> None:
    index = PrefixIndex(10**6, TTL_US)
    for slot in range(4):
        index.open_slot(slot, 256, None)
        for number in range(PARTS_PER_CALL):
            index.expect(slot, [BlockHash(1_000 * slot + number)], 0, 0)

    left = []
    for _ in range(5):
        index.expire(TTL_US)
        left.append(index.num_entries // PARTS_PER_CALL)

    assert left == [3, 2, 1, 0, 0]
    index.check()


def test_every_slot_has_its_turn_to_forget() -> None:
    index = PrefixIndex(10**6, TTL_US)
    for slot in range(2):
        index.open_slot(slot, 256, None)
        for number in range(10 * PARTS_PER_CALL):
            index.expect(slot, [BlockHash(10_000 * slot + number)], 0, 0)

    for _ in range(4):
        index.expire(TTL_US)

    assert index.num_blocks(0) == index.num_blocks(1) == 8 * PARTS_PER_CALL


def test_a_lane_that_is_cleared_a_third_time_gives_up_the_smaller_of_two_dead_ones() -> None:
    index = PrefixIndex(10**6, TTL_US)
    index.open_slot(0, 256, None)
    for size in (2_000, 300, 100):
        for number in range(size):
            index.store(0, [BlockHash(size * 10_000 + number)])
        index.clear(0)

    assert index.num_blocks(0) == 0
    assert 1_000 < index.num_entries < 2_000
    index.check()


def test_blocks_gone_from_the_middle_of_one_of_many_parts_are_found_by_and_by() -> None:
    index = PrefixIndex(10**6, TTL_US)
    index.open_slot(0, 256, None)
    for number in range(NUM_PARTS):
        index.store(0, [BlockHash(3 * number + each) for each in range(3)])

    for number in range(0, NUM_PARTS, 500):
        index.remove(0, [BlockHash(3 * number + 1)])
    for turn in range(2 * NUM_PARTS // PARTS_PER_CALL):
        index.expire(turn)

    for number in range(0, NUM_PARTS, 500):
        chain = [BlockHash(3 * number + each) for each in range(3)]
        assert index.match(chain, [0]) == {0: 1}
    assert index.num_entries == 3 * NUM_PARTS - 6
    index.check()


def test_a_part_that_grows_while_it_is_searched_loses_its_block_all_the_same() -> None:
    index = PrefixIndex(10**6, TTL_US)
    index.open_slot(0, 256, None)
    chain = [BlockHash(10**6 + each) for each in range(4)]
    index.store(0, chain[:3])
    for number in range(NUM_PARTS):
        index.store(0, [BlockHash(number)])

    index.remove(0, chain[1:2])
    index.store(0, chain[3:], chain[2])
    for turn in range(50):
        index.expire(turn)

    assert index.match(chain, [0]) == {0: 1}
    index.check()


def test_a_block_told_again_while_it_is_searched_for_is_believed() -> None:
    index = PrefixIndex(10**6, TTL_US)
    index.open_slot(0, 256, None)
    chain = [BlockHash(10**6 + each) for each in range(3)]
    index.store(0, chain)
    for number in range(NUM_PARTS):
        index.store(0, [BlockHash(number)])

    index.remove(0, chain[1:2])
    index.store(0, chain[1:], chain[0])
    for turn in range(50):
        index.expire(turn)

    assert index.match(chain, [0]) == {0: 3}
    index.check()


def test_a_prediction_that_was_evicted_before_it_was_all_told_ends_with_its_time() -> None:
    """The engine computed "abc", forgot "b" and never told of "c": an error, but not for long."""
    index = PrefixIndex(1000, TTL_US)
    index.open_slot(0, 256, None)
    index.expect(0, chain_of("abc"), 0, now_us=0)
    index.store(0, chain_of("ab"))
    index.remove(0, chain_of("ab")[1:])
    believed = index.match(chain_of("abc"), [0])

    index.expire(TTL_US)

    assert believed == {0: 3}
    assert index.match(chain_of("abc"), [0]) == {0: 1}


def test_an_answer_that_denies_a_prediction_of_a_publisher_is_healed_by_the_next_event() -> None:
    index = PrefixIndex(1000, TTL_US)
    index.open_slot(0, 256, None)
    index.store(0, chain_of("ab"))
    index.expect(0, chain_of("abcd"), 2, now_us=0)
    index.correct(0, chain_of("abcd"), 2)
    denied = index.match(chain_of("abcd"), [0])

    index.store(0, chain_of("abcd")[2:], chain_of("ab")[-1])

    assert denied == {0: 2}
    assert index.match(chain_of("abcd"), [0]) == {0: 4}


def test_room_is_what_a_cache_takes_in_before_it_forgets() -> None:
    index = PrefixIndex(1000, TTL_US)
    index.open_slot(0, 256, 5, cache_blocks=5)
    index.open_slot(1, 256, None, cache_blocks=5)
    index.open_slot(2, 256, None)

    index.expect(0, chain_of("abab"), 0, 1)
    index.store(1, chain_of("abababab"))

    assert [index.room(slot) for slot in range(3)] == [1, 0, 0]
