"""Step times against arithmetic done by hand."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicas.core.step_time import (
    ENGINES,
    EngineSpeed,
    FixedStepTime,
    StepLoad,
    StepTime,
    StepTimeModel,
    StepTimeSpec,
    experts_touched,
)

PERFECT = EngineSpeed(
    name="perfect",
    memory_efficiency=1,
    compute_efficiency=1,
    layer_us=0,
    layer_sequence_us=0,
    source="a test",
)
# Numbers that make every term a round one: 1e9 bytes/s is 1e3 bytes per us.
ROUND = StepTimeSpec(
    layers=10,
    weight_bytes=1e6,
    kv_bytes_per_token=1e3,
    linear_flops_per_token=2e6,
    attention_flops_per_pair=4e3,
    memory_bytes_per_s=1e9,
    linear_flops_per_s=1e12,
    attention_flops_per_s=1e10,
    engine=PERFECT,
)
MIXTURE = replace(ROUND, expert_bytes=8e6, experts=8, experts_per_token=2)
LOADS = st.builds(
    StepLoad,
    prefill_tokens=st.integers(0, 8_192),
    prefill_context_tokens=st.integers(0, 10**6),
    prefill_attention_pairs=st.floats(0, 1e9),
    decode_tokens=st.integers(0, 1_024),
    decode_context_tokens=st.integers(0, 10**6),
    padded_slots=st.integers(0, 64),
)


def time_us(spec: StepTimeSpec, load: StepLoad) -> int:
    return StepTimeModel(spec).step_time_us(load)


@given(
    tokens=st.integers(1, 300),
    context=st.integers(0, 10**6),
    num_steps=st.integers(0, 40),
    step_time=st.sampled_from(
        [
            FixedStepTime(7, 3),
            StepTimeModel(ROUND),
            StepTimeModel(MIXTURE),
            *(StepTimeModel(replace(MIXTURE, engine=engine)) for engine in ENGINES.values()),
        ]
    ),
)
def test_a_run_of_decode_steps_takes_what_its_steps_take(
    tokens: int, context: int, num_steps: int, step_time: StepTime
) -> None:
    load = StepLoad(decode_tokens=tokens, decode_context_tokens=context)

    run = step_time.decode_run_us(load, num_steps)

    assert run == StepTime.decode_run_us(step_time, load, num_steps)
    assert len(run) == num_steps


def test_an_empty_step_reads_the_weights() -> None:
    assert time_us(ROUND, StepLoad()) == 1_000


def test_a_decode_reads_its_context_and_its_matmul_hides_behind_the_weights() -> None:
    # 40 tokens of 1,000 bytes at 1,000 bytes/us; 3 x 2 us of matmul are less than 1,000.
    assert time_us(ROUND, StepLoad(decode_tokens=3, decode_context_tokens=40)) == 1_040


def test_decodes_that_outlast_the_weights_are_paid_from_there_on() -> None:
    # 600 x 2 us of matmul, 1,000 of them behind the read.
    assert time_us(ROUND, StepLoad(decode_tokens=600)) == 1_000 + 200


def test_a_prefill_chunk_pays_its_matmul_and_attention_to_its_context_and_to_itself() -> None:
    # 100 tokens behind 50: 100 * (50 + 50) pairs of 4e3 FLOP at 1e4 FLOP/us.
    load = StepLoad(prefill_tokens=100, prefill_context_tokens=50, prefill_attention_pairs=10_000)

    assert time_us(ROUND, load) == 1_000 + 50 + 200 + 4_000


def test_a_padded_slot_is_computed_but_reads_no_context() -> None:
    engine = replace(PERFECT, layer_sequence_us=1)

    assert time_us(replace(ROUND, engine=engine), StepLoad(padded_slots=5)) == 1_000 + 10 * 5


def test_layers_cost_their_own_and_more_with_every_decoding_sequence() -> None:
    engine = replace(PERFECT, layer_us=50, layer_sequence_us=2)
    spec = replace(ROUND, engine=engine)

    assert time_us(spec, StepLoad(prefill_tokens=1)) == 1_000 + 2 + 10 * 50
    assert time_us(spec, StepLoad(decode_tokens=3)) == 1_000 + 10 * (50 + 2 * 3)


def test_all_tokens_pass_the_links_after_each_collective_has_begun() -> None:
    spec = replace(
        ROUND, collectives=20, link_latency_us=7, link_bytes_per_token=500, link_bytes_per_s=1e8
    )

    # 500 bytes at 100 bytes/us for each of 4 tokens, and 20 x 7 us.
    assert time_us(spec, StepLoad(prefill_tokens=1, decode_tokens=3)) == 1_000 + 2 + 20 + 140


def test_an_efficiency_slows_its_own_terms_only() -> None:
    load = StepLoad(prefill_tokens=10, prefill_context_tokens=100)

    slow_memory = replace(ROUND, engine=replace(PERFECT, memory_efficiency=0.5))
    slow_compute = replace(ROUND, engine=replace(PERFECT, compute_efficiency=0.5))

    assert time_us(slow_memory, load) == 2 * (1_000 + 100) + 20
    assert time_us(slow_compute, load) == 1_000 + 100 + 2 * 20


@pytest.mark.parametrize(
    ("tokens", "touched"),
    [(0, 0), (1, 2), (2, 8 * (1 - 0.75**2)), (10_000, 8)],
)
def test_tokens_touch_experts_as_if_each_drew_its_own(tokens: int, touched: float) -> None:
    assert experts_touched(8, 2, tokens) == pytest.approx(touched)


def test_a_dense_model_touches_no_expert() -> None:
    assert experts_touched(0, 0, 100) == 0


def test_a_mixture_reads_the_experts_that_its_tokens_touch() -> None:
    # 8 experts of 1e6 bytes: one token reads 2 of them, two tokens 3.5 in expectation.
    assert time_us(MIXTURE, StepLoad(decode_tokens=1)) == 1_000 + 2_000
    assert time_us(MIXTURE, StepLoad(decode_tokens=2)) == 1_000 + 3_500


def test_the_tokens_of_all_ranks_touch_the_experts_that_they_share() -> None:
    spec = replace(MIXTURE, expert_bytes=4e6, expert_ranks=2)

    # Two ranks with a token each touch 3.5 experts, of which this one holds half.
    assert time_us(spec, StepLoad(decode_tokens=1)) == 1_000 + 1_750


@given(load=LOADS, more=LOADS)
def test_more_work_never_takes_less_time(load: StepLoad, more: StepLoad) -> None:
    both = StepLoad(
        load.prefill_tokens + more.prefill_tokens,
        load.prefill_context_tokens + more.prefill_context_tokens,
        load.prefill_attention_pairs + more.prefill_attention_pairs,
        load.decode_tokens + more.decode_tokens,
        load.decode_context_tokens + more.decode_context_tokens,
        load.padded_slots + more.padded_slots,
    )

    for spec in (ROUND, MIXTURE):
        assert time_us(spec, both) >= time_us(spec, load)


@given(load=LOADS, engine=st.sampled_from(list(ENGINES.values())), ranks=st.integers(1, 4))
def test_the_time_is_the_sum_of_the_parts(load: StepLoad, engine: EngineSpeed, ranks: int) -> None:
    linked = replace(ROUND, collectives=20, link_latency_us=7, link_bytes_per_token=500)
    mixture = replace(MIXTURE, expert_ranks=ranks)

    for spec in (ROUND, linked, mixture):
        model = StepTimeModel(replace(spec, engine=engine))
        sum_us = model.terms(load).time_us(engine)
        assert model.step_time_us(load) == pytest.approx(max(1, sum_us), abs=0.51)


@pytest.mark.parametrize("field", ["weight_bytes", "layers", "memory_bytes_per_s"])
def test_a_number_that_is_not_above_zero_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} is 0, must be above 0"):
        replace(ROUND, **{field: 0})  # type: ignore[arg-type]  # all are numbers


@pytest.mark.parametrize("value", [0, 1.01, float("nan")])
def test_an_efficiency_that_is_no_share_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match=r"memory_efficiency is .*, must be above 0, at most 1"):
        replace(PERFECT, memory_efficiency=value)


def test_a_layer_cannot_give_time_back() -> None:
    with pytest.raises(ValueError, match="layer_us is -1, must be 0 or more"):
        replace(PERFECT, layer_us=-1)


@pytest.mark.parametrize(
    ("load", "expected_us"),
    [
        (StepLoad(prefill_tokens=9), 100),
        (StepLoad(decode_tokens=9), 20),
        (StepLoad(prefill_tokens=1, decode_tokens=1), 120),
        (StepLoad(), 1),
    ],
)
def test_fixed_times_add_up_by_kind_of_work(load: StepLoad, expected_us: int) -> None:
    assert FixedStepTime(prefill_us=100, decode_us=20).step_time_us(load) == expected_us
