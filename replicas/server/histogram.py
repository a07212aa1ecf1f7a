"""Counts of durations and sizes by bucket, and the bucket bounds of vLLM 0.32."""

from bisect import bisect_left
from collections.abc import Sequence

from prometheus_client.core import HistogramMetricFamily, Metric

TTFT_BOUNDS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
ITL_BOUNDS_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0),
)
REQUEST_BOUNDS_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
STEP_TOKEN_BOUNDS = tuple(float(1 << power) for power in (0, *range(3, 15)))
CHOICE_BOUNDS = (1.0, 2.0, 5.0, 10.0, 20.0)
PREEMPTION_BOUNDS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)

_PER_SECOND = 1_000_000


def token_bounds(max_model_len: int) -> tuple[float, ...]:
    """Return 1, 2, 5, 10, 20, 50, ... up to the longest context: vLLM's buckets of tokens."""
    bounds: list[float] = []
    decade = 1
    while True:
        for bound in (decade, 2 * decade, 5 * decade):
            if bound > max_model_len:
                return tuple(bounds)
            bounds.append(float(bound))
        decade *= 10


class Histogram:
    """Counts whole numbers: microseconds with bounds in seconds, or plain counts.

    Cheaper than the library's by what a lock and a linear search cost.
    """

    def __init__(self, bounds: Sequence[float], scale: int = 1) -> None:
        self._names = [*map(str, bounds), "+Inf"]
        self._scale = scale
        self._bounds = [round(bound * scale) for bound in bounds]
        self._counts = [0] * len(self._names)
        self._sum = 0

    @classmethod
    def of_seconds(cls, bounds_s: Sequence[float]) -> "Histogram":
        """Return a histogram that observes microseconds and is exported in seconds."""
        return cls(bounds_s, _PER_SECOND)

    def observe(self, value: int) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def add_to(self, family: HistogramMetricFamily, label_values: Sequence[str]) -> None:
        """Add this histogram to ``family`` as the series of these label values."""
        total = 0
        buckets: list[Sequence[str | float]] = []
        for bound, count in zip(self._names, self._counts, strict=True):
            total += count
            buckets.append((bound, total))
        family.add_metric(label_values, buckets, self._sum / self._scale)  # type: ignore[arg-type]  # its stub wants lists of str


def histogram_family(
    name: str,
    meaning: str,
    labels: Sequence[str],
    series: Sequence[tuple[Sequence[str], Histogram]],
) -> Metric:
    """Return one family with a series for each pair of label values and histogram."""
    family = HistogramMetricFamily(name, meaning, labels=labels)
    for label_values, histogram in series:
        histogram.add_to(family, label_values)
    return family
