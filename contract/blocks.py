"""Chained identity of prompt blocks: equal hash, equal prefix up to and including that block.

    h_0 = xxh3_64(model, adapter, salt, tenant)        the root
    h_i = xxh3_64(block_i, seed=h_{i-1})               only whole blocks have an identity

A chain over token ids is the chain over those ids as 4-byte little-endian words, so an engine
whose tokens are 4-byte words of the prompt and a gateway that only sees bytes agree.
"""

import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import NewType, cast

from xxhash import xxh3_64_intdigest

BlockHash = NewType("BlockHash", int)

HASH_SCHEME = "xxh3-64-chain/1"
"""Named in the LoadReport of a replica that publishes events; a new rule needs a new name."""

TOKEN_BYTES = 4

# The library's function under the type that it has here: a wrapper would cost as much as the hash.
_digest = cast("Callable[[bytes, int], BlockHash]", xxh3_64_intdigest)


def root_hash(model: str, adapter: str = "", cache_salt: str = "", tenant: str = "") -> BlockHash:
    """Return the seed of every chain of one (model, adapter, salt, tenant).

    The parts are length-prefixed, so no choice of names makes two identities collide by shifting
    characters from one part to the next.
    """
    parts = [part.encode("utf-8", "surrogatepass") for part in (model, adapter, cache_salt, tenant)]
    identity = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
    return BlockHash(xxh3_64_intdigest(identity))


def next_block(parent: BlockHash, block: bytes) -> BlockHash:
    """Return the identity of ``block`` when it follows the prefix named by ``parent``."""
    return _digest(block, parent)


def chain_blocks(blocks: Iterable[bytes], root: BlockHash) -> list[BlockHash]:
    """Return the identities of ``blocks`` that follow each other from ``root``."""
    parent = root
    return [parent := _digest(block, parent) for block in blocks]


def chain_bytes(data: bytes, block_bytes: int, root: BlockHash) -> list[BlockHash]:
    """Return the hashes of the whole ``block_bytes``-byte blocks of ``data``, in order."""
    assert block_bytes > 0
    parent = root
    return [
        parent := _digest(data[start : start + block_bytes], parent)
        for start in range(0, len(data) - block_bytes + 1, block_bytes)
    ]


def token_bytes(tokens: Sequence[int]) -> bytes:
    """Return token ids (0..2**32-1) as 4-byte little-endian words."""
    words = tokens if isinstance(tokens, array) and tokens.typecode == "I" else array("I", tokens)
    if sys.byteorder == "big":
        words = array("I", words)
        words.byteswap()
    return words.tobytes()


def chain_tokens(tokens: Sequence[int], block_size: int, root: BlockHash) -> list[BlockHash]:
    """Return the hashes of the whole ``block_size``-token blocks of ``tokens``, in order."""
    return chain_bytes(token_bytes(tokens), block_size * TOKEN_BYTES, root)
