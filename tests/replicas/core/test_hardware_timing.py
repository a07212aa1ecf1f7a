"""From the catalogue to step times: each number at its place, and one step done by hand."""

import pytest

from contract.hardware import Precision, find_gpu, find_model
from replicas.core.hardware_timing import expert_parallel_spec, step_time_spec
from replicas.core.step_time import VLLM, StepLoad, StepTimeModel


def test_an_empty_step_of_llama_8b_reads_its_weights_once() -> None:
    spec = step_time_spec(find_model("llama-3.1-8b"), find_gpu("h100"))

    # (8.030e9 - 0.525e9) parameters of 2 bytes at 3.35e12 bytes/s, and 32 layers.
    read_us = (8_030_261_248 - 128_256 * 4_096) * 2 / 3.35e12 * 1e6
    by_hand = read_us / VLLM.memory_efficiency + 32 * VLLM.layer_us
    assert StepTimeModel(spec).step_time_us(StepLoad()) == round(by_hand)


def test_precision_halves_bytes_and_raises_the_speed_of_linear_layers_only() -> None:
    model, gpu = find_model("llama-3.1-70b"), find_gpu("h100")

    bf16 = step_time_spec(model, gpu, 4)
    fp8 = step_time_spec(model, gpu, 4, Precision.FP8, Precision.FP8)

    assert fp8.weight_bytes == bf16.weight_bytes / 2
    assert fp8.kv_bytes_per_token == bf16.kv_bytes_per_token / 2 == 163_840 / 4
    assert bf16.linear_flops_per_s == bf16.attention_flops_per_s == 989e12 * 0.803
    assert fp8.linear_flops_per_s == 1_979e12 * 0.709
    assert fp8.attention_flops_per_s == bf16.attention_flops_per_s


def test_attention_counts_heads_and_not_the_hidden_width() -> None:
    spec = step_time_spec(find_model("qwen3-32b"), find_gpu("h100"), 2)

    # 64 layers, 64 heads of 128: 8,192 wide where the model is 5,120.
    assert spec.attention_flops_per_pair == 4 * 64 * 8_192 / 2


def test_the_head_multiplies_no_prompt_token() -> None:
    model = find_model("llama-3.1-8b")

    spec = step_time_spec(model, find_gpu("h100"))

    assert spec.linear_flops_per_token == 2 * (model.parameters - 2 * 128_256 * 4_096)


def test_tensor_parallel_shares_the_model_and_sends_two_all_reduces_a_layer() -> None:
    model, gpu = find_model("llama-3.1-70b"), find_gpu("h100")

    alone, shared = step_time_spec(model, gpu), step_time_spec(model, gpu, 8)

    assert shared.weight_bytes == alone.weight_bytes / 8
    assert shared.linear_flops_per_token == alone.linear_flops_per_token / 8
    assert (alone.collectives, alone.link_bytes_per_token) == (0, 0)
    # A ring of 8 sends 7/8 of 8,192 x 2 bytes twice.
    assert shared.collectives == 2 * 80
    assert shared.link_bytes_per_token == 160 * 8_192 * 2 * 2 * 7 / 8


def test_a_kv_head_is_read_by_every_gpu_that_keeps_a_copy() -> None:
    model, gpu = find_model("qwen3-30b-a3b"), find_gpu("h100")  # 4 KV heads

    four, eight = step_time_spec(model, gpu, 4), step_time_spec(model, gpu, 8)

    assert eight.kv_bytes_per_token == four.kv_bytes_per_token == 98_304 / 4


def test_a_mixture_reads_experts_apart_and_multiplies_by_a_few() -> None:
    model = find_model("qwen3-30b-a3b")

    spec = step_time_spec(model, find_gpu("h200"))

    assert spec.expert_bytes == 2 * model.expert_parameters
    assert spec.weight_bytes + spec.expert_bytes == 2 * model.read_parameters
    assert spec.linear_flops_per_token < 2 * model.read_parameters / 9


def test_ranks_that_share_experts_keep_all_else_and_exchange_tokens() -> None:
    model, gpu = find_model("qwen3-30b-a3b"), find_gpu("rtx pro 6000 server")

    alone, rank = step_time_spec(model, gpu), expert_parallel_spec(model, gpu, 2)

    assert rank.weight_bytes == alone.weight_bytes
    assert rank.expert_bytes == alone.expert_bytes / 2
    assert rank.kv_bytes_per_token == alone.kv_bytes_per_token
    assert (rank.expert_ranks, rank.collectives) == (2, 2 * 48)
    # Each token goes to the other rank and its result comes back: 2,048 x 2 bytes twice.
    assert rank.link_bytes_per_token == 48 * 2_048 * 2 * 2


def test_one_rank_alone_is_a_plain_replica() -> None:
    model, gpu = find_model("qwen3-30b-a3b"), find_gpu("h100")

    assert expert_parallel_spec(model, gpu, 1) == step_time_spec(model, gpu)


@pytest.mark.parametrize("tensor_parallel", [0, 3, 128])
def test_gpus_that_cannot_share_the_heads_are_refused(tensor_parallel: int) -> None:
    with pytest.raises(ValueError, match=f"64 attention heads, which {tensor_parallel} GPUs"):
        step_time_spec(find_model("llama-3.1-70b"), find_gpu("h100"), tensor_parallel)
