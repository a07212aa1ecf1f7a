"""What others have under way on a replica, of which a gateway is told now and then.

    told     = max(0, reported - own peak), or what the other gateways say if that is more
    trust    = exp(-interval / 2 / load_trust_s)
    expected = trust * told + (1 - trust) * mean of the last tellings

A report counts our own requests too, at a moment in the past. The peak of our own ledger over
the last two reports is the most of ours that it can contain; what it shows beyond that is
others' load.

A queue of prompts is worked off within a fraction of a second. So what was told some time ago says
less of now than what is usual there; told every 10 ms it counts for nearly all, every 100 ms for
78 %, every second for 8 %. Found with four gateways and `load_trust_s` of 0.1 to 0.3: told every
second, the mean TTFT at the knee falls from 186 to 126 ms, and from 544 to 221 ms above it.
"""

from collections import deque
from math import exp

from contract.load_report import InFlight
from router.core.view import ReplicaView

IDLE = InFlight(0, 0)

MEAN_OVER = 5
MEAN_OVER_US = 4_000_000
"""The mean is of so many tellings, if the oldest is no older than that beside the last. What is
before them is forgotten: one report of nonsense must not count for longer.
"""


class ForeignLoad:
    """Others' load on one replica, as expected until the next telling."""

    __slots__ = (
        *("_beyond_own", "_mean_ahead_tokens", "_mean_requests", "_others", "_peak"),
        *("_peak_before", "_tellings", "_trust", "_trust_us"),
    )

    def __init__(self, trust_us: int) -> None:
        self._trust_us = trust_us
        self._trust = 1.0
        self._tellings: deque[tuple[int, InFlight]] = deque(maxlen=MEAN_OVER)  # with their times
        self._beyond_own = IDLE  # what the last report shows beyond our own peak
        self._others = IDLE  # what the other gateways say they have here
        self._peak = IDLE  # of our own ledger, since the last report
        self._peak_before = IDLE  # and in the interval before it
        self._mean_requests = self._mean_ahead_tokens = 0.0

    @property
    def beyond_own(self) -> InFlight:
        """What the last report shows beyond our own."""
        return self._beyond_own

    def note_own(self, view: ReplicaView) -> None:
        """Raise the peak; called whenever our own load has grown."""
        peak = self._peak
        if view.own_requests > peak.requests or view.own_ahead_tokens > peak.ahead_tokens:
            self._peak = _larger(peak, _own(view))

    def report(
        self, requests: int | None, ahead_tokens: int | None, view: ReplicaView, now_us: int
    ) -> None:
        """Take in what a report counts; None is what it leaves out, which stays as it was."""
        own = _larger(_larger(self._peak, self._peak_before), _own(view))
        before = self._beyond_own
        self._beyond_own = InFlight(
            before.requests if requests is None else max(0, requests - own.requests),
            before.ahead_tokens
            if ahead_tokens is None
            else max(0, ahead_tokens - own.ahead_tokens),
        )
        self._peak_before, self._peak = self._peak, _own(view)
        self._average(now_us)

    def set_beyond_own(self, load: InFlight) -> bool:
        """Take in what the last report should have shown; return whether that is new."""
        if load == self._beyond_own:
            return False
        self._beyond_own = load
        return True

    def set_others(self, others: InFlight) -> bool:
        """Take in what the other gateways have under way here; return whether that is new."""
        if others == self._others:
            return False
        self._others = others
        return True

    def expected(self) -> InFlight:
        """Return what is to be expected now."""
        told, trust = _larger(self._beyond_own, self._others), self._trust
        if trust == 1.0:
            return told
        return InFlight(
            round(trust * told.requests + (1.0 - trust) * self._mean_requests),
            round(trust * told.ahead_tokens + (1.0 - trust) * self._mean_ahead_tokens),
        )

    def _average(self, now_us: int) -> None:
        told, tellings = _larger(self._beyond_own, self._others), self._tellings
        if tellings:
            self._trust = exp(-max(0, now_us - tellings[-1][0]) / 2 / self._trust_us)
        tellings.append((now_us, told))
        while now_us - tellings[0][0] > MEAN_OVER_US:
            tellings.popleft()
        self._mean_requests = sum([each.requests for _, each in tellings]) / len(tellings)
        self._mean_ahead_tokens = sum([each.ahead_tokens for _, each in tellings]) / len(tellings)


def _own(view: ReplicaView) -> InFlight:
    return InFlight(view.own_requests, view.own_ahead_tokens)


def _larger(a: InFlight, b: InFlight) -> InFlight:
    return InFlight(max(a.requests, b.requests), max(a.ahead_tokens, b.ahead_tokens))
