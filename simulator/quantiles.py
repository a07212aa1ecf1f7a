"""Quantiles of a list."""

from collections.abc import Sequence


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which ``share`` of an ordered, not empty list lies, interpolated."""
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])
