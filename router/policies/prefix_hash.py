"""Prefix hash: the same beginning always to the same replica, found without any state."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from math import ceil, inf
from typing import ClassVar

from contract.options import option
from router.core.policy import Policy, register
from router.core.view import ReplicaView, RouteRequest
from router.policies.hash_ring import hash_text, walk_ring
from router.policies.picks import least_loaded

POINTS_PER_REPLICA = 128
"""Shares of the ring differ by about 1/sqrt(128) = 9 % between replicas."""


class Placement(Enum):
    """How a key finds its replica."""

    RING = "ring"  # consistent: one replica more or less moves 1/n of the keys
    MODULO = "modulo"  # key mod n: nearly all keys move


class Key(Enum):
    """What is hashed."""

    PREFIX = "prefix"
    SESSION = "session"  # the session header; the prefix where there is none


@register
@dataclass(frozen=True)
class PrefixHash(Policy):
    """Choose by consistent hashing of the prompt's beginning, with bounded loads.

        home = first replica at or after hash(key) on the ring
        room = ceil(load_factor * (requests of all + 1) / n)
        replica = first from home on with requests < room

    Unit: requests. 64 requests under way on 4 replicas, factor 1.25: room for 21 on each; the
    others of a hotter prefix go on to the next replica of the ring. An idle fleet has room for 1
    everywhere, so home is never full at rest. Without a prompt: the fewest requests. Failure
    mode: it sees neither what is cached nor how long prompts are; prompts that share their first
    blocks (one system prompt for all) share one home. Source: V. Mirrokni et al., "Consistent
    Hashing with Bounded Loads", 2016; the same in HAProxy and KubeAI.
    """

    name: ClassVar[str] = "prefix_hash"

    load_factor: float | None = option(
        1.25, "", "how far above the mean load a replica may go; none: as far as it takes"
    )
    placement: Placement = option(Placement.RING, "", "how a key finds its replica")
    key: Key = option(Key.PREFIX, "", "what is hashed")

    def __post_init__(self) -> None:
        if self.load_factor is not None and not 1 <= self.load_factor < inf:
            raise ValueError(
                f"load_factor is {self.load_factor}, must be a number of 1 or more, or none"
            )

    def choose(self, request: RouteRequest, eligible: Sequence[ReplicaView]) -> ReplicaView:
        key = self._key_of(request)
        if key is None:
            return least_loaded(request, eligible)
        by_id = {replica.replica_id: replica for replica in eligible}
        order = self._order(key, tuple(sorted(by_id)))
        if self.load_factor is None:
            return by_id[next(order)]
        requests = sum(replica.requests for replica in eligible)
        room = ceil(self.load_factor * (requests + 1) / len(eligible))
        # The factor is 1 or more, so not all can be full.
        return next(by_id[name] for name in order if by_id[name].requests < room)

    def _key_of(self, request: RouteRequest) -> int | None:
        if self.key is Key.SESSION and request.session_key is not None:
            return hash_text(request.session_key)
        return request.prefix_key

    def _order(self, key: int, replica_ids: tuple[str, ...]) -> Iterator[str]:
        """Yield the replicas from the key's home on, each once."""
        if self.placement is Placement.MODULO:
            home = key % len(replica_ids)
            yield from replica_ids[home:] + replica_ids[:home]
            return
        yield from walk_ring(key, replica_ids, POINTS_PER_REPLICA)
