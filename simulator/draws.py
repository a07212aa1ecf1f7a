"""Random draws that anyone can repeat: equal seed, equal bits, on every machine and every Python.

The generator is SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators",
OOPSLA 2014). Logarithm and exponential are computed here from additions, multiplications and
divisions, which IEEE 754 rounds in one way only; those of the C library differ in the last bit
from one platform to the next, and so would an arrival. Python's own `random` promises equal draws
for few of its methods.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import frexp, ldexp, sqrt
from typing import TypeVar

from xxhash import xxh3_64_intdigest

T = TypeVar("T")

MASK = 2**64 - 1
GOLDEN_GAMMA = 0x9E3779B97F4A7C15
LN_2 = 0.6931471805599453
ROOT_HALF = 0.7071067811865476
ATANH_TERMS = tuple(1 / (2 * k + 1) for k in reversed(range(12)))
"""Of atanh(s) / s in s**2, where s is at most 0.172: what is left out is below 1e-19."""

EXP_TERMS = 16
"""Of the series of exp up to half of ln 2: what is left out is below 1e-20."""


class Draws:
    """A stream of draws: equal parts of a seed give an equal stream, others an unrelated one."""

    __slots__ = ("_state",)

    def __init__(self, *seed: str | int) -> None:
        self._state = xxh3_64_intdigest("\0".join(map(str, seed)).encode())

    def bits(self) -> int:
        """Return 64 random bits."""
        self._state = (self._state + GOLDEN_GAMMA) & MASK
        z = self._state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
        return z ^ (z >> 31)

    def uniform(self) -> float:
        """Return a number above 0 and below 1, neither of which is ever drawn."""
        return ((self.bits() >> 12) + 0.5) * 2.0**-52

    def below(self, limit: int) -> int:
        """Return a whole number from 0 to ``limit`` - 1; the bias is ``limit`` / 2**64."""
        return self.bits() * limit >> 64

    def exponential(self, mean: float) -> float:
        """Return a gap of a Poisson process."""
        return -mean * ln(self.uniform())

    def normal(self) -> float:
        """Return a standard normal number (Marsaglia's polar method, which needs no sine)."""
        while True:
            x, y = 2 * self.uniform() - 1, 2 * self.uniform() - 1
            square = x * x + y * y
            if 0 < square < 1:
                return x * sqrt(-2 * ln(square) / square)

    def gamma(self, shape: float, scale: float) -> float:
        """Return a gamma number of mean shape x scale (Marsaglia and Tsang, ACM TOMS 26, 2000)."""
        if shape < 1:
            return self.gamma(shape + 1, scale) * exp(ln(self.uniform()) / shape)
        d = shape - 1 / 3
        c = 1 / sqrt(9 * d)
        while True:
            x = self.normal()
            root = 1 + c * x
            v = root * root * root  # a power would be the C library's
            if v > 0 and ln(self.uniform()) < 0.5 * x * x + d - d * v + d * ln(v):
                return d * v * scale

    def weibull(self, shape: float, scale: float) -> float:
        """Return a Weibull number: scale x (an exponential of mean 1) ** (1 / shape)."""
        return scale * exp(ln(self.exponential(1)) / shape)

    def lognormal(self, mean: float, cv: float) -> float:
        """Return a lognormal number of that mean and standard deviation / mean."""
        variance = ln(1 + cv * cv)
        return mean * exp(sqrt(variance) * self.normal() - variance / 2)

    def shuffled(self, items: Iterable[T]) -> list[T]:
        """Return the items in random order (Fisher and Yates)."""
        order = list(items)
        for last in range(len(order) - 1, 0, -1):
            other = self.below(last + 1)
            order[last], order[other] = order[other], order[last]
        return order


class Weighted:
    """An index drawn in proportion to its weight, in the time of a binary search."""

    __slots__ = ("_sums",)

    def __init__(self, weights: Iterable[float]) -> None:
        self._sums = list(accumulate(weights))
        assert self._sums, "nothing to choose from"
        assert self._sums[-1] > 0, "all weights are zero"

    def draw(self, draws: Draws) -> int:
        """Return one index."""
        return bisect_right(self._sums, draws.uniform() * self._sums[-1], hi=len(self._sums) - 1)


def zipf_weights(count: int, exponent: float) -> Sequence[float]:
    """Return the weights 1 / rank ** exponent of ranks 1 to ``count``; exponent 0: all equal."""
    return [exp(-exponent * ln(rank)) for rank in range(1, count + 1)]


def ln(x: float) -> float:
    """Return the natural logarithm of ``x`` > 0, the same bits everywhere."""
    assert x > 0
    mantissa, exponent = frexp(x)
    if mantissa < ROOT_HALF:
        mantissa, exponent = mantissa * 2, exponent - 1
    s = (mantissa - 1) / (mantissa + 1)
    square = s * s
    series = 0.0
    for term in ATANH_TERMS:
        series = series * square + term
    return exponent * LN_2 + 2 * s * series


def exp(x: float) -> float:
    """Return e ** ``x``, the same bits everywhere; OverflowError beyond the largest float."""
    halvings = round(x / LN_2)
    rest = x - halvings * LN_2
    series = 1.0
    for k in range(EXP_TERMS, 0, -1):
        series = 1 + series * rest / k
    return ldexp(series, halvings)
