"""Numbered event batches: the gap rule, and the codec."""

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


@given(hashes=HASHES)
def test_snapshot_survives_the_wire(hashes: list[BlockHash]) -> None:
    snapshot = KvSnapshot("i", -1, hashes)

    assert decode_snapshot(encode_snapshot(snapshot)) == snapshot
