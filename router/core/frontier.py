"""Those replicas that a cost policy need look at: of all that are alike, the least busy.

    class    replicas that agree in all that the policy says it looks at but the match and ``ahead``
    level    those of a class with equal ``ahead`` tokens
    group    replicas that have cached equally much of one prompt

A cost that never falls as ``ahead`` rises is least, within a class and a group, on the lowest
level that the group has there. So a choice costs one look at each class, and there are about as
many as there are numbers of requests on a replica, however many replicas there are. Who is alike
to the last token stays together as a bit set until one of them is drawn.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter

from router.core.prefix_index import LANES, slot_bit, slots_of
from router.core.view import ReplicaView

FEW = 4
"""A group of so few replicas is taken as it is: to ask each class for them would take longer."""


@dataclass(slots=True, eq=False)
class _Class:
    slots: int = 0
    levels: list[int] = field(default_factory=list)  # ascending
    at_level: dict[int, int] = field(default_factory=dict)  # bit sets of slots


@dataclass(slots=True, eq=False)
class _Place:
    kind: object  # what the policy looks at
    ahead_tokens: int


class Frontier:
    """Replicas by class and level. Bit sets are of ``slot_bit``s."""

    def __init__(self, fields: tuple[str, ...], views: Iterable[ReplicaView]) -> None:
        self.fields = fields
        self._kind_of = attrgetter(*fields) if fields else lambda _: None
        self._views = {view.slot: view for view in views}
        self._places: dict[int, _Place] = {}
        self._classes: dict[object, _Class] = {}
        for slot in self._views:
            self.update(slot)

    def update(self, slot: int) -> None:
        """Take in that a replica's state may have changed."""
        view = self._views.get(slot)
        if view is None:
            return
        place = _Place(self._kind_of(view), view.own_ahead_tokens + view.foreign_ahead_tokens)
        before = self._places.get(slot)
        if before is not None:
            if before.ahead_tokens == place.ahead_tokens and before.kind == place.kind:
                return
            self._take_out(slot, before)
        self._places[slot] = place
        bit = slot_bit(slot)
        each = self._classes.get(place.kind)
        if each is None:
            each = self._classes[place.kind] = _Class()
        each.slots |= bit
        alike = each.at_level.get(place.ahead_tokens, 0)
        if not alike:
            insort(each.levels, place.ahead_tokens)
        each.at_level[place.ahead_tokens] = alike | bit

    def stand_ins(self, groups: Iterable[int]) -> list[ReplicaView]:
        """Return one replica for all those of each class and group that are on its lowest level."""
        views = self._views
        found: list[ReplicaView] = []
        for group in groups:
            if group.bit_count() <= FEW:
                found += [views[slot] for slot in slots_of(group)]
                continue
            for each in self._classes.values():
                slots = each.slots & group
                if not slots:
                    continue
                for level in each.levels:
                    alike = each.at_level[level] & slots
                    if alike:
                        found.append(views[(alike.bit_length() - 1) // LANES])
                        break
        return found

    def draw_alike(self, view: ReplicaView, group: int, drawn: int) -> ReplicaView:
        """Return one of those of ``group`` that ``view`` stands for, by a number drawn of 64 bits.

        Each is as likely as the others, whatever their order.
        """
        alike = self._alike(view, group)
        return self._views[_nth_slot(alike, drawn % alike.bit_count())]

    def all_alike(self, view: ReplicaView, group: int) -> list[ReplicaView]:
        """Return those of ``group`` that ``view`` stands for."""
        return [self._views[slot] for slot in slots_of(self._alike(view, group))]

    def _alike(self, view: ReplicaView, group: int) -> int:
        place = self._places[view.slot]
        return self._classes[place.kind].at_level[place.ahead_tokens] & group

    def _take_out(self, slot: int, place: _Place) -> None:
        bit = slot_bit(slot)
        each = self._classes[place.kind]
        each.slots ^= bit
        if not each.slots:
            del self._classes[place.kind]
            return
        alike = each.at_level[place.ahead_tokens] ^ bit
        if alike:
            each.at_level[place.ahead_tokens] = alike
        else:
            del each.at_level[place.ahead_tokens]
            del each.levels[bisect_left(each.levels, place.ahead_tokens)]


def _nth_slot(slots: int, n: int) -> int:
    """Return the ``n``-th slot of a bit set, from 0, by halving."""
    low, width = 0, slots.bit_length()
    while width > 1:
        half = width // 2
        lower = slots & ((1 << half) - 1)
        below = lower.bit_count()
        if n < below:
            slots, width = lower, half
        else:
            n -= below
            slots >>= half
            low += half
            width -= half
    return low // LANES
