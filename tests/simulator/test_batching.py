"""Batching runs of the real scheduler against schedules drawn by hand, and against their laws."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.batching import BatchingSettings, plan_batching


def test_two_slots_by_hand() -> None:
    # static      a a a a c c c       continuous  a a a a d
    #             b . . . d . .                   b c c c .
    runs = plan_batching(BatchingSettings((4, 1, 3, 1), slots=2))

    assert runs["static"].finished_at_step == (4, 1, 7, 5)
    assert runs["static"].steps == 7
    assert runs["static"].slot_use == 9 / 14
    assert runs["continuous"].finished_at_step == (4, 1, 4, 5)
    assert runs["continuous"].steps == 5
    assert runs["continuous"].mean_finished_at_step == 3.5
    assert runs["continuous"].slot_use == 0.9


def test_the_names_come_in_a_fixed_order() -> None:
    assert list(plan_batching(BatchingSettings())) == ["static", "continuous"]


@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=20).map(tuple),
    slots=st.integers(1, 8),
)
def test_continuous_batching_is_never_slower_and_neither_beats_its_work(
    lengths: tuple[int, ...], slots: int
) -> None:
    runs = plan_batching(BatchingSettings(lengths, slots))

    static, continuous = runs["static"], runs["continuous"]
    assert continuous.steps <= static.steps
    assert continuous.mean_finished_at_step <= static.mean_finished_at_step
    for run in (static, continuous):
        assert run.steps == max(run.finished_at_step)
        assert 0 < run.slot_use <= 1
        assert run.steps >= max(max(lengths), sum(lengths) / slots)
        assert all(end >= length for end, length in zip(run.finished_at_step, lengths, strict=True))


@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=8).map(tuple))
def test_with_a_slot_for_each_there_is_nothing_to_choose(lengths: tuple[int, ...]) -> None:
    runs = plan_batching(BatchingSettings(lengths, slots=8))

    assert runs["static"].finished_at_step == runs["continuous"].finished_at_step == lengths


@pytest.mark.parametrize(
    ("lengths", "slots", "message"),
    [
        ((), 4, "lengths is empty, must name at least one"),
        ((5, 0), 4, "lengths has 0, must be whole numbers above 0"),
        ((5,), 0, "slots is 0, must be above 0"),
        ((2_000_001,), 1, "lengths add up to 2000001, must be at most 2000000"),
    ],
)
def test_impossible_figures_are_refused_by_name(
    lengths: tuple[int, ...], slots: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        BatchingSettings(lengths, slots)
