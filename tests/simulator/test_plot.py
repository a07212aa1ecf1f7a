"""Plots as data become well-formed SVG in which every value has its place."""

from math import isclose
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from simulator.plot import (
    COLOURS,
    HEIGHT,
    PLOT_CSS,
    WIDTH,
    Axis,
    Bar,
    Bars,
    Line,
    Mark,
    Plot,
    Point,
    log_ticks,
    round_ticks,
    svg,
)

SVG = "{http://www.w3.org/2000/svg}"


def parsed(plot: Plot | Bars) -> ElementTree.Element:
    return ElementTree.fromstring(svg(plot))  # noqa: S314  # our own text


def paths(plot: Plot) -> list[str]:
    return [
        path.get("d", "")
        for path in parsed(plot).iter(f"{SVG}path")
        if path.get("class", "").startswith("line") and "h18" not in path.get("d", "")
    ]


def test_a_line_goes_through_its_points() -> None:
    line = Line("a", [Point(0, 0), Point(10, 100)])

    (path,) = paths(Plot("t", "x", "y", [line]))

    start, end = path.removeprefix("M").split("L")
    assert start.split(" ")[0] == "72.0"
    assert float(start.split(" ")[1]) > float(end.split(" ")[1]), "more is higher up"


def test_a_gap_breaks_the_line() -> None:
    line = Line("a", [Point(0, 1), Point(1, None), Point(2, 1), Point(3, 1)])

    assert [path.count("M") for path in paths(Plot("t", "x", "y", [line]))] == [2]


def test_every_line_has_its_name_in_the_legend_and_text_is_escaped() -> None:
    lines = [Line(f"<{n}>", [Point(0, n), Point(1, n)]) for n in range(COLOURS + 2)]

    texts = [text.text for text in parsed(Plot("a & b", "x", "y", lines)).iter(f"{SVG}text")]

    assert {"a & b", *(line.name for line in lines)} <= set(texts)


def test_a_mark_is_drawn_with_its_text() -> None:
    lines = [Line("a", [Point(1, 1), Point(2, 2)])]

    root = parsed(Plot("t", "x", "y", lines, [Mark(1, 1, "knee")]))

    assert [text.text for text in root.iter(f"{SVG}text") if text.text == "knee"]
    assert [each for each in root.iter(f"{SVG}circle") if each.get("class") == "mark"]


@pytest.mark.parametrize(
    "plot",
    [
        Plot("nothing", "x", "y", []),
        Plot("one point", "x", "y", [Line("a", [Point(3, 0)])]),
        Plot("one point, log", "x", "y", [Line("a", [Point(3, 0)])], x_is_log=True),
        Plot("gaps only", "x", "y", [Line("a", [Point(3, None), Point(4, None)])]),
        Bars("no bars", []),
        Bars("zero", [Bar("a", 0, "0%")], Bar("limit", 0, "0%")),
    ],
)
def test_a_plot_of_next_to_nothing_can_be_drawn(plot: Plot | Bars) -> None:
    assert parsed(plot).tag == f"{SVG}svg"


@given(
    points=st.lists(
        st.tuples(st.floats(0.01, 1e9), st.none() | st.floats(0, 1e9)), min_size=1, max_size=30
    ),
    is_log=st.booleans(),
)
@example(points=[(1.0, 5e-324)], is_log=False)
def test_everything_is_inside_the_picture(
    points: list[tuple[float, float | None]], is_log: bool
) -> None:
    line = Line("a", [Point(x, y) for x, y in points])

    root = parsed(Plot("t", "x", "y", [line], x_is_log=is_log))

    for circle in root.iter(f"{SVG}circle"):
        assert 0 <= float(circle.get("cx", "-1")) <= WIDTH
        assert 0 <= float(circle.get("cy", "-1")) <= HEIGHT


@given(low=st.floats(-1e6, 1e6), width=st.floats(1e-3, 1e6))
def test_ticks_are_round_and_inside(low: float, width: float) -> None:
    ticks = round_ticks(low, low + width)

    assert 2 <= len(ticks) <= 8
    assert all(low - width * 1e-6 <= tick <= low + width * (1 + 1e-6) for tick in ticks)


def test_log_ticks_are_ones_twos_and_fives() -> None:
    assert log_ticks(0.5, 30) == [0.5, 1, 2, 5, 10, 20]


def test_a_log_axis_gives_equal_factors_equal_room() -> None:
    axis = Axis(1, 100, 0, 200, is_log=True)

    assert isclose(axis.place(10), 100)


def test_bars_are_as_long_as_their_values() -> None:
    bars = Bars("t", [Bar("a", 1, "1"), Bar("b", 2, "2")], Bar("limit", 4, "4"))

    first, second = (float(each.get("width", "0")) for each in parsed(bars).iter(f"{SVG}rect"))

    assert isclose(second, 2 * first, rel_tol=0.01)


def test_the_style_has_every_colour_for_light_and_dark() -> None:
    light, dark = PLOT_CSS.split("@media (prefers-color-scheme: dark)")

    for number in range(COLOURS):
        assert f"--c{number}:" in light
        assert f"--c{number}:" in dark
