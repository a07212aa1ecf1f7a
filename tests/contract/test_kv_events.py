"""Numbered event batches: the gap rule, and the codec."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.blocks import BlockHash
from contract.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Continuity,
    KvEvent,
    KvEventBatch,
    KvSnapshot,
    continuity,
    decode_batch,
    decode_snapshot,
    encode_batch,
    encode_snapshot,
    in_runs,
    merged,
)

HASHES = st.lists(st.integers(0, 2**64 - 1).map(BlockHash), max_size=5)
EVENTS: st.SearchStrategy[list[KvEvent]] = st.lists(
    st.builds(BlockStored, HASHES, st.none() | st.integers(0, 2**64 - 1).map(BlockHash))
    | st.builds(BlockRemoved, HASHES)
    | st.builds(AllBlocksCleared)
)


@pytest.mark.parametrize(
    ("sequence", "expected"),
    [
        (5, Continuity.OLD),
        (6, Continuity.OLD),
        (7, Continuity.NEXT),
        (8, Continuity.GAP),
        (99, Continuity.GAP),
    ],
)
def test_batch_is_old_next_or_beyond_a_gap(sequence: int, expected: Continuity) -> None:
    assert continuity("i", 6, KvEventBatch("i", sequence, [])) is expected


@pytest.mark.parametrize("sequence", [0, 6, 7, 99])
def test_another_incarnation_is_a_restart_whatever_its_number(sequence: int) -> None:
    assert continuity("i", 6, KvEventBatch("j", sequence, [])) is Continuity.RESTART
    assert continuity(None, -1, KvSnapshot("j", sequence, [])) is Continuity.RESTART


@given(lost=st.sets(st.integers(1, 20)), doubled=st.sets(st.integers(0, 20)))
def test_reader_that_applies_only_what_is_next_never_skips_a_batch(
    lost: set[int], doubled: set[int]
) -> None:
    sent = [n for n in range(21) for _ in range(2 if n in doubled else 1) if n not in lost]

    last, applied = -1, []
    for n in sent:
        if continuity("i", last, KvEventBatch("i", n, [])) is Continuity.NEXT:
            applied.append(n)
            last = n

    assert applied == list(range(min(lost, default=21)))


@given(sequence=st.integers(0, 2**40), events=EVENTS)
def test_batch_survives_the_wire(sequence: int, events: list[KvEvent]) -> None:
    batch = KvEventBatch("i", sequence, events)

    assert decode_batch(encode_batch(batch)) == batch


@given(
    hashes=HASHES,
    lengths=st.lists(st.integers(1, 9), max_size=5),
    parents=st.lists(st.none() | st.integers(0, 2**64 - 1).map(BlockHash), max_size=5),
)
def test_snapshot_survives_the_wire(
    hashes: list[BlockHash], lengths: list[int], parents: list[BlockHash | None]
) -> None:
    snapshot = KvSnapshot("i", -1, hashes, lengths, parents)

    assert decode_snapshot(encode_snapshot(snapshot)) == snapshot
    assert [block for run in snapshot.runs() for block in run.block_hashes] == hashes


def test_snapshot_tells_its_runs_and_of_the_rest_each_block_alone() -> None:
    a, b, c, d, e = (BlockHash(number) for number in range(5))
    snapshot = KvSnapshot("i", 3, [a, b, c, d, e], [2, 1], [None, a])

    assert list(snapshot.runs()) == [
        BlockStored([a, b]),
        BlockStored([c], a),
        BlockStored([d]),
        BlockStored([e]),
    ]


def test_readers_and_writers_that_know_of_no_runs_understand_each_other() -> None:
    class Flat(msgspec.Struct):
        incarnation: str
        sequence: int
        block_hashes: list[int]

    written = encode_snapshot(KvSnapshot("i", 3, [BlockHash(1), BlockHash(2)], [2], [None]))
    flat = msgspec.msgpack.encode(Flat("i", 3, [1, 2]))

    assert msgspec.msgpack.decode(written, type=Flat) == Flat("i", 3, [1, 2])
    assert decode_snapshot(flat) == KvSnapshot("i", 3, [BlockHash(1), BlockHash(2)])
    assert encode_snapshot(KvSnapshot("i", 3, [BlockHash(1), BlockHash(2)])) == flat


@given(st.lists(st.builds(BlockStored, HASHES.filter(bool), st.none() | st.just(BlockHash(7)))))
def test_a_snapshot_of_runs_has_these_runs(runs: list[BlockStored]) -> None:
    assert list(KvSnapshot.of_runs("i", 3, runs).runs()) == runs


def test_blocks_that_follow_each_other_are_one_run_wherever_they_stand() -> None:
    a, b, c, d, e = map(BlockHash, range(1, 6))

    runs = in_runs([a, b, d, c, e], {a: None, d: None, c: b, e: c})

    assert runs == [BlockStored([a, b, c, e]), BlockStored([d])]


def test_the_second_that_follows_a_block_is_a_run_of_its_own() -> None:
    a, b, c = map(BlockHash, range(1, 4))

    assert in_runs([a, b, c], {a: None, b: a, c: a}) == [BlockStored([a, b]), BlockStored([c], a)]


def test_blocks_of_which_it_is_not_known_what_they_follow_are_alone() -> None:
    a, b, c, d = map(BlockHash, range(1, 5))

    assert in_runs([a, b], {}) == [BlockStored([a]), BlockStored([b])]
    assert in_runs([a, b, c, d], {c: None}) == [
        *(BlockStored([a]), BlockStored([b]), BlockStored([c, d])),
    ]


@pytest.mark.parametrize("length", [0, -1, "2", 1.5])
def test_a_run_of_no_length_is_no_snapshot(length: object) -> None:
    data = msgspec.msgpack.encode(
        {"incarnation": "i", "sequence": 0, "block_hashes": [1], "run_lengths": [length]}
    )

    with pytest.raises(msgspec.ValidationError):
        decode_snapshot(data)


FEW = st.lists(st.integers(1, 9).map(BlockHash), max_size=3, unique=True)
CLASHING: st.SearchStrategy[list[KvEvent]] = st.lists(
    st.builds(BlockStored, FEW, st.none() | st.integers(1, 9).map(BlockHash))
    | st.builds(BlockRemoved, FEW)
    | st.builds(AllBlocksCleared),
    max_size=12,
)


def held_after(events: list[KvEvent]) -> set[BlockHash]:
    held: set[BlockHash] = set()
    for event in events:
        match event:
            case BlockStored(block_hashes=blocks):
                held.update(blocks)
            case BlockRemoved(block_hashes=blocks):
                held.difference_update(blocks)
            case AllBlocksCleared():
                held.clear()
    return held


def links(events: list[KvEvent]) -> set[tuple[BlockHash | None, BlockHash]]:
    """Each stored block with the one before it."""
    return {
        link
        for event in events
        if isinstance(event, BlockStored)
        for link in zip([event.parent_hash, *event.block_hashes], event.block_hashes, strict=False)
    }


@given(CLASHING)
def test_merged_events_leave_what_they_left_one_by_one(events: list[KvEvent]) -> None:
    few = merged(events)

    assert len(few) <= len(events)
    assert held_after(few) == held_after(events)
    assert links(few) == links(events)


def test_chains_that_grow_in_turns_are_stored_once_each() -> None:
    a, b, c, d, e, f = map(BlockHash, range(1, 7))
    events: list[KvEvent] = [
        *(BlockStored([a], None), BlockStored([d], None), BlockRemoved([f])),
        *(BlockStored([b], a), BlockStored([e], d), BlockStored([c], b)),
    ]

    assert merged(events) == [
        BlockRemoved([f]),
        BlockStored([d, e], None),
        BlockStored([a, b, c], None),
    ]


def test_a_chain_that_is_told_twice_is_stored_twice() -> None:
    a, b = BlockHash(1), BlockHash(2)
    events: list[KvEvent] = [BlockStored([a, b]), BlockRemoved([BlockHash(3)]), BlockStored([b])]

    assert merged(events) == [BlockRemoved([BlockHash(3)]), BlockStored([a, b]), BlockStored([b])]


@pytest.mark.parametrize("wrong", [-1, -(2**63)])
def test_a_hash_below_zero_is_refused(wrong: int) -> None:
    """Readers keep 64 bits, so that they would look for it in vain when it is removed."""
    block = BlockHash(wrong)
    batches = [KvEventBatch("i", 0, [event([block])]) for event in (BlockStored, BlockRemoved)]
    batches.append(KvEventBatch("i", 0, [BlockStored([BlockHash(1)], block)]))

    for batch in batches:
        with pytest.raises(msgspec.ValidationError):
            decode_batch(encode_batch(batch))
    with pytest.raises(msgspec.ValidationError):
        decode_snapshot(encode_snapshot(KvSnapshot("i", 0, [block])))
