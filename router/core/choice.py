"""Which replica a request goes to: what each has of its prompt, and then the policy's choice.

A large fleet is not shown to a policy that says what it looks at: it sees one replica of those
that are alike (``router.core.frontier``), and the request draws among these. Its choice is the
same but for draws among equal costs. Where replicas tell of no cache the policy draws, by the
prompt's beginning perhaps, so that every gateway draws the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from router.core.frontier import Frontier
from router.core.policy import CostPolicy, Policy, draw, draw_one
from router.core.prefix_index import PrefixIndex, slot_bit, slots_of
from router.core.reason import Reason
from router.core.roster import Pool, Roster
from router.core.view import ReplicaView, RouteRequest

FRONTIER_REPLICAS_MIN = 16
"""In a smaller fleet it takes longer to keep the classes than to look at every replica."""

SLOT_SETS_KEPT = 1_024
"""Sets of replicas whose slots are remembered: less than 1 MB where a prompt is held by few, 4.5 MB
where each is held by most of 512.
"""


@dataclass(slots=True)
class Found:
    """Replicas, as a bit set, that have cached equally much of a prompt."""

    slots: int
    num_blocks: int
    tokens: int


@dataclass(slots=True)
class Choice:
    """A replica, and why."""

    replica: ReplicaView
    reason: Reason


class PolicyFailures:
    """How often a policy raised, or chose what it had not been shown, and what it said first."""

    def __init__(self) -> None:
        self.total = 0
        self.first: dict[str, str] = {}  # by policy and kind of error, so that it is said once

    def add(self, policy: Policy, error: Exception) -> None:
        """Count one."""
        self.total += 1
        kind = f"{policy.name} {type(error).__name__}"
        self.first.setdefault(kind, f"policy {policy.name!r} failed: {error!r}")


class NotOfferedError(Exception):
    """A policy chose what it had not been shown."""


class _Drawing(Policy):
    """What chooses where the policy fails."""

    name = "drawing"

    def choose(self, request: RouteRequest, eligible: Sequence[ReplicaView]) -> ReplicaView:
        return draw_one(request, eligible)


_DRAWING = _Drawing()


class Chooser:
    """Lets a policy choose. One that fails costs its requests a good choice, and nothing else."""

    def __init__(self, roster: Roster, touched: set[int]) -> None:
        """``touched``: slots whose load has changed; it is emptied when that has been seen."""
        self.failures = PolicyFailures()
        self._roster = roster
        self._touched = touched

    def choose(
        self,
        policy: Policy,
        request: RouteRequest,
        pool: Pool,
        eligible: Sequence[ReplicaView],
        found: Sequence[Found],
    ) -> Choice:
        """Return one of ``eligible``, which are ``pool``'s or some of them."""
        is_whole = eligible is pool.views and not request.is_explained
        try:
            if policy.looks_at is None or len(eligible) < FRONTIER_REPLICAS_MIN or not is_whole:
                choice = choose(policy, request, eligible, found)
            else:
                frontier = self._roster.frontier(policy.looks_at, self._touched)
                choice = choose_alike(policy, request, pool, found, frontier)
            replica = choice.replica
            is_offered = id(replica) in pool.members
            if is_offered and eligible is not pool.views:
                is_offered = any(each is replica for each in eligible)
            if not is_offered:
                raise NotOfferedError(f"{replica.replica_id!r} was not offered")
        except Exception as error:
            self.failures.add(policy, error)
            return choose(_DRAWING, request, eligible, found)
        return choice


def look_up(
    index: PrefixIndex, request: RouteRequest, pool: Pool, bytes_per_token: float
) -> list[Found]:
    """Return who has cached how much of the prompt, those left out who have nothing of it."""
    if not request.prompt:
        return []
    tokens_max = request.prompt_tokens - 1
    return [
        Found(
            match.slots,
            match.num_blocks,
            min(int(match.num_blocks * key[0] / bytes_per_token), tokens_max),
        )
        for key, slots in pool.credit.items()
        for match in index.find(request.chain(key), slots)
    ]


def blocks_on(found: Sequence[Found], replica: ReplicaView) -> int:
    """Return how many blocks of the prompt ``replica`` has cached."""
    bit = slot_bit(replica.slot)
    for each in found:
        if each.slots & bit:
            return each.num_blocks
    return 0


def choose(
    policy: Policy, request: RouteRequest, eligible: Sequence[ReplicaView], found: Sequence[Found]
) -> Choice:
    """Let the policy choose of all ``eligible``. Fills in what each has of the prompt."""
    matched = request.matched_tokens = {}
    for each in found:
        matched.update(dict.fromkeys(_slots(each.slots), each.tokens))
    if len(eligible) == 1:
        return Choice(eligible[0], Reason.ONLY_ONE)
    replica = policy.choose(request, eligible)
    if not request.prompt:
        return Choice(replica, Reason.NO_PROMPT)
    tokens = matched.get(replica.slot, 0)
    most = max(matched.values(), default=0)
    if tokens < most:  # which may be on a replica that is spared
        most = max([matched.get(view.slot, 0) for view in eligible])
    return Choice(replica, _reason(tokens, most))


def choose_alike(
    policy: Policy, request: RouteRequest, pool: Pool, found: Sequence[Found], frontier: Frontier
) -> Choice:
    """Let the policy choose among those that stand for all of ``pool``; draw who it will be."""
    rest = pool.slots
    groups = []
    for each in found:
        rest &= ~each.slots
        groups.append(each.slots & pool.slots)
    views = frontier.stand_ins([*groups, rest])
    matched = request.matched_tokens = {}
    if found:
        for view in views:
            for each in found:
                if each.slots & slot_bit(view.slot):
                    matched[view.slot] = each.tokens
                    break
    stand_in = policy.choose(request, views)
    tokens = matched.get(stand_in.slot, 0)
    bit = slot_bit(stand_in.slot)
    group = next((slots for slots in groups if slots & bit), rest)
    if not stand_in.tells_of_cache and isinstance(policy, CostPolicy):
        replica = policy.break_tie(request, frontier.all_alike(stand_in, group))
    else:
        replica = frontier.draw_alike(stand_in, group, draw(request.request_id, "alike"))
    if tokens:
        matched[replica.slot] = tokens
    if not request.prompt:
        return Choice(replica, Reason.NO_PROMPT)
    most = max([each.tokens for each in found]) if found else 0
    return Choice(replica, _reason(tokens, most))


@lru_cache(SLOT_SETS_KEPT)
def _slots(bits: int) -> tuple[int, ...]:
    """Return the slots of a bit set. Prompts that are alike are held by the same replicas."""
    return tuple(slots_of(bits))


def _reason(tokens: int, most: int) -> Reason:
    if not most:
        return Reason.COLD
    return Reason.WARM if tokens == most else Reason.SPREAD
