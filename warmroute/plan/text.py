"""Planned figures as a table: what it is, how much, and where the number comes from."""

from typing import Any

from simulator.figures import FigureRow, figure_rows

GB = 1e9
LISTED_MAX = 16
"""Items of a list that a table shows; all of them are in the JSON."""


def figures_text(title: str, result: Any, origins: dict[str, str] | None = None) -> str:
    """Return ``result`` as lines under ``title``. ``origins`` overrides a figure's origin by name.

    A figure that is None is left out.
    """
    rows = [row for row in figure_rows(result) if row.value is not None]
    shown = [(row.label, value_text(row), (origins or {}).get(row.name, row.how)) for row in rows]
    label_width = max(len(label) for label, _, _ in shown)
    value_width = max(len(value) for _, value, _ in shown)
    lines = [
        f"  {label:<{label_width}}  {value:<{value_width}}  {how}" for label, value, how in shown
    ]
    return "\n".join([title, *lines])


def value_text(row: FigureRow) -> str:
    """Return a figure with its unit, as people write it."""
    value = row.value
    if row.unit == "list":
        return _list_text(value, ",")
    if row.unit == "shares":
        return _list_text(value, "/")
    if row.unit == "share":
        return f"{100 * value:.1f} %"
    if row.unit == "us":
        return f"{_short(value / 1_000)} ms"
    if row.unit == "bytes" and value >= GB:
        return f"{_short(value / GB)} GB"
    if row.unit == "steps":
        return f"{_short(value)} steps"
    return f"{value:,.0f} {row.unit}"


def _list_text(items: tuple[int, ...], separator: str) -> str:
    shown = separator.join(map(str, items[:LISTED_MAX]))
    return shown if len(items) <= LISTED_MAX else f"{shown}{separator}... ({len(items)})"


def _short(value: float) -> str:
    """Return at most two decimals, none where they are zeros."""
    return f"{value:,.2f}".removesuffix(".00")
