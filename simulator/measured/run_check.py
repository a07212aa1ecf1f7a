"""Predicts recorded runs with constants that one of them gave, and says how far off it is."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from replicas.core.step_time import EngineSpeed
from simulator.measured.run import (
    RecordedRun,
    RunFigures,
    calibrate,
    measured_figures,
    replay,
)

FIGURES = tuple(field.name for field in fields(RunFigures))


@dataclass(frozen=True)
class Comparison:
    """One run, measured and predicted."""

    run: str
    measured: RunFigures
    predicted: RunFigures

    def error(self, figure: str) -> float:
        """Return predicted over measured, less 1."""
        return float(getattr(self.predicted, figure) / getattr(self.measured, figure) - 1)


@dataclass(frozen=True)
class RunCheck:
    """All runs under one set of constants; ``calibrated_on`` is the run that gave them, if any."""

    calibrated_on: str | None
    engine: EngineSpeed
    comparisons: tuple[Comparison, ...]

    @property
    def unseen(self) -> tuple[Comparison, ...]:
        """The runs that gave no constant."""
        return tuple(each for each in self.comparisons if each.run != self.calibrated_on)

    def worst(self, figure: str) -> float:
        """Return the largest error of an unseen run, with its sign."""
        return max((each.error(figure) for each in self.unseen), key=abs)


def check_runs(
    runs: Sequence[RecordedRun], engine: EngineSpeed, calibrated_on: str | None = None
) -> RunCheck:
    """Predict all ``runs``, with ``engine``'s constants or with two of them from one run."""
    for run in runs:
        if run.setup.run == calibrated_on:
            engine = calibrate(run, engine)
    comparisons = tuple(
        Comparison(run.setup.run, measured_figures(run), replay(run, engine).figures)
        for run in runs
    )
    return RunCheck(calibrated_on, engine, comparisons)
