"""A table of split dicts against one dict."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from contract.blocks import BlockHash
from router.core.block_table import DICT_ENTRIES_MAX, BlockTable

MANY = 20 * DICT_ENTRIES_MAX


def spread(number: int) -> BlockHash:
    return BlockHash(xxh3_64_intdigest(number.to_bytes(8)))


def same(number: int) -> BlockHash:
    """Return hashes whose upper bits are all equal, so that no split helps."""
    return BlockHash(number)


def beyond(number: int) -> BlockHash:
    return BlockHash(xxh3_64_intdigest(number.to_bytes(8)) * (-1 if number % 2 else 2**20))


@pytest.mark.parametrize("hash_of", [spread, same, beyond])
def test_a_table_of_many_entries_is_a_dict(hash_of: Callable[[int], BlockHash]) -> None:
    table: BlockTable[int] = BlockTable()
    plain: dict[BlockHash, int] = {}
    for number in range(MANY):
        table.put(hash_of(number), number)
        plain[hash_of(number)] = number
    for number in range(0, MANY, 3):
        assert table.pop(hash_of(number), None) == plain.pop(hash_of(number))

    blocks = [hash_of(number) for number in range(0, MANY + 30, 10)]

    assert dict(table.items()) == plain
    assert sorted(table.values()) == sorted(plain.values())
    assert len(table) == len(plain)
    assert [table.get(block) for block in blocks] == [plain.get(block) for block in blocks]
    assert table.known(blocks) == [block for block in blocks if block in plain]
    assert not table.isdisjoint(blocks)
    assert table.isdisjoint([hash_of(number) for number in range(0, MANY, 3)])


def test_no_dict_in_it_is_large_where_hashes_are_spread() -> None:
    table: BlockTable[int] = BlockTable()
    for number in range(MANY):
        table.put(spread(number), number)

    assert max(map(len, table._dicts())) < DICT_ENTRIES_MAX  # the oracle


def test_some_are_taken_out_and_the_rest_stay() -> None:
    table: BlockTable[int] = BlockTable()
    for number in range(MANY):
        table.put(spread(number), number)

    taken = table.take_some(MANY - 10)

    assert len(set(taken)) == MANY - 10
    assert {*taken, *table.values()} == set(range(MANY))
    assert len(table.take_some(MANY)) == 10
    assert len(table) == 0


@given(st.lists(st.integers(-(2**70), 2**70), unique=True, max_size=30))
def test_any_number_is_a_key(numbers: list[int]) -> None:
    table: BlockTable[int] = BlockTable()
    for number in numbers:
        table.put(BlockHash(number), number)

    assert all(BlockHash(number) in table for number in numbers)
    assert [table[BlockHash(number)] for number in numbers] == numbers
    assert table.pop(BlockHash(2**71), None) is None
