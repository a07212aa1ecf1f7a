"""The union of several engines' caches, from their events alone."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from contract.blocks import BlockHash
from contract.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent
from replicas.server.shared_cache import SharedCache

A, B, C, D = (BlockHash(number) for number in range(1, 5))
NUM_RANKS = 3
BLOCKS = [BlockHash(number) for number in range(8)]


def applied(known: set[BlockHash], events: Sequence[KvEvent]) -> None:
    for event in events:
        match event:
            case BlockStored(block_hashes=hashes):
                assert not known & set(hashes), "stored twice"
                known |= set(hashes)
            case BlockRemoved(block_hashes=hashes):
                assert known >= set(hashes), "removed twice"
                known -= set(hashes)
            case AllBlocksCleared():
                known.clear()


def test_a_block_is_stored_by_the_first_rank_and_removed_by_the_last() -> None:
    cache = SharedCache()

    assert cache.merge(0, [BlockStored([A, B])]) == [BlockStored([A, B])]
    assert cache.merge(1, [BlockStored([A, B])]) == []
    assert cache.merge(0, [BlockRemoved([A, B])]) == []
    assert cache.merge(1, [BlockRemoved([B])]) == [BlockRemoved([B])]
    assert cache.hashes() == [A]


def test_what_is_left_of_a_chain_names_the_block_before_it() -> None:
    cache = SharedCache()
    cache.merge(0, [BlockStored([B], A)])

    merged = cache.merge(1, [BlockStored([A, B, C, D])])

    assert merged == [BlockStored([A]), BlockStored([C, D], B)]


def test_what_several_ranks_stored_of_one_chain_is_one_run() -> None:
    cache = SharedCache()
    cache.merge(0, [BlockStored([A, B, C])])
    cache.merge(1, [BlockStored([A, B]), BlockStored([D], B)])
    cache.merge(0, [BlockRemoved([C])])

    assert cache.runs() == [BlockStored([A, B, D])]


def test_a_reset_of_one_rank_takes_only_what_no_other_holds() -> None:
    cache = SharedCache()
    cache.merge(0, [BlockStored([A, B])])
    cache.merge(1, [BlockStored([B, C])])

    assert cache.merge(0, [AllBlocksCleared()]) == [BlockRemoved([A])]
    assert cache.merge(1, [AllBlocksCleared()]) == [AllBlocksCleared()]
    assert cache.hashes() == []


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[int, KvEvent]]:
    """Events of some ranks, each of which tells the truth about itself."""
    held: list[set[BlockHash]] = [set() for _ in range(NUM_RANKS)]
    history: list[tuple[int, KvEvent]] = []
    for rank in draw(st.lists(st.integers(0, NUM_RANKS - 1), max_size=25)):
        mine = held[rank]
        event: KvEvent
        match draw(st.sampled_from("ssrc")):
            case "s":
                new = draw(st.lists(st.sampled_from(BLOCKS), max_size=4, unique=True))
                new = [each for each in new if each not in mine]
                event = BlockStored(new, draw(st.none() | st.sampled_from(BLOCKS)))
                mine |= set(new)
            case "r":
                gone = [each for each in sorted(mine) if draw(st.booleans())]
                event = BlockRemoved(gone)
                mine -= set(gone)
            case _:
                event = AllBlocksCleared()
                mine.clear()
        history.append((rank, event))
    return history


@given(histories())
def test_merged_events_alone_rebuild_the_union(history: list[tuple[int, KvEvent]]) -> None:
    cache = SharedCache()
    truth: list[set[BlockHash]] = [set() for _ in range(NUM_RANKS)]
    seen: set[BlockHash] = set()

    for rank, event in history:
        match event:
            case BlockStored(block_hashes=hashes):
                truth[rank] |= set(hashes)
            case BlockRemoved(block_hashes=hashes):
                truth[rank] -= set(hashes)
            case AllBlocksCleared():
                truth[rank].clear()
        applied(seen, cache.merge(rank, [event]))

        assert seen == set.union(*truth) == set(cache.hashes())
        runs = [block for run in cache.runs() for block in run.block_hashes]
        assert sorted(runs) == sorted(seen)
