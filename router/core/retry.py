"""When a failed attempt may be made again on another replica, and how soon.

Never after the first byte of an answer, never on a replica already tried, never beyond
``retry_max``, and only while the fleet-wide budget lasts: when a fleet fails as a whole, retries
would multiply the load that it fails under.
"""

from contract.failures import RETRYABLE_STATUSES, Failure
from router.core.config import RoutingConfig, micros
from router.core.policy import draw

_BUDGET_FLOOR_S = 10  # the floor may be saved up for so long, for a burst of failures
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

    Besides, time pays in ``retry_floor_per_s``: a fleet with little traffic may retry too.
    """

    def __init__(self, config: RoutingConfig, now_us: int) -> None:
        self._share = config.retry_budget
        self._floor_per_us = config.retry_floor_per_s / 1_000_000
        self._tokens_max = max(1.0, config.retry_floor_per_s * _BUDGET_FLOOR_S)
        self._tokens = self._tokens_max if config.retry_floor_per_s else 0.0
        self._filled_us = now_us
        self.refused_total = 0

    def on_request(self) -> None:
        """Pay in one request's share."""
        self._tokens += self._share
        if self._tokens > self._tokens_max:
            self._tokens = self._tokens_max

    def take(self, now_us: int) -> bool:
        """Take out one retry; False if there is none left."""
        elapsed_us = max(0, now_us - self._filled_us)
        self._filled_us = now_us
        self._tokens = min(self._tokens_max, self._tokens + elapsed_us * self._floor_per_us)
        if self._tokens < 1.0:
            self.refused_total += 1
            return False
        self._tokens -= 1.0
        return True


def backoff_us(attempts: int, request_id: str, config: RoutingConfig) -> int:
    """Return how long to wait after ``attempts`` attempts: drawn from the upper half of a range.

    The range doubles with each attempt up to ``retry_backoff_max_s``; the draw is fixed by the
    request, so that a burst that failed together does not come back together, and a run replays.
    """
    assert attempts >= 1
    longest_s = min(config.retry_backoff_s * 2.0 ** (attempts - 1), config.retry_backoff_max_s)
    share = draw(request_id, f"backoff {attempts}") / _DRAW_MAX
    return micros(longest_s * (0.5 + 0.5 * share))
