"""The catalogue against published totals, and config.json files against the catalogue."""

from typing import Any

import pytest

from contract.hardware import (
    GPUS,
    MODELS,
    GpuSpec,
    HardwareError,
    Precision,
    find_gpu,
    find_model,
)
from contract.hf_config import model_from_hf_config

# Stated by the model's own safetensors index, as its page on Hugging Face shows it.
PUBLISHED_PARAMETERS = {
    "Llama-3.1-8B": 8_030_261_248,
    "Llama-3.1-70B": 70_553_706_496,
    "Qwen3-32B": 32_762_123_264,
    "Qwen3-30B-A3B": 30_532_122_624,
}
LLAMA_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "hidden_size": 4_096,
    "intermediate_size": 14_336,
    "max_position_embeddings": 131_072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
    "vocab_size": 128_256,
}
QWEN2_HALF_B: dict[str, Any] = {
    "model_type": "qwen2",
    "hidden_size": 896,
    "intermediate_size": 4_864,
    "max_position_embeddings": 32_768,
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
    "vocab_size": 151_936,
}
MIXTRAL_8X7B: dict[str, Any] = {
    "model_type": "mixtral",
    "hidden_size": 4_096,
    "intermediate_size": 14_336,
    "max_position_embeddings": 32_768,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32_000,
}
QWEN3_30B: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "head_dim": 128,
    "hidden_size": 2_048,
    "intermediate_size": 6_144,
    "max_position_embeddings": 40_960,
    "moe_intermediate_size": 768,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "vocab_size": 151_936,
}


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_counted_parameters_are_those_of_the_published_weights(model: Any) -> None:
    assert model.parameters == PUBLISHED_PARAMETERS[model.name]


@pytest.mark.parametrize(
    ("name", "kv_bytes"),
    [("llama-3.1-8b", 131_072), ("llama-3.1-70b", 327_680), ("qwen3-32b", 262_144)],
)
def test_kv_bytes_per_token_halve_in_fp8(name: str, kv_bytes: int) -> None:
    model = find_model(name)

    assert model.kv_bytes_per_token() == kv_bytes
    assert model.kv_bytes_per_token(Precision.FP8) == kv_bytes // 2


def test_a_mixture_uses_few_of_its_parameters_and_reads_all_of_them() -> None:
    model = find_model("qwen3-30b-a3b")
    embedding = 151_936 * 2_048

    assert model.active_parameters == pytest.approx(3.3e9, rel=0.02)  # the A3B of its name
    assert model.linear_parameters == model.active_parameters - embedding
    assert model.read_parameters == model.parameters - embedding


def test_what_a_mixture_reads_is_its_experts_and_the_rest() -> None:
    model = find_model("qwen3-30b-a3b")

    # 48 layers of 128 experts, each with gate, up and down of 2,048 x 768.
    assert model.expert_parameters == 48 * 128 * 3 * 2_048 * 768
    assert model.always_read_parameters + model.expert_parameters == model.read_parameters
    assert find_model("llama-3.1-8b").expert_parameters == 0


def test_a_dense_model_reads_all_but_the_input_embedding() -> None:
    model = find_model("llama-3.1-70b")

    assert model.read_parameters == model.linear_parameters == 70_553_706_496 - 128_256 * 8_192
    assert model.weight_bytes() == 2 * 70_553_706_496
    assert model.weight_bytes(Precision.FP8) == 70_553_706_496


@pytest.mark.parametrize("name", ["h100", "NVIDIA H100", "H-100", " h100 "])
def test_a_gpu_is_found_however_its_name_is_written(name: str) -> None:
    assert find_gpu(name).name == "H100"


@pytest.mark.parametrize(
    "name", ["llama-3.1-8b", "meta-llama/Llama-3.1-8B-Instruct", "Llama 3.1 8B"]
)
def test_a_model_is_found_however_its_name_is_written(name: str) -> None:
    assert find_model(name).name == "Llama-3.1-8B"


def test_every_entry_is_found_by_its_own_name_and_has_a_source() -> None:
    assert all(find_gpu(gpu.name) is gpu and gpu.source for gpu in GPUS)
    assert all(find_model(model.name) is model and model.source for model in MODELS)


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(HardwareError, match=r"no GPU 'h1000'; known: A100-80, H100, .*MI300X"):
        find_gpu("h1000")
    with pytest.raises(HardwareError, match=r"no model 'gpt-5'; known: Llama-3\.1-8B, "):
        find_model("gpt-5")


