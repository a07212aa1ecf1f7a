"""The ring of consistent hashing: one replica more or less moves 1/n of the keys."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from xxhash import xxh3_64_intdigest

_RINGS_MAX = 16  # sets of eligible replicas whose ring is kept; a ring of 8 takes 1 ms to make


def hash_text(text: str) -> int:
    """Return the key of a text: a replica's point, a session."""
    return xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"))


def walk_ring(key: int, replica_ids: tuple[str, ...], points: int) -> Iterator[str]:
    """Yield the replicas from the key's home on, each once. ``replica_ids`` are sorted.

    Each has ``points`` on the ring: their shares differ by about 1/sqrt(points).
    """
    ring = _ring(replica_ids, points)
    home = bisect_left(ring.points, key)
    seen: set[str] = set()
    for owner in ring.owners[home:] + ring.owners[:home]:
        if owner not in seen:
            seen.add(owner)
            yield owner


@dataclass(frozen=True)
class _Ring:
    points: list[int]  # sorted
    owners: list[str]  # replica ids, one for each point


@lru_cache(_RINGS_MAX)
def _ring(replica_ids: tuple[str, ...], points: int) -> _Ring:
    placed = sorted(
        (hash_text(f"{replica_id}\0{n}"), replica_id)
        for replica_id in replica_ids
        for n in range(points)
    )
    return _Ring([point for point, _ in placed], [owner for _, owner in placed])
