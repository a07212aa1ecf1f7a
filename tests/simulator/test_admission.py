"""Admission by the real scheduler against division done by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.admission import AdmissionSettings, plan_admission


def test_a_small_cache_by_hand() -> None:
    # 10 blocks of 4: reserving 16 tokens takes 4 blocks, using 5 tokens takes 2.
    plan = plan_admission(AdmissionSettings(kv_tokens=43, reserve=16, used=5, block_size=4))

    assert plan.kv_blocks == 10
    assert plan.reserved_sequences == 2
    assert plan.paged_sequences == 5
    assert plan.reserved_use == 10 / 43
    assert plan.paged_use == 25 / 43


def test_a_cache_of_exactly_one_reserved_context_admits_one() -> None:
    plan = plan_admission(AdmissionSettings(kv_tokens=16, reserve=16, used=15, block_size=4))

    assert plan.reserved_sequences == plan.paged_sequences == 1


@given(
    block_size=st.integers(1, 32),
    used=st.integers(1, 200),
    spare=st.integers(1, 200),
    kv_tokens=st.integers(1, 5_000),
)
def test_admission_never_exceeds_the_pool_nor_leaves_room_for_one_more(
    block_size: int, used: int, spare: int, kv_tokens: int
) -> None:
    reserve = used + spare
    reserved_blocks, used_blocks = -(-reserve // block_size), -(-used // block_size)
    kv_tokens += reserved_blocks * block_size

    plan = plan_admission(AdmissionSettings(kv_tokens, reserve, used, block_size))

    blocks = kv_tokens // block_size
    assert plan.kv_blocks == blocks
    for sequences, each in (
        (plan.reserved_sequences, reserved_blocks),
        (plan.paged_sequences, used_blocks),
    ):
        assert sequences * each <= blocks < (sequences + 1) * each
    assert plan.reserved_use <= plan.paged_use <= 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((100, 64, 64, 16), "used is 64, must be below reserve, which is 64"),
        ((100, 200, 64, 16), "one sequence takes 13 blocks of 16 and kv_tokens make 6; lower"),
        ((100, 64, 32, 0), "block_size is 0, must be above 0"),
        ((0, 64, 32, 16), "kv_tokens is 0, must be above 0"),
        ((3_000_000, 64, 63, 1), "kv_tokens make 3000000 blocks, must be at most 2000000; raise"),
        ((1_000_000, 64, 1, 16), "could hold 1000000 sequences, must be fewer than 50000; raise"),
    ],
)
def test_impossible_figures_are_refused_by_name(
    settings: tuple[int, int, int, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        AdmissionSettings(*settings)
