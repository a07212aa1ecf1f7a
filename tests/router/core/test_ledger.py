"""Leases under any order of events, against a plain list of what is open."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from contract.openai_api import Usage
from router.core.health import AttemptOutcome
from router.core.ledger import Lease, Ledger
from router.core.view import ReplicaView

TTL_US = 1000
OUTCOMES = st.sampled_from(AttemptOutcome)


class AnyLeases(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ended: list[Lease] = []
        self.ledger = Ledger(TTL_US, self.note_end)
        self.views = [ReplicaView("a", 0, "http://a"), ReplicaView("b", 1, "http://b")]
        self.leases: list[Lease] = []
        self.gone: set[Lease] = set()  # ended, as far as this test knows
        self.ahead: set[Lease] = set()
        self.now_us = 0

    def note_end(
        self, lease: Lease, outcome: AttemptOutcome, now_us: int, usage: Usage | None
    ) -> None:
        self.ended.append(lease)

    @rule(place=st.integers(0, 1), matched=st.integers(0, 9), uncached=st.integers(0, 9))
    def book(self, place: int, matched: int, uncached: int) -> None:
        lease = self.ledger.book(self.views[place], matched, uncached, self.now_us)
        self.leases.append(lease)
        self.ahead.add(lease)

    @rule(place=st.integers(0, 1))
    def restart_the_replica(self, place: int) -> None:
        old = self.views[place]
        self.views[place] = ReplicaView(old.replica_id, old.slot, old.url)

    def any_lease(self, data: Any) -> Lease | None:
        return data.draw(st.sampled_from(self.leases)) if self.leases else None

    @rule(data=st.data())
    def first_byte(self, data: Any) -> None:
        lease = self.any_lease(data)
        if lease is not None:
            lease.first_byte(self.now_us)
            self.ahead.discard(lease)

    @rule(data=st.data(), outcome=OUTCOMES)
    def end(self, data: Any, outcome: AttemptOutcome) -> None:
        lease = self.any_lease(data)
        if lease is not None:
            assert lease.end(outcome, self.now_us) is (lease not in self.gone)
            self.gone.add(lease)

    @rule(elapsed_us=st.integers(0, TTL_US))
    def time_passes(self, elapsed_us: int) -> None:
        self.now_us += elapsed_us
        self.ledger.expire(self.now_us)
        self.gone.update(self.ended)
        for lease in self.leases:
            silent_us = self.now_us - lease.renewed_us
            assert silent_us < TTL_US * 1.1 or lease in self.gone or elapsed_us

    @invariant()
    def load_is_what_is_open(self) -> None:
        self.ledger.check(self.views)
        assert len(self.ended) == len(set(self.ended)) == len(self.gone)  # each once
        assert len(self.ledger) == len(self.leases) - len(self.gone)
        for view in [
            *self.views,
            *{lease.replica.replica_id: lease.replica for lease in self.leases}.values(),
        ]:
            open_here = [x for x in self.leases if x.replica is view and x not in self.gone]
            assert view.own_requests == len(open_here)
            ahead_tokens = sum(x.uncached_tokens for x in open_here if x in self.ahead)
            assert view.own_ahead_tokens == ahead_tokens


TestAnyLeases = AnyLeases.TestCase


def make_ledger() -> tuple[Ledger, ReplicaView]:
    return Ledger(TTL_US, lambda *_: None), ReplicaView("a", 0, "u")


def test_first_byte_frees_the_tokens_and_keeps_the_request() -> None:
    ledger, view = make_ledger()
    lease = ledger.book(view, 10, 90, now_us=0)

    lease.first_byte(1)

    assert (view.own_requests, view.own_ahead_tokens) == (1, 0)


def test_a_lease_that_nobody_renews_is_taken_back() -> None:
    ledger, view = make_ledger()
    flowing = ledger.book(view, 0, 1, now_us=0)
    silent = ledger.book(view, 0, 1, now_us=0)
    flowing.renew(TTL_US - 1)

    ledger.expire(TTL_US)

    assert (flowing.is_open, silent.is_open) == (True, False)
    assert ledger.expired_total == 1
    assert view.own_requests == 1


def test_end_that_comes_after_expiry_changes_nothing() -> None:
    ledger, view = make_ledger()
    lease = ledger.book(view, 0, 1, now_us=0)
    ledger.expire(TTL_US)

    late = lease.end(AttemptOutcome.OK, TTL_US + 1)

    assert late is False
    assert view.own_requests == 0


def test_first_byte_after_the_end_changes_nothing() -> None:
    ledger, view = make_ledger()
    lease = ledger.book(view, 0, 5, now_us=0)
    lease.end(AttemptOutcome.OK, 1)

    lease.first_byte(2)

    assert view.own_ahead_tokens == 0
