"""Capacity against arithmetic done by hand, and its laws over any figures."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.hardware import GPUS, MODELS, Precision, find_gpu, find_model
from contract.options import SettingError
from replicas.core.step_time import VLLM
from simulator.capacity import CapacityPlan, CapacitySettings, Node, node_of, plan_capacity
from simulator.example import CAPACITY, NODE

# 2 GPUs of 10 GB at 1 TB/s; 4 GB of weights; 1 MB of KV per token.
ROUND = Node(
    gpus=2,
    gpu_memory_bytes=10e9,
    gpu_memory_bytes_per_s=1e12,
    weight_bytes=4e9,
    read_bytes=3e9,
    least_read_bytes=2e9,
    kv_bytes_per_token=1_000_000,
    kv_heads=2,
)
LOAD = CapacitySettings(
    requests_per_day=864_000,
    prompt_tokens=100,
    output_tokens=50,
    peak_factor=2,
    hit_rate=0.25,
    memory_share=0.8,
    batch=10,
    step_ms=20,
)


def test_figures_of_a_round_server_are_those_of_paper_and_pencil() -> None:
    plan = plan_capacity(ROUND, LOAD)

    assert plan.kv_memory_bytes == 12e9  # 2 x 10 GB x 0.8 - 4 GB
    assert plan.kv_tokens == 12_000
    assert plan.kv_sequences_max == 96  # 12,000 / (75 + 50)
    assert plan.decode_floor_us == 1_500  # 3 GB at 2 TB/s
    assert plan.prefill_tokens_per_step == 15  # 10/50 of a request, 75 tokens of it
    assert plan.node_output_tokens_per_s == 500
    assert plan.output_tokens_per_s == 1_000  # 10 requests/s, twice, 50 tokens
    assert plan.prompt_tokens_per_s == 2_000
    assert plan.computed_prompt_tokens_per_s == 1_500
    assert plan.nodes == 2
    assert plan.nodes_if_faster is None
    assert plan.nodes_if_slower is None
    assert plan.step_source == "as given"


def test_memory_kept_for_activations_is_not_kv() -> None:
    plan = plan_capacity(ROUND, replace(LOAD, reserve_gb=1.5))

    assert plan.kv_tokens == 9_000


def test_gpus_beyond_one_per_kv_head_hold_copies() -> None:
    few, many = replace(ROUND, gpus=2), replace(ROUND, gpus=4)

    # 4 GPUs have 28 GB for KV, and hold each of the 2 heads twice.
    assert plan_capacity(few, LOAD).kv_tokens == 12_000
    assert plan_capacity(many, LOAD).kv_tokens == 14_000


def test_a_step_that_is_not_given_comes_from_the_step_time_model_with_its_error() -> None:
    settings = CapacitySettings(
        model="llama-3.1-8b", gpus=1, batch=10, prompt_tokens=10_000, output_tokens=50, hit_rate=0.5
    )
    node = node_of(find_model("llama-3.1-8b"), find_gpu("h100"), settings)

    plan = plan_capacity(node, settings)

    # 10 decodes behind 10,025 tokens in the mean, and a fifth of a prompt: 5,000 tokens behind
    # 5,000 cached ones.
    read_params = 8_030_261_248 - 128_256 * 4_096
    matrix_params = read_params - 128_256 * 4_096  # the head meets sampled tokens only
    weights_us = read_params * 2 / 3.35e6
    context_us = (10 * 10_025 + 0.2 * 5_000) * 131_072 / 3.35e6
    linear_us = 2 * matrix_params * (0.2 * 5_000) / (0.803 * 989e6)
    attention_us = 4 * 32 * 32 * 128 * (0.2 * 5_000 * 7_500) / (0.803 * 989e6)
    by_hand = (
        (weights_us + context_us) / VLLM.memory_efficiency
        + (linear_us + attention_us) / VLLM.compute_efficiency
        + 32 * (VLLM.layer_us + 10 * VLLM.layer_sequence_us)
    )
    assert plan.step_us == pytest.approx(by_hand, abs=1)
    assert "replicas.core.step_time" in plan.step_source
    nodes = plan.output_tokens_per_s / plan.node_output_tokens_per_s
    assert plan.nodes_if_faster == pytest.approx(0.85 * nodes, abs=1)
    assert plan.nodes_if_slower == pytest.approx(1.15 * nodes, abs=1)


def test_a_catalogued_70b_on_four_h100_holds_what_vllm_reports_for_it() -> None:
    """llm-d's benchmark of Llama-3.1-70B, TP4 on H100, logs 461,376 KV tokens per replica."""
    settings = CapacitySettings(gpus=4, memory_share=0.92)

    plan = plan_capacity(node_of(find_model(settings.model), find_gpu("h100"), settings), settings)

    assert plan.kv_tokens == pytest.approx(461_376, rel=0.03)


def test_a_catalogued_qwen_on_two_h100_holds_what_vllm_reports_for_it() -> None:
    """llm-d's benchmark of Qwen3-32B, TP2 on H100, logs 307,328 KV tokens per replica."""
    settings = CapacitySettings(model="qwen3-32b", gpus=2, memory_share=0.92, batch=64)

    plan = plan_capacity(node_of(find_model(settings.model), find_gpu("h100"), settings), settings)

    assert plan.kv_tokens == pytest.approx(307_328, rel=0.03)


