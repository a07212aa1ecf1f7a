"""Which plots a simulation gets, as data; `simulator.plot` and `simulate_png` draw them."""

from collections.abc import Iterator, Sequence

from simulator.plot import COLOURS, Bar, Bars, Line, Mark, Plot, Point
from simulator.timeline import TimelineTable, Track
from warmroute.simulate.figures import Row, knee_of
from warmroute.simulate.jobs import TTFT_SHARES, Result

TIMELINES = (
    ("running", "Running sequences", "sequences", 1.0),
    ("waiting", "Waiting sequences", "sequences", 1.0),
    ("kv_usage", "KV cache held by sequences", "%", 100.0),
)


def run_plots(result: Result) -> list[Plot | Bars]:
    """Return the plots of one run."""
    plots: list[Plot | Bars] = [ttft_plot([(result.experiment.policy, result)])]
    if result.timeline is not None:
        plots += _timelines(result.timeline)
    return plots


def compare_plots(rows: Sequence[Row]) -> list[Plot | Bars]:
    """Return the plots of a comparison; distributions are those of the first seed."""
    ideal = rows[0].mean(lambda result: result.hit_ideal)
    hits = [(row.policy, row.estimates()["hit_actual"].mean) for row in rows]
    means = [(row.policy, row.estimates()["ttft_mean_ms"].mean) for row in rows]
    return [
        Bars(
            "Hit rate: prompt tokens taken from cache",
            [Bar(name, share, f"{100 * share:.1f}%") for name, share in hits],
            Bar("endless cache", ideal, f"{100 * ideal:.1f}%"),
        ),
        Bars("Mean TTFT", [Bar(name, mean_ms, f"{mean_ms:,.0f} ms") for name, mean_ms in means]),
        ttft_plot([(row.policy, row.results[0]) for row in rows]),
    ]


def sweep_plots(name: str, unit: str, rows: Sequence[Row]) -> list[Plot | Bars]:
    """Return TTFT and hit rate over what was swept, where that is a number."""
    label = f"{name}, {unit}" if unit else name
    by_policy = _by_policy(rows)
    knees = [knee_of(own) for own in by_policy.values()] if name == "rate" else []
    marks = [
        Mark(float(knee.point), knee.estimates()["ttft_mean_ms"].mean, "knee")
        for knee in knees
        if knee is not None
    ]
    means = [_line(policy, own, "ttft_mean_ms") for policy, own in by_policy.items()]
    tails = [_line(policy, own, "ttft_p99_ms") for policy, own in by_policy.items()]
    hits = [_line(policy, own, "hit_actual", 100) for policy, own in by_policy.items()]
    first = next(iter(by_policy.values()))
    ideal = [
        Point(float(row.point), 100 * row.mean(lambda result: result.hit_ideal)) for row in first
    ]
    points = sorted({float(row.point) for row in rows})
    # Steps of a factor want a log axis; the knee is where a line from the origin touches.
    is_log = name != "rate" and points[0] > 0 and points[-1] / points[0] >= 8
    hit_lines = [*hits, Line("endless cache", ideal, dashed=True)]
    return [
        Plot(f"Mean TTFT over {name}", label, "ms", means, marks, x_is_log=is_log),
        Plot(f"TTFT p99 over {name}", label, "ms", tails, x_is_log=is_log),
        Plot(f"Hit rate over {name}", label, "%", hit_lines, x_is_log=is_log),
    ]


def ttft_plot(results: Sequence[tuple[str, Result]]) -> Plot:
    """Return the share of requests that had their first token by a time."""
    lines = [
        Line(
            name,
            [
                Point(max(value, 0.1), 100 * part / TTFT_SHARES)
                for part, value in enumerate(result.ttft_ms)
            ],
        )
        for name, result in results
    ]
    return Plot("Requests that had their first token by then", "TTFT, ms", "%", lines, (), True)


def _timelines(table: TimelineTable) -> Iterator[Plot]:
    for field, title, unit, scale in TIMELINES:
        values = {name: _scaled(track, field, scale) for name, track in table.replicas.items()}
        if len(values) > COLOURS:
            values = _summed_up(values)
        lines = [
            Line(name, [Point(x, y) for x, y in zip(table.at_s, ys, strict=True)])
            for name, ys in values.items()
        ]
        yield Plot(f"{title} over time", "virtual time, s", unit, lines)


def _scaled(track: Track, field: str, scale: float) -> list[float | None]:
    return [None if value is None else value * scale for value in getattr(track, field)]


def _summed_up(values: dict[str, list[float | None]]) -> dict[str, list[float | None]]:
    """Return the most, mean and least over more replicas than there are colours."""
    columns = [
        [value for value in column if value is not None]
        for column in zip(*values.values(), strict=True)
    ]
    return {
        f"most of {len(values)}": [max(column, default=None) for column in columns],
        "mean": [sum(column) / len(column) if column else None for column in columns],
        "least": [min(column, default=None) for column in columns],
    }


def _line(policy: str, rows: Sequence[Row], key: str, scale: float = 1) -> Line:
    points = [Point(float(row.point), scale * row.estimates()[key].mean) for row in rows]
    return Line(policy, points)


def _by_policy(rows: Sequence[Row]) -> dict[str, list[Row]]:
    by_policy: dict[str, list[Row]] = {}
    for row in rows:
        by_policy.setdefault(row.policy, []).append(row)
    return by_policy
