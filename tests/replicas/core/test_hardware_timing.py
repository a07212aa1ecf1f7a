"""From the catalogue to step times: each number at its place, and one step done by hand."""

import pytest

from contract.hardware import Precision, find_gpu, find_model
from replicas.core.hardware_timing import step_time_spec
from replicas.core.step_time import StepLoad, StepTimeModel


def test_an_empty_step_of_llama_8b_reads_its_weights_once() -> None:
    spec = step_time_spec(find_model("llama-3.1-8b"), find_gpu("h100"))

    # (8.030e9 - 0.525e9) parameters of 2 bytes at 0.8 x 3.35e12 bytes/s, and 2 ms of overhead.
    read_us = (8_030_261_248 - 128_256 * 4_096) * 2 / (0.8 * 3.35e12) * 1e6
    assert StepTimeModel(spec).step_time_us(StepLoad()) == round(2_000 + read_us)


def test_precision_halves_bytes_and_raises_the_peak_of_linear_layers_only() -> None:
    model, gpu = find_model("llama-3.1-70b"), find_gpu("h100")

    bf16 = step_time_spec(model, gpu, 4)
    fp8 = step_time_spec(model, gpu, 4, Precision.FP8, Precision.FP8)

    assert fp8.weight_bytes == bf16.weight_bytes / 2
    assert fp8.kv_bytes_per_token == bf16.kv_bytes_per_token / 2 == 163_840
    assert (bf16.linear_flops_per_s, fp8.linear_flops_per_s) == (989e12, 1_979e12)
    assert bf16.attention_flops_per_s == fp8.attention_flops_per_s == 989e12
    assert bf16.tensor_parallel == 4
    assert bf16.nvlink_bytes_per_s == 450e9


def test_a_mixture_reads_all_experts_and_multiplies_by_a_few() -> None:
    model = find_model("qwen3-30b-a3b")

    spec = step_time_spec(model, find_gpu("h200"))

    assert spec.weight_bytes == 2 * model.read_parameters
    assert spec.linear_params == model.linear_parameters < model.read_parameters / 9


@pytest.mark.parametrize("tensor_parallel", [0, 3, 128])
def test_gpus_that_cannot_share_the_heads_are_refused(tensor_parallel: int) -> None:
    with pytest.raises(ValueError, match=f"64 attention heads, which {tensor_parallel} GPUs"):
        step_time_spec(find_model("llama-3.1-70b"), find_gpu("h100"), tensor_parallel)
