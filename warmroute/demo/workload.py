"""The demo's requests: a real trace whose blocks and outputs are shrunk, so a laptop can replay it.

A trace row names its prompt by one id per 512-token block. Every id becomes the same 64 tokens of
text wherever it occurs, so prompts that shared a prefix in the trace share bytes here.
"""

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import islice

from contract.blocks import TOKEN_BYTES
from replicas.core.text import expected_text

TRACE_FILE = "mooncake_conversation_10min.jsonl.gz"
TRACE_BLOCK_TOKENS = 512
SHRINK = 8
BLOCK_TOKENS = TRACE_BLOCK_TOKENS // SHRINK


@dataclass(frozen=True)
class TraceRequest:
    """One request of the shrunk trace."""

    request_id: str
    arrival_s: float  # after the first request, in trace time
    prompt: str
    prompt_tokens: int
    output_tokens: int


def demo_trace(num_requests: int | None = None) -> list[TraceRequest]:
    """Return the shipped trace, or its first ``num_requests``."""
    rows = islice(_rows(), num_requests)
    return [_shrink(index, row) for index, row in enumerate(rows)]


def _rows() -> Iterator[dict[str, object]]:
    packed = resources.files("warmroute").joinpath("data", TRACE_FILE).read_bytes()
    for line in gzip.decompress(packed).splitlines():
        yield json.loads(line)


def _shrink(index: int, row: dict[str, object]) -> TraceRequest:
    hash_ids = row["hash_ids"]
    input_length, output_length, timestamp_ms = (
        row["input_length"],
        row["output_length"],
        row["timestamp"],
    )
    assert isinstance(hash_ids, list)
    assert isinstance(input_length, int)
    assert isinstance(output_length, int)
    assert isinstance(timestamp_ms, int)
    prompt_tokens = -(-input_length // SHRINK)
    text = "".join(map(block_text, hash_ids))
    return TraceRequest(
        request_id=f"trace-{index}",
        arrival_s=timestamp_ms / 1000,
        prompt=text[: prompt_tokens * TOKEN_BYTES],
        prompt_tokens=prompt_tokens,
        output_tokens=max(1, -(-output_length // SHRINK)),
    )


@cache
def block_text(hash_id: int) -> str:
    """Return the 64 tokens (256 ASCII bytes) that stand for one block of the trace."""
    return expected_text(f"block {hash_id:08d}  ".encode(), BLOCK_TOKENS)
