"""The block pool: what it gives out next, what it shares, and what its events say.

Order of reuse is checked by example here and against vLLM in test_replay.py; the laws that hold
under any traffic are in test_engine_laws.py.
"""

from contract.blocks import BlockHash
from contract.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from replicas.core.block_pool import BlockPool

A, B, C, D = BlockHash(11), BlockHash(22), BlockHash(33), BlockHash(44)


def pool_with_cached(*hashes: BlockHash, num_blocks: int = 8) -> BlockPool:
    """Blocks 1, 2, ... hold the chain ``hashes``; nobody holds them, and no event is left."""
    pool = BlockPool(num_blocks)
    blocks = pool.take(len(hashes))
    pool.seal(blocks, hashes, None)
    pool.release(blocks)
    pool.drain_events()
    return pool


def test_block_zero_is_never_given_out() -> None:
    pool = BlockPool(4)

    assert pool.take(3) == [1, 2, 3]
    assert pool.num_free == 0


def test_eviction_takes_the_end_of_a_prefix_before_its_beginning() -> None:
    pool = pool_with_cached(A, B, C, num_blocks=4)

    pool.take(1)

    assert pool.match([A, B, C], 3) == [1, 2]
    pool.check()


def test_a_block_that_caches_nothing_is_reused_before_any_other() -> None:
    pool = BlockPool(8)
    blocks = pool.take(3)
    pool.seal(blocks[:1], [A], None)

    pool.release(blocks)

    assert pool.free_queue() == [3, 2, 4, 5, 6, 7, 1]


def test_a_match_ends_at_the_first_block_that_is_not_cached() -> None:
    pool = pool_with_cached(A, B)

    assert pool.match([A, C, B], 3) == [1]
    assert pool.match([A, B], 1) == [1]
    assert pool.match([C], 1) == []


def test_sharing_a_cached_block_takes_it_out_of_the_queue() -> None:
    pool = pool_with_cached(A, B)
    assert pool.num_unheld([1, 2]) == 2

    pool.share([1])
    pool.share([1])

    assert pool.num_unheld([1, 2]) == 1
    assert 1 not in pool.free_queue()
    assert pool.references_total() == 2
    pool.check()


def test_a_shared_block_is_free_when_its_last_holder_releases_it() -> None:
    pool = pool_with_cached(A)
    prefix = pool.share([1])
    assert pool.share([1]) is prefix

    pool.release([1], prefix)
    held = pool.num_held
    pool.release([1], prefix)

    assert (held, pool.num_held) == (1, 0)
    assert pool.free_queue()[-1] == 1


def test_sealed_blocks_are_announced_as_one_chain_with_their_parent() -> None:
    pool = BlockPool(8)
    blocks = pool.take(2)

    pool.seal(blocks, [B, C], A)

    assert pool.drain_events() == [BlockStored([B, C], A)]
    assert pool.drain_events() == []


def test_an_answer_that_was_sealed_block_by_block_is_one_run_with_its_prompt() -> None:
    pool = BlockPool(8)
    first, *others, last = pool.take(4)
    pool.seal([first], [A], None)
    pool.seal([last], [D], None)
    for block, block_hash, parent in zip(others, [B, C], [A, B], strict=True):
        pool.seal([block], [block_hash], parent)

    assert pool.cached_hashes() == [A, D, B, C]
    assert pool.cached_runs() == [BlockStored([A, B, C]), BlockStored([D])]


def test_a_pool_that_keeps_no_events_tells_of_each_block_alone() -> None:
    pool = BlockPool(8, keep_events=False)
    pool.seal(pool.take(2), [A, B], None)

    assert pool.cached_runs() == [BlockStored([A]), BlockStored([B])]


def test_a_copy_is_not_announced_and_the_rest_of_its_chain_follows_it() -> None:
    pool = pool_with_cached(B)
    blocks = pool.take(3)

    pool.seal(blocks, [A, B, C], None)

    assert pool.drain_events() == [BlockStored([A], None), BlockStored([C], B)]
    assert pool.match([B], 1) == [1]


def test_a_hash_is_removed_only_with_its_last_copy() -> None:
    pool = BlockPool(3)
    first, second = pool.take(2)
    pool.seal([first], [A], None)
    pool.seal([second], [A], None)
    pool.release([first])
    pool.release([second])
    pool.drain_events()

    pool.take(1)
    after_one = pool.drain_events()
    shared = pool.match([A], 1)
    pool.take(1)
    after_both = pool.drain_events()

    assert (after_one, shared) == ([], [second])
    assert after_both == [BlockRemoved([A])]
    pool.check()


def test_evictions_of_one_take_are_one_event() -> None:
    pool = pool_with_cached(A, B, C, num_blocks=4)

    pool.take(2)

    assert pool.drain_events() == [BlockRemoved([C, B])]


def test_a_reset_is_refused_while_a_block_is_held() -> None:
    pool = pool_with_cached(A)
    pool.share([1])

    assert not pool.reset()

    assert pool.cached_hashes() == [A]
    assert pool.drain_events() == []


def test_a_reset_forgets_everything_and_keeps_the_order_of_reuse() -> None:
    pool = pool_with_cached(A, B)
    queue = pool.free_queue()

    assert pool.reset()

    assert pool.cached_hashes() == []
    assert pool.free_queue() == queue
    assert pool.drain_events() == [AllBlocksCleared()]
    pool.check()


def test_the_oldest_copy_that_is_left_is_the_one_shared() -> None:
    pool = BlockPool(4)
    blocks = pool.take(3)
    for block in blocks:
        pool.seal([block], [A], None)
    pool.release([1])
    pool.take(1)

    assert pool.match([A], 1) == [2]

    pool.release([2])
    pool.take(1)
    assert pool.match([A], 1) == [3]


def test_prefixes_of_two_lengths_hold_their_common_blocks_apart() -> None:
    pool = pool_with_cached(A, B, C)
    long, short = pool.share([1, 2, 3]), pool.share([1, 2])

    pool.release([1, 2, 3], long)
    pool.check()

    assert pool.num_held == 2
    assert pool.match([A, B, C], 3) == [1, 2, 3]
    pool.release([1, 2], short)
    assert pool.free_queue()[-3:] == [3, 2, 1]
    assert pool.references_total() == 0


def test_a_prefix_gives_back_what_follows_it_before_itself() -> None:
    pool = pool_with_cached(A, B, num_blocks=6)
    prefix = pool.share([1, 2])
    own = pool.take(2)
    pool.seal(own[:1], [C], B)

    pool.release([1, 2, *own], prefix)

    assert pool.free_queue() == [own[1], 5, own[0], 2, 1]
    pool.check()
