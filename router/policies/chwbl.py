"""CHWBL: consistent hashing of the first user message's beginning, with bounded loads."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import ClassVar

from xxhash import xxh3_64_intdigest

from contract.options import option
from router.core.policy import Policy, register
from router.core.view import ReplicaView, RouteRequest
from router.policies.hash_ring import walk_ring
from router.policies.picks import least_loaded

_USER_HEADER = b"<|user|>"  # how a rendered chat begins its user's message


@register
@dataclass(frozen=True)
class Chwbl(Policy):
    """Choose by the ring, passing by replicas above the mean load.

        key     = hash of the model and the first prefix_bytes of the first user message
        home    = first replica at or after key on the ring
        room    = load_factor * (requests of all + 1) / n
        replica = first from home on with requests + 1 <= room, else home

    Unit: requests. 64 under way on 4 replicas, factor 1.25: room is 20.3, so one with 19 takes the
    request and one with 20 does not. An idle fleet, or one where room is below 1 everywhere, uses
    home. A prompt that is not a chat is hashed from its beginning; without a prompt: the fewest
    requests.

    Failure mode: while room is below 1 every key stays at home, whatever its queue; and 100 bytes
    are too few to tell prompts apart that begin alike, and say nothing of how much of the rest is
    cached. Source: KubeAI, ``internal/loadbalancer/balance_chwbl.go`` at 08e69e54, with its
    defaults: 125 %, 256 points for each replica, 100 characters (bytes here).
    """

    name: ClassVar[str] = "chwbl"

    load_factor: float = option(1.25, "", "how far above the mean load a replica may go")
    prefix_bytes: int = option(100, "bytes", "how much of the message is hashed")
    ring_points: int = option(256, "", "points of one replica on the ring; more: more equal shares")

    def __post_init__(self) -> None:
        if not 1 <= self.load_factor < inf:
            raise ValueError(f"load_factor is {self.load_factor}, must be a number of 1 or more")
        if self.prefix_bytes < 1:
            raise ValueError(f"prefix_bytes is {self.prefix_bytes}, must be 1 or more")
        if not 1 <= self.ring_points <= 10_000:
            raise ValueError(f"ring_points is {self.ring_points}, must be from 1 to 10,000")

    def choose(self, request: RouteRequest, eligible: Sequence[ReplicaView]) -> ReplicaView:
        if not request.prompt:
            return least_loaded(request, eligible)
        by_id = {replica.replica_id: replica for replica in eligible}
        order = list(walk_ring(self._key_of(request), by_id, self.ring_points))
        requests = sum(replica.requests for replica in eligible)
        room = self.load_factor * (requests + 1) / len(eligible)
        fitting = (name for name in order if by_id[name].requests + 1 <= room)
        return by_id[next(fitting, order[0])]

    def _key_of(self, request: RouteRequest) -> int:
        header_at = request.prompt.find(_USER_HEADER)
        start = 0 if header_at < 0 else header_at + len(_USER_HEADER)
        return xxh3_64_intdigest(request.prompt[start : start + self.prefix_bytes], request.root)
