"""Writes a llama of 100 KB that llama.cpp loads in no time: its words are bytes, its weights noise.

The file format is GGUF, version 3 (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
Every answer is printable ASCII and runs to its token limit, as only those tokens have weights in
the output layer. Equal prompts give equal answers at temperature 0: the noise has a fixed seed.
"""

import struct
from array import array
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from random import Random

MODEL_NAME = "tiny-llama"

_WIDTH = 32
_HEADS = 4
_LAYERS = 2
_CONTEXT_TOKENS = 65_536
_SPECIAL = ("<|end|>", "<|turn|>")
_ALIGNMENT_BYTES = 32  # the format's default
_CHAT_TEMPLATE = (
    "{% for m in messages %}<|turn|>{{ m.role }}: {{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant: {% endif %}"
)

Value = str | int | float | Sequence[str] | Sequence[int]


class _Type(IntEnum):
    INT32 = 5
    UINT32 = 4
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9


class _TokenType(IntEnum):
    NORMAL = 1
    CONTROL = 3


def write_tiny_llama(path: Path) -> None:
    """Write the model to ``path``; the same bytes every time."""
    tensors = _tensors(Random("tiny-llama"))
    head, data = bytearray(), bytearray()
    for name, (shape, weights) in tensors.items():
        head += _string(name) + struct.pack("<I", len(shape))
        head += b"".join(struct.pack("<Q", size) for size in shape)
        head += struct.pack("<IQ", 0, len(data))  # 0: 32-bit floats
        data += _padded(weights.tobytes())
    fields = _fields()
    counts = struct.pack("<IQQ", 3, len(tensors), len(fields))
    pairs = b"".join(_string(key) + _value(value) for key, value in fields.items())
    path.write_bytes(_padded(b"GGUF" + counts + pairs + bytes(head)) + data)


def _fields() -> dict[str, Value]:
    tokens = _tokens()
    num_bytes = len(tokens) - len(_SPECIAL)
    return {
        "general.architecture": "llama",
        "general.name": MODEL_NAME,
        "llama.context_length": _CONTEXT_TOKENS,
        "llama.embedding_length": _WIDTH,
        "llama.block_count": _LAYERS,
        "llama.feed_forward_length": 2 * _WIDTH,
        "llama.attention.head_count": _HEADS,
        "llama.attention.head_count_kv": _HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": _WIDTH // _HEADS,
        "llama.vocab_size": len(tokens),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [_TokenType.NORMAL] * num_bytes
        + [_TokenType.CONTROL] * len(_SPECIAL),
        "tokenizer.ggml.merges": ["a b"],  # llama.cpp wants one; its result is no token here
        "tokenizer.ggml.bos_token_id": num_bytes,
        "tokenizer.ggml.eos_token_id": num_bytes,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": _CHAT_TEMPLATE,
    }


def _tokens() -> list[str]:
    """Return GPT-2's names of the 256 bytes: itself where printable, else a letter beyond them."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    names = [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
    return [*names, *_SPECIAL]


def _tensors(noise: Random) -> dict[str, tuple[tuple[int, ...], "array[float]"]]:
    """Return shape (the fastest dimension first) and weights of every tensor by name."""
    wide, num_tokens = 2 * _WIDTH, len(_tokens())
    spoken = range(32, 127)

    def matrix(inputs: int, outputs: int) -> tuple[tuple[int, ...], "array[float]"]:
        scale = inputs**-0.5
        return (inputs, outputs), array(
            "f", (noise.gauss(0.0, scale) for _ in range(inputs * outputs))
        )

    ones = (_WIDTH,), array("f", [1.0] * _WIDTH)
    output = array(
        "f",
        (
            noise.gauss(0.0, 1.0) if token in spoken else 0.0
            for token in range(num_tokens)
            for _ in range(_WIDTH)
        ),
    )
    tensors = {
        "token_embd.weight": matrix(_WIDTH, num_tokens),
        "output_norm.weight": ones,
        "output.weight": ((_WIDTH, num_tokens), output),
    }
    for layer in range(_LAYERS):
        sizes = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), (_WIDTH, _WIDTH))
        sizes |= {"ffn_gate": (_WIDTH, wide), "ffn_up": (_WIDTH, wide), "ffn_down": (wide, _WIDTH)}
        for name, (inputs, outputs) in sizes.items():
            tensors[f"blk.{layer}.{name}.weight"] = matrix(inputs, outputs)
        for name in ("attn_norm", "ffn_norm"):
            tensors[f"blk.{layer}.{name}.weight"] = ones
    return tensors


def _value(value: Value) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", _Type.BOOL, value)
        case int():
            return struct.pack("<II", _Type.UINT32, value)
        case float():
            return struct.pack("<If", _Type.FLOAT32, value)
        case str():
            return struct.pack("<I", _Type.STRING) + _string(value)
    item_type = _Type.STRING if isinstance(value[0], str) else _Type.INT32
    items = (_string(v) if isinstance(v, str) else struct.pack("<i", v) for v in value)
    return struct.pack("<IIQ", _Type.ARRAY, item_type, len(value)) + b"".join(items)


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % _ALIGNMENT_BYTES)
