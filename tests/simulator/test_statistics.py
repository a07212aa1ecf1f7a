"""Student's t against its printed table, and intervals against a worked example."""

import pytest

from simulator.statistics import estimate, t_quantile, t_within


@pytest.mark.parametrize(
    ("confidence", "degrees", "t"),
    [
        # NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2, two-sided.
        (0.95, 1, 12.706),
        (0.95, 2, 4.303),
        (0.95, 5, 2.571),
        (0.95, 10, 2.228),
        (0.95, 30, 2.042),
        (0.95, 100, 1.984),
        (0.90, 4, 2.132),
        (0.99, 7, 3.499),
    ],
)
def test_quantiles_are_those_of_the_printed_table(
    confidence: float, degrees: int, t: float
) -> None:
    assert t_quantile(confidence, degrees) == pytest.approx(t, abs=5e-4)


@pytest.mark.parametrize("degrees", range(1, 40))
def test_a_quantile_encloses_its_probability(degrees: int) -> None:
    assert t_within(t_quantile(0.8, degrees), degrees) == pytest.approx(0.8)


def test_the_interval_of_three_runs_is_that_worked_by_hand() -> None:
    # Mean 4, standard deviation 2, so 4.3027 * 2 / sqrt(3).
    result = estimate([2.0, 4.0, 6.0])

    assert (result.mean, result.n) == (4.0, 3)
    assert result.half_width == pytest.approx(4.9683, abs=1e-4)


def test_one_run_has_no_interval() -> None:
    assert estimate([7.0]).half_width is None
