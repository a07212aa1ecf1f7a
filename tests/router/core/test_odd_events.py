"""Events that contradict themselves: whoever tells them harms no other replica, and not for long.

Hashes name whole prefixes, so that an honest replica never tells of one block after two parents.
"""

from hypothesis import given
from hypothesis import strategies as st

from contract.blocks import BlockHash
from router.core.prefix_index import PrefixIndex, slot_bit

HONEST, *ODD = range(3)
Told = tuple[str, int, list[BlockHash], BlockHash | None]
hashes = st.integers(1, 9).map(BlockHash)
blocks = st.lists(hashes, min_size=1, max_size=5)
stored = st.tuples(st.just("store"), st.sampled_from(ODD), blocks, st.none() | hashes)
removed = st.tuples(st.just("remove"), st.sampled_from(ODD), blocks, st.none())
others: st.SearchStrategy[Told] = st.tuples(
    st.sampled_from(["search", "clear"]), st.sampled_from(ODD), st.just([]), st.none()
)
events = st.lists(stored | removed | others, max_size=10)
PROMPT = [BlockHash(block) for block in range(1, 8)]


def play(index: PrefixIndex, told: list[Told]) -> None:
    for what, slot, of_blocks, parent in told:
        match what:
            case "store":
                index.store(slot, of_blocks, parent)
            case "remove":
                index.remove(slot, of_blocks)
            case "clear":
                index.clear(slot)
            case _:
                index.expire(0)


@given(events)
def test_nothing_is_left_of_any_events_once_all_is_cleared(
    told: list[Told],
) -> None:
    index = PrefixIndex(1_000, 1_000_000)
    for slot in (HONEST, *ODD):
        index.open_slot(slot, 256, None)

    play(index, told)
    for slot in ODD:
        index.clear(slot)

    assert index.num_entries == 0
    assert index.num_bytes == 0
    index.check()


@given(
    events,
    events,
)
def test_what_an_honest_replica_holds_is_known_beside_any_events_of_others(
    before: list[Told],
    after: list[Told],
) -> None:
    index = PrefixIndex(1_000, 1_000_000)
    for slot in (HONEST, *ODD):
        index.open_slot(slot, 256, None)

    play(index, before)
    index.store(HONEST, PROMPT[:5])
    play(index, after)

    assert index.match(PROMPT, [HONEST]) == {HONEST: 5}
    assert index.num_blocks(HONEST) == 5
    index.remove(HONEST, PROMPT[4:2:-1])
    assert index.match(PROMPT, [HONEST]) == {HONEST: 3}
    index.clear(HONEST)
    assert not index.find(PROMPT, slot_bit(HONEST))
    for slot in ODD:
        index.clear(slot)
    assert index.num_entries == 0
    index.check()
