"""Draws: the published generator, the right distributions, and the same bits everywhere."""

import math
from collections import Counter
from collections.abc import Callable
from itertools import permutations
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.draws import MASK, Draws, Weighted, exp, ln, zipf_weights

SAMPLE = 20_000


class Given(Draws):
    """Draws whose bits are chosen."""

    def __init__(self, bits: int) -> None:
        super().__init__("given")
        self.chosen = bits

    def bits(self) -> int:
        return self.chosen


def test_the_generator_is_splitmix64() -> None:
    draws = Draws("any")
    draws._state = 1234567  # the seed of the published test vector (Vigna, prng.di.unimi.it)

    assert [draws.bits() for _ in range(3)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


def test_equal_seeds_draw_equally_and_others_do_not() -> None:
    def first(*seed: str | int) -> list[int]:
        draws = Draws(*seed)
        return [draws.bits() for _ in range(3)]

    assert first("0", "arrivals") == first("0", "arrivals")
    assert len({tuple(first(*seed)) for seed in (("0", 1), ("01",), ("1", 0), ("0",))}) == 4


def test_all_draws_are_pinned_to_the_bit() -> None:
    draws = Draws("pinned")

    drawn = [
        draws.uniform(),
        draws.exponential(2),
        draws.normal(),
        draws.gamma(0.1, 3),
        draws.gamma(4, 0.5),
        draws.weibull(0.4, 2),
        draws.lognormal(100, 1.5),
    ]

    assert [number.hex() for number in drawn] == PINNED


@pytest.mark.parametrize("bits", [0, 1, 2**63, MASK])
def test_a_uniform_number_is_neither_0_nor_1(bits: int) -> None:
    assert 0 < Given(bits).uniform() < 1


@given(bits=st.integers(0, MASK), limit=st.integers(1, 2**40))
def test_a_whole_number_is_below_its_limit(bits: int, limit: int) -> None:
    assert 0 <= Given(bits).below(limit) < limit


@given(st.floats(min_value=1e-300, max_value=1e300))
def test_ln_is_within_two_last_places_of_the_library_s(x: float) -> None:
    assert abs(ln(x) - math.log(x)) <= 2 * max(math.ulp(math.log(x)), 2**-53 * abs(x - 1))


@given(st.floats(min_value=-50, max_value=50))
def test_exp_is_within_the_rounding_of_its_argument_of_the_library_s(x: float) -> None:
    assert exp(x) == pytest.approx(math.exp(x), rel=2e-14)


@pytest.mark.parametrize(
    ("draw", "mean", "deviation"),
    [
        (lambda draws: draws.uniform(), 0.5, math.sqrt(1 / 12)),
        (lambda draws: draws.exponential(3), 3, 3),
        (lambda draws: draws.normal(), 0, 1),
        (lambda draws: draws.gamma(4, 0.5), 2, 1),
        (lambda draws: draws.gamma(0.25, 4), 1, 2),
        (lambda draws: draws.weibull(2, 1), math.gamma(1.5), math.sqrt(1 - math.gamma(1.5) ** 2)),
        (lambda draws: draws.lognormal(100, 0.5), 100, 50),
    ],
    ids=["uniform", "exponential", "normal", "gamma", "gamma below 1", "weibull", "lognormal"],
)
def test_numbers_have_the_mean_and_deviation_of_their_distribution(
    draw: Callable[[Draws], float], mean: float, deviation: float
) -> None:
    draws = Draws("moments")

    sample = [draw(draws) for _ in range(SAMPLE)]

    assert abs(fmean(sample) - mean) < 4 * deviation / math.sqrt(SAMPLE)
    assert pstdev(sample) == pytest.approx(deviation, rel=0.06)


def test_exponential_numbers_have_the_tail_of_a_poisson_process() -> None:
    draws = Draws("tail")

    beyond = sum(draws.exponential(1) > 2 for _ in range(SAMPLE)) / SAMPLE

    assert beyond == pytest.approx(math.exp(-2), abs=4 * math.sqrt(0.135 * 0.865 / SAMPLE))


def test_ranks_are_drawn_in_proportion_to_their_weight() -> None:
    draws, ranks = Draws("ranks"), Weighted(zipf_weights(3, 1.0))

    counts = Counter(ranks.draw(draws) for _ in range(SAMPLE))

    for rank in range(3):
        share = 1 / (rank + 1) / (1 + 1 / 2 + 1 / 3)
        assert counts[rank] / SAMPLE == pytest.approx(share, abs=0.015)


def test_an_exponent_of_zero_makes_all_ranks_equal() -> None:
    assert zipf_weights(4, 0) == [1, 1, 1, 1]


def test_a_weight_of_zero_is_never_drawn() -> None:
    assert Weighted([1, 0, 0]).draw(Given(MASK)) == 0
    assert Weighted([0, 0, 1]).draw(Given(0)) == 2


def test_all_orders_are_equally_likely() -> None:
    draws = Draws("orders")

    counts = Counter(tuple(draws.shuffled("abc")) for _ in range(6_000))

    assert set(counts) == set(permutations("abc"))
    assert all(abs(count - 1_000) < 4 * math.sqrt(1_000 * 5 / 6) for count in counts.values())


PINNED = [
    "0x1.4548a66644ed4p-3",
    "0x1.e67a63340f53ap+0",
    "-0x1.51c27ce71e2bap+0",
    "0x1.170900f8de388p-35",
    "0x1.797f7f227b09dp+2",
    "0x1.14ab58c084365p-26",
    "0x1.0e79ac2c076a7p+5",
]
