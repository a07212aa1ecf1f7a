"""Which replica is believed to hold which blocks of which prompt.

    believed[block] = bit set of the slots that hold it     one look-up per block
    slot.confirmed  = blocks that the replica's own events report
    slot.owner      = blocks that were sent there -> the send that brought them
    slot.sends      = those sends, least recently used first

A send is the part of one prompt that the replica did not have; what came before it belongs to
earlier sends. On a slot without events the sends are what we learn: they stay until the replica's
own capacity pushes them out. On a slot with events they are predictions, which keep the siblings
of one burst together before the first event, and expire.

Whenever a prompt rests on learned sends, these are moved behind it in the queue, the first send
last; one that it uses in part is split there, as in a radix tree. So the end of a prefix always
goes before its beginning, and a hot prefix costs one move per send, not one per block.

Invariant: bit ``s`` of ``believed[block]`` is set exactly when ``block`` is confirmed or owned on
slot ``s``, never both; ``check()`` executes it. All slots together are bounded.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby, repeat

from contract.blocks import BlockHash


@dataclass(slots=True, eq=False)
class _Send:
    """Consecutive blocks that one prompt brought, some of which may be confirmed by now."""

    blocks: list[BlockHash]
    start: int  # place of the first of them in its chain
    used_us: int


@dataclass(slots=True)
class _Slot:
    bit: int
    block_bytes: int
    learned_blocks_max: int | None = None  # None: predictions only, which expire
    confirmed: set[BlockHash] = field(default_factory=set)
    owner: dict[BlockHash, _Send] = field(default_factory=dict)
    sends: OrderedDict[_Send, None] = field(default_factory=OrderedDict)  # by used_us


class PrefixIndex:
    """Believed contents of every replica's prefix cache, by slot."""

    def __init__(self, entries_max: int, prediction_ttl_us: int) -> None:
        assert entries_max > 0
        self.num_entries = 0  # (block, slot) pairs
        self.evicted_total = 0  # forgotten, or not taken in, for lack of room
        self._entries_max = entries_max
        self._prediction_ttl_us = prediction_ttl_us
        self._believed: dict[BlockHash, int] = {}
        self._slots: dict[int, _Slot] = {}

    def match(self, chain: Sequence[BlockHash], slots: int) -> dict[int, int]:
        """Return, for each of the ``slots`` (a bit set) with any, its number of leading blocks.

        A block counts only if all before it count for the same slot. Block by block: events may
        leave holes in a prefix, so no jump over unseen blocks would be safe.
        """
        matched: dict[int, int] = {}
        alive = slots
        depth = 0
        # Neighbours mostly have the same holders: a run of them costs one step of this loop.
        for holders, run in groupby(map(self._believed.get, chain, repeat(0))):
            still = holders & alive
            if still != alive:
                if depth:
                    _note(matched, alive & ~still, depth)
                if not still:
                    return matched
                alive = still
            depth += len(list(run))
        if depth:
            _note(matched, alive, depth)
        return matched

    def open_slot(self, slot: int, block_bytes: int, learned_blocks_max: int | None) -> None:
        """Begin to track a replica, or change how; ``None`` for one whose events will tell."""
        state = self._slots.get(slot)
        if state is None:
            self._slots[slot] = _Slot(1 << slot, block_bytes, learned_blocks_max)
            return
        learned = state.learned_blocks_max is not None
        if learned != (learned_blocks_max is not None) or state.block_bytes != block_bytes:
            self.clear(slot)  # known in other blocks, or under another rule
        state.block_bytes = block_bytes
        state.learned_blocks_max = learned_blocks_max
        self._trim(state)

    def close_slot(self, slot: int) -> None:
        """Forget a replica altogether."""
        self.clear(slot)
        del self._slots[slot]

    def clear(self, slot: int) -> None:
        """Forget all blocks of a replica: its cache was reset, or it is a new process."""
        state = self._slots[slot]
        self._unset(state, state.confirmed)
        self._unset(state, state.owner)
        state.confirmed.clear()
        state.owner.clear()
        state.sends.clear()

    def store(self, slot: int, blocks: Iterable[BlockHash]) -> None:
        """Take in that the replica holds ``blocks``; predictions of them have come true."""
        state = self._slots[slot]
        for block in blocks:
            if state.owner.pop(block, None) is not None:
                pass
            elif block in state.confirmed:
                continue
            elif not self._make_room(1):
                self.evicted_total += 1
                continue  # to know less is safe
            else:
                self._believed[block] = self._believed.get(block, 0) | state.bit
                self.num_entries += 1
            state.confirmed.add(block)

    def remove(self, slot: int, blocks: Iterable[BlockHash]) -> None:
        """Take in that the replica no longer holds ``blocks``, whatever was predicted."""
        state = self._slots[slot]
        gone: list[BlockHash] = []
        for block in blocks:
            if block in state.confirmed:
                state.confirmed.remove(block)
            elif state.owner.pop(block, None) is None:
                continue
            gone.append(block)
        self._unset(state, gone)

    def replace(self, slot: int, blocks: Iterable[BlockHash]) -> None:
        """Take in a snapshot: ``blocks`` and no others are confirmed. Predictions stay."""
        state = self._slots[slot]
        self._unset(state, state.confirmed)
        state.confirmed.clear()
        self.store(slot, blocks)

    def expect(
        self, slot: int, chain: Sequence[BlockHash], matched_blocks: int, now_us: int
    ) -> int | None:
        """Note that ``chain`` was sent to the replica, which already held ``matched_blocks``.

        Returns when the last matched block was used before; None if no block matched, or an event
        vouches for it.
        """
        state = self._slots[slot]
        last = state.owner.get(chain[matched_blocks - 1]) if matched_blocks else None
        last_used_us = None if last is None else last.used_us
        if matched_blocks < len(chain):
            self._add_send(slot, chain, matched_blocks, now_us)
        if state.learned_blocks_max is not None:
            _use(state, chain, matched_blocks, now_us)
        self._trim(state)
        return last_used_us

    def correct(self, slot: int, chain: Sequence[BlockHash], cached_blocks: int) -> None:
        """Forget what was predicted or learned of ``chain`` beyond ``cached_blocks``."""
        state = self._slots[slot]
        for block in chain[cached_blocks:]:
            send = state.owner.get(block)
            if send is not None:
                self._give_up(state, send, len(send.blocks) - send.blocks.index(block))

    def forget_older(self, slot: int, last_used_us: int) -> None:
        """Forget learned blocks not used after ``last_used_us``: a later one was evicted."""
        state = self._slots[slot]
        if state.learned_blocks_max is None:
            return
        self._drop_until(state, last_used_us)

    def expire(self, now_us: int) -> None:
        """Forget predictions that no event has confirmed in time."""
        for state in self._slots.values():
            if state.learned_blocks_max is None and state.sends:
                self._drop_until(state, now_us - self._prediction_ttl_us)

    def num_blocks(self, slot: int) -> int:
        """Return how many blocks the replica is believed to hold."""
        state = self._slots[slot]
        return len(state.confirmed) + len(state.owner)

    def confirmed(self, slot: int) -> frozenset[BlockHash]:
        """Return the blocks that the replica's own events report, a copy."""
        return frozenset(self._slots[slot].confirmed)

    def check(self) -> None:
        """Assert this file's invariant, the bounds, and the order of the sends."""
        believed: dict[BlockHash, int] = {}
        for state in self._slots.values():
            assert not state.confirmed & state.owner.keys()
            for block in (*state.confirmed, *state.owner):
                believed[block] = believed.get(block, 0) | state.bit
            for block, send in state.owner.items():
                assert block in send.blocks
                assert send in state.sends
            used = [send.used_us for send in state.sends]
            assert used == sorted(used)
            assert state.learned_blocks_max is None or not state.confirmed
            assert state.learned_blocks_max is None or (
                len(state.owner) <= state.learned_blocks_max
            )
        assert believed == self._believed
        assert self.num_entries == sum(slots.bit_count() for slots in believed.values())
        assert self.num_entries <= self._entries_max

    def _add_send(
        self, slot: int, chain: Sequence[BlockHash], matched_blocks: int, now_us: int
    ) -> None:
        state = self._slots[slot]
        fresh = list(chain[matched_blocks:])
        if not self._believed.keys().isdisjoint(fresh):
            # Held by others; or by this one, beyond a hole, where it counts for nothing.
            self.correct(slot, chain, matched_blocks)
            fresh = [block for block in fresh if block not in state.confirmed]
            if not fresh:
                return
        send = _Send(fresh, matched_blocks, now_us)
        state.sends[send] = None
        owned = dict.fromkeys(fresh, send)
        state.owner.update(owned)
        self._set(state, owned)

    def _trim(self, state: _Slot) -> None:
        """Bring the slot under its own bound and the index under the common one."""
        if state.learned_blocks_max is not None:
            over = len(state.owner) - state.learned_blocks_max
            if over > 0:
                self._evict(state, over)
        self._make_room(0)

    def _make_room(self, num_blocks: int) -> bool:
        """Evict the oldest sends of all slots until so many fit. False if they cannot."""
        over = self.num_entries + num_blocks - self._entries_max
        while over > 0:
            holding = [state for state in self._slots.values() if state.owner]
            if not holding:
                return False
            oldest = min(holding, key=lambda state: _oldest(state).used_us)
            self._evict(oldest, min(over, len(_oldest(oldest).blocks)))
            over = self.num_entries + num_blocks - self._entries_max
        return True

    def _evict(self, state: _Slot, num_blocks: int) -> None:
        """Make the oldest sends of a slot give up ``num_blocks``, or all there are."""
        while num_blocks > 0 and state.sends:
            send = _oldest(state)
            gone = self._give_up(state, send, min(len(send.blocks), num_blocks))
            self.evicted_total += gone
            num_blocks -= gone

    def _drop_until(self, state: _Slot, used_us: int) -> None:
        while state.sends and _oldest(state).used_us <= used_us:
            send = _oldest(state)
            self._give_up(state, send, len(send.blocks))

    def _give_up(self, state: _Slot, send: _Send, num_blocks: int) -> int:
        """Forget the last blocks of a send. Returns how many of them it still owned."""
        kept = len(send.blocks) - num_blocks
        blocks = send.blocks[kept:]
        del send.blocks[kept:]
        if not kept:
            del state.sends[send]
        owner = state.owner
        owners = list(map(owner.pop, blocks, repeat(None)))
        if owners.count(send) < len(blocks):
            pairs = list(zip(blocks, owners, strict=True))
            # A block that left this send, by an event, may have come back with another.
            owner.update((block, other) for block, other in pairs if other not in (None, send))
            blocks = [block for block, other in pairs if other is send]
        self._unset(state, blocks)
        return len(blocks)

    # Whole prompts go in and out at once, and mostly no other slot holds their blocks. So both
    # directions try the bulk operations of dict first, which take a third of the time of a loop.

    def _set(self, state: _Slot, blocks: dict[BlockHash, _Send]) -> None:
        believed, bit = self._believed, state.bit
        if believed.keys().isdisjoint(blocks):
            believed.update(dict.fromkeys(blocks, bit))
            self.num_entries += len(blocks)
            return
        for block in blocks:
            holders = believed.get(block, 0)
            if not holders & bit:
                believed[block] = holders | bit
                self.num_entries += 1

    def _unset(self, state: _Slot, blocks: Collection[BlockHash]) -> None:
        believed, bit = self._believed, state.bit
        holders = list(map(believed.pop, blocks))
        if holders.count(bit) < len(blocks):
            pairs = zip(blocks, holders, strict=True)
            believed.update((block, bits & ~bit) for block, bits in pairs if bits != bit)
        self.num_entries -= len(blocks)


def _oldest(state: _Slot) -> _Send:
    return next(iter(state.sends))


def _use(state: _Slot, chain: Sequence[BlockHash], depth: int, now_us: int) -> None:
    """Move the sends that hold the first ``depth`` blocks to the end, the first of them last."""
    while depth > 0:
        send = state.owner.get(chain[depth - 1])
        if send is None:
            return
        num_used = depth - send.start
        depth = send.start
        if num_used < len(send.blocks):
            send = _split(state, send, num_used)
        state.sends[send] = None
        state.sends.move_to_end(send)
        send.used_us = now_us


def _split(state: _Slot, send: _Send, num_blocks: int) -> _Send:
    """Return a new send with the first blocks of ``send``, which keeps the rest and its place."""
    first = _Send(send.blocks[:num_blocks], send.start, send.used_us)
    owner = state.owner
    owner.update((block, first) for block in first.blocks if owner.get(block) is send)
    del send.blocks[:num_blocks]
    send.start += num_blocks
    return first


def _note(matched: dict[int, int], slots: int, depth: int) -> None:
    """Write ``depth`` for every slot of the bit set."""
    while slots:
        lowest = slots & -slots
        matched[lowest.bit_length() - 1] = depth
        slots ^= lowest
