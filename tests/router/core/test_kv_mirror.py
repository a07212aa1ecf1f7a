"""Snapshots that are taken in by slices, and what may happen between two of them."""

import pytest

from contract.blocks import BlockHash
from contract.kv_events import BlockRemoved, BlockStored, KvEventBatch, KvSnapshot
from router.core.fleet import FleetState
from router.core.kv_mirror import SNAPSHOT_SLICE_BLOCKS
from router.core.prefix_index import BLOCK_COST_BYTES, PART_BYTES
from tests.router.core.making import make_fleet, view_of, with_events

BLOCKS = [BlockHash(10_000 + n) for n in range(3 * SNAPSHOT_SLICE_BLOCKS)]
SNAPSHOT = KvSnapshot("first", 7, BLOCKS)


def telling_fleet() -> FleetState:
    fleet = make_fleet()
    fleet.on_report(with_events("a"), 0, 0)
    fleet.on_kv_batch("a", KvEventBatch("first", 0, [BlockStored([BlockHash(1)])]), 0)
    return fleet


def confirmed(fleet: FleetState) -> frozenset[BlockHash]:
    return fleet.index.confirmed(view_of(fleet, "a").slot)


def test_a_snapshot_in_slices_is_in_sync_with_its_last_one() -> None:
    fleet = telling_fleet()

    results = list(fleet.load_kv_snapshot("a", SNAPSHOT, 0))

    assert results == [False, False, True]
    assert confirmed(fleet) == set(BLOCKS)
    assert fleet.on_kv_batch("a", KvEventBatch("first", 8, [BlockRemoved(BLOCKS[:1])]), 0)
    assert confirmed(fleet) == set(BLOCKS[1:])


def test_an_empty_snapshot_forgets_all() -> None:
    fleet = telling_fleet()

    assert fleet.on_kv_snapshot("a", KvSnapshot("first", 7, []), 0)
    assert confirmed(fleet) == frozenset()


def test_a_snapshot_in_runs_is_in_slices_too_and_takes_less_memory() -> None:
    flat, in_runs = telling_fleet(), telling_fleet()
    flat.on_kv_snapshot("a", SNAPSHOT, 0)
    long = len(BLOCKS) - 30
    answer = [BLOCKS[long - 1 + number] for number in range(30)]  # what each of the last follows
    runs = KvSnapshot("first", 7, BLOCKS, [long, *[1] * 30], [None, *answer])

    results = list(in_runs.load_kv_snapshot("a", runs, 0))

    assert results == [False, False, True]
    assert confirmed(in_runs) == confirmed(flat) == set(BLOCKS)
    assert in_runs.index.num_bytes == len(BLOCKS) * BLOCK_COST_BYTES + PART_BYTES  # one part
    assert in_runs.index.num_bytes < flat.index.num_bytes / 10
    in_runs.index.check()


@pytest.mark.parametrize("accident", ["restart", "removal"])
def test_a_snapshot_is_given_up_when_its_process_goes_between_two_slices(accident: str) -> None:
    fleet = telling_fleet()
    slices = fleet.load_kv_snapshot("a", SNAPSHOT, 0)
    next(slices)

    if accident == "restart":
        fleet.on_report(with_events("a", 0, incarnation="second"), 0, 1)
    else:
        fleet.remove("a")
    list(slices)
    fleet.tick(2)  # which takes out what is dead

    assert fleet.index.num_entries == 0
    fleet.index.check()


def test_blocks_told_gone_one_by_one_from_the_front_are_gone() -> None:
    """As an engine does that forgets a leaf of its radix tree page by page."""
    fleet = telling_fleet()
    fleet.on_kv_batch("a", KvEventBatch("first", 1, [BlockStored(BLOCKS[:8])]), 0)
    removals = [BlockRemoved([block]) for block in BLOCKS[2:8]]

    fleet.on_kv_batch("a", KvEventBatch("first", 2, list(removals)), 0)

    assert confirmed(fleet) == {BlockHash(1), *BLOCKS[:2]}
    fleet.index.check()
