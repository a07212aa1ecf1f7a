"""What `decide()` answers: a replica with a lease on it, or why there is none."""

from collections.abc import Mapping
from dataclasses import dataclass

from router.core.explanation import Explanation
from router.core.ledger import Lease
from router.core.reason import Ineligible, Reason
from router.core.view import ReplicaView


@dataclass(slots=True)  # not frozen, which costs 1 us for each one made
class Decision:
    """One routing decision. ``replica`` and ``lease`` are there together or not at all.

    ``ineligible`` says by replica id why the others could not be chosen; it is shared between
    decisions and must not be written to.
    """

    reason: Reason
    replica: ReplicaView | None
    lease: Lease | None
    matched_tokens: int
    ineligible: Mapping[str, Ineligible]
    explanation: Explanation | None = None  # if the request asks for it
    is_last_resort: bool = False  # of replicas that are all out: better than nobody

    @property
    def tried(self) -> set[str]:
        """The replicas that have been tried once this one has."""
        before = (name for name, why in self.ineligible.items() if why is Ineligible.ALREADY_TRIED)
        return {*before, *([self.replica.replica_id] if self.replica else [])}
