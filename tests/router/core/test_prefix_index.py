"""The prefix index against a plain model: a set of blocks for each slot, and leading blocks.

Blocks are paths in a small tree, written as text: block "ab" is "b" after "a". The first machine
has room for all and knows exactly what must match; the second is short of room and checks the laws.
"""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from contract.blocks import BlockHash
from router.core.prefix_index import PrefixIndex

TTL_US = 100
SLOTS = st.integers(0, 2)
# Few letters, so that prefixes collide.
TEXTS = st.text("ab", max_size=6)
ALL_SLOTS = range(3)


def block_of(path: str) -> BlockHash:
    return BlockHash(int.from_bytes(path.encode(), "big"))


def chain_of(text: str) -> list[BlockHash]:
    return [block_of(text[: depth + 1]) for depth in range(len(text))]


def leading(chain: list[BlockHash], held: set[BlockHash]) -> int:
    depth = 0
    while depth < len(chain) and chain[depth] in held:
        depth += 1
    return depth


class Unbounded(RuleBasedStateMachine):
    """Slots 0 and 1 publish events, slot 2 is learned."""

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex(entries_max=10_000, prediction_ttl_us=TTL_US)
        for slot in range(3):
            self.index.open_slot(slot, 256, 10_000 if slot == 2 else None)
        self.now_us = 0
        self.confirmed: list[set[BlockHash]] = [set(), set(), set()]
        self.sent: list[dict[BlockHash, int]] = [{}, {}, {}]  # -> when
        # Of blocks beyond a hole, and of predictions that an event has told of in part, the index
        # may forget more than it must, or keep them.
        self.doubtful: list[set[BlockHash]] = [set(), set(), set()]

    def held(self, slot: int) -> set[BlockHash]:
        return self.confirmed[slot] | self.sent[slot].keys()

    @rule(slot=SLOTS, text=TEXTS)
    def send(self, slot: int, text: str) -> None:
        chain = chain_of(text)
        matched = self.index.match(chain, ALL_SLOTS).get(slot, 0)
        self.index.expect(slot, chain, matched, self.now_us)
        self.doubt_what_follows(slot, chain[matched:])
        for block in chain[matched:]:
            self.sent[slot][block] = self.now_us
            self.doubtful[slot].discard(block)

    @rule(slot=st.integers(0, 1), text=TEXTS)
    def store(self, slot: int, text: str) -> None:
        chain = chain_of(text)
        self.index.store(slot, chain)
        self.confirmed[slot].update(chain)
        self.doubtful[slot].update(chain)

    @rule(slot=st.integers(0, 1), text=TEXTS, parent_length=st.integers(0, 6))
    def store_a_continuation(self, slot: int, text: str, parent_length: int) -> None:
        chain = chain_of(text)
        parents, blocks = chain[:parent_length], chain[parent_length:]
        if set(parents) <= self.confirmed[slot] and self.confirmed[slot].isdisjoint(blocks):
            self.index.store(slot, blocks, parents[-1] if parents else None)
            self.confirmed[slot].update(blocks)
            self.doubtful[slot].update(blocks)

    @rule(slot=st.integers(0, 1), paths=st.lists(TEXTS.filter(bool), max_size=3))
    def remove(self, slot: int, paths: list[str]) -> None:
        blocks = [block_of(path) for path in paths]  # any, so holes appear
        self.index.remove(slot, blocks)
        self.confirmed[slot].difference_update(blocks)

    @rule(slot=SLOTS)
    def clear(self, slot: int) -> None:
        self.index.clear(slot)
        self.confirmed[slot].clear()
        self.sent[slot].clear()
        self.doubtful[slot].clear()

    @rule(slot=st.integers(0, 1), text=TEXTS)
    def replace(self, slot: int, text: str) -> None:
        self.index.clear_told(slot)
        for block in chain_of(text):  # as from a snapshot, which tells nothing of their order
            self.index.store(slot, [block])
        self.confirmed[slot] = set(chain_of(text))
        self.doubtful[slot].update(chain_of(text))

    @rule(slot=SLOTS, text=TEXTS, cached=st.integers(0, 6))
    def correct(self, slot: int, text: str, cached: int) -> None:
        chain = chain_of(text)
        self.index.correct(slot, chain, cached)
        for block in chain[cached:]:
            self.sent[slot].pop(block, None)
        self.doubt_what_follows(slot, chain[cached:])

    def doubt_what_follows(self, slot: int, lost: list[BlockHash]) -> None:
        if lost:
            beyond = {b for b in self.sent[slot] if path_of(b).startswith(path_of(lost[0]))}
            self.doubtful[slot] |= beyond

    @rule(elapsed_us=st.integers(0, TTL_US))
    def time_passes(self, elapsed_us: int) -> None:
        self.now_us += elapsed_us
        self.index.expire(self.now_us)
        for slot in (0, 1):
            alive = {b: t for b, t in self.sent[slot].items() if self.now_us - t < TTL_US}
            self.sent[slot] = alive

    @invariant()
    def index_is_consistent(self) -> None:
        self.index.check()

    @invariant()
    def match_is_the_leading_part_that_the_slot_holds(self) -> None:
        for text in ("a", "b", "aaaaaa", "ababab", "babbab", "bbbbbb", "aabbaa"):
            chain = chain_of(text)
            matched = self.index.match(chain, ALL_SLOTS)
            for slot in range(3):
                most = leading(chain, self.held(slot))
                sure = self.sent[slot].keys() - self.doubtful[slot]
                least = leading(chain, self.confirmed[slot] | sure)
                assert least <= matched.get(slot, 0) <= most
                assert slot not in matched or matched[slot] > 0


