"""The answer of `plan size` as one HTML page with nothing around it: tables and two plots."""

from collections.abc import Iterator, Sequence
from html import escape

from simulator.figures import figure_rows
from simulator.plot import PLOT_CSS, Line, Mark, Plot, Point, svg
from simulator.sizing.plan import SizePlan
from simulator.sizing.settings import SizeSettings
from simulator.sizing.trial import TrialResult
from warmroute.plan.size_text import (
    answer_rows,
    head_lines,
    note_lines,
    rate_rows,
    saving_lines,
    sweep_rows,
    what_if_rows,
)
from warmroute.plan.text import value_text

STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1000px; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; font-size: 14px; display: block; overflow-x: auto }
th, td { text-align: left; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid #8884;
  vertical-align: top }
p { overflow-wrap: anywhere }
"""


def size_page(plan: SizePlan, settings: SizeSettings, workload: str) -> str:
    """Return the page. All text in it is escaped."""
    return "\n".join(_page(plan, settings, workload))


def _page(plan: SizePlan, settings: SizeSettings, workload: str) -> Iterator[str]:
    title, *head = head_lines(plan, settings, workload)
    yield '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width">'
    yield f"<title>{escape(title)}</title><style>{STYLE}{PLOT_CSS}</style></head><body>"
    yield f"<h1>{escape(title)}</h1>"
    yield _lines(head)
    yield "<h2>Fleets that hold it</h2>"
    yield _table(answer_rows(plan))
    yield _lines(saving_lines(plan))
    yield "<h2>Other rates</h2>"
    yield svg(rate_plot(plan, settings))
    yield _table(rate_rows(plan))
    yield "<h2>GPU types</h2>"
    yield svg(front_plot(plan))
    yield _table(sweep_rows(plan))
    yield "<h2>What if</h2>"
    yield _table(what_if_rows(plan))
    yield f"<h2>Memory of one replica: {plan.tensor_parallel} x {escape(plan.gpu)}</h2>"
    rows = [(row.label, value_text(row), row.how) for row in figure_rows(plan.fit)]
    yield _table([("", "", "where it comes from"), *rows])
    yield _lines(note_lines(plan, settings))
    yield "</body></html>"


def rate_plot(plan: SizePlan, settings: SizeSettings) -> Plot:
    """Return both p99s of the chosen fleet over the rate, as parts of their limits."""
    ttft, itl, limit, marks = [], [], [], []
    for row in plan.rates:
        rate = row.requests_per_s
        parts = (
            row.run.ttft_p99_ms / settings.ttft_p99_ms,
            row.run.itl_p99_ms / settings.itl_p99_ms,
        )
        ttft.append(Point(rate, parts[0]))
        itl.append(Point(rate, parts[1]))
        limit.append(Point(rate, 1.0))
        if rate == plan.knee:
            marks.append(Mark(rate, max(parts), "knee"))
    return Plot(
        f"p99 of {plan.chosen.replicas} replicas",
        "requests per second",
        "p99 / limit",
        [Line("TTFT", ttft), Line("ITL", itl), Line("limit", limit, dashed=True)],
        marks,
    )


def front_plot(plan: SizePlan) -> Plot:
    """Return cost against TTFT p99 of all GPU types, and the line of those on the front."""
    found = [row for row in plan.sweep if row.run is not None and row.usd_per_month is not None]
    front = [row for row in found if row.on_front]
    lines = [
        Line("Pareto front", [_place(row.usd_per_month, row.run) for row in front]),
        *(
            Line(f"{row.gpus} x {row.gpu}", [_place(row.usd_per_month, row.run)])
            for row in found
            if not row.on_front
        ),
    ]
    marks = [
        Mark(row.usd_per_month / 1_000, row.run.ttft_p99_ms, f"{row.gpus} x {row.gpu}")
        for row in front
        if row.usd_per_month is not None and row.run is not None
    ]
    return Plot("Cost against TTFT p99", "thousand USD per month", "ms", lines, marks)


def _place(usd_per_month: float | None, run: TrialResult | None) -> Point:
    assert usd_per_month is not None
    assert run is not None
    return Point(usd_per_month / 1_000, run.ttft_p99_ms)


def _lines(lines: Sequence[str] | Iterator[str]) -> str:
    return "".join(f"<p>{escape(line.strip())}</p>" for line in lines)


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    width = max(map(len, rows))
    parts = ["<table><tr>", *(f"<th>{escape(text)}</th>" for text in head), "</tr>"]
    for row in body:
        cells = [f"<td>{escape(text)}</td>" for text in row[:-1]]
        span = width - len(row) + 1
        wide = f' colspan="{span}"' if span > 1 else ""
        parts += ["<tr>", *cells, f"<td{wide}>{escape(row[-1])}</td></tr>"]
    return "".join([*parts, "</table>"])
