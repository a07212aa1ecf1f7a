"""What `warmroute simulate` prints: tables of figures, and sentences about the runs."""

from collections.abc import Iterator, Sequence
from typing import Any

from simulator.figures import FigureRow, figure_rows
from simulator.summary import Spread
from warmroute.simulate.figures import COLUMNS, Row, cell, number
from warmroute.simulate.jobs import Result, StageResult
from warmroute.simulate.settings import Experiment

SPREAD_PARTS = ("mean", "p50", "p90", "p99", "max")


def experiment_rows(experiment: Experiment, workload: str) -> list[tuple[str, str]]:
    """Return what was run, as names and values; ``workload`` says where it comes from."""
    slo = experiment.slo
    limits = [
        f"{name} <= {limit:g} ms"
        for name, limit in (("TTFT", slo.ttft_ms), ("ITL", slo.itl_ms))
        if limit is not None
    ]
    rows = [
        ("workload", workload),
        ("replicas", " + ".join(experiment.replicas)),
        ("gateways", str(experiment.gateways)),
        ("SLO", " and ".join(limits) or "none: every whole answer is good"),
    ]
    if experiment.faults:
        rows.append(("faults", "; ".join(experiment.faults)))
    if experiment.autoscale is not None:
        rule = experiment.autoscale
        rows.append(
            (
                "autoscale",
                f"{rule.target_in_flight:g} under way per replica, {rule.replicas_min} to "
                f"{rule.replicas_max} replicas, {rule.cold_start_s:g} s cold start",
            )
        )
    return rows


def facts_text(facts: Sequence[tuple[str, str]]) -> str:
    """Return what was run, a line each."""
    return "\n".join(f"{name:<9} {value}" for name, value in facts)


def run_cells(result: Result) -> list[list[str]]:
    """Return the figures of one run: name, value, unit, origin."""
    cells = [
        [row.label, _value_text(row), row.unit, row.how] for row in figure_rows(result.summary)
    ]
    ideal = ["hit rate, ideal", f"{100 * result.hit_ideal:.2f}%", "share"]
    cells.insert(5, [*ideal, "one endless cache that has finished all earlier requests"])
    spent = ["replica time", f"{result.replica_s:,.0f}", "s"]
    return [*cells, [*spent, "from being asked for to leaving or the end, all replicas"]]


def run_facts(result: Result) -> list[tuple[str, str]]:
    """Return what was run, its policy and seed included."""
    experiment = result.experiment
    facts = experiment_rows(experiment, result.provenance)
    return [*facts, ("policy", experiment.policy), ("seed", str(experiment.seed))]


def run_text(result: Result) -> str:
    """Return one run: what it was, its figures, its stages, what the autoscaler did."""
    parts = [
        facts_text(run_facts(result)),
        table(["figure", "value", "unit", "origin"], run_cells(result), left=(0, 1, 2, 3)),
    ]
    if result.stages:
        parts.append(table(*stage_table(result.stages), left=(0,)))
    if result.scale_steps:
        parts.append(table(*scale_table(result), left=(2, 3)))
    return "\n\n".join(parts)


def stage_table(stages: Sequence[StageResult]) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows of a run's stages."""
    headings = ["stage", "requests", *(heading for heading in _headings())]
    rows = [
        [
            f"{stage.name}{' (warm-up, not counted)' if stage.warm_up else ''}",
            f"{stage.summary.requests:,}",
            *(number(column.of(stage.summary), column.unit) for column in COLUMNS),
        ]
        for stage in stages
    ]
    return headings, rows


def scale_table(result: Result) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows of what the autoscaler did."""
    rows = [
        [f"{s.at_s:,.1f}", f"{s.in_flight:,}", " ".join(s.joining), " ".join(s.leaving)]
        for s in result.scale_steps
    ]
    return ["at s", "under way", "asked for", "told to leave"], rows


def rows_table(rows: Sequence[Row], swept: str = "") -> tuple[list[str], list[list[str]]]:
    """Return headings and rows of a comparison or a sweep."""
    headings = [*([swept] if swept else []), "policy", *_headings()]
    cells = []
    for row in rows:
        estimates = row.estimates()
        cells.append(
            [
                *([row.point] if swept else []),
                row.policy,
                *(cell(estimates[column.key], column.unit) for column in COLUMNS),
            ]
        )
    return headings, cells


def seeds_text(rows: Sequence[Row]) -> str:
    """Return how far the means can be trusted."""
    n = len(rows[0].results)
    if n == 1:
        return "n = 1 seed: no interval; give --seeds for one"
    text = f"mean ± 95 % interval of Student's t over n = {n} seeds"
    if all(not value.half_width for row in rows for value in row.estimates().values()):
        text += "; all seeds gave the same figures, so nothing here is drawn"
    return text


def ideal_text(rows: Sequence[Row]) -> str:
    """Return the ceiling of the hit rate."""
    shares = sorted({round(100 * row.mean(lambda result: result.hit_ideal), 2) for row in rows})
    spread = f"{shares[0]:.2f}%" if len(shares) == 1 else f"{shares[0]:.2f}% to {shares[-1]:.2f}%"
    return f"hit rate of one endless cache that has finished all earlier requests: {spread}"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int]) -> str:
    """Return an aligned table; columns but those in ``left`` are numbers, to the right."""
    lines = [list(headings), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "  ".join(
            f"{text:<{width}}" if column in left else f"{text:>{width}}"
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _headings() -> Iterator[str]:
    for column in COLUMNS:
        unit = "" if column.unit in ("share", "x") else f" {column.unit}"
        yield f"{column.label}{unit}"


def _value_text(row: FigureRow) -> str:
    value: Any = row.value
    if isinstance(value, Spread):
        return ", ".join(f"{part} {number(getattr(value, part), 'ms')}" for part in SPREAD_PARTS)
    if isinstance(value, dict):
        return ", ".join(f"{name} {count:,}" for name, count in value.items())
    if row.unit == "share":
        return f"{100 * value:.2f}%"
    return f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"