def path_of(block: BlockHash) -> str:
    return block.to_bytes(16, "big").strip(b"\0").decode()


TestUnbounded = Unbounded.TestCase


class ShortOfRoom(RuleBasedStateMachine):
    """Slots that learn, each with its own bound, under a common one."""

    @initialize(common=st.integers(1, 20), own=st.integers(0, 9))
    def open(self, common: int, own: int) -> None:
        self.index = PrefixIndex(common, TTL_US)
        self.sent: list[set[str]] = [set(), set(), set()]
        self.now_us = 0
        self.own, self.common = own, common
        for slot in range(3):
            self.index.open_slot(slot, 256, own + slot)

    @rule(slot=SLOTS, text=TEXTS, elapsed_us=st.integers(0, 3))
    def send(self, slot: int, text: str, elapsed_us: int) -> None:
        self.now_us += elapsed_us
        chain = chain_of(text)
        self.index.expect(slot, chain, self.index.match(chain, ALL_SLOTS).get(slot, 0), self.now_us)
        self.sent[slot] |= {text[: depth + 1] for depth in range(len(text))}

    @rule(slot=SLOTS, age_us=st.integers(0, 5))
    def forget_older(self, slot: int, age_us: int) -> None:
        self.index.forget_older(slot, self.now_us - age_us)

    @invariant()
    def no_beginning_goes_before_its_end(self) -> None:
        if hasattr(self, "index"):
            self.index.check()
            for slot in range(3):
                reachable = sum(self.is_matched(slot, path) for path in self.sent[slot])
                assert reachable == self.index.num_blocks(slot)  # none behind a hole
                assert reachable <= self.own + slot

    def is_matched(self, slot: int, path: str) -> bool:
        return self.index.match(chain_of(path), ALL_SLOTS).get(slot, 0) == len(path)


TestShortOfRoom = ShortOfRoom.TestCase


def learning_index(blocks_max: int) -> PrefixIndex:
    index = PrefixIndex(entries_max=1000, prediction_ttl_us=TTL_US)
    index.open_slot(0, 256, blocks_max)
    return index


def test_eviction_takes_the_end_of_a_prefix_before_its_beginning() -> None:
    index = learning_index(blocks_max=4)
    index.expect(0, chain_of("abc"), 0, 1)

    index.expect(0, chain_of("xy"), 0, 2)

    assert index.match(chain_of("abc"), [0]) == {0: 2}
    assert index.match(chain_of("xy"), [0]) == {0: 2}
    assert index.evicted_total == 1


def test_reuse_keeps_a_prefix_and_not_the_rest_of_its_prompt() -> None:
    index = learning_index(blocks_max=5)
    index.expect(0, chain_of("abc"), 0, 1)
    index.expect(0, chain_of("uv"), 0, 2)
    index.expect(0, chain_of("a"), 1, 3)

    index.expect(0, chain_of("xyz"), 0, 4)  # three must go

    assert index.match(chain_of("abc"), [0]) == {0: 1}
    assert index.match(chain_of("uv"), [0]) == {0: 1}


