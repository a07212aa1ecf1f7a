"""What the ends of attempts say of a replica: when to leave it alone, and when to ask it again.

    closed    --failures in a row, or a share of a window-->  open
    open      --cooldown over-->                              half_open
    half_open --its one probe is answered-->                  closed
    half_open --its one probe fails-->                        open, twice as long

A 4xx is an answer. 429 and 503 are back-pressure: the replica is avoided for a moment and is not
counted as failing. A client that left says nothing about the replica.
"""

from enum import Enum

from router.core.config import RoutingConfig, micros


class AttemptOutcome(Enum):
    """How one attempt on one replica ended."""

    OK = "ok"
    CLIENT_ERROR = "client_error"  # 4xx
    NOT_FOUND = "not_found"  # 404 on a path that every engine has: it knows no such model
    BACK_PRESSURE = "back_pressure"  # 429, 503
    SERVER_ERROR = "server_error"  # other 5xx
    TRANSPORT_ERROR = "transport_error"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"  # the client left, or the lease was taken back


class BreakerState(Enum):
    """Whether a replica takes traffic."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


_ANSWERS = (AttemptOutcome.OK, AttemptOutcome.CLIENT_ERROR, AttemptOutcome.NOT_FOUND)
_EJECTIONS_COUNTED_MAX = 32  # doubling further than this is beyond any cap


class FailureWindow:
    """Answers and failures of the last one to two half windows."""

    def __init__(self, window_us: int) -> None:
        self._half_us = max(1, window_us // 2)
        self._half_index = 0
        self._recent = [0, 0]  # failures, all
        self._older = [0, 0]

    def add(self, failed: bool, now_us: int) -> None:
        """Count one end."""
        if now_us // self._half_us > self._half_index:
            self._turn(now_us)
        self._recent[0] += failed
        self._recent[1] += 1

    def exceeds(self, share: float, at_least: int, now_us: int) -> bool:
        """Say whether ``share`` of the window, if it holds ``at_least`` ends, are failures."""
        self._turn(now_us)
        failures = self._recent[0] + self._older[0]
        ends = self._recent[1] + self._older[1]
        return ends >= at_least and failures >= share * ends

    def clear(self) -> None:
        """Forget all."""
        self._recent, self._older = [0, 0], [0, 0]

    def _turn(self, now_us: int) -> None:
        half_index = now_us // self._half_us
        if half_index > self._half_index:
            self._older = self._recent if half_index == self._half_index + 1 else [0, 0]
            self._recent = [0, 0]
            self._half_index = half_index


class Breaker:
    """One replica's breaker and its back-pressure, moved by outcomes and by ``tick``."""

    def __init__(self, config: RoutingConfig) -> None:
        self.state = BreakerState.CLOSED
        self.probing = False
        self._config = config
        self._window = FailureWindow(micros(config.breaker_window_s))
        self.failing_since_us: int | None = None  # without an answer between
        self._failures_in_a_row = 0
        self._ejections = 0  # in a row: without a quiet time of the longest cooldown between
        self._opened_us = 0
        self._reopens_us = 0
        self._closed_us = 0
        self._refusals_in_a_row = 0
        self._avoided_until_us: int | None = None

    @property
    def is_ejected(self) -> bool:
        """Open, or half open with its one probe under way."""
        return self.state is BreakerState.OPEN or (
            self.state is BreakerState.HALF_OPEN and self.probing
        )

    @property
    def is_avoided(self) -> bool:
        """Back-pressure was felt a moment ago."""
        return self._avoided_until_us is not None

    def begin_attempt(self) -> bool:
        """Say whether the attempt that begins now is the probe."""
        if self.state is BreakerState.HALF_OPEN and not self.probing:
            self.probing = True
            return True
        return False

    def observe(
        self, outcome: AttemptOutcome, now_us: int, *, began_us: int, is_probe: bool
    ) -> bool:
        """Take in how an attempt that began at ``began_us`` ended.

        Returns whether the replica is now ejected, or avoided, and was not before; or the reverse.
        """
        is_quiet = self.state is BreakerState.CLOSED and self._avoided_until_us is None
        if is_quiet and outcome is AttemptOutcome.OK and not is_probe:  # as nearly always
            self._refusals_in_a_row = self._failures_in_a_row = 0
            self.failing_since_us = None
            self._window.add(False, now_us)
            return False
        before = (self.is_ejected, self.is_avoided)
        self._take(outcome, now_us, began_us, is_probe)
        return (self.is_ejected, self.is_avoided) != before

    def tick(self, now_us: int) -> None:
        """Let time end a cooldown or an avoidance."""
        if self.state is BreakerState.OPEN and now_us >= self._reopens_us:
            self.state = BreakerState.HALF_OPEN
            self.probing = False
        if self._avoided_until_us is not None and now_us >= self._avoided_until_us:
            self._avoided_until_us = None

    def _take(self, outcome: AttemptOutcome, now_us: int, began_us: int, is_probe: bool) -> None:
        if is_probe:
            self.probing = False
        if outcome is AttemptOutcome.CANCELLED:
            return
        if outcome is AttemptOutcome.BACK_PRESSURE:
            self._refusals_in_a_row += 1
            self._avoided_until_us = now_us + self._avoidance_us()
            self._answered(now_us, began_us, is_probe)
        elif outcome in _ANSWERS:
            self._refusals_in_a_row = 0
            self._window.add(False, now_us)
            self._answered(now_us, began_us, is_probe)
        else:
            self._failed(now_us, is_probe)

    def _answered(self, now_us: int, began_us: int, is_probe: bool) -> None:
        self._failures_in_a_row = 0
        self.failing_since_us = None
        # While all are ejected they are used nevertheless; what began since the ejection and is
        # answered shows as much as a probe. What began before it shows nothing.
        is_news = self.state is BreakerState.OPEN and began_us >= self._opened_us
        if is_probe or is_news:
            self.state = BreakerState.CLOSED
            self.probing = False
            self._closed_us = now_us
            self._window.clear()

    def _failed(self, now_us: int, is_probe: bool) -> None:
        self._window.add(True, now_us)
        self._failures_in_a_row += 1
        if self.failing_since_us is None:
            self.failing_since_us = now_us
        if self.state is BreakerState.HALF_OPEN and is_probe:
            self._eject(now_us)
        elif self.state is BreakerState.CLOSED:
            config = self._config
            in_a_row = self._failures_in_a_row >= config.breaker_failures
            share, at_least = config.breaker_window_share, config.breaker_window_requests
            if in_a_row or self._window.exceeds(share, at_least, now_us):
                self._eject(now_us)

    def _eject(self, now_us: int) -> None:
        quiet_us = micros(self._config.breaker_cooldown_max_s)
        if self.state is BreakerState.CLOSED and now_us - self._closed_us > quiet_us:
            self._ejections = 0
        doublings = min(self._ejections, _EJECTIONS_COUNTED_MAX)
        cooldown_s = self._config.breaker_cooldown_s * 2**doublings
        self._ejections += 1
        self.state = BreakerState.OPEN
        self._opened_us = now_us
        self._reopens_us = now_us + micros(min(cooldown_s, self._config.breaker_cooldown_max_s))
        self._failures_in_a_row = 0
        self._window.clear()

    def _avoidance_us(self) -> int:
        doublings = min(self._refusals_in_a_row - 1, _EJECTIONS_COUNTED_MAX)
        seconds = self._config.back_pressure_s * 2**doublings
        return micros(min(seconds, self._config.back_pressure_max_s))
