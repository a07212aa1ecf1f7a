"""The mean of a few runs and how far to trust it: Student's t, for runs of independent seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import atan, cos, pi, sin, sqrt

CONFIDENCE = 0.95
QUANTILE_MAX = 1e4
"""Beyond Student's t of one degree of freedom at 0.9999, both sides."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over ``n`` runs; the true one lies within ``half_width`` of it at CONFIDENCE.

    None where there is one run, which says nothing of its spread.
    """

    mean: float
    half_width: float | None
    n: int


def estimate(values: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """Return the mean of ``values``, of which there is at least one, and its interval."""
    n = len(values)
    assert n, "nothing to take the mean of"
    mean = sum(values) / n
    if n == 1:
        return Estimate(mean, None, n)
    variance = sum((value - mean) ** 2 for value in values) / (n - 1)
    return Estimate(mean, t_quantile(confidence, n - 1) * sqrt(variance / n), n)


def t_quantile(confidence: float, degrees: int) -> float:
    """Return the t that Student's distribution exceeds, on either side, by 1 - ``confidence``."""
    assert 0 < confidence < 1
    low, high = 0.0, QUANTILE_MAX
    while True:
        middle = (low + high) / 2
        if middle in (low, high):
            return middle
        if t_within(middle, degrees) < confidence:
            low = middle
        else:
            high = middle


def t_within(t: float, degrees: int) -> float:
    """Return the probability that Student's t lies between -``t`` and ``t``.

    Abramowitz and Stegun, "Handbook of Mathematical Functions", 26.7.3 and 26.7.4.
    """
    assert degrees > 0
    angle = atan(t / sqrt(degrees))
    if degrees == 1:
        return 2 * angle / pi
    cosine, is_odd = cos(angle), degrees % 2
    term = cosine if is_odd else 1.0
    total = term
    for k in range(2 + is_odd, degrees - 1, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    return 2 / pi * (angle + sin(angle) * total) if is_odd else sin(angle) * total
