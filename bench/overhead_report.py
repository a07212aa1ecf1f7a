"""The results of `bench.overhead`, as JSON and as tables."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from enum import StrEnum

import msgspec

from bench.load import LoadResult
from bench.processes import Placement


class Unit(StrEnum):
    """What the cost of a phase is divided by."""

    REQUEST = "request"
    CHUNK = "chunk"


class PhaseResult(msgspec.Struct, frozen=True):
    """One router, one round, one phase."""

    router: str
    round: int
    phase: str
    title: str
    unit: Unit
    cpu_seconds: float
    """Of the router's process tree, during the phase."""
    other_cpu_cores: float
    """Cores kept busy by what belongs neither to the router nor to the bench."""
    resident_bytes: int
    """At the end of the phase."""
    affinity: float | None
    chunks_sent: int
    """By the replicas; more than the client saw means that the router lost some."""
    load: LoadResult

    @property
    def cost_us(self) -> float | None:
        """CPU microseconds per unit; None when nothing was answered."""
        units = self.load.ok if self.unit is Unit.REQUEST else self.load.chunks
        return self.cpu_seconds / units * 1e6 if units else None

    @property
    def router_cores(self) -> float:
        """Cores that the router kept busy; near 1.0 it was the bottleneck."""
        return self.cpu_seconds / self.load.seconds

    @property
    def chunks_lost(self) -> int:
        """Chunks that a replica sent and the client did not get."""
        return self.chunks_sent - self.load.chunks


def describe_machine(where: Placement) -> str:
    """Say in one line where the sides run, and what that means for the figures."""
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}"
    if where.is_split:
        return f"{machine}; router on core {min(where.router)}, load on core {min(where.load)}."
    return (
        f"{machine}; ONE CORE for the router and the load: rates and latencies mean little, and "
        "CPU per request is higher than alone."
    )


# ---- statistics over rounds


def _spread(values: Sequence[float | None], digits: int) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    middle, low, high = statistics.median(known), min(known), max(known)
    return f"{middle:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def _median(values: Sequence[float | None], digits: int) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):.{digits}f}" if known else "-"


def cost_ratios(rows: Sequence[PhaseResult], baseline: Sequence[PhaseResult]) -> list[float]:
    """Divide each row's cost by the baseline's of the same round; rounds without one are left out.

    Both sequences are of one phase and one router each.
    """
    baseline_costs = {row.round: row.cost_us for row in baseline}
    ratios = []
    for row in rows:
        divisor = baseline_costs.get(row.round)
        if divisor and row.cost_us is not None:
            ratios.append(row.cost_us / divisor)
    return ratios


# ---- tables

_HEADS = {
    Unit.REQUEST: ("CPU ms/request", "requests/s", "latency p50 ms", "p99 ms"),
    Unit.CHUNK: ("CPU us/chunk", "chunks/s", "TTFT p50 ms", "p99 ms"),
}
_TAIL = ("affinity", "memory MB", "router cores", "other cores", "failed")


def _row_cells(rows: Sequence[PhaseResult], ratios: Sequence[float]) -> list[str]:
    per_request = rows[0].unit is Unit.REQUEST
    costs = [row.cost_us for row in rows]
    scaled = [cost / 1000 if per_request and cost is not None else cost for cost in costs]
    rates = [row.load.rps if per_request else row.load.chunks_per_second for row in rows]
    times = [row.load.latency_us if per_request else row.load.ttft_us for row in rows]
    return [
        rows[0].router,
        _spread(scaled, 3 if per_request else 1),
        _spread(ratios, 1),
        _median(rates, 0),
        _median([each.p50 / 1000 if each else None for each in times], 2),
        _median([each.p99 / 1000 if each else None for each in times], 1),
        _median([row.affinity for row in rows], 2),
        _median([row.resident_bytes / 1e6 for row in rows], 0),
        _median([row.router_cores for row in rows], 2),
        _median([row.other_cpu_cores for row in rows], 2),
        str(sum(row.load.failed + row.chunks_lost for row in rows)),
    ]


def _table(lines: Sequence[Sequence[str]]) -> str:
    """Lay out a Markdown table whose source is also readable; the first line is its head."""
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    text = ["| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in lines]
    return "\n".join(
        [text[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *text[1:]]
    )


def report(results: Sequence[PhaseResult], baseline: str) -> str:
    """Give a table for each phase: medians over rounds, of costs and ratios also the range."""
    by_phase: dict[str, dict[str, list[PhaseResult]]] = {}
    for result in results:
        by_phase.setdefault(result.phase, {}).setdefault(result.router, []).append(result)
    return "\n\n".join(_phase_report(rows, baseline) for rows in by_phase.values())


def _phase_report(by_router: dict[str, list[PhaseResult]], baseline: str) -> str:
    first = next(iter(by_router.values()))[0]
    cost, *others = _HEADS[first.unit]
    lines: list[Sequence[str]] = [["router", cost, f"x {baseline}", *others, *_TAIL]]
    lines += [
        _row_cells(rows, cost_ratios(rows, by_router.get(baseline, [])))
        for rows in by_router.values()
    ]
    return f"### {first.title}\n\n{_table(lines)}"
