"""Plots as data, and as SVG that needs nothing around it but `PLOT_CSS`.

A plot says what is drawn; `svg()` draws it for a page, and another renderer may draw the same.
Coordinates are rounded to a tenth, so equal plots give equal text.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import cycle
from math import floor, inf, log10

WIDTH, HEIGHT = 600, 320
LEFT, RIGHT, TOP, BOTTOM = 72, 132, 34, 46
BAR_HEIGHT, BAR_LEFT, BAR_RIGHT = 28, 116, 76
TICKS = 6
LOG_STEPS = (1, 2, 5)
DOTS_MAX = 40
"""Points of a line that are drawn as dots, too; beyond that they would hide it."""

SMALLEST = 1e-300
"""Less is drawn as 0: a subnormal number has no logarithm once it is divided."""

COLOURS = 8
PLOT_CSS = """
svg.plot { --ink: #1f2430; --soft: #667085; --rule: #e3e6ec; width: 100%; height: auto;
  font: 12px system-ui, sans-serif; fill: var(--ink) }
svg.plot .title { font-size: 14px; font-weight: 600 }
svg.plot .soft { fill: var(--soft) }
svg.plot .rule { stroke: var(--rule); fill: none }
svg.plot .axis { stroke: var(--soft); fill: none }
svg.plot .line { fill: none; stroke-width: 1.8; stroke-linejoin: round }
svg.plot .dashed { stroke-dasharray: 6 4 }
svg.plot .mark { stroke: var(--ink); fill: none; stroke-width: 1.5 }
svg.plot { --c0: #0b6bcb; --c1: #d1495b; --c2: #2e933c; --c3: #8e5bd0; --c4: #c77800;
  --c5: #0e8f97; --c6: #a8326f; --c7: #5d6b7e }
@media (prefers-color-scheme: dark) {
  svg.plot { --ink: #e6e9ef; --soft: #98a2b3; --rule: #2c3340; --c0: #5cabff; --c1: #ff8593;
    --c2: #6fd07c; --c3: #bd97f5; --c4: #f2b04c; --c5: #4fd0d8; --c6: #ee7fbd; --c7: #a9b4c4 }
}
"""


@dataclass(frozen=True, slots=True)
class Point:
    """Where a line goes; ``y`` None leaves a gap."""

    x: float
    y: float | None


@dataclass(frozen=True, slots=True)
class Line:
    """Points joined in their order."""

    name: str
    points: Sequence[Point]
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """A circle that points something out."""

    x: float
    y: float
    text: str


@dataclass(frozen=True, slots=True)
class Plot:
    """Lines over a common x; y begins at zero."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    marks: Sequence[Mark] = ()
    x_is_log: bool = False


@dataclass(frozen=True, slots=True)
class Bar:
    """One value; ``text`` is how it is written."""

    name: str
    value: float
    text: str


@dataclass(frozen=True, slots=True)
class Bars:
    """Values side by side, and what they could be at most."""

    title: str
    bars: Sequence[Bar]
    limit: Bar | None = None


@dataclass(frozen=True, slots=True)
class Axis:
    """From values to places in the picture."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def place(self, value: float) -> float:
        """Return where ``value`` is drawn."""
        low, high = self.low, self.high
        if self.is_log:
            value, low, high = log10(value), log10(low), log10(high)
        share = (value - low) / (high - low)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self) -> list[float]:
        """Return round values inside the axis."""
        return log_ticks(self.low, self.high) if self.is_log else round_ticks(self.low, self.high)


def round_ticks(low: float, high: float) -> list[float]:
    """Return about TICKS multiples of 1, 2 or 5 times a power of ten from ``low`` to ``high``."""
    raw = (high - low) / TICKS
    power = 10.0 ** floor(log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
    first, last = -floor(-low / step + 1e-9), floor(high / step + 1e-9)
    return [round(k * step, 12) for k in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times powers of ten from ``low`` to ``high``."""
    powers = range(floor(log10(low)), floor(log10(high)) + 1)
    ticks = (round(step * 10.0**power, 12) for power in powers for step in LOG_STEPS)
    return [tick for tick in ticks if low <= tick <= high]


def tick_text(value: float) -> str:
    """Return a tick as people write it."""
    return f"{value:,.10g}"


def svg(plot: Plot | Bars) -> str:
    """Return the picture as one SVG element."""
    return _bars(plot) if isinstance(plot, Bars) else _plot(plot)


def _plot(plot: Plot) -> str:
    x_axis, y_axis = _x_axis(plot), _y_axis(plot)
    parts = [*_head(plot.title, HEIGHT), *_grid(plot, x_axis, y_axis)]
    for index, line in enumerate(plot.lines):
        parts += _line(line, index % COLOURS, x_axis, y_axis)
    for mark in plot.marks:
        x, y = x_axis.place(mark.x), y_axis.place(mark.y)
        parts.append(f'<circle class="mark" cx="{x}" cy="{y}" r="7"/>')
        parts.append(f'<text x="{x + 10}" y="{y - 9}">{escape(mark.text)}</text>')
    parts += _legend(plot.lines)
    return "\n".join([*parts, "</svg>"])


def _x_axis(plot: Plot) -> Axis:
    xs = [point.x for line in plot.lines for point in line.points]
    low, high = min(xs, default=0.0), max(xs, default=1.0)
    if low == high:
        low, high = (low / 2, high * 2) if plot.x_is_log else (low - 0.5, high + 0.5)
    return Axis(low, high, LEFT, WIDTH - RIGHT, plot.x_is_log)


def _y_axis(plot: Plot) -> Axis:
    ys = [point.y for line in plot.lines for point in line.points if point.y is not None]
    high = max(ys, default=0.0)
    return Axis(0.0, high * 1.05 if high > SMALLEST else 1.0, HEIGHT - BOTTOM, TOP)


def _head(title: str, height: float) -> Iterator[str]:
    yield (
        f'<svg class="plot" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'role="img" aria-label="{escape(title)}">'
    )
    yield f'<text class="title" x="0" y="16">{escape(title)}</text>'


def _grid(plot: Plot, x_axis: Axis, y_axis: Axis) -> Iterator[str]:
    left, right, bottom = LEFT, WIDTH - RIGHT, HEIGHT - BOTTOM
    for tick in y_axis.ticks():
        y = y_axis.place(tick)
        yield f'<path class="rule" d="M{left} {y}H{right}"/>'
        yield (
            f'<text class="soft" x="{left - 8}" y="{y + 4}" text-anchor="end">'
            f"{tick_text(tick)}</text>"
        )
    last_x = -inf
    for tick in x_axis.ticks():
        x = x_axis.place(tick)
        if x - last_x < 28:  # a log axis has more ticks than fit
            continue
        last_x = x
        yield f'<path class="axis" d="M{x} {bottom}v4"/>'
        yield (
            f'<text class="soft" x="{x}" y="{bottom + 18}" text-anchor="middle">'
            f"{tick_text(tick)}</text>"
        )
    yield f'<path class="axis" d="M{left} {bottom}H{right}"/>'
    middle = (left + right) / 2
    yield (
        f'<text x="{middle:g}" y="{HEIGHT - 8}" text-anchor="middle">{escape(plot.x_label)}</text>'
    )
    middle = (TOP + bottom) / 2
    yield (
        f'<text transform="rotate(-90 12 {middle:g})" x="12" y="{middle:g}" '
        f'text-anchor="middle">{escape(plot.y_label)}</text>'
    )


def _line(line: Line, colour: int, x_axis: Axis, y_axis: Axis) -> Iterator[str]:
    path, pen = [], "M"
    for point in line.points:
        if point.y is None:
            pen = "M"
            continue
        path.append(f"{pen}{x_axis.place(point.x)} {y_axis.place(point.y)}")
        pen = "L"
    dashed = " dashed" if line.dashed else ""
    yield f'<path class="line{dashed}" style="stroke:var(--c{colour})" d="{"".join(path)}"/>'
    if len(line.points) > DOTS_MAX or line.dashed:
        return
    for point in line.points:
        if point.y is not None:
            x, y = x_axis.place(point.x), y_axis.place(point.y)
            about = f"{line.name}: {point.x:g}, {point.y:.4g}"
            yield f'<circle style="fill:var(--c{colour})" cx="{x}" cy="{y}" r="3">'
            yield f"<title>{escape(about)}</title></circle>"


def _legend(lines: Sequence[Line]) -> Iterator[str]:
    x = WIDTH - RIGHT + 16
    for index, (line, colour) in enumerate(zip(lines, cycle(range(COLOURS)), strict=False)):
        y = TOP + 8 + 18 * index
        dashed = " dashed" if line.dashed else ""
        yield f'<path class="line{dashed}" style="stroke:var(--c{colour})" d="M{x} {y}h18"/>'
        yield f'<text x="{x + 24}" y="{y + 4}">{escape(line.name)}</text>'


def _bars(plot: Bars) -> str:
    height = TOP + BAR_HEIGHT * (len(plot.bars) + bool(plot.limit)) + 8
    values = [bar.value for bar in plot.bars] + ([plot.limit.value] if plot.limit else [])
    axis = Axis(0.0, max(values, default=0.0) or 1.0, BAR_LEFT, WIDTH - BAR_RIGHT)
    parts = [*_head(plot.title, height)]
    for index, bar in enumerate(plot.bars):
        y = TOP + BAR_HEIGHT * index
        width = round(axis.place(bar.value) - BAR_LEFT, 1)
        parts.append(
            f'<rect style="fill:var(--c{index % COLOURS})" x="{BAR_LEFT}" y="{y}" '
            f'width="{max(1.0, width)}" height="{BAR_HEIGHT - 8}" rx="2"/>'
        )
        parts += _bar_texts(bar, y + 13, BAR_LEFT + width)
    if plot.limit is not None:
        y, x = TOP + BAR_HEIGHT * len(plot.bars), axis.place(plot.limit.value)
        parts.append(f'<path class="mark dashed" d="M{x} {TOP - 4}V{y + 14}"/>')
        parts += _bar_texts(plot.limit, y + 13, x)
    return "\n".join([*parts, "</svg>"])


def _bar_texts(bar: Bar, y: float, end: float) -> Iterator[str]:
    yield f'<text x="{BAR_LEFT - 8}" y="{y}" text-anchor="end">{escape(bar.name)}</text>'
    yield f'<text x="{end + 6:.1f}" y="{y}">{escape(bar.text)}</text>'
