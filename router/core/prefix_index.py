"""Which replica is believed to hold which blocks of which prompt.

    runs          who holds which blocks: ``router.core.block_runs``, one look-up for each run
    slot.told     what the replica's own events report
    slot.sends    what was sent there and is not told of yet

On a slot without events the sends are what we learn: they stay until the replica's own capacity
pushes them out, least recently used first. On a slot with events they are predictions, which keep
the siblings of one burst together before the first event; each ends with the event that tells of
its last block, or expires.

A slot has four bits, its lanes: two for what was told and two for what was sent. Only one of each
two is live. To clear a slot makes the other one live, at once; the old parts are taken out of the
runs a few at a time, because a cache of many short prompts would take too long.

Invariant: a lane's bit is set on exactly the blocks of that lane's parts, each of which is in one
part; ``check()`` executes it. All slots together are bounded, in blocks and in bytes.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count

from contract.blocks import BlockHash
from router.core.block_runs import BLOCK_BYTES, BlockRuns, num_blocks, pack, unpack
from router.core.sends import Sends
from router.core.told_parts import ToldParts

LANES = 4
PARTS_PER_CALL = 250
"""Parts forgotten at most for one reason in one call, about a millisecond; others follow later."""

SHED_BESIDE = 2
"""Parts of dead lanes taken out with each one that comes, so that these are gone before it is."""

CLEARED_AT_ONCE_MAX = 64
PART_BYTES = 600
"""Memory of one part and its run beyond their blocks, at most: 200 to 480 were measured."""

BLOCK_COST_BYTES = 2 * BLOCK_BYTES  # in a run and in a part

_UNBOUNDED = 1 << 62


@dataclass(slots=True, eq=False)
class _Slot:
    told: ToldParts
    sends: Sends
    block_bytes: int
    learned_blocks_max: int | None = None  # None: predictions only, which expire
    cache_blocks: int = 0  # what the replica's cache holds; 0: not known
    forgotten_us: int = -1  # what was not used after this goes
    is_queued: bool = False  # in the index's heap
    epoch: int = 0  # see ``PrefixIndex.epoch``
    reserved_blocks: int = 0  # of the cache, for what is not known here


@dataclass(slots=True)
class Match:
    """So many leading blocks, and the slots that have no more of them, as ``slot_bit`` has them."""

    num_blocks: int
    slots: int


def slot_bit(slot: int) -> int:
    """Return the bit that stands for a slot in the bit sets of ``find``."""
    return 1 << LANES * slot


def slots_of(bits: int) -> Iterator[int]:
    """Yield the slots of a bit set, lowest first."""
    while bits:
        lowest = bits & -bits
        yield (lowest.bit_length() - 1) // LANES
        bits ^= lowest


class PrefixIndex:
    """Believed contents of every replica's prefix cache, by slot."""

    def __init__(
        self, entries_max: int, prediction_ttl_us: int, bytes_max: int = _UNBOUNDED
    ) -> None:
        assert entries_max > 0
        self.evicted_total = 0  # blocks forgotten, or not taken in, for lack of room
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._prediction_ttl_us = prediction_ttl_us
        self._runs = BlockRuns()
        self._slots: dict[int, _Slot] = {}
        self._live = 0  # the live lanes of all slots
        self._dying: deque[ToldParts | Sends] = deque()  # what cleared lanes have left
        self._by_age: list[tuple[int, int]] = []  # heap: a time before the oldest send, its slot
        self._num_turns = 0  # of ``expire``
        self._epochs = count(1)
        self._chain: Sequence[BlockHash] = ()  # the last one that was packed
        self._packed = b""

    @property
    def num_entries(self) -> int:
        """Blocks known, over all slots."""
        return self._runs.num_held

    @property
    def num_bytes(self) -> int:
        """Memory that they take, estimated from the numbers of blocks and parts."""
        return self._runs.num_held * BLOCK_COST_BYTES + self._runs.num_parts * PART_BYTES

    def find(self, chain: Sequence[BlockHash], slots: int) -> list[Match]:
        """Return how many leading blocks each of ``slots`` has, shortest first; none without any.

        A block counts only if all before it count for the same slot. Whole runs are jumped over:
        events may leave holes in a prefix, but never within a run.
        """
        matches: list[Match] = []
        alive, live, depth = slots, self._live, 0
        for blocks, holders in self._runs.follow(chain, self._pack(chain)):
            # A slot goes on if one of its lanes does: fold its four bits into the first.
            lanes = holders & live
            lanes |= lanes >> 2
            still = (lanes | lanes >> 1) & alive
            if still != alive:
                if depth:
                    matches.append(Match(depth, alive & ~still))
                if not still:
                    return matches
                alive = still
            depth += len(blocks) // BLOCK_BYTES
        if depth:
            matches.append(Match(depth, alive))
        return matches

    def match(self, chain: Sequence[BlockHash], slots: Iterable[int]) -> dict[int, int]:
        """Return the number of leading blocks of those of ``slots`` that have any."""
        found = self.find(chain, sum(map(slot_bit, slots)))
        return {slot: match.num_blocks for match in found for slot in slots_of(match.slots)}

    def open_slot(
        self, slot: int, block_bytes: int, learned_blocks_max: int | None, cache_blocks: int = 0
    ) -> None:
        """Begin to track a replica, or change how; ``None`` for one whose events will tell.

        ``cache_blocks``: what its cache holds, 0 if that is not known; it bounds nothing here.
        """
        state = self._slots.get(slot)
        if state is None:
            told = ToldParts(self._runs, self._open_lane(slot_bit(slot)))
            sends = self._new_sends(slot, learned_blocks_max)
            state = _Slot(told, sends, block_bytes, learned_blocks_max, cache_blocks)
            self._slots[slot] = state
            state.epoch = next(self._epochs)
            return
        learned = state.learned_blocks_max is not None
        if learned != (learned_blocks_max is not None) or state.block_bytes != block_bytes:
            self.clear(slot)  # known in other blocks, or under another rule
            state.sends.are_predictions = learned_blocks_max is None
        state.block_bytes = block_bytes
        state.learned_blocks_max = learned_blocks_max
        state.cache_blocks = cache_blocks
        self._trim(state)

    def close_slot(self, slot: int) -> None:
        """Forget a replica altogether."""
        self.clear(slot)
        state = self._slots.pop(slot)
        self._live &= ~(state.told.bit | state.sends.bit)
        self._by_age = [entry for entry in self._by_age if entry[1] != slot]
        heapify(self._by_age)

    def clear(self, slot: int) -> None:
        """Forget all blocks of a replica: its cache was reset, or it is a new process."""
        self.clear_told(slot)
        state = self._slots[slot]
        state.epoch = next(self._epochs)
        if len(state.sends):
            self._bury(state.sends)
            state.sends = self._new_sends(slot, state.learned_blocks_max)

    def store(
        self, slot: int, blocks: Sequence[BlockHash], parent: BlockHash | None = None
    ) -> None:
        """Take in that the replica holds ``blocks``, each the child of the one before."""
        state = self._slots[slot]
        state.sends.come_true(blocks)
        if self._dying:
            self._shed(SHED_BESIDE)
        room = self._make_room(len(blocks), 1)
        if room < len(blocks):
            self.evicted_total += len(blocks) - room  # to know less is safe
            blocks = blocks[:room]
        if blocks:
            state.told.store(blocks, parent)

    def remove(self, slot: int, blocks: Sequence[BlockHash]) -> None:
        """Take in that the replica no longer holds ``blocks``."""
        self._slots[slot].told.remove(blocks)

    def clear_told(self, slot: int) -> None:
        """Forget what events told. Predictions stay."""
        state = self._slots[slot]
        if len(state.told):
            self._bury(state.told)
            state.told = ToldParts(self._runs, self._open_lane(slot_bit(slot)))

    def expect(
        self, slot: int, chain: Sequence[BlockHash], matched_blocks: int, now_us: int
    ) -> int | None:
        """Note that ``chain`` was sent to the replica, which already held ``matched_blocks``.

        Returns when the last block that was learned of it was used before; None if none was.
        """
        state = self._slots[slot]
        packed = self._pack(chain)
        if self._dying:
            self._shed(SHED_BESIDE)
        last_used_us = None
        if state.learned_blocks_max is not None:
            last_used_us = state.sends.use(chain, packed, now_us)
        elif matched_blocks < len(chain):
            state.sends.add(chain, packed, matched_blocks * BLOCK_BYTES, now_us)
        if not state.is_queued and len(state.sends):
            state.is_queued = True
            heappush(self._by_age, (now_us, slot))
        self._trim(state)
        return last_used_us

    def correct(self, slot: int, chain: Sequence[BlockHash], cached_blocks: int) -> None:
        """Forget what was predicted or learned of ``chain`` beyond ``cached_blocks``."""
        self._slots[slot].sends.cut(chain, cached_blocks)

    def forget_older(self, slot: int, last_used_us: int) -> None:
        """Forget learned blocks not used after ``last_used_us``: a later one was evicted."""
        state = self._slots[slot]
        if state.learned_blocks_max is not None:
            state.forgotten_us = max(state.forgotten_us, last_used_us)
            state.sends.drop_until(state.forgotten_us, PARTS_PER_CALL)

    def expire(self, now_us: int) -> None:
        """Forget predictions that no event has confirmed in time, and what is left to forget."""
        parts_left = PARTS_PER_CALL
        states = list(self._slots.values())
        self._num_turns += 1
        begin = self._num_turns % max(1, len(states))  # whose turn it is to be served first
        for state in states[begin:] + states[:begin]:
            if state.learned_blocks_max is None:
                state.forgotten_us = now_us - self._prediction_ttl_us
            before = len(state.sends)
            state.sends.drop_until(state.forgotten_us, parts_left)
            self._trim(state, parts_left)
            parts_left -= before - len(state.sends) + state.told.search(parts_left)
        self._shed(parts_left)

    def num_blocks(self, slot: int) -> int:
        """Return how many blocks the replica is believed to hold; one both told and sent is two."""
        state = self._slots[slot]
        return state.told.num_blocks + state.sends.num_blocks

    def room(self, slot: int) -> int:
        """Return how many blocks the replica takes in before it forgets any; 0 if not known."""
        state = self._slots[slot]
        return max(0, state.cache_blocks - state.reserved_blocks - self.num_blocks(slot))

    def is_overfull(self, slot: int) -> bool:
        """Say whether more was told of than twice what the cache holds, if that is known."""
        state = self._slots[slot]
        return 0 < 2 * state.cache_blocks < state.told.num_blocks

    def reserve(self, slot: int, num_blocks: int) -> None:
        """Leave room for so many blocks of which nothing is known yet; at most for half."""
        state = self._slots[slot]
        state.reserved_blocks = min(num_blocks, (state.learned_blocks_max or 0) // 2)

    def epoch(self, slot: int) -> int | None:
        """Return a number that changes whenever the slot is cleared; None if it is closed."""
        state = self._slots.get(slot)
        return None if state is None else state.epoch

    def confirmed(self, slot: int) -> frozenset[BlockHash]:
        """Return the blocks that the replica's own events report, a copy."""
        return frozenset(BlockHash(b) for part in self._slots[slot].told for b in unpack(part))

    def check(self) -> None:
        """Assert this file's invariant and the bounds."""
        parts = [(part, lane.bit) for lane in self._dying for part in lane]
        for state in self._slots.values():
            learned_max = state.learned_blocks_max
            assert learned_max is None or not len(state.told)
            assert learned_max is None or state.sends.num_blocks <= learned_max
            for lane in (state.told, state.sends):
                assert lane.num_blocks == sum(map(num_blocks, lane))
                assert lane.bit & self._live
                parts += [(part, lane.bit) for part in lane]
        assert len(parts) == self._runs.num_parts
        expected: dict[int, int] = {}
        for part, bit in parts:
            for block in unpack(part):
                assert not expected.get(block, 0) & bit, "in two parts of one lane"
                expected[block] = expected.get(block, 0) | bit
        found: dict[int, int] = {}
        for blocks, holders in self._runs:
            for block in unpack(blocks):
                found[block] = found.get(block, 0) | holders
        assert found == expected
        assert self.num_entries == sum(bits.bit_count() for bits in expected.values())
        assert self.num_entries <= self._entries_max

    def _pack(self, chain: Sequence[BlockHash]) -> bytes:
        """Return a chain packed; `decide()` looks the same one up and then sends it."""
        if chain is not self._chain:
            self._packed = pack(chain)
            self._chain = chain
        return self._packed

    def _new_sends(self, slot: int, learned_blocks_max: int | None) -> Sends:
        bit = self._open_lane(slot_bit(slot) << 2)
        return Sends(self._runs, bit, are_predictions=learned_blocks_max is None)

    def _open_lane(self, first: int) -> int:
        """Return one of the two lanes from ``first`` on, and make it live: nobody is in it."""
        bit = first
        dying = [lane for lane in self._dying if lane.bit in (first, first << 1)]
        if len(dying) == 1 and dying[0].bit == first:
            bit = first << 1
        elif len(dying) == 2:
            smaller = min(dying, key=len)  # the third clear since the last one was taken out
            smaller.shed(len(smaller))
            self._dying.remove(smaller)
            bit = smaller.bit
        self._live |= bit
        return bit

    def _bury(self, lane: ToldParts | Sends) -> None:
        """Let a lane die: at once if it is small."""
        self._live &= ~lane.bit
        if len(lane) <= CLEARED_AT_ONCE_MAX:
            lane.shed(len(lane))
        else:
            self._dying.append(lane)

    def _shed(self, num_parts: int) -> None:
        """Take out so many parts of dead lanes."""
        while self._dying and num_parts > 0:
            lane = self._dying[0]
            before = len(lane)
            lane.shed(num_parts)
            num_parts -= before - len(lane)
            if not len(lane):
                self._dying.popleft()

    def _trim(self, state: _Slot, num_parts_max: int = PARTS_PER_CALL) -> None:
        """Bring the slot under its own bound and the index under the common one."""
        if state.learned_blocks_max is not None:
            over = state.sends.num_blocks + state.reserved_blocks - state.learned_blocks_max
            if over > 0:
                self.evicted_total += state.sends.evict(over, num_parts_max)
        runs = self._runs
        num_bytes = runs.num_held * BLOCK_COST_BYTES + runs.num_parts * PART_BYTES
        if runs.num_held > self._entries_max or num_bytes > self._bytes_max:
            self._make_room(0, 0)

    def _make_room(self, num_wanted: int, num_parts: int) -> int:
        """Evict the oldest sends of all slots until so much fits; return how many blocks do."""
        runs = self._runs
        parts_left = PARTS_PER_CALL
        while True:
            bytes_left = self._bytes_max - self.num_bytes - num_parts * PART_BYTES
            room = min(self._entries_max - runs.num_held, bytes_left // BLOCK_COST_BYTES)
            if room >= num_wanted or not parts_left:
                return max(0, min(room, num_wanted))
            parts_left -= 1
            if self._dying:
                self._shed(1)
                continue
            oldest = self._oldest()
            if oldest is None:
                return max(0, min(room, num_wanted))
            self.evicted_total += oldest.evict(num_wanted - room, 1)

    def _oldest(self) -> Sends | None:
        """Return the sends of the slot whose oldest one is oldest; None if there are none.

        The heap knows of each slot with sends a time that is not after its oldest: that can only
        have been used again, or evicted, since the entry was made.
        """
        heap = self._by_age
        while heap:
            known_us, slot = heap[0]
            state = self._slots[slot]
            oldest_us = state.sends.oldest_us
            if oldest_us is None:
                state.is_queued = False
                heappop(heap)
            elif oldest_us > known_us:
                heapreplace(heap, (oldest_us, slot))
            else:
                return state.sends
        return None