def test_a_long_used_prefix_outlives_what_was_built_on_it_turn_by_turn() -> None:
    index = learning_index(blocks_max=6)
    index.expect(0, chain_of("ab"), 0, 1)
    index.expect(0, chain_of("abcd"), 2, 2)
    index.expect(0, chain_of("abcdef"), 4, 3)

    index.expect(0, chain_of("xyz"), 0, 4)

    assert index.match(chain_of("abcdef"), [0]) == {0: 3}


def test_prompt_longer_than_the_cache_keeps_its_beginning() -> None:
    index = learning_index(blocks_max=2)

    index.expect(0, chain_of("abcde"), 0, 1)

    assert index.match(chain_of("abcde"), [0]) == {0: 2}


def test_prediction_expires_unless_an_event_confirms_it() -> None:
    index = PrefixIndex(1000, TTL_US)
    index.open_slot(0, 256, None)
    index.expect(0, chain_of("ab"), 0, now_us=0)
    index.store(0, chain_of("a"))

    index.expire(TTL_US - 1)
    before = index.match(chain_of("ab"), [0])
    index.expire(TTL_US)

    assert before == {0: 2}
    assert index.match(chain_of("ab"), [0]) == {0: 1}


def test_hole_in_what_events_report_ends_the_match() -> None:
    index = PrefixIndex(1000, TTL_US)
    index.open_slot(0, 256, None)
    index.store(0, chain_of("abcd"))

    index.remove(0, [block_of("ab")])

    assert index.match(chain_of("abcd"), [0]) == {0: 1}


def test_match_tells_slots_apart_and_looks_at_no_other() -> None:
    index = PrefixIndex(1000, TTL_US)
    for slot, text in enumerate(["abcd", "ab", "", "abc"]):
        index.open_slot(slot, 256, None)
        index.store(slot, chain_of(text))

    assert index.match(chain_of("abcx"), range(3)) == {0: 3, 1: 2}
    assert index.match(chain_of("x"), range(4)) == {}
    assert index.match([], range(4)) == {}


def test_older_blocks_are_forgotten_and_what_was_used_since_is_kept() -> None:
    index = learning_index(blocks_max=100)
    index.expect(0, chain_of("abc"), 0, 1)
    index.expect(0, chain_of("u"), 0, 2)
    used_us = index.expect(0, chain_of("ab"), 2, 5)

    index.forget_older(0, 2)

    assert used_us == 1
    assert index.match(chain_of("abc"), [0]) == {0: 2}
    assert index.match(chain_of("u"), [0]) == {}


def test_what_lay_beyond_a_hole_is_not_believed_again_when_the_hole_is_filled() -> None:
    index = learning_index(blocks_max=100)
    index.expect(0, chain_of("ab"), 0, 1)
    index.expect(0, chain_of("abcd"), 2, 2)
    index.correct(0, chain_of("ab"), 1)

    index.expect(0, chain_of("abc"), 1, 3)

    assert index.match(chain_of("abcd"), [0]) == {0: 3}
    index.check()


def test_another_block_size_begins_with_an_empty_slot() -> None:
    index = learning_index(blocks_max=10)
    index.expect(0, chain_of("ab"), 0, 1)

    index.open_slot(0, 512, 10)

    assert index.num_entries == 0


def test_a_prompt_follows_runs_that_begin_within_others() -> None:
    index = PrefixIndex(1000, TTL_US)
    for slot in range(3):
        index.open_slot(slot, 256, None)
    index.store(0, chain_of("abcdef"))
    index.store(1, chain_of("abcxyz"))
    index.store(2, chain_of("abcd"))

    assert index.match(chain_of("abcxyz"), range(3)) == {0: 3, 1: 6, 2: 3}
    assert index.match(chain_of("abcdef"), range(3)) == {0: 6, 1: 3, 2: 4}
    index.check()


def test_hashes_of_any_64_bits_and_beyond_are_taken_in() -> None:
    index = PrefixIndex(1000, TTL_US)
    index.open_slot(0, 256, None)

    index.store(0, [BlockHash(-1), BlockHash(2**64 - 2)])

    assert index.match([BlockHash(2**64 - 1)], [0]) == {}
