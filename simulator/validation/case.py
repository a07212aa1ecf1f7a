"""A case: a number that is known, the runs that should give it, and how near is near enough.

An experiment is one fleet under one workload, run once for each seed; it is measured in figures by
name. A case takes figures of one experiment or several and compares one number with what is known.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from simulator.fleet_run import FleetRun
from simulator.fleet_spec import FleetSpec
from simulator.statistics import Estimate, estimate
from simulator.workload.stages import StagedWorkload

Figures = Mapping[str, float]
"""What one run gave, by the name of the figure."""

Findings = Mapping[str, Sequence[Figures]]
"""What all runs gave: for each experiment one of Figures for each seed, in their order."""

Opener = Callable[[str], StagedWorkload]
"""Turns the text that names a workload into the workload; reading files is not done here."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One fleet under one workload. ``seeds`` are 0 up to that number."""

    name: str
    seeds: int
    workload: Callable[[Opener, int], StagedWorkload]  # of a seed
    fleet: Callable[[int], FleetSpec]  # of a seed
    measure: Callable[[FleetRun], Figures]

    def run(self, open_workload: Opener, seed: int) -> Figures:
        """Return the figures of one seed."""
        run = FleetRun(self.fleet(seed), self.workload(open_workload, seed))
        run.run()
        return self.measure(run)


@dataclass(frozen=True)
class Within:
    """Known to lie from ``low`` to ``high``."""

    low: float
    high: float

    def holds(self, got: Estimate, _form: str) -> bool:
        """Say whether the mean over the seeds lies there."""
        return self.low <= got.mean <= self.high

    def text(self, form: str) -> str:
        """Return the range, or the number if it is one."""
        low, high = format(self.low, form), format(self.high, form)
        return low if low == high else f"{low} to {high}"


@dataclass(frozen=True)
class Exactly:
    """Known, and equal in every digit that is printed."""

    value: float

    def holds(self, got: Estimate, form: str) -> bool:
        """Say whether both are printed alike."""
        return format(got.mean, form) == format(self.value, form)

    def text(self, form: str) -> str:
        """Return the value."""
        return format(self.value, form)


@dataclass(frozen=True)
class Theory:
    """Known exactly, of a quantity of which each seed draws a sample."""

    value: float

    def holds(self, got: Estimate, _form: str) -> bool:
        """Say whether the value lies in the confidence interval of the seeds' mean."""
        assert got.half_width is not None, "one seed has no interval"
        return abs(got.mean - self.value) <= got.half_width

    def text(self, form: str) -> str:
        """Return the value."""
        return format(self.value, form)


Expected = Within | Exactly | Theory


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row of the table. ``form`` formats its numbers; ``notes`` say why it may miss."""

    name: str
    expected: Expected
    experiments: tuple[str, ...]
    value: Callable[[Sequence[Figures]], float]  # of one seed, in the order of ``experiments``
    form: str = ".4f"
    unit: str = ""
    source: str
    notes: tuple[str, ...] = ()
    confidence: float = 0.95

    def got(self, findings: Findings) -> Estimate:
        """Return the mean over the seeds, each of which pairs the experiments' runs of it."""
        runs = [findings[name] for name in self.experiments]
        return estimate([self.value(seed) for seed in zip(*runs, strict=True)], self.confidence)


def figure_of(name: str) -> Callable[[Sequence[Figures]], float]:
    """Return a case's value: that figure of its first experiment."""
    return lambda seed: seed[0][name]


def ratio_of(name: str) -> Callable[[Sequence[Figures]], float]:
    """Return a case's value: that figure of its first experiment over the least of the others."""
    return lambda seed: seed[0][name] / min(each[name] for each in seed[1:])


def about(value: float, relative: float) -> Within:
    """Return a number known within a share of itself."""
    return Within(value * (1 - relative), value * (1 + relative))


def near(value: float, within: float) -> Within:
    """Return a number known within an amount."""
    return Within(value - within, value + within)