def test_fp8_weights_run_at_bf16_speed_on_a_gpu_without_fp8_units() -> None:
    a100, h100 = find_gpu("a100-80"), find_gpu("h100")

    assert a100.matmul_flops_per_s(Precision.FP8) == 312e12 * 0.869
    assert h100.matmul_flops_per_s(Precision.FP8) == 1_979e12 * 0.709
    assert h100.matmul_flops_per_s(Precision.BF16) == 989e12 * 0.803


def test_all_reduces_get_a_part_of_a_link_and_a_small_one_without_nvlink() -> None:
    assert find_gpu("h100").allreduce_bytes_per_s == pytest.approx(315e9)  # 0.7 of 450
    assert find_gpu("rtx pro 6000").allreduce_bytes_per_s == 16e9  # 0.25 of 64


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_every_share_of_a_gpu_is_a_share(gpu: GpuSpec) -> None:
    assert 0 < gpu.bf16_matmul_share <= 1
    assert 0 < gpu.fp8_matmul_share <= 1
    assert 0 < gpu.link_share <= 1


def test_the_config_of_a_catalogued_llama_gives_the_same_model() -> None:
    known = find_model("llama-3.1-8b")

    model = model_from_hf_config(LLAMA_8B, "x")

    assert model.head_dim == 128  # hidden_size / num_attention_heads, as it is not given
    assert model.parameters == known.parameters
    assert model.linear_parameters == known.linear_parameters
    assert model.kv_bytes_per_token() == known.kv_bytes_per_token()
    assert model.context_tokens_max == 131_072


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (QWEN2_HALF_B, 494_032_768),  # biases, tied embeddings
        (MIXTRAL_8X7B, 46_702_792_704),  # experts as wide as the dense MLP
        (QWEN3_30B, 30_532_122_624),  # experts of their own width, norms in attention
    ],
    ids=["qwen2.5-0.5b", "mixtral-8x7b", "qwen3-30b-a3b"],
)
def test_other_architectures_are_counted_to_the_last_parameter(
    config: dict[str, Any], parameters: int
) -> None:
    assert model_from_hf_config(config).parameters == parameters


def test_with_tied_embeddings_the_table_is_the_head_and_is_read() -> None:
    model = model_from_hf_config(QWEN2_HALF_B)

    assert model.read_parameters == model.parameters


def test_biases_of_a_llama_are_counted() -> None:
    plain = model_from_hf_config(LLAMA_8B)

    biased = model_from_hf_config(LLAMA_8B | {"attention_bias": True, "mlp_bias": True})

    per_layer = (4_096 + 2 * 1_024 + 4_096) + (2 * 14_336 + 4_096)
    assert biased.parameters - plain.parameters == 32 * per_layer


def test_no_kv_heads_means_as_many_as_heads() -> None:
    config = {key: value for key, value in LLAMA_8B.items() if key != "num_key_value_heads"}

    assert model_from_hf_config(config).kv_heads == 32


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "deepseek_v3"}, "x: model_type is 'deepseek_v3', expected one of llama,"),
        ({"model_type": None}, "x: model_type is None, expected one of llama,"),
        ({"hidden_size": None}, "x: hidden_size is None, expected a whole number above 0"),
        ({"vocab_size": "128256"}, "x: vocab_size is '128256', expected a whole number"),
        ({"num_hidden_layers": 0}, "x: num_hidden_layers is 0, expected a whole number"),
        ({"num_hidden_layers": True}, "x: num_hidden_layers is True, expected a whole number"),
        ({"num_key_value_heads": 5}, "x: num_key_value_heads is 5, expected a divisor of"),
        ({"hidden_size": 4_100}, "x: head_dim is missing and hidden_size 4100 is no multiple"),
    ],
)
def test_a_config_that_cannot_be_counted_is_refused_by_its_key(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(HardwareError, match=message):
        model_from_hf_config(LLAMA_8B | change, "x")


def test_a_missing_key_is_called_missing() -> None:
    config = {key: value for key, value in LLAMA_8B.items() if key != "vocab_size"}

    with pytest.raises(HardwareError, match="vocab_size is missing, expected a whole number"):
        model_from_hf_config(config)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"decoder_sparse_step": 2}, "some layers have no experts"),
        ({"mlp_only_layers": [0]}, "some layers have no experts"),
        ({"num_experts_per_tok": 129}, "num_experts_per_tok is 129, expected at most num_experts"),
    ],
)
def test_a_mixture_that_is_not_one_in_every_layer_is_refused(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(HardwareError, match=message):
        model_from_hf_config(QWEN3_30B | change)


def test_the_beginning_of_one_name_is_enough_and_of_two_is_not() -> None:
    assert find_gpu("a100").name == "A100-80"
    with pytest.raises(HardwareError, match=r"no GPU 'h'; known: .*H100"):
        find_gpu("h")
