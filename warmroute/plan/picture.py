"""Predicted against measured time per token, as a small SVG: one dot a row, both axes log."""

from collections.abc import Iterable, Sequence
from math import log10

SIZE = 480
MARGIN = 46
LEAST_MS, MOST_MS = 3.0, 200.0
TICKS_MS = (5, 10, 20, 50, 100, 200)
BAND = 0.1
COLOURS = ("#1b6ca8", "#c4541a", "#3b7d3b", "#7a4fa3")

Dot = tuple[float, float]
"""Measured and predicted, in ms."""


def picture_svg(title: str, groups: Sequence[tuple[str, Sequence[Dot]]]) -> str:
    """Return the picture of ``groups``, each a name and its dots, with a band of 10 % around equal.

    Dots outside the axes, 3 to 200 ms, are drawn at their edge.
    """
    parts = [*_frame(title), *_ticks()]
    for (name, dots), colour in zip(groups, COLOURS, strict=False):
        parts.append(f'<g fill="{colour}" fill-opacity="0.6"><title>{name}</title>')
        parts += [f'<circle cx="{_x(_inside(x))}" cy="{_y(_inside(y))}" r="2.5"/>' for x, y in dots]
        parts.append("</g>")
    parts += _legend([name for name, _ in groups])
    return "\n".join([*parts, "</svg>", ""])


def _frame(title: str) -> Iterable[str]:
    low, high = LEAST_MS, MOST_MS
    corners = [
        (low, low * (1 - BAND)),
        (high, high * (1 - BAND)),
        (high, high * (1 + BAND)),
        (low, low * (1 + BAND)),
    ]
    band = " ".join(f"{_x(x)},{_y(y)}" for x, y in corners)
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SIZE} {SIZE}" '
        'font-family="sans-serif" font-size="11">'
    )
    yield f'<rect width="{SIZE}" height="{SIZE}" fill="white"/>'
    yield f'<polygon points="{band}" fill="#ddd"/>'
    yield f'<path d="M{_x(low)} {_y(low)}L{_x(high)} {_y(high)}" stroke="#888"/>'
    yield f'<text x="{SIZE / 2:.0f}" y="16" text-anchor="middle" font-size="13">{title}</text>'
    bottom, middle = SIZE - 6, SIZE / 2
    yield f'<text x="{middle:.0f}" y="{bottom}" text-anchor="middle">measured, ms</text>'
    yield (
        f'<text x="12" y="{middle:.0f}" text-anchor="middle" '
        f'transform="rotate(-90 12 {middle:.0f})">predicted, ms</text>'
    )


def _ticks() -> Iterable[str]:
    bottom, left = SIZE - MARGIN, MARGIN
    yield f'<path d="M{left} {MARGIN}V{bottom}H{SIZE - MARGIN}" fill="none" stroke="black"/>'
    for tick in TICKS_MS:
        yield f'<text x="{_x(tick)}" y="{bottom + 14}" text-anchor="middle">{tick}</text>'
        yield f'<text x="{left - 4}" y="{_y(tick) + 4}" text-anchor="end">{tick}</text>'


def _legend(names: Sequence[str]) -> Iterable[str]:
    for index, (name, colour) in enumerate(zip(names, COLOURS, strict=False)):
        y = MARGIN + 14 + 15 * index
        yield f'<circle cx="{MARGIN + 14}" cy="{y - 4}" r="4" fill="{colour}"/>'
        yield f'<text x="{MARGIN + 24}" y="{y}">{name}</text>'


def _inside(value_ms: float) -> float:
    return min(max(value_ms, LEAST_MS), MOST_MS)


def _x(value_ms: float) -> int:
    place = log10(value_ms / LEAST_MS) / log10(MOST_MS / LEAST_MS)
    return round(MARGIN + place * (SIZE - 2 * MARGIN))


def _y(value_ms: float) -> int:
    return SIZE - _x(value_ms)
