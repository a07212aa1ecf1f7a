"""Reads a Hugging Face ``config.json`` into a ModelSpec.

Only architectures whose parameters are counted exactly are read. Another one is refused by its
name: a wrong KV size would be believed, and a refusal costs the user one look at the message.
"""

from collections.abc import Mapping
from typing import Any

from contract.hardware import HardwareError, ModelSpec

QKV_BIAS_TYPES = frozenset({"qwen2"})
QK_NORM_TYPES = frozenset({"qwen3", "qwen3_moe"})
EXPERT_COUNT_KEYS = {"mixtral": "num_local_experts", "qwen3_moe": "num_experts"}
EXPERT_WIDTH_KEYS = {"mixtral": "intermediate_size", "qwen3_moe": "moe_intermediate_size"}
MODEL_TYPES = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe")


def model_from_hf_config(config: Mapping[str, Any], name: str = "model") -> ModelSpec:
    """Return the model that ``config``, the parsed ``config.json``, describes.

    A sliding window is not counted: every layer is taken to keep its whole context. Raises
    HardwareError for an architecture that is not counted here, or a key that is missing, not a
    number or impossible; the message begins with ``name``.
    """
    kind = _model_type(config, name)
    hidden = _whole(config, "hidden_size", name)
    heads = _whole(config, "num_attention_heads", name)
    attention_bias = bool(config.get("attention_bias", False))
    experts, experts_per_token = _experts(config, kind, name)
    return ModelSpec(
        name=name,
        layers=_whole(config, "num_hidden_layers", name),
        hidden=hidden,
        intermediate=_whole(config, EXPERT_WIDTH_KEYS.get(kind, "intermediate_size"), name),
        heads=heads,
        kv_heads=_kv_heads(config, heads, name),
        head_dim=_head_dim(config, hidden, heads, name),
        vocab=_whole(config, "vocab_size", name),
        context_tokens_max=_whole(config, "max_position_embeddings", name),
        experts=experts,
        experts_per_token=experts_per_token,
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=attention_bias or kind in QKV_BIAS_TYPES,
        output_bias=attention_bias and kind != "qwen2",
        mlp_bias=bool(config.get("mlp_bias", False)),
        qk_norm=kind in QK_NORM_TYPES,
        source=name,
    )


def _model_type(config: Mapping[str, Any], name: str) -> str:
    kind = config.get("model_type")
    if kind not in MODEL_TYPES:
        raise HardwareError(
            f"{name}: model_type is {kind!r}, expected one of {', '.join(MODEL_TYPES)}"
        )
    dense_layers = config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1
    if kind == "qwen3_moe" and dense_layers:
        raise HardwareError(
            f"{name}: some layers have no experts (mlp_only_layers or decoder_sparse_step), "
            "expected experts in every layer; such a model is not counted here"
        )
    return str(kind)


def _experts(config: Mapping[str, Any], kind: str, name: str) -> tuple[int, int]:
    """Return how many experts there are, and how many of them a token uses."""
    key = EXPERT_COUNT_KEYS.get(kind)
    if key is None:
        return 0, 0
    experts = _whole(config, key, name)
    experts_per_token = _whole(config, "num_experts_per_tok", name)
    if experts_per_token > experts:
        raise HardwareError(
            f"{name}: num_experts_per_tok is {experts_per_token}, expected at most {key}, "
            f"which is {experts}"
        )
    return experts, experts_per_token


def _kv_heads(config: Mapping[str, Any], heads: int, name: str) -> int:
    """As many as heads where the key is absent: multi-head attention, older than the key."""
    if config.get("num_key_value_heads") is None:
        return heads
    kv_heads = _whole(config, "num_key_value_heads", name)
    if heads % kv_heads:
        raise HardwareError(
            f"{name}: num_key_value_heads is {kv_heads}, expected a divisor of "
            f"num_attention_heads, which is {heads}"
        )
    return kv_heads


def _head_dim(config: Mapping[str, Any], hidden: int, heads: int, name: str) -> int:
    if config.get("head_dim") is not None:
        return _whole(config, "head_dim", name)
    if hidden % heads:
        raise HardwareError(
            f"{name}: head_dim is missing and hidden_size {hidden} is no multiple of "
            f"num_attention_heads {heads}; add head_dim"
        )
    return hidden // heads


def _whole(config: Mapping[str, Any], key: str, name: str) -> int:
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        found = "missing" if key not in config else repr(value)
        raise HardwareError(f"{name}: {key} is {found}, expected a whole number above 0")
    return value
