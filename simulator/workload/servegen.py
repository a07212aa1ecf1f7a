"""ServeGen's clients: for each 10 minutes how many requests came, how bursty, and how long.

Source: https://github.com/alibaba/ServeGen (Xiang et al., "ServeGen: Workload characterization
and generation of large language model serving in production", 2025). A client is two files: a
trace, one row for each window (start in s, requests per second, CV of the gaps, distribution of
the gaps, its shape and scale), and a dataset, the probability of each length, window by window.

Gaps are drawn from the fitted distribution. Where a window was burstiest the fit is the milder of
the two: a Weibull of CV 9.8 for a recorded CV of 18.0.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from typing import Any

import msgspec

from contract.options import option
from simulator.draws import Draws, Weighted
from simulator.request import SimRequest, Workload
from simulator.workload.arrivals import check_range
from simulator.workload.order import from_zero
from simulator.workload.rows import TOKENS_MAX, Row, TraceError, TraceFile, csv_rows
from simulator.workload.segments import SegmentIds

WINDOW_S = 600
TRACE_COLUMNS = ("start", "rate", "cv", "distribution", "shape", "scale")
TRACE_S_MAX = 10_000_000


@dataclass(frozen=True)
class ServeGenSettings:
    """A folder of ServeGen's clients, NAME-trace.csv and NAME-dataset.json; all prompts unique.

    As many requests are drawn in a window as were recorded. Their gaps follow the window's own
    distribution, stretched to fill it; prompt and answer lengths are drawn independently.
    """

    start_s: float = option(0.0, "s", "first window, from the trace's beginning")
    duration_s: float = option(3_600.0, "s", "how much of the trace; two weeks were recorded")

    def __post_init__(self) -> None:
        check_range(self, "start_s", 0, TRACE_S_MAX)
        check_range(self, "duration_s", 1, TRACE_S_MAX)


@dataclass(frozen=True, slots=True)
class ServeGenClient:
    """The two files of one client."""

    name: str
    trace: TraceFile
    dataset: TraceFile


def read_servegen(
    name: str, clients: Sequence[ServeGenClient], settings: ServeGenSettings, seed: str
) -> Workload:
    """Return the requests of all clients; a bad file raises TraceError."""
    ids = SegmentIds()
    requests: list[SimRequest] = []
    for client in clients:
        requests += _client_requests(client, settings, ids, seed)
    provenance = (
        f"{name}: {len(clients)} ServeGen clients from {settings.start_s:g} s on for "
        f"{settings.duration_s:g} s, seed {seed!r}; the data do not say which prompts share a "
        "prefix, so none do"
    )
    return Workload(name, provenance, from_zero(requests))


def _client_requests(
    client: ServeGenClient, settings: ServeGenSettings, ids: SegmentIds, seed: str
) -> Iterator[SimRequest]:
    lengths = _Lengths(client.dataset)
    draws = Draws(seed, client.name)
    end_s = settings.start_s + settings.duration_s
    number = 0
    for row in csv_rows(client.trace, TRACE_COLUMNS, header=TRACE_COLUMNS):
        start_s = row.number("start")
        if not settings.start_s <= start_s < end_s:
            continue
        for arrival_s in _arrivals_s(row, start_s, draws):
            yield SimRequest(
                request_id=f"{client.name}-{number}",
                segments=(ids.fresh(lengths.draw("input_tokens", start_s, draws)),),
                output_tokens=lengths.draw("output_tokens", start_s, draws),
                output_id=ids.new(),
                arrival_us=round(arrival_s * 1_000_000),
            )
            number += 1


def _arrivals_s(row: Row, start_s: float, draws: Draws) -> Iterator[float]:
    num_requests = round(row.number("rate") * WINDOW_S)
    if num_requests == 0:
        return
    gaps = [_gap(row, draws) for _ in range(num_requests + 1)]
    ends = list(accumulate(gaps))
    for end in ends[:-1]:
        yield start_s + WINDOW_S * end / ends[-1]


def _gap(row: Row, draws: Draws) -> float:
    """Return a gap in no unit: the window's length sets it."""
    distribution = row.values["distribution"]
    if distribution == "":  # too few requests for a fit
        return draws.exponential(1)
    shape = row.number("shape")
    if shape == 0:
        raise row.error("shape", "a number above 0")
    if distribution == "Gamma":
        return draws.gamma(shape, 1)
    if distribution == "Weibull":
        return draws.weibull(shape, 1)
    raise row.error("distribution", "Gamma, Weibull or nothing")


class _Lengths:
    """The length distributions of a client, read when a window first needs them."""

    def __init__(self, file: TraceFile) -> None:
        self._file = file
        try:
            windows = msgspec.json.decode("\n".join(file.lines), type=dict[int, dict[str, Any]])
        except msgspec.DecodeError as error:
            raise TraceError(
                f"{file.name}: {error}; expected an object of windows, by their start in s"
            ) from error
        self._windows = windows
        self._starts: dict[str, list[int]] = {}
        self._read: dict[tuple[str, int], tuple[list[int], Weighted]] = {}

    def draw(self, name: str, at_s: float, draws: Draws) -> int:
        """Return a length of the last window before ``at_s`` that has any, else of the first."""
        starts = self._starts.get(name)
        if starts is None:
            starts = self._starts[name] = sorted(
                start for start, window in self._windows.items() if window.get(name, "{}") != "{}"
            )
        if not starts:
            raise TraceError(f"{self._file.name}: no window has {name}, expected at least one")
        start = starts[max(0, bisect_right(starts, at_s) - 1)]
        if (name, start) not in self._read:
            self._read[name, start] = self._parse(name, start)
        lengths, weighted = self._read[name, start]
        return lengths[weighted.draw(draws)]

    def _parse(self, name: str, start: int) -> tuple[list[int], Weighted]:
        """Read "{length: probability, ...}", which is a Python dict printed, not JSON."""
        text = self._windows[start][name]
        try:
            pairs = [item.split(":") for item in text.strip("{} ").split(",")]
            lengths = [int(length) for length, _ in pairs]
            weights = [float(weight) for _, weight in pairs]
        except (AttributeError, ValueError):
            lengths, weights = [], []
        fits = lengths and 1 <= min(lengths) <= max(lengths) <= TOKENS_MAX
        if not fits or min(weights) < 0 or not 0 < sum(weights) < inf:
            raise TraceError(
                f"{self._file.name} window {start}: {name} is {str(text)[:60]!r}, expected "
                f"{{length: probability, ...}} with lengths from 1 to {TOKENS_MAX}"
            )
        return lengths, Weighted(weights)
