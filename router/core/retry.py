"""When a failed attempt may be made again on another replica, and how soon.

Never after the first byte of an answer, never on a replica already tried, never beyond
``retry_max``, and only while the fleet-wide budget lasts: when a fleet fails as a whole, retries
would multiply the load that it fails under.

What waited on a replica when that was lost is not multiplied but moved (``FleetState.is_moved``).
The budget never stops that: however many there are, none fails while another replica is well. What
is sent there afterwards, or where no replica is known to be well, must be paid for.
"""

from contract.failures import RETRYABLE_STATUSES, Failure
from router.core.config import RoutingConfig, micros
from router.core.policy import draw

_WINDOW_S = 10  # what is paid in may be saved up for so long, for a burst of failures
_WINDOW_US = micros(_WINDOW_S)

LOST = frozenset({Failure.CONNECT_FAILED, Failure.CONNECT_TIMEOUT, Failure.UPSTREAM_LOST})
"""The replica did not refuse: it was not there, or not any more."""
_DRAW_MAX = 2**64


def may_retry(cause: Failure | int, attempts: int, config: RoutingConfig) -> bool:
    """Say whether a request that has had ``attempts`` may have one more.

    ``cause`` is the gateway's own failure, or the status that the replica answered; both before
    the first byte went to the client.
    """
    assert attempts >= 1
    if attempts > config.retry_max:
        return False
    if isinstance(cause, Failure):
        return cause.kind.retry_elsewhere
    return cause in RETRYABLE_STATUSES


class RetryBudget:
    """A token bucket over all requests: each pays in its share, each retry takes out a whole.

    Besides, time pays in ``retry_floor_per_s``: a fleet with little traffic may retry too. The
    bucket holds what the last ten to twenty seconds paid in.
    """

    def __init__(self, config: RoutingConfig, now_us: int) -> None:
        self._share = config.retry_budget
        self._floor_per_us = config.retry_floor_per_s / 1_000_000
        self._floor_saved_max = config.retry_floor_per_s * _WINDOW_S
        self._tokens = self._floor_saved_max and max(1.0, self._floor_saved_max)
        self._filled_us = now_us
        self._window_ends_us = now_us + _WINDOW_US
        self._requests = self._requests_before = 0  # of this window and the one before
        self.refused_total = 0

    def on_request(self, now_us: int) -> None:
        """Pay in one request's share."""
        if now_us >= self._window_ends_us:
            self._turn(now_us)
        self._requests += 1
        self._tokens += self._share

    def take(self, now_us: int, *, is_moved: bool = False) -> bool:
        """Take out one retry; False if there is none left, unless it only moves load."""
        if now_us >= self._window_ends_us:
            self._turn(now_us)
        elapsed_us = max(0, now_us - self._filled_us)
        self._filled_us = now_us
        shares = self._share * (self._requests + self._requests_before)
        saved_max = max(1.0, self._floor_saved_max + shares)
        self._tokens = min(saved_max, self._tokens + elapsed_us * self._floor_per_us)
        if is_moved:
            self._tokens = max(0.0, self._tokens - 1.0)
            return True
        if self._tokens < 1.0:
            self.refused_total += 1
            return False
        self._tokens -= 1.0
        return True

    def _turn(self, now_us: int) -> None:
        has_just_ended = now_us < self._window_ends_us + _WINDOW_US
        self._requests_before = self._requests if has_just_ended else 0
        self._requests = 0
        self._window_ends_us = now_us + _WINDOW_US


def backoff_us(attempts: int, request_id: str, config: RoutingConfig) -> int:
    """Return how long to wait after ``attempts`` attempts: drawn from the upper half of a range.

    The range doubles with each attempt up to ``retry_backoff_max_s``; the draw is fixed by the
    request, so that a burst that failed together does not come back together, and a run replays.
    """
    assert attempts >= 1
    longest_s = min(config.retry_backoff_s * 2.0 ** (attempts - 1), config.retry_backoff_max_s)
    share = draw(request_id, f"backoff {attempts}") / _DRAW_MAX
    return micros(longest_s * (0.5 + 0.5 * share))
