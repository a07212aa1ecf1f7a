"""When open-loop requests arrive, and how long they are: what all generators have in common."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from contract.options import option
from simulator.draws import Draws

RATE_MAX = 1_000_000
"""Requests per second; beyond it two arrivals would fall on one microsecond."""

TOKENS_MAX = 10_000_000
COUNT_MAX = 10_000_000
"""Requests of one workload; each takes about 500 bytes of this process's memory."""

CV_MAX = 100


class Spacing(Enum):
    """The gaps between arrivals."""

    EVEN = "even"  # all equal
    POISSON = "poisson"  # exponential: arrivals that know nothing of each other
    GAMMA = "gamma"  # of a chosen coefficient of variation: burstier above 1, more even below
    BATCHED = "batched"  # equal gaps between batches, whose requests come at one instant


@dataclass(frozen=True)
class ArrivalSettings:
    """An open loop: arrivals that do not wait for answers."""

    rate: float = option(10.0, "1/s", "mean arrivals per second")
    spacing: Spacing = option(Spacing.POISSON, "", "gaps between arrivals")
    cv: float = option(3.0, "", "standard deviation / mean of the gaps, where spacing is gamma")
    batch: int = option(10, "requests", "that arrive at one instant, where spacing is batched")

    def __post_init__(self) -> None:
        check_range(self, "rate", 1e-6, RATE_MAX)
        check_range(self, "cv", 0.01, CV_MAX)
        check_range(self, "batch", 1, COUNT_MAX)


@dataclass(frozen=True)
class PromptSettings(ArrivalSettings):
    """Prompts that share nothing."""

    requests: int = option(1_000, "requests", "in the workload")
    question_tokens: int = option(200, "tokens", "mean length of what is new in a prompt")
    output_tokens: int = option(200, "tokens", "mean length of an answer")
    length_cv: float = option(
        0.0, "", "standard deviation / mean of both lengths, lognormal; 0: all equal"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "requests", 1, COUNT_MAX)
        check_range(self, "question_tokens", 1, TOKENS_MAX)
        check_range(self, "output_tokens", 1, TOKENS_MAX)
        check_range(self, "length_cv", 0, CV_MAX)


def arrivals_us(settings: ArrivalSettings, draws: Draws) -> Iterator[int]:
    """Yield arrivals without end, in whole microseconds from 0, in order."""
    rate, spacing = settings.rate, settings.spacing
    if spacing in (Spacing.EVEN, Spacing.BATCHED):
        batch = settings.batch if spacing is Spacing.BATCHED else 1
        index = 0
        while True:
            yield round(index // batch * batch * 1_000_000 / rate)
            index += 1
    now_s, mean_s = 0.0, 1 / rate
    shape = 1 / (settings.cv * settings.cv)
    while True:
        if spacing is Spacing.GAMMA:
            now_s += draws.gamma(shape, mean_s / shape)
        else:
            now_s += draws.exponential(mean_s)
        yield round(now_s * 1_000_000)


def length_of(mean: int, cv: float, draws: Draws) -> int:
    """Return a lognormal length of at least 1 token; the mean itself where ``cv`` is 0."""
    if cv == 0:
        return mean
    return min(TOKENS_MAX, max(1, round(draws.lognormal(mean, cv))))


def check_range(settings: object, name: str, least: float, most: float) -> None:
    """Raise ValueError where the setting ``name`` is not from ``least`` to ``most``."""
    value = getattr(settings, name)
    if not least <= value <= most:
        raise ValueError(f"{name} is {value:g}, must be from {least:g} to {most:g}")
