"""What it takes for a case to hold, and how a case reads its number out of the runs."""

import pytest

from simulator.statistics import Estimate
from simulator.validation.case import (
    Case,
    Exactly,
    Theory,
    Within,
    about,
    figure_of,
    near,
    ratio_of,
)


@pytest.mark.parametrize(("got", "holds"), [(3.39, False), (3.4, True), (4.1, True), (4.11, False)])
def test_a_range_holds_from_its_low_to_its_high_end(got: float, holds: bool) -> None:
    assert Within(3.4, 4.1).holds(Estimate(got, 9.0, 5), ".2f") is holds


def test_an_exact_value_holds_if_every_printed_digit_is_equal() -> None:
    known = Exactly(0.373379905854133)

    assert known.holds(Estimate(0.3733799058541331, None, 1), ".15f")
    assert not known.holds(Estimate(0.373379905854135, None, 1), ".15f")


@pytest.mark.parametrize(("half_width", "holds"), [(0.05, False), (0.1, True)])
def test_a_theory_holds_if_the_interval_of_the_mean_has_it(half_width: float, holds: bool) -> None:
    assert Theory(2.0).holds(Estimate(2.1, half_width + 1e-9, 10), ".1f") is holds


def test_a_theory_needs_more_than_one_seed() -> None:
    with pytest.raises(AssertionError, match="one seed has no interval"):
        Theory(2.0).holds(Estimate(2.0, None, 1), ".1f")


def test_ranges_are_told_as_they_are_meant() -> None:
    assert about(277, 0.01).text(".1f") == "274.2 to 279.8"
    assert near(0.0816, 0.002).text(".4f") == "0.0796 to 0.0836"
    assert Exactly(90_730_719).text(",.0f") == "90,730,719"


def test_a_case_takes_the_mean_of_what_each_seed_gives() -> None:
    case = Case(
        name="load / the better of two",
        expected=Within(0, 1),
        experiments=("load", "one", "other"),
        value=ratio_of("ttft_s"),
        source="",
    )
    findings = {
        "load": [{"ttft_s": 6.0}, {"ttft_s": 8.0}],
        "one": [{"ttft_s": 3.0}, {"ttft_s": 9.0}],
        "other": [{"ttft_s": 4.0}, {"ttft_s": 2.0}],
    }

    got = case.got(findings)

    assert (got.mean, got.n) == (3.0, 2)
    assert figure_of("ttft_s")([{"ttft_s": 1.5}, {"ttft_s": 7.0}]) == 1.5
