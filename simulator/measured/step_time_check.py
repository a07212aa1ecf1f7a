"""Scores the step-time model on measured rows: its errors, and those on what it has not seen."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil

from replicas.core.hardware_timing import step_time_spec
from replicas.core.step_time import ENGINES, EngineSpeed, StepLoad, StepTerms, StepTimeModel
from simulator.measured.fit import Observation, fit_engine
from simulator.measured.rows import MeasuredRow
from simulator.quantiles import quantile

Key = Callable[[MeasuredRow], str]


@dataclass(frozen=True, slots=True)
class Score:
    """Relative errors of one group of rows; predicted over measured, less 1."""

    group: str
    rows: int
    mape: float  # mean of the absolute errors
    median: float  # of the absolute errors
    p90: float  # of the absolute errors
    bias: float  # mean of the errors with their sign


@dataclass(frozen=True)
class EngineCheck:
    """All that is said of one engine."""

    engine: EngineSpeed
    total: Score
    by: dict[str, tuple[Score, ...]]
    without: dict[str, tuple[Score, ...]]  # fitted on the other rows, scored on those left out


GROUPS: dict[str, Key] = {
    "model": lambda row: row.model.name,
    "GPU": lambda row: row.gpu.name,
    "GPUs": lambda row: f"TP{row.tensor_parallel}",
    "precision": lambda row: f"{row.precision.value} weights",
}
LEFT_OUT_IN_TURN = ("model", "GPU")


def steady_load(prompt_tokens: float, output_tokens: float, concurrency: int) -> StepLoad:
    """Return the mean step of a closed loop, as a decoding sequence sees it.

    Each of the others that ends is replaced, so every step computes (concurrency - 1) / output
    of a prompt; sequences are half done in the mean. That prompts come in whole chunks changes
    no mean, because a step's time is a sum. Requests of one length that start together and keep
    step would not disturb each other: for them it is too slow, by 13 % for 8 of 1,024 and 128.
    """
    begun = (concurrency - 1) / output_tokens
    return StepLoad(
        prefill_tokens=round(begun * prompt_tokens),
        prefill_attention_pairs=begun * prompt_tokens * prompt_tokens / 2,
        decode_tokens=concurrency,
        decode_context_tokens=ceil(concurrency * (prompt_tokens + output_tokens / 2)),
    )


def observe(row: MeasuredRow) -> Observation:
    """Return what the mean step of ``row`` takes in parts, with the measured time."""
    return Observation(_terms(row), row.tpot_us)


def predict_us(row: MeasuredRow, engine: EngineSpeed) -> float:
    """Return the time per output token that ``engine``'s constants give."""
    return _terms(row).time_us(engine)


def fit_rows(rows: Iterable[MeasuredRow], start: EngineSpeed) -> EngineSpeed:
    """Return the constants that predict ``rows`` best."""
    return fit_engine([observe(row) for row in rows], start)


def score(group: str, rows: Sequence[MeasuredRow], engine: EngineSpeed) -> Score:
    """Return the errors of ``engine``'s constants on ``rows``, of which there must be some."""
    errors = [predict_us(row, engine) / row.tpot_us - 1 for row in rows]
    return _score(group, errors)


def check_engine(
    rows: Sequence[MeasuredRow], engine: EngineSpeed, *, refit: bool = False
) -> EngineCheck:
    """Return the scores of one engine's rows; with ``refit``, of constants fitted on them."""
    if refit:
        engine = fit_rows(rows, engine)
    return EngineCheck(
        engine=engine,
        total=score("all", rows, engine),
        by={
            name: tuple(
                score(group, [row for row in rows if key(row) == group], engine)
                for group in sorted({key(row) for row in rows})
            )
            for name, key in GROUPS.items()
        },
        without={name: _left_out(rows, engine, GROUPS[name]) for name in LEFT_OUT_IN_TURN},
    )


def check_rows(rows: Sequence[MeasuredRow], *, refit: bool = False) -> dict[str, EngineCheck]:
    """Return the check of every engine that has rows, by its name in the file."""
    present = [name for name in ENGINES if any(row.engine == name for row in rows)]
    return {
        name: check_engine([row for row in rows if row.engine == name], ENGINES[name], refit=refit)
        for name in present
    }


def _left_out(rows: Sequence[MeasuredRow], engine: EngineSpeed, key: Key) -> tuple[Score, ...]:
    """Return the score of each group under constants fitted without it, then of all together.

    Empty where there is one group only: nothing is left to fit on.
    """
    groups = sorted({key(row) for row in rows})
    if len(groups) < 2:
        return ()
    scores, errors = [], []
    for group in groups:
        fitted = fit_rows([row for row in rows if key(row) != group], engine)
        unseen = [row for row in rows if key(row) == group]
        scores.append(score(group, unseen, fitted))
        errors += [predict_us(row, fitted) / row.tpot_us - 1 for row in unseen]
    return (*scores, _score("all, each unseen", errors))


def _terms(row: MeasuredRow) -> StepTerms:
    spec = step_time_spec(row.model, row.gpu, row.tensor_parallel, row.precision, row.kv_precision)
    load = steady_load(row.prompt_tokens, row.output_tokens, row.concurrency)
    return StepTimeModel(spec).terms(load)


def _score(group: str, errors: Sequence[float]) -> Score:
    sizes = sorted(abs(error) for error in errors)
    return Score(
        group=group,
        rows=len(errors),
        mape=sum(sizes) / len(sizes),
        median=quantile(sizes, 0.5),
        p90=quantile(sizes, 0.9),
        bias=sum(errors) / len(errors),
    )
