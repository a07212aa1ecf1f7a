"""Chained block identity: equal hash, equal prefix."""

from hypothesis import given
from hypothesis import strategies as st

from contract.blocks import chain_bytes, chain_tokens, next_block, root_hash, token_bytes

ROOT = root_hash("m")
TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=40)
BLOCK_SIZES = st.integers(1, 8)
PINNED_ROOT = 0x8E2787280FFB8E6D
PINNED_CHAIN = [0x17FFF88B132210F2, 0x3A9C2A13F410B7C6, 0x103B5243869F4957]


@given(data=st.binary(max_size=200), block_bytes=st.integers(1, 40))
def test_only_whole_blocks_have_an_identity(data: bytes, block_bytes: int) -> None:
    assert len(chain_bytes(data, block_bytes, ROOT)) == len(data) // block_bytes


@given(head=st.binary(max_size=100), a=st.binary(max_size=60), b=st.binary(max_size=60))
def test_two_prompts_share_exactly_the_blocks_of_their_common_beginning(
    head: bytes, a: bytes, b: bytes
) -> None:
    first, second = chain_bytes(head + a, 8, ROOT), chain_bytes(head + b, 8, ROOT)

    shared = sum(x == y for x, y in zip(first, second, strict=False))

    pairs = zip(head + a, head + b, strict=False)
    common_bytes = next((n for n, (x, y) in enumerate(pairs) if x != y), None)
    if common_bytes is None:
        common_bytes = min(len(head + a), len(head + b))
    assert shared == common_bytes // 8
    assert first[:shared] == second[:shared]


@given(tokens=TOKENS, block_size=BLOCK_SIZES)
def test_tokens_and_their_bytes_have_the_same_chain(tokens: list[int], block_size: int) -> None:
    by_bytes = chain_bytes(token_bytes(tokens), 4 * block_size, ROOT)

    assert chain_tokens(tokens, block_size, ROOT) == by_bytes


@given(data=st.binary(min_size=8, max_size=200))
def test_chain_is_one_step_after_another(data: bytes) -> None:
    chain = chain_bytes(data, 8, ROOT)

    parent = ROOT
    for n, block in enumerate(chain):
        parent = next_block(parent, data[8 * n : 8 * n + 8])
        assert parent == block


def test_same_block_in_another_place_is_another_block() -> None:
    first, second = chain_bytes(b"samesame", 4, ROOT)

    assert first != second


def test_roots_of_different_identities_differ() -> None:
    roots = {
        root_hash("m"),
        root_hash("n"),
        root_hash("m", "adapter"),
        root_hash("m", "", "salt"),
        root_hash("m", "", "", "tenant"),
        root_hash("mm"),
        root_hash("", "m"),
        root_hash("m", "m"),
    }

    assert len(roots) == 8


def test_identity_may_hold_half_a_surrogate_pair() -> None:
    assert root_hash("m\ud800") != root_hash("m")


def test_chain_has_the_values_that_other_versions_rely_on() -> None:
    """A change here is a new hash scheme and needs a new name."""
    assert root_hash("m") == PINNED_ROOT
    assert chain_bytes(b"warmroute" * 3, 8, ROOT) == PINNED_CHAIN
