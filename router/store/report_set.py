"""One set of ids in Redis, with the reports of its members: replicas, or gateways.

An id outlives its report, which expires. Who has had none for long may be taken out of the set by
any gateway; whoever comes back at that very moment adds itself again with its next report.
"""

from collections.abc import Callable
from typing import Any

from router.store.seam import StoreFault, StoreUnavailableError


class ReportSet:
    """Who is in the set, under which keys they report, and since when each does not."""

    def __init__(self, set_key: str, key_of: Callable[[str], str], ids_max: int) -> None:
        self.set_key = set_key
        self.keys: list[str] = []
        self._key_of = key_of
        self._ids_max = ids_max
        self._members: set[bytes] = set()
        self._ids: list[str] = []
        self._absent_since_us: dict[str, int] = {}

    def take_members(self, reply: Any) -> bool:
        """Take in the answer to SMEMBERS; return whether other keys must be read than before."""
        if not isinstance(reply, list | set):
            raise odd_shape("no list of members")
        members = {member for member in reply if isinstance(member, bytes)}
        if members == self._members:
            return False
        self._members = members
        ids = {member.decode("utf-8", "replace") for member in members}
        self._ids = sorted(ids)[: self._ids_max]
        self.keys = [self._key_of(member_id) for member_id in self._ids]
        return True

    def take_values(self, reply: Any, now_us: int) -> dict[str, bytes]:
        """Take in the answer to MGET of the keys; return the reports that there are, by id."""
        if not isinstance(reply, list) or len(reply) != len(self.keys):
            raise odd_shape(f"no list of {len(self.keys)} values")
        values: dict[str, bytes] = {}
        absent: dict[str, int] = {}
        for member_id, value in zip(self._ids, reply, strict=True):
            if isinstance(value, bytes):
                values[member_id] = value
            else:
                absent[member_id] = self._absent_since_us.get(member_id, now_us)
        self._absent_since_us = absent
        return values

    def absent_for(self, at_least_us: int, now_us: int) -> list[str]:
        """Return the ids that have had no report for so long."""
        since_us = self._absent_since_us.items()
        return [member_id for member_id, us in since_us if now_us - us >= at_least_us]


def odd_shape(what: str) -> StoreUnavailableError:
    """Return the error for an answer of another shape than the command has."""
    return StoreUnavailableError(StoreFault.REPLY, f"Redis answered with {what}")
