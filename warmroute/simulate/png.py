"""The plots of a simulation as one PNG, by matplotlib: the optional extra `plots`."""

from collections.abc import Sequence
from pathlib import Path

from contract.options import SettingError
from simulator.plot import Bars, Plot

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
except ImportError as absence:
    raise SettingError(
        "--png needs matplotlib: pip install 'warmroute[plots]', or use --html"
    ) from absence

WIDTH_INCHES, HEIGHT_INCHES, DPI = 9.0, 3.6, 110


def write_png(title: str, plots: Sequence[Plot | Bars], path: Path) -> None:
    """Draw all plots below one another into ``path``."""
    figure = Figure(figsize=(WIDTH_INCHES, HEIGHT_INCHES * len(plots)), layout="constrained")
    figure.suptitle(title)
    for index, plot in enumerate(plots):
        area = figure.add_subplot(len(plots), 1, index + 1)
        area.set_title(plot.title, loc="left", fontsize=10)
        if isinstance(plot, Bars):
            _draw_bars(plot, area)
        else:
            _draw_lines(plot, area)
    # Without this the version of matplotlib would stand in the file.
    figure.savefig(path, format="png", dpi=DPI, metadata={"Software": "warmroute"})


def _draw_lines(plot: Plot, area: Axes) -> None:
    for line in plot.lines:
        xs = [point.x for point in line.points]
        ys = [float("nan") if point.y is None else point.y for point in line.points]
        area.plot(xs, ys, "--" if line.dashed else "-", label=line.name, linewidth=1.4)
    for mark in plot.marks:
        area.plot([mark.x], [mark.y], "o", markersize=10, markerfacecolor="none", color="black")
        area.annotate(mark.text, (mark.x, mark.y), (8, 8), textcoords="offset points")
    if plot.x_is_log:
        area.set_xscale("log")
    area.set_ylim(bottom=0)
    area.set_xlabel(plot.x_label)
    area.set_ylabel(plot.y_label)
    area.grid(alpha=0.3)
    area.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize=8)


def _draw_bars(plot: Bars, area: Axes) -> None:
    names = [bar.name for bar in plot.bars]
    drawn = area.barh(names, [bar.value for bar in plot.bars])
    area.bar_label(drawn, [bar.text for bar in plot.bars], padding=4)
    area.invert_yaxis()
    if plot.limit is not None:
        area.axvline(plot.limit.value, linestyle="--", color="black")
        area.set_xlabel(f"dashed: {plot.limit.name} {plot.limit.text}")
