"""The figures of several runs side by side: what a row and a column of a comparison are."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from simulator.statistics import Estimate, estimate
from simulator.summary import Summary
from warmroute.simulate.jobs import Result


@dataclass(frozen=True)
class Column:
    """One figure of a comparison."""

    key: str
    label: str
    unit: str  # "share" is shown in percent
    of: Callable[[Summary], float]


COLUMNS = (
    Column("hit_actual", "hit actual", "share", lambda s: s.hit_actual),
    Column("hit_predicted", "hit predicted", "share", lambda s: s.hit_predicted),
    Column("ttft_mean_ms", "TTFT mean", "ms", lambda s: s.ttft_ms.mean),
    Column("ttft_p50_ms", "TTFT p50", "ms", lambda s: s.ttft_ms.p50),
    Column("ttft_p99_ms", "TTFT p99", "ms", lambda s: s.ttft_ms.p99),
    Column("itl_mean_ms", "ITL mean", "ms", lambda s: s.itl_ms.mean),
    Column("token_gap_p99_ms", "token gap p99", "ms", lambda s: s.token_gap_ms.p99),
    Column("e2e_mean_ms", "E2E mean", "ms", lambda s: s.e2e_ms.mean),
    Column("queue_mean_ms", "queue mean", "ms", lambda s: s.queue_ms.mean),
    Column("goodput", "goodput", "share", lambda s: s.goodput),
    Column("imbalance", "imbalance", "x", lambda s: s.imbalance),
    Column("recomputed_tokens", "recomputed", "tokens", lambda s: s.recomputed_tokens),
)


@dataclass(frozen=True)
class Row:
    """Runs that differ by their seed only. ``point`` is the value swept over, "" without one."""

    policy: str
    point: str
    results: tuple[Result, ...]

    def estimates(self) -> dict[str, Estimate]:
        """Return each column's mean over the seeds, by key."""
        summaries = [result.summary for result in self.results]
        return {column.key: estimate([column.of(each) for each in summaries]) for column in COLUMNS}

    def mean(self, of: Callable[[Result], float]) -> float:
        """Return the mean of another figure over the seeds."""
        return sum(map(of, self.results)) / len(self.results)

    def document(self) -> dict[str, Any]:
        """Return the row as JSON has it."""
        units = {column.key: column.unit for column in COLUMNS}
        point = {"point": self.point} if self.point else {}
        return {
            "policy": self.policy,
            **point,
            "seeds": [result.experiment.seed for result in self.results],
            "hit_ideal": self.mean(lambda result: result.hit_ideal),
            "replica_s": self.mean(lambda result: result.replica_s),
            "figures": {
                key: {**msgspec.to_builtins(value), "unit": units[key]}
                for key, value in self.estimates().items()
            },
            "runs": [msgspec.to_builtins(result.summary) for result in self.results],
        }


def knee_of(rows: Sequence[Row]) -> Row | None:
    """Return the row at the knee of TTFT over rate: where rate / mean TTFT is greatest.

    That is Kleinrock's power ("Power and deterministic rules of thumb for probabilistic problems
    in computer communications", ICC 1979): the point where a line from the origin touches the
    curve. Before it, more load costs little time; behind it, much. None where it is an end of the
    sweep, as the greatest may then lie outside.
    """
    powers = [
        float(row.point) / mean if (mean := row.estimates()["ttft_mean_ms"].mean) else 0.0
        for row in rows
    ]
    best = max(range(len(rows)), key=lambda index: powers[index], default=0)
    return rows[best] if 0 < best < len(rows) - 1 else None


def cell(value: Estimate, unit: str) -> str:
    """Return a mean, and how far it may be off, as people write it."""
    text = number(value.mean, unit)
    if not value.half_width:
        return text
    half_width = value.half_width
    off = f"{half_width:.2g}" if unit == "ms" and half_width < 100 else number(half_width, unit)
    return f"{text} ± {off}"


def number(value: float, unit: str) -> str:
    """Return one figure without its unit, but for a percent sign."""
    if unit == "share":
        return f"{100 * value:.2f}%"
    if unit == "x":
        return f"{value:.2f}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.3g}"
