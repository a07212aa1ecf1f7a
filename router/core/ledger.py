"""This gateway's own load, exactly: one lease per attempt, booked before any await.

Invariant: a view's ``own_requests`` is the number of its open leases, and ``own_ahead_tokens``
the sum of the uncached tokens of those before their first byte; ``check()`` executes it. A lease
holds the view it was booked on, so the release of a lease on a replica that has restarted since
reaches the old view, which nobody chooses any more.
"""

from collections.abc import Callable, Iterable, Sequence

from contract.blocks import BlockHash
from contract.openai_api import Usage
from router.core.answers import AnswerPlace
from router.core.health import AttemptOutcome
from router.core.view import ReplicaView

EXPIRY_SCANS_PER_TTL = 10
_UNHEARD = (AttemptOutcome.TRANSPORT_ERROR, AttemptOutcome.TIMEOUT, AttemptOutcome.CANCELLED)
"""Ends in which the replica need not have said anything."""


class Lease:
    """One attempt's share of a replica's load. ``end`` gives it back, once, on every path."""

    __slots__ = (
        *("replica", "matched_tokens", "uncached_tokens", "booked_us", "renewed_us"),
        *("first_byte_us", "is_open", "is_probe", "chain", "matched_blocks"),
        *("matched_last_used_us", "ahead_tokens", "is_stream", "num_streams", "num_chunks"),
        *("model", "answer_place", "_ledger"),
    )

    def __init__(
        self, ledger: "Ledger", replica: ReplicaView, matched: int, uncached: int, now_us: int
    ) -> None:
        self.replica = replica
        self.matched_tokens = matched
        self.uncached_tokens = uncached
        self.booked_us = now_us
        self.renewed_us = now_us
        self.first_byte_us: int | None = None
        self.is_open = True
        self.is_probe = False
        self.model: str | None = None  # as the request names it
        self.chain: Sequence[BlockHash] = ()  # the prompt in this replica's blocks
        self.answer_place: AnswerPlace | None = None  # None where nobody needs to learn it
        self.matched_blocks = 0
        self.matched_last_used_us: int | None = None  # before this lease; None if not learned
        self.ahead_tokens = 0  # on the replica when this was booked
        self.is_stream = False
        self.num_streams = 1  # requests on the replica at the first byte, this one included
        self.num_chunks = 0  # pieces of the answer so far
        self._ledger = ledger

    @property
    def is_ahead(self) -> bool:
        """Whether its prefill is still ahead of whoever comes next."""
        return self.is_open and self.first_byte_us is None

    def first_byte(self, now_us: int) -> None:
        """The prompt has been computed: its tokens are no longer ahead of anyone."""
        replica = self.replica
        self.renewed_us = replica.heard_us = now_us
        if self.is_open and self.first_byte_us is None:
            self.first_byte_us = now_us
            self.num_streams = replica.own_requests + replica.foreign_requests
            replica.own_ahead_tokens -= self.uncached_tokens
            self._ledger.touched.add(replica.slot)

    def renew(self, now_us: int) -> None:
        """Its request is still under way: the lease lives on."""
        self.renewed_us = now_us

    def heard(self, now_us: int) -> None:
        """A byte of the answer came."""
        self.replica.heard_us = now_us

    def pass_probe(self, now_us: int) -> None:
        """The replica answers, which is all that the probe was to show."""
        self._ledger.on_pass(self, now_us)
        self.is_probe = False

    def end(self, outcome: AttemptOutcome, now_us: int, usage: Usage | None = None) -> bool:
        """Give the load back. Returns False, and does nothing, if that has been done."""
        return self._ledger.release(self, outcome, now_us, usage)


OnEnd = Callable[[Lease, AttemptOutcome, int, Usage | None], None]
OnPass = Callable[[Lease, int], None]


class Ledger:
    """All open leases of this gateway, oldest first."""

    def __init__(self, lease_ttl_us: int, on_end: OnEnd, on_pass: OnPass = lambda *_: None) -> None:
        self.on_pass = on_pass  # a probe has been passed before its end
        self.expired_total = 0
        self.touched: set[int] = set()  # slots whose load has changed; who reads it, empties it
        self._ttl_us = lease_ttl_us
        self._on_end = on_end
        self._open: dict[Lease, None] = {}
        self._next_scan_us = 0
        self._num_booked = 0

    def __len__(self) -> int:
        return len(self._open)

    def book(self, replica: ReplicaView, matched: int, uncached: int, now_us: int) -> Lease:
        """Count one more request on ``replica``, with so many tokens cached and to compute."""
        assert matched >= 0
        assert uncached >= 0
        lease = Lease(self, replica, matched, uncached, now_us)
        if not replica.own_requests and replica.asked_us <= replica.heard_us:
            replica.asked_us = now_us  # until now there was nothing to hear
        self._open[lease] = None
        self._num_booked += 1
        replica.last_sent = self._num_booked
        replica.own_requests += 1
        replica.own_ahead_tokens += uncached
        self.touched.add(replica.slot)
        return lease

    def release(
        self, lease: Lease, outcome: AttemptOutcome, now_us: int, usage: Usage | None
    ) -> bool:
        """See ``Lease.end``. ``on_end`` is called once, after the load has been given back."""
        if not lease.is_open:
            return False
        replica = lease.replica
        replica.own_requests -= 1
        self.touched.add(replica.slot)
        if lease.first_byte_us is None:
            replica.own_ahead_tokens -= lease.uncached_tokens
        assert replica.own_requests >= 0
        assert replica.own_ahead_tokens >= 0
        if outcome not in _UNHEARD:
            replica.heard_us = now_us
        lease.is_open = False
        del self._open[lease]
        self._on_end(lease, outcome, now_us, usage)
        lease.chain = ()  # whoever keeps the lease need not keep the prompt's blocks
        place, lease.answer_place = lease.answer_place, None
        if place is not None and place.on_end is not None:
            place.on_end(outcome is AttemptOutcome.OK)
        return True

    def expire(self, now_us: int) -> None:
        """Take back leases not renewed for the time to live (up to a tenth longer)."""
        if now_us < self._next_scan_us:
            return
        self._next_scan_us = now_us + self._ttl_us // EXPIRY_SCANS_PER_TTL
        for lease in list(self._open):
            if now_us - lease.renewed_us >= self._ttl_us:
                self.expired_total += 1
                lease.end(AttemptOutcome.CANCELLED, now_us)

    def check(self, replicas: Iterable[ReplicaView]) -> None:
        """Assert this file's invariant for ``replicas``."""
        for replica in replicas:
            leases = [lease for lease in self._open if lease.replica is replica]
            assert replica.own_requests == len(leases)
            ahead_tokens = sum(lease.uncached_tokens for lease in leases if lease.is_ahead)
            assert replica.own_ahead_tokens == ahead_tokens
