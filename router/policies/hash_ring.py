"""The ring of consistent hashing: one replica more or less moves 1/n of the keys.

No ring is built, since there would be one for every set of eligible replicas. Each replica's own
points are kept, and a walk meets each replica at its first point from the key on: so to order the
replicas by that point is the walk.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from functools import lru_cache
from heapq import heapify, heappop

from xxhash import xxh3_64_intdigest

REPLICAS_KEPT = 4_096
"""Replicas whose points are remembered: 2 KB each for 256 of them, made in a tenth of a
millisecond."""

_MASK = (1 << 64) - 1


def hash_text(text: str) -> int:
    """Return the key of a text: a replica's point, a session."""
    return xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"))


def walk_ring(key: int, replica_ids: Iterable[str], points: int) -> Iterator[str]:
    """Yield the replicas from the key's home on, each once, whatever their order.

    Each has ``points`` on the ring: their shares differ by about 1/sqrt(points).
    """
    ahead = []
    for replica_id in replica_ids:
        placed = points_of(replica_id, points)
        index = bisect_left(placed, key)
        point = placed[index] if index < points else placed[0]
        ahead.append((point - key & _MASK, replica_id))
    heapify(ahead)
    while ahead:
        yield heappop(ahead)[1]


@lru_cache(REPLICAS_KEPT)
def points_of(replica_id: str, points: int) -> "array[int]":
    """Return a replica's points, sorted: the hashes of its id with each of their numbers."""
    prefix = f"{replica_id}\0".encode("utf-8", "surrogatepass")
    digest = xxh3_64_intdigest
    return array("Q", sorted([digest(prefix + number) for number in _numbers(points)]))


@lru_cache(16)
def _numbers(points: int) -> tuple[bytes, ...]:
    return tuple(b"%d" % n for n in range(points))
