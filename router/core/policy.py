"""The seam of all routing policies: a cost in a unit, or a choice; found by their name.

A policy is a frozen dataclass in a file of its own under ``router/policies``; its options are
fields made by ``option()``. It is a pure function of the request and the believed replicas, so
any decision can be replayed.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from xxhash import xxh3_64_intdigest

from contract.options import SettingError, build_section
from router.core.view import ReplicaView, RouteRequest

__all__ = [
    *("DEFAULT_POLICY", "POLICIES", "CostPolicy", "Policy", "build_policy", "draw"),
    *("draw_home", "draw_one", "draw_one_with_room", "longest_unused", "register"),
]


DEFAULT_POLICY = "min_ttft"
"""The best in mean TTFT and goodput over all cells of the weather table (docs/policies.md)."""

HOME_PROMPTS = 4
"""Prompts like this one by which the home's cache may be fuller than the emptiest.

More would let new prompts cluster; with fewer, gateways that have sent differently disagree.
"""

HOME_SHARE = 0.5
"""Part of what the caches hold, on average, by which it may be, if that is more than those prompts.

As caches fill, they differ by more prompts, and so do two gateways that sent in another order.
"""


class Policy(ABC):
    """Chooses one replica of a non-empty list of eligible ones.

    Must not depend on the order of the list, keep state, or look at a clock.
    """

    name: ClassVar[str]
    looks_at: ClassVar[tuple[str, ...] | None] = None
    """Fields of a view that the choice depends on besides the match and ``ahead_tokens``.

    Only for a policy to which, where these are equal, fewer ``ahead_tokens`` are never worse. It
    is then shown one replica of those that are alike, which makes it as fast in a large fleet as
    in a small one. None: it is shown all that are eligible.
    """
    counts_arrivals: ClassVar[bool] = False  # whether it looks at ``arrival_index``

    @abstractmethod
    def choose(self, request: RouteRequest, eligible: Sequence[ReplicaView]) -> ReplicaView:
        """Return one of ``eligible``."""


class CostPolicy(Policy):
    """Chooses the least cost; ties are drawn by the request id, never by list order.

    In a large fleet those that are alike and tell of their caches are drawn from before
    ``break_tie`` could be asked.
    """

    unit: ClassVar[str]

    @abstractmethod
    def cost(self, request: RouteRequest, replica: ReplicaView) -> float:
        """Return what sending ``request`` to ``replica`` costs, in ``unit``."""

    def terms(self, request: RouteRequest, replica: ReplicaView) -> Mapping[str, float]:
        """Return what ``cost`` is made of, in ``unit``: by name, and their sum is the cost."""
        return {"cost": self.cost(request, replica)}

    def costs(self, request: RouteRequest, eligible: Sequence[ReplicaView]) -> list[float]:
        """Return ``cost`` for each; a policy may compute them in one loop, as calls are dear."""
        return [self.cost(request, replica) for replica in eligible]

    def choose(self, request: RouteRequest, eligible: Sequence[ReplicaView]) -> ReplicaView:
        costs = self.costs(request, eligible)
        least = min(costs)
        if costs.count(least) == 1:
            return eligible[costs.index(least)]
        pairs = zip(eligible, costs, strict=True)
        return self.break_tie(request, [replica for replica, cost in pairs if cost == least])

    def break_tie(self, request: RouteRequest, replicas: Sequence[ReplicaView]) -> ReplicaView:
        """Return one of those that cost the same."""
        return draw_one(request, replicas)


def draw(request_id: str, purpose: str) -> int:
    """Return 64 bits fixed by the request id and the purpose: randomness that can be replayed."""
    return xxh3_64_intdigest(f"{purpose}\0{request_id}".encode("utf-8", "surrogatepass"))


def draw_one(request: RouteRequest, replicas: Sequence[ReplicaView]) -> ReplicaView:
    """Return the replica that this request draws: rendezvous hashing, so order does not matter."""
    return _drawn(draw(request.request_id, "replica"), replicas)


def longest_unused(request: RouteRequest, replicas: Sequence[ReplicaView]) -> ReplicaView:
    """Return the one that this gateway has not sent to for longest; the request draws among new.

    Requests that come one by one and find all idle are spread as evenly as those of a burst.
    """
    first = min([replica.last_sent for replica in replicas])
    return draw_one(request, [replica for replica in replicas if replica.last_sent == first])


def draw_home(request: RouteRequest, replicas: Sequence[ReplicaView]) -> ReplicaView:
    """Return the replica that the session draws, or the prompt's beginning where none is named.

    Every gateway draws the same: a conversation whose last turn another one sent stays at home.
    """
    if request.session_key is None and request.prefix_key is None:
        return longest_unused(request, replicas)
    home = f"{request.prefix_key:x}" if request.session_key is None else request.session_key
    return _drawn(draw(home, "home"), replicas)


def draw_one_with_room(request: RouteRequest, replicas: Sequence[ReplicaView]) -> ReplicaView:
    """Return the one whose cache has most room, so that new prompts fill all caches alike.

    Where several have, as when all are full, the request draws; without a prompt they take turns.
    Of caches that are not told of, a gateway knows only what it sent: there the home of the prompt
    is it, of those that have almost as much room as any.
    """
    if not request.prompt:
        return longest_unused(request, replicas)
    rooms = [replica.room_blocks for replica in replicas]
    most = max(rooms)
    equals = [replica for replica in replicas if replica.room_blocks == most]
    if all(replica.tells_of_cache for replica in equals):
        return draw_one(request, equals)
    blocks = max(map(len, request.chains.values()), default=0)
    held = sum([replica.cache_blocks for replica in replicas]) - sum(rooms)
    least = most - max(HOME_PROMPTS * blocks, HOME_SHARE * held / len(replicas))
    return draw_home(request, [replica for replica in replicas if replica.room_blocks >= least])


def _drawn(seed: int, replicas: Sequence[ReplicaView]) -> ReplicaView:
    digests = [
        xxh3_64_intdigest(replica.replica_id.encode("utf-8", "surrogatepass"), seed)
        for replica in replicas
    ]
    return replicas[digests.index(max(digests))]


POLICIES: dict[str, type[Policy]] = {}
"""Every known policy by name; filled by ``register`` when ``router.policies`` is imported."""

P = TypeVar("P", bound=type[Policy])


def register(policy: P) -> P:
    """Make a policy known by its ``name`` (class decorator)."""
    name = policy.name
    assert name not in POLICIES, f"two policies are called {name!r}"
    POLICIES[name] = policy
    return policy


def build_policy(name: str, settings: Mapping[str, Any] | None = None) -> Policy:
    """Build a policy by name. Raises SettingError naming the known policies or settings."""
    policy = POLICIES.get(name)
    if policy is None:
        raise SettingError(f"no policy {name!r}; known: {', '.join(sorted(POLICIES))}")
    return build_section(policy, settings or {}, f"[policy.{name}]")
