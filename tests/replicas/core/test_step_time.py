"""Step times against arithmetic done by hand and against published measurements."""

from dataclasses import replace

import pytest

from replicas.core.step_time import FixedStepTime, StepLoad, StepTimeModel, StepTimeSpec

# Numbers that make every term a round one: 1e9 bytes/s is 1e3 bytes per us.
ROUND = StepTimeSpec(
    weight_bytes=1e6,
    linear_params=1e6,
    kv_bytes_per_token=1e3,
    kv_heads=2,
    layers=10,
    hidden=100,
    tensor_parallel=1,
    memory_bytes_per_s=1e9,
    linear_flops_per_s=1e12,
    attention_flops_per_s=1e10,
    nvlink_bytes_per_s=1e9,
    memory_efficiency=1,
    compute_efficiency=1,
    allreduce_us=10,
    overhead_us=500,
)
# Llama-3.1-70B in FP8 on two H100-SXM; 70.55e9 parameters less the input embedding.
LLAMA_70B_FP8 = StepTimeSpec(
    weight_bytes=69.5e9,
    linear_params=69.5e9,
    kv_bytes_per_token=327_680,
    kv_heads=8,
    layers=80,
    hidden=8_192,
    tensor_parallel=2,
    memory_bytes_per_s=3.35e12,
    linear_flops_per_s=1_979e12,
    attention_flops_per_s=989e12,
    nvlink_bytes_per_s=450e9,
)


def test_an_empty_step_reads_the_weights_and_pays_the_overhead() -> None:
    assert StepTimeModel(ROUND).step_time_us(StepLoad()) == 500 + 1_000


def test_a_decode_pays_its_context_and_two_flops_a_parameter() -> None:
    load = StepLoad(decode_tokens=3, decode_context_tokens=40)

    # 40 tokens of 1,000 bytes at 1,000 bytes/us; 2e6 FLOP at 1e6 FLOP/us for each token.
    assert StepTimeModel(ROUND).step_time_us(load) == 1_500 + 40 + 3 * 2


def test_a_prefill_chunk_pays_attention_to_its_context_and_to_itself() -> None:
    # 100 tokens behind 50: 100 * (50 + 50) pairs, each 4 * 10 layers * 100 hidden FLOP.
    load = StepLoad(prefill_tokens=100, prefill_context_tokens=50, prefill_attention_pairs=10_000)

    attention_us = 4 * 10 * 100 * 10_000 // 10_000
    assert StepTimeModel(ROUND).step_time_us(load) == 1_500 + 50 + 200 + attention_us


def test_a_padded_slot_is_computed_but_reads_no_context() -> None:
    assert StepTimeModel(ROUND).step_time_us(StepLoad(padded_slots=5)) == 1_500 + 5 * 2


def test_tensor_parallel_divides_the_work_and_adds_all_reduces() -> None:
    load = StepLoad(decode_tokens=100, decode_context_tokens=1_000)

    time_us = StepTimeModel(replace(ROUND, tensor_parallel=4)).step_time_us(load)

    weights_us, linear_us = 1_000 // 4, 200 // 4
    context_us = 1_000 // 2  # two KV heads cannot be spread over more than two GPUs
    latency_us = 20 * 10
    # 100 tokens * 100 hidden * 2 bytes * 2 * 3/4 at 1,000 bytes/us, 20 times
    carry_us = 20 * 30
    assert time_us == 500 + weights_us + linear_us + context_us + latency_us + carry_us


def test_efficiency_slows_its_own_terms_only() -> None:
    load = StepLoad(decode_tokens=10, decode_context_tokens=100)

    slow_memory = StepTimeModel(replace(ROUND, memory_efficiency=0.5)).step_time_us(load)
    slow_compute = StepTimeModel(replace(ROUND, compute_efficiency=0.5)).step_time_us(load)

    assert slow_memory == 500 + 2 * (1_000 + 100) + 20
    assert slow_compute == 500 + 1_000 + 100 + 2 * 20


@pytest.mark.parametrize(
    ("concurrency", "input_tokens", "measured_us"),
    [(4, 1_024, 17_410), (64, 1_024, 28_770), (4, 8_192, 20_620)],
)
def test_time_per_token_is_within_a_tenth_of_vllm_on_two_h100(
    concurrency: int, input_tokens: int, measured_us: int
) -> None:
    """InferenceMAX, 2025-10-29, vLLM, 1,024 output tokens, closed loop.

    In the steady state every sequence that ends is replaced, so each step prefills
    concurrency / output tokens prompts; the mean context is that of a half-done output.
    """
    prefill = concurrency * input_tokens // 1_024
    context = concurrency * (input_tokens + 512)
    load = StepLoad(
        prefill_tokens=prefill,
        prefill_attention_pairs=prefill * input_tokens / 2,
        decode_tokens=concurrency,
        decode_context_tokens=context,
    )

    time_us = StepTimeModel(LLAMA_70B_FP8).step_time_us(load)

    assert time_us == pytest.approx(measured_us, rel=0.10)


@pytest.mark.parametrize("field", ["weight_bytes", "tensor_parallel", "memory_efficiency"])
def test_a_number_that_is_not_above_zero_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} is 0, must be above 0"):
        replace(ROUND, **{field: 0})


def test_latency_and_overhead_may_be_zero() -> None:
    ideal = replace(ROUND, allreduce_us=0, overhead_us=0)

    assert StepTimeModel(ideal).step_time_us(StepLoad()) == 1_000


@pytest.mark.parametrize(
    ("load", "time_us"),
    [
        (StepLoad(prefill_tokens=9), 100),
        (StepLoad(decode_tokens=9), 20),
        (StepLoad(prefill_tokens=1, decode_tokens=1), 120),
        (StepLoad(), 1),
    ],
)
def test_fixed_times_add_up_by_kind_of_work(load: StepLoad, time_us: int) -> None:
    assert FixedStepTime(prefill_us=100, decode_us=20).step_time_us(load) == time_us
