"""Session: all requests of one session to one replica."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from contract.options import option
from router.core.policy import Policy, register
from router.core.view import ReplicaView, RouteRequest
from router.policies.hash_ring import hash_text, walk_ring
from router.policies.picks import least_loaded
from router.policies.prefix_load import PrefixLoad

RING_POINTS = 160
"""Of one replica; as in the ring that production-stack uses (uhashring)."""

_PREFIX_LOAD = PrefixLoad()


class Fallback(Enum):
    """What to do with a request that names no session."""

    LEAST_LOADED = "least_loaded"
    PREFIX_LOAD = "prefix_load"


@register
@dataclass(frozen=True)
class Session(Policy):
    """Choose by consistent hashing of the session header, whatever the load.

        replica = first replica at or after hash(session) on the ring
        replica = what the fallback chooses, for a request without a session

    Unit: none. The header is ``gateway.session_header``. With 4 replicas, one that leaves takes a
    quarter of the sessions along, and none of the others moves. Failure mode: a busy session stays
    where it is and many of them may share a replica while others idle; what sessions have in
    common (one system prompt) is computed on every replica. Source: ``session`` of vLLM's
    production-stack, ``src/vllm_router/routers/routing_logic.py`` at 008a23bd, which without a
    session takes the replica with the fewest requests per second; here the fewest under way. The
    fallback ``prefix_load`` has its own defaults, whatever ``[policy.prefix_load]`` says.
    """

    name: ClassVar[str] = "session"

    fallback: Fallback = option(
        Fallback.LEAST_LOADED, "", "what chooses for a request without a session"
    )

    def choose(self, request: RouteRequest, eligible: Sequence[ReplicaView]) -> ReplicaView:
        if request.session_key is not None:
            by_id = {replica.replica_id: replica for replica in eligible}
            key = hash_text(request.session_key)
            return by_id[next(walk_ring(key, by_id, RING_POINTS))]
        if self.fallback is Fallback.PREFIX_LOAD:
            return _PREFIX_LOAD.choose(request, eligible)
        return least_loaded(request, eligible)
