"""The part of a workload that is run: a window that is judged, behind one that warms the caches."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from simulator.request import SimRequest

PEAK_SHARE = 0.1
"""The part of a window whose busiest place is its peak."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Which part of a workload to run. Times in microseconds of the workload, as scaled.

    ``rate_scale`` lets arrivals come so many times as fast, before anything is cut.
    """

    start_us: int
    warm_up_us: int
    window_us: int
    rate_scale: float = 1.0

    @property
    def end_us(self) -> int:
        """Where the window ends."""
        return self.start_us + self.warm_up_us + self.window_us


@dataclass(frozen=True, slots=True)
class Window:
    """Requests whose arrivals count from the cut's start; those from ``judged_us`` on count."""

    requests: tuple[SimRequest, ...]
    judged_us: int
    peak_us: int  # where the busiest tenth of the window's first half begins


def find_cut(
    requests: Sequence[SimRequest],
    warm_up_us: int,
    window_us: int,
    requests_max: int,
    rate_scale: float = 1.0,
) -> Cut:
    """Return the busiest window of ``requests``, which are ordered by arrival, and its warm-up.

    Busiest is that with most prompt and output tokens. Both are shortened, in proportion, until
    they have no more than ``requests_max`` requests. A closed loop, whose requests wait for one
    another, is cut at its beginning: a later part could not be had without the earlier.
    """
    if is_closed(requests):
        return Cut(0, warm_up_us, window_us, rate_scale)
    arrivals = [round(request.arrival_us / rate_scale) for request in requests]
    last_us = arrivals[-1] + 1
    warm_up_us, window_us = _shortened(last_us, warm_up_us, window_us)
    while True:
        start_us = _busiest(requests, arrivals, window_us)
        begin_us = max(0, start_us - warm_up_us)
        count = bisect_left(arrivals, start_us + window_us) - bisect_left(arrivals, begin_us)
        if count <= requests_max or window_us < 2:
            return Cut(begin_us, start_us - begin_us, window_us, rate_scale)
        share = max(0.5, requests_max / count)
        # A trace whose arrivals come in batches may need another turn; each is shorter.
        window_us = min(window_us - 1, int(window_us * share))
        warm_up_us = int(warm_up_us * share)


def take(requests: Sequence[SimRequest], cut: Cut, requests_max: int) -> Window:
    """Return the requests of ``cut``; of a closed loop, the first ``requests_max``."""
    if is_closed(requests):
        kept = tuple(_faster(request, 0, cut.rate_scale) for request in requests[:requests_max])
        return Window(kept, cut.warm_up_us, cut.warm_up_us)
    scaled = [request.arrival_us / cut.rate_scale for request in requests]
    first, last = bisect_left(scaled, cut.start_us), bisect_left(scaled, cut.end_us)
    kept = tuple(_faster(request, cut.start_us, cut.rate_scale) for request in requests[first:last])
    return Window(kept, cut.warm_up_us, _peak_us(kept, cut))


def is_closed(requests: Sequence[SimRequest]) -> bool:
    """Say whether some requests wait for the answers of others."""
    return any(request.after is not None for request in requests)


def _shortened(last_us: int, warm_up_us: int, window_us: int) -> tuple[int, int]:
    """A workload that is shorter than both is judged in its later part."""
    whole_us = warm_up_us + window_us
    if last_us >= whole_us:
        return warm_up_us, window_us
    warm_up_us = warm_up_us * last_us // whole_us
    return warm_up_us, last_us - warm_up_us


def _busiest(requests: Sequence[SimRequest], arrivals: Sequence[int], window_us: int) -> int:
    """Return the arrival from which ``window_us`` bring most tokens; the first such one."""
    tokens = (request.prompt_tokens + request.output_tokens for request in requests)
    sums = [0, *accumulate(tokens)]
    best_us, most = 0, -1
    for index, start_us in enumerate(arrivals):
        if start_us + window_us > arrivals[-1] + 1 and index:
            break
        total = sums[bisect_left(arrivals, start_us + window_us)] - sums[index]
        if total > most:
            best_us, most = start_us, total
    return best_us


def _peak_us(requests: Sequence[SimRequest], cut: Cut) -> int:
    half_us = cut.warm_up_us + cut.window_us // 2
    first = [each for each in requests if cut.warm_up_us <= each.arrival_us < half_us]
    if not first:
        return cut.warm_up_us
    arrivals = [request.arrival_us for request in first]
    return _busiest(first, arrivals, max(1, int(cut.window_us * PEAK_SHARE)))


def _faster(request: SimRequest, start_us: int, rate_scale: float) -> SimRequest:
    return replace(request, arrival_us=max(0, round(request.arrival_us / rate_scale) - start_us))