def test_a_mixture_keeps_all_its_experts_and_few_bytes_per_token() -> None:
    settings = CapacitySettings(model="qwen3-30b-a3b", gpus=1)
    gpu = find_gpu("rtx pro 6000 server")

    plan = plan_capacity(node_of(find_model(settings.model), gpu, settings), settings)

    assert plan.weight_bytes == 2 * 30_532_122_624
    assert plan.kv_bytes_per_token == 2 * 48 * 4 * 128 * 2
    assert plan.kv_tokens == int((96e9 * 0.9 - plan.weight_bytes) / 98_304)


def test_hits_leave_the_output_to_be_decoded_as_before() -> None:
    none, most = replace(CAPACITY, hit_rate=0.0), replace(CAPACITY, hit_rate=0.9)

    cold, warm = plan_capacity(NODE, none), plan_capacity(NODE, most)

    assert cold.computed_prompt_tokens_per_s == cold.prompt_tokens_per_s
    assert warm.computed_prompt_tokens_per_s == pytest.approx(cold.prompt_tokens_per_s / 10)
    assert warm.output_tokens_per_s == cold.output_tokens_per_s


@pytest.mark.parametrize(
    ("node", "change", "message"),
    [
        (ROUND, {"memory_share": 0.1}, "take 4.0 GB, 2 x 1.0 GB are usable; use 5 GPUs or more"),
        (ROUND, {"reserve_gb": 9}, "2 x 0.0 GB are usable; lower reserve_gb or raise"),
        (ROUND, {"batch": 97}, "batch is 97, the KV memory holds 96 such sequences; lower batch"),
        (ROUND, {"step_ms": 0.9}, "step_ms is 0.9, reading the weights alone takes 1.00 ms"),
        (
            replace(ROUND, context_tokens_max=149),
            {},
            "make 150 tokens, the model's context is 149; lower prompt_tokens or output_tokens",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_change(
    node: Node, change: dict[str, float], message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        plan_capacity(node, replace(LOAD, **change))  # type: ignore[arg-type]  # all are numbers


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("gpus", 0, "gpus is 0, must be above 0"),
        ("batch", -1, "batch is -1, must be above 0"),
        ("hit_rate", 1, "hit_rate is 1, must be below 1"),
        ("hit_rate", float("nan"), "hit_rate is nan, must be 0 or more"),
        ("memory_share", 1.1, "memory_share is 1.1, must be from 0.01 to 1"),
        ("peak_factor", 0.5, "peak_factor is 0.5, must be 1 or more"),
        ("output_tokens", 0.5, "output_tokens is 0.5, must be 1 or more"),
        ("requests_per_day", float("inf"), "requests_per_day is inf, must be above 0 and at most"),
        ("step_ms", 0, "step_ms is 0, must be above 0"),
    ],
)
def test_a_figure_out_of_range_is_refused_by_its_name(
    name: str, value: float, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        replace(LOAD, **{name: value})  # type: ignore[arg-type]  # all are numbers


@given(gpus=st.integers(1, 64), more=st.integers(1, 64), heads=st.integers(1, 16))
def test_more_gpus_never_hold_or_do_less(gpus: int, more: int, heads: int) -> None:
    small = replace(NODE, gpus=gpus, kv_heads=heads)
    large = replace(small, gpus=gpus + more)

    few, many = planned(small), planned(large)

    if few is not None:
        assert many is not None
        assert many.kv_tokens >= few.kv_tokens
        assert many.decode_floor_us < few.decode_floor_us
        assert many.nodes == few.nodes


def planned(node: Node) -> CapacityPlan | None:
    """A plan, or None where the figures exclude each other."""
    try:
        return plan_capacity(node, replace(CAPACITY, batch=1, step_ms=200.0))
    except SettingError:
        return None


@given(
    model=st.sampled_from(MODELS),
    gpu=st.sampled_from(GPUS),
    gpus=st.sampled_from([1, 2, 4, 8, 16]),
    precision=st.sampled_from(Precision),
    load=st.builds(
        CapacitySettings,
        requests_per_day=st.floats(1e-3, 1e15),
        prompt_tokens=st.floats(1, 1e15),
        output_tokens=st.floats(1, 1e15),
        peak_factor=st.floats(1, 1e15),
        hit_rate=st.floats(0, 1, exclude_max=True),
        memory_share=st.floats(0.01, 1),
        reserve_gb=st.floats(0, 1e15),
        batch=st.integers(1, 10**15),
        step_ms=st.none() | st.floats(1e-300, 1e15),
    ),
)
def test_any_figures_give_a_plan_that_fits_or_one_clear_refusal(
    model: object, gpu: object, gpus: int, precision: Precision, load: CapacitySettings
) -> None:
    settings = replace(load, gpus=gpus, precision=precision)
    node = node_of(model, gpu, settings)  # type: ignore[arg-type]  # drawn from the catalogue

    try:
        plan = plan_capacity(node, settings)
    except SettingError:
        return

    assert settings.batch <= plan.kv_sequences_max
    assert plan.kv_tokens * plan.kv_bytes_per_token <= plan.kv_memory_bytes
    assert plan.weight_bytes + plan.kv_memory_bytes <= gpus * node.gpu_memory_bytes * 1.000001
    assert plan.nodes * plan.node_output_tokens_per_s >= plan.output_tokens_per_s * 0.999999
