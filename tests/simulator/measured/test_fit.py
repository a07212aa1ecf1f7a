"""The fit finds constants that made the times, whatever few rows are wrong, and always the same."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.core.step_time import EngineSpeed, StepTerms
from simulator.measured.fit import Free, Observation, fit_engine

TRUE = EngineSpeed(
    name="true",
    memory_efficiency=0.8,
    compute_efficiency=0.5,
    layer_us=40,
    layer_sequence_us=0.25,
    source="a test",
)
START = replace(TRUE, memory_efficiency=1, compute_efficiency=1, layer_us=0, layer_sequence_us=0)
PARTS = [
    StepTerms(memory_us, compute_us, link_us, layers, layers * decodes)
    for memory_us in (2_000, 9_000)
    for compute_us, link_us in ((0, 300), (5_000, 0), (800, 50))
    for layers in (32, 80)
    for decodes in (1, 64)
]


def observations(engine: EngineSpeed = TRUE) -> list[Observation]:
    return [Observation(parts, parts.time_us(engine)) for parts in PARTS]


def constants(engine: EngineSpeed) -> tuple[float, ...]:
    return (
        engine.memory_efficiency,
        engine.compute_efficiency,
        engine.layer_us,
        engine.layer_sequence_us,
    )


def mean_error(rows: list[Observation], engine: EngineSpeed) -> float:
    errors = [abs(row.terms.time_us(engine) / row.measured_us - 1) for row in rows]
    return sum(errors) / len(errors)


def test_times_made_of_constants_give_those_constants() -> None:
    assert constants(fit_engine(observations(), START)) == pytest.approx(constants(TRUE))


def test_a_few_rows_that_are_far_off_do_not_move_the_fit() -> None:
    rows = observations()
    rows[3] = replace(rows[3], measured_us=3 * rows[3].measured_us)
    rows[11] = replace(rows[11], measured_us=0.4 * rows[11].measured_us)

    assert constants(fit_engine(rows, START)) == pytest.approx(constants(TRUE), rel=0.05)


def test_constants_that_are_not_free_stay() -> None:
    start = replace(START, layer_us=TRUE.layer_us, layer_sequence_us=TRUE.layer_sequence_us)

    fitted = fit_engine(observations(), start, Free(layers=False))

    assert constants(fitted) == pytest.approx(constants(TRUE))
    kept = fit_engine(observations(), START, Free(layers=False))
    assert (kept.layer_us, kept.layer_sequence_us) == (0, 0)


def test_an_impossible_efficiency_is_held_at_one_and_the_rest_fitted_again() -> None:
    rows = [
        Observation(parts, 0.7 * parts.memory_us + parts.compute_us / 0.5 + parts.link_us)
        for parts in PARTS
    ]

    fitted = fit_engine(rows, START)

    assert fitted.memory_efficiency == 1
    for name in ("compute_efficiency", "layer_us", "layer_sequence_us"):
        for factor in (0.95, 1.05):
            other = replace(fitted, **{name: min(1, getattr(fitted, name) * factor)})
            assert mean_error(rows, other) >= 0.999 * mean_error(rows, fitted)


def test_a_constant_that_no_row_shows_is_not_made_up() -> None:
    rows = [
        Observation(replace(parts, layer_sequences=0), parts.time_us(replace(TRUE, layer_us=0)))
        for parts in PARTS
    ]

    assert fit_engine(rows, START).layer_sequence_us == 0


def test_fewer_rows_than_constants_are_refused() -> None:
    with pytest.raises(ValueError, match="3 rows cannot fit 4 constants; give more rows"):
        fit_engine(observations()[:3], START)


@settings(deadline=None, max_examples=10)  # some draws settle slowly
@given(
    noise=st.lists(st.floats(0.5, 2), min_size=len(PARTS), max_size=len(PARTS)),
)
def test_equal_rows_give_equal_constants_to_the_last_bit(noise: list[float]) -> None:
    rows = [
        replace(row, measured_us=row.measured_us * factor)
        for row, factor in zip(observations(), noise, strict=True)
    ]

    first, second = fit_engine(rows, START), fit_engine(list(rows), START)

    assert constants(first) == constants(second)
    assert all(value >= 0 for value in constants(first))
