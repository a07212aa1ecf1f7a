"""Snapshots that are taken in by slices, and what may happen between two of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.blocks import BlockHash, next_block, root_hash
from contract.kv_events import (
    BlockRemoved,
    BlockStored,
    KvEvent,
    KvEventBatch,
    KvSnapshot,
    decode_snapshot,
    encode_snapshot,
    in_runs,
)
from router.core.fleet import FleetState
from router.core.kv_mirror import RUN_COST_BLOCKS, SNAPSHOT_SLICE_BLOCKS
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

    num_slices = len(BLOCKS) * (1 + RUN_COST_BLOCKS) // SNAPSHOT_SLICE_BLOCKS
    assert results == [*[False] * (num_slices - 1), True]
    assert confirmed(fleet) == set(BLOCKS)
    assert fleet.on_kv_batch("a", KvEventBatch("first", 8, [BlockRemoved(BLOCKS[:1])]), 0)
    assert confirmed(fleet) == set(BLOCKS[1:])


def test_an_empty_snapshot_forgets_all() -> None:
    fleet = telling_fleet()

    assert fleet.on_kv_snapshot("a", KvSnapshot("first", 7, []), 0)
    assert confirmed(fleet) == frozenset()


def test_a_snapshot_in_runs_is_in_slices_too_and_takes_less_memory() -> None:
    flat, as_runs = telling_fleet(), telling_fleet()
    flat.on_kv_snapshot("a", SNAPSHOT, 0)
    long = len(BLOCKS) - 30
    answer = [BLOCKS[long - 1 + number] for number in range(30)]  # what each of the last follows
    runs = KvSnapshot("first", 7, BLOCKS, [long, *[1] * 30], [None, *answer])

    results = list(as_runs.load_kv_snapshot("a", runs, 0))

    num_slices = (long + 30 * (1 + RUN_COST_BLOCKS)) // SNAPSHOT_SLICE_BLOCKS
    assert results == [*[False] * num_slices, True]
    assert confirmed(as_runs) == confirmed(flat) == set(BLOCKS)
    assert as_runs.index.num_bytes == len(BLOCKS) * BLOCK_COST_BYTES + PART_BYTES  # one part
    assert as_runs.index.num_bytes < flat.index.num_bytes / 10
    as_runs.index.check()


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


class Cache:
    """What an engine does that caches prompts and forgets them from their ends."""

    def __init__(self) -> None:
        self.events: list[KvEvent] = []
        self.blocks: dict[BlockHash, None] = {}  # in the order in which they were stored
        self.parents: dict[BlockHash, BlockHash | None] = {}
        self.prompts: list[list[BlockHash]] = []

    def store(self, prompt: list[BlockHash], num_at_once: int) -> None:
        """Compute what is missing of a prompt, so many blocks in a step."""
        self.prompts.append(prompt)
        at = sum(block in self.blocks for block in prompt)
        while at < len(prompt):
            run = prompt[at : at + num_at_once]
            parent = prompt[at - 1] if at else None
            self.events.append(BlockStored(run, parent))
            self.blocks.update(dict.fromkeys(run))
            self.parents[run[0]] = parent
            at += len(run)

    def forget(self, prompt: list[BlockHash], num_blocks: int) -> None:
        """Evict so many blocks of a prompt, if no other goes on from them."""
        held = [block for block in prompt if block in self.blocks]
        others = {b for other in self.prompts if other != prompt for b in other}
        gone = [block for block in held[::-1][:num_blocks] if block not in others]
        if gone:
            self.events.append(BlockRemoved(gone))
        for block in gone:
            del self.blocks[block]
            self.parents.pop(block, None)


@st.composite
def caches(draw: st.DrawFn) -> Cache:
    cache = Cache()
    letters = st.lists(st.sampled_from([b"a", b"b"]), min_size=1, max_size=9)
    for _ in range(draw(st.integers(0, 12))):
        prompt, parent = [], root_hash("m")
        for letter in draw(letters):
            parent = next_block(parent, letter)
            prompt.append(parent)
        cache.store(prompt, draw(st.integers(1, 4)))
        if draw(st.booleans()):
            forgotten = draw(st.sampled_from(cache.prompts))
            cache.forget(forgotten, draw(st.integers(1, 9)))
    return cache


@given(caches())
def test_a_snapshot_that_was_written_and_read_is_the_index_that_its_events_make(
    cache: Cache,
) -> None:
    by_events, by_runs, flat = (telling_fleet() for _ in range(3))
    runs = KvSnapshot.of_runs("first", 1, in_runs(list(cache.blocks), cache.parents))

    by_events.on_kv_batch("a", KvEventBatch("first", 1, [BlockRemoved([BlockHash(1)])]), 0)
    by_events.on_kv_batch("a", KvEventBatch("first", 2, cache.events), 0)
    by_runs.on_kv_snapshot("a", decode_snapshot(encode_snapshot(runs)), 0)
    flat.on_kv_snapshot("a", KvSnapshot("first", 1, list(cache.blocks)), 0)

    slot = view_of(by_events, "a").slot
    for fleet in (by_events, by_runs, flat):
        assert confirmed(fleet) == set(cache.blocks)
        for prompt in cache.prompts:
            expected = sum(block in cache.blocks for block in prompt)
            assert fleet.index.match(prompt, [slot]).get(slot, 0) == expected
        fleet.index.check()
    assert by_runs.index.num_bytes <= min(by_events.index.num_bytes, flat.index.num_bytes)


def test_who_tells_of_more_than_fits_is_out_of_step_and_leaves_room_for_others() -> None:
    fleet = make_fleet(index_entries_max=1_000)
    for replica_id in "ab":
        fleet.on_report(with_events(replica_id, kv_blocks_total=100), 0, 0)
    in_step = True

    for number in range(300):  # without ever removing one
        stored: list[KvEvent] = [BlockStored([BlockHash(1_000 * number + n) for n in range(5)])]
        in_step &= fleet.on_kv_batch("a", KvEventBatch("first", number, stored), 0)
    honest: list[KvEvent] = [BlockStored([BlockHash(n + 1) for n in range(80)])]
    fleet.on_kv_batch("b", KvEventBatch("first", 0, honest), 0)

    believed = {status.view.replica_id: status.believed_blocks for status in fleet.views()}
    assert not in_step
    assert believed == {"a": 0, "b": 80}
    snapshot = KvSnapshot("first", 299, [BlockHash(n + 1) for n in range(80)])
    assert fleet.on_kv_snapshot("a", snapshot, 0)
    fleet.check()
