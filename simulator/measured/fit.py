"""Finds an engine's constants from measured times: the smallest mean relative error.

The time of a step is linear in (1 / memory_efficiency, 1 / compute_efficiency, layer_us,
layer_sequence_us), so a measurement is one row of an overdetermined linear system. Least squares
would chase the few rows that are far off, so rows are reweighted by their last error (Weiszfeld's
method for the sum of absolute errors). An efficiency above 1 is not possible and a cost below 0
neither: a constant that would cross its bound is held there, and the others are fitted again.

Pure arithmetic in a fixed order: equal rows give equal constants, to the last bit.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import mul

from replicas.core.step_time import EngineSpeed, StepTerms

LEAST = (1.0, 1.0, 0.0, 0.0)
"""Bounds of the constants as the system has them: the inverse of two shares, and two costs."""

ROUNDS = 100
SETTLED = 1e-6
"""A fit ends when no constant moves by more than this part of itself."""

LEAST_ERROR = 0.005
"""Rows closer than this weigh no more: else one perfect row would own the fit."""

SOLVED_LEAST = 1e-12
"""A pivot below this part of the largest is a constant that no row tells from the others."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What one measurement took in parts at full speed, and its measured time."""

    terms: StepTerms
    measured_us: float


@dataclass(frozen=True)
class Free:
    """Which constants a fit may change."""

    efficiencies: bool = True
    layers: bool = True


def fit_engine(
    observations: Sequence[Observation], start: EngineSpeed, free: Free | None = None
) -> EngineSpeed:
    """Return ``start`` with its free constants replaced by those that fit best.

    Raises ValueError if there are fewer observations than constants.
    """
    free = free or Free()
    columns = ([0, 1] if free.efficiencies else []) + ([2, 3] if free.layers else [])
    if len(observations) < len(columns):
        raise ValueError(
            f"{len(observations)} rows cannot fit {len(columns)} constants; give more rows"
        )
    constants = _constants(start)
    held: set[int] = set()
    while True:
        open_columns = [column for column in columns if column not in held]
        _fit_columns(observations, constants, open_columns)
        crossed = {column for column in open_columns if constants[column] < LEAST[column]}
        if not crossed:
            return _engine(start, constants)
        for column in crossed:
            constants[column] = LEAST[column]
        held |= crossed


def _constants(engine: EngineSpeed) -> list[float]:
    return [
        1 / engine.memory_efficiency,
        1 / engine.compute_efficiency,
        engine.layer_us,
        engine.layer_sequence_us,
    ]


def _engine(start: EngineSpeed, constants: Sequence[float]) -> EngineSpeed:
    return replace(
        start,
        memory_efficiency=1 / constants[0],
        compute_efficiency=1 / constants[1],
        layer_us=constants[2],
        layer_sequence_us=constants[3],
    )


def _parts(terms: StepTerms) -> tuple[float, ...]:
    return (terms.memory_us, terms.compute_us, terms.layers, terms.layer_sequences)


def _fit_columns(
    observations: Sequence[Observation], constants: list[float], columns: list[int]
) -> None:
    """Set ``constants`` at ``columns``; the others stay as they are."""
    if not columns:
        return
    fixed = [column for column in range(len(constants)) if column not in columns]
    parts = [_parts(each.terms) for each in observations]
    targets = [
        1 - (each.terms.link_us + sum(own[i] * constants[i] for i in fixed)) / each.measured_us
        for each, own in zip(observations, parts, strict=True)
    ]
    shares = [
        [own[i] / each.measured_us for each, own in zip(observations, parts, strict=True)]
        for i in columns
    ]
    for column, value in zip(columns, _least_absolute(shares, targets), strict=True):
        constants[column] = value


def _least_absolute(columns: Sequence[list[float]], targets: Sequence[float]) -> list[float]:
    """Return the factors of ``columns`` whose sum misses ``targets`` by the least in the mean."""
    weights = [1.0] * len(targets)
    solution: list[float] = []
    for _ in range(ROUNDS):
        previous, solution = solution, _weighted_least_squares(columns, targets, weights)
        if previous and all(map(_is_settled, previous, solution)):
            break
        misses = list(targets)
        for factor, column in zip(solution, columns, strict=True):
            misses = [miss - factor * value for miss, value in zip(misses, column, strict=True)]
        weights = [1 / max(abs(miss), LEAST_ERROR) for miss in misses]
    return solution


def _is_settled(previous: float, now: float) -> bool:
    return abs(now - previous) <= SETTLED * abs(now)


def _weighted_least_squares(
    columns: Sequence[list[float]], targets: Sequence[float], weights: Sequence[float]
) -> list[float]:
    """Solve the normal equations; a column without any information gets 0."""
    weighted = [list(map(mul, weights, column)) for column in columns]
    return _solve(
        [[sum(map(mul, left, right)) for right in (*columns, targets)] for left in weighted]
    )


def _solve(matrix: list[list[float]]) -> list[float]:
    """Gauss-Jordan on the columns scaled to one diagonal, with the largest pivot first."""
    size = len(matrix)
    scales = [matrix[i][i] ** 0.5 or 1.0 for i in range(size)]
    for i in range(size):
        matrix[i] = [value / scales[i] for value in matrix[i]]
        for j in range(size):
            matrix[i][j] /= scales[j]
    unsolved = set(range(size))
    while unsolved:
        pivot = max(sorted(unsolved), key=lambda i: matrix[i][i])
        unsolved.remove(pivot)
        if matrix[pivot][pivot] < SOLVED_LEAST:
            matrix[pivot] = [0.0] * (size + 1)
            matrix[pivot][pivot] = 1.0
            continue
        matrix[pivot] = [value / matrix[pivot][pivot] for value in matrix[pivot]]
        for i in range(size):
            factor = matrix[i][pivot]
            if i != pivot and factor:
                matrix[i] = [a - factor * b for a, b in zip(matrix[i], matrix[pivot], strict=True)]
    return [matrix[i][size] / scales[i] for i in range(size)]
