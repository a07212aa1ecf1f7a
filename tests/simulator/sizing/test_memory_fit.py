"""The memory of a replica against what vLLM reported, and what an answer of "no" advises."""

import re

import pytest

from contract.hardware import MODELS, Precision, find_gpu, find_model
from simulator.capacity import CapacitySettings, node_of, plan_capacity
from simulator.sizing.memory_fit import DoesNotFitError, fit_memory

REPORTED = [
    # vLLM's "GPU KV cache size" in llm-d's published benchmarks 37-capacity and 73-capacity.
    ("Llama-3.1-70B", 4, 461_376),
    ("Qwen3-32B", 2, 307_328),
]


@pytest.mark.parametrize(("model", "gpus", "reported"), REPORTED)
def test_kv_tokens_are_those_that_vllm_reported(model: str, gpus: int, reported: int) -> None:
    fit = fit_memory(find_model(model), find_gpu("H100"), gpus)

    assert fit.kv_tokens == pytest.approx(reported, rel=0.02)


@pytest.mark.parametrize(("model", "gpus", "reported"), REPORTED)
def test_the_planners_simple_sum_is_near_them_too(model: str, gpus: int, reported: int) -> None:
    settings = CapacitySettings(model=model, gpus=gpus, batch=64)

    plan = plan_capacity(node_of(find_model(model), find_gpu("H100"), settings), settings)

    assert plan.kv_tokens == pytest.approx(reported, rel=0.03)


def test_the_parts_add_up_to_what_is_usable() -> None:
    fit = fit_memory(find_model("Llama-3.1-8B"), find_gpu("L4"), 2)

    parts = (fit.weight_bytes, fit.activation_bytes, fit.non_torch_bytes, fit.kv_memory_bytes)
    assert sum(parts) == pytest.approx(fit.usable_bytes)
    assert fit.concurrency_max == fit.kv_tokens / 131_072


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_every_number_of_gpus_that_is_called_valid_fits(model) -> None:  # type: ignore[no-untyped-def]
    gpu = find_gpu("B200")

    for gpus in fit_memory(model, gpu, 8).tensor_parallel_valid:
        assert fit_memory(model, gpu, gpus).kv_tokens > 0


def test_a_copied_head_takes_room_twice() -> None:
    model, gpu = find_model("Qwen3-30B-A3B"), find_gpu("H100")  # 4 KV heads

    four, eight = fit_memory(model, gpu, 4), fit_memory(model, gpu, 8)

    assert eight.kv_tokens < eight.kv_memory_bytes / model.kv_bytes_per_token() / 1.99
    assert four.kv_tokens == pytest.approx(
        four.kv_memory_bytes / model.kv_bytes_per_token(), rel=1e-3
    )


def test_a_model_that_does_not_fit_says_on_how_many_gpus_it_does() -> None:
    with pytest.raises(DoesNotFitError) as caught:
        fit_memory(find_model("Llama-3.1-70B"), find_gpu("H100"), 1)

    advised = [int(word) for word in re.findall(r"\d+", str(caught.value).partition("; use ")[2])]
    assert advised == [2, 4, 8]
    for gpus in advised:
        fit_memory(find_model("Llama-3.1-70B"), find_gpu("H100"), gpus)


def test_it_says_when_only_smaller_weights_would_do() -> None:
    model, gpu = find_model("Llama-3.1-70B"), find_gpu("RTX 4090")

    with pytest.raises(DoesNotFitError, match=r"--precision fp8 it fits on 8 GPUs"):
        fit_memory(model, gpu, 8, memory_share=0.7)

    assert fit_memory(model, gpu, 8, precision=Precision.FP8, memory_share=0.7).kv_tokens > 0


def test_it_says_when_nothing_would_do() -> None:
    with pytest.raises(DoesNotFitError, match="use a GPU with more memory"):
        fit_memory(find_model("Llama-3.1-70B"), find_gpu("L4"), 8, memory_share=0.2)
