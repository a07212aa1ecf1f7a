"""How fast an engine computes prompts, from two counters that it keeps per request.

    rate = best over the last windows of (tokens prefilled / seconds of prefill)

A window is as many scrapes as it takes to see enough tokens. The seconds of requests that are
prefilled in the same steps are counted once for each of them, which makes a window look slower
than the engine is; the best of several is nearest to what a full step reaches.

It is told as a power of two. Between engines of one kind a difference is noise, and a policy would
follow the noise: idle, all of them are compared by nothing else, and one would get every prompt
that none has cached. Kinds that differ by less than that, differ less than load does.
"""

from collections import deque
from math import log2

from replicas.agents.engines.figures import Figures

WINDOW_TOKENS = 1_000
"""Enough that a request's fixed cost of some milliseconds is a small part."""

WINDOWS_MAX = 8
"""Old enough windows are of another load, or of an engine that was still warming up."""


class PrefillRate:
    """Follows one engine process; begin anew with the next one."""

    def __init__(self) -> None:
        self._rates: deque[float] = deque(maxlen=WINDOWS_MAX)
        self._tokens: int | None = None  # the counters at the beginning of the window
        self._seconds: float | None = None

    @property
    def tokens_per_s(self) -> float | None:
        """The best recent window's rate, None as long as there was too little to compute."""
        return 2.0 ** round(log2(max(self._rates))) if self._rates else None

    def observe(self, figures: Figures) -> None:
        """Take in the counters of one more scrape."""
        tokens, seconds = figures.prefilled_tokens_total, figures.prefill_seconds_total
        if tokens is None or seconds is None:
            return
        if self._tokens is None or self._seconds is None:
            self._tokens, self._seconds = tokens, seconds
            return
        more_tokens, more_seconds = tokens - self._tokens, seconds - self._seconds
        if more_tokens >= WINDOW_TOKENS and more_seconds > 0:
            self._rates.append(more_tokens / more_seconds)
            self._tokens, self._seconds = tokens, seconds
