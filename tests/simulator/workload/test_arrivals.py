"""Arrivals and lengths of generators: rate and burstiness within what chance allows."""

import math
from itertools import islice, pairwise
from statistics import fmean, pstdev

import pytest

from simulator.draws import Draws
from simulator.workload.arrivals import ArrivalSettings, Spacing, arrivals_us, length_of

SAMPLE = 20_000


def gaps_s(settings: ArrivalSettings) -> list[float]:
    times = [0, *islice(arrivals_us(settings, Draws("arrivals")), SAMPLE)]
    return [(later - sooner) / 1e6 for sooner, later in pairwise(times)]


@pytest.mark.parametrize(
    ("settings", "cv"),
    [
        (ArrivalSettings(rate=20, spacing=Spacing.POISSON), 1),
        (ArrivalSettings(rate=20, spacing=Spacing.GAMMA, cv=3), 3),
        (ArrivalSettings(rate=20, spacing=Spacing.GAMMA, cv=0.5), 0.5),
    ],
)
def test_gaps_have_the_rate_and_the_burstiness_asked_for(
    settings: ArrivalSettings, cv: float
) -> None:
    gaps = gaps_s(settings)

    mean_s = 1 / settings.rate
    assert min(gaps) >= 0
    assert abs(fmean(gaps) - mean_s) < 4 * cv * mean_s / math.sqrt(SAMPLE)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(cv, rel=0.06)


def test_even_gaps_do_not_drift() -> None:
    times = list(islice(arrivals_us(ArrivalSettings(rate=3, spacing=Spacing.EVEN), Draws()), 4))

    assert times == [0, 333_333, 666_667, 1_000_000]


def test_a_batch_arrives_at_one_instant_and_the_rate_stays() -> None:
    settings = ArrivalSettings(rate=2, spacing=Spacing.BATCHED, batch=3)

    times = list(islice(arrivals_us(settings, Draws()), 7))

    assert times == [0, 0, 0, 1_500_000, 1_500_000, 1_500_000, 3_000_000]


@pytest.mark.parametrize(
    ("name", "value"), [("rate", 0), ("rate", float("nan")), ("cv", 0), ("batch", 0)]
)
def test_an_impossible_setting_is_named(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} is {value:g}, must be from"):
        ArrivalSettings(**{name: value})  # type: ignore[arg-type]


def test_lengths_have_the_mean_and_spread_asked_for() -> None:
    draws = Draws("lengths")

    lengths = [length_of(500, 0.8, draws) for _ in range(SAMPLE)]

    assert min(lengths) >= 1
    assert abs(fmean(lengths) - 500) < 4 * 400 / math.sqrt(SAMPLE)
    assert pstdev(lengths) == pytest.approx(400, rel=0.06)


def test_lengths_without_spread_are_all_equal() -> None:
    assert {length_of(500, 0, Draws()) for _ in range(10)} == {500}


def test_a_length_is_never_zero() -> None:
    draws = Draws("short")

    assert min(length_of(1, 5, draws) for _ in range(1_000)) == 1
