"""NVIDIA's AISimulate on the same trace, where it is installed: round robin, fixed step times.

    python -m venv V && V/bin/pip install --pre --only-binary :all: aisimulate    # 1.5 GB
    python -m bench.simulator --aisimulate V/bin/aisimulate

It is a simulator of the same kind in Rust, which also runs a vLLM-like scheduler step by step. With
fixed step times it needs no GPU and no profile; the model that is named only sets the longest
context that it allows.
"""

import json
import resource
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

TIMEOUT_S = 600


@dataclass(frozen=True, kw_only=True)
class AiSimulate:
    """What one run of it gave. Its start, imports included, is part of both times."""

    requests: int
    hit_rate: float
    cpu_s: float
    wall_s: float


def replay(
    program: str, trace: bytes, *, replicas: int, blocks: int, prefill_ms: float, decode_ms: float
) -> AiSimulate:
    """Replay a Mooncake trace of 512-token blocks over ``replicas`` of ``blocks`` blocks each."""
    with tempfile.TemporaryDirectory(prefix="warmroute-bench-") as folder:
        path = Path(folder)
        (path / "trace.jsonl").write_bytes(trace)
        config = _config(path / "trace.jsonl", replicas, blocks, prefill_ms, decode_ms)
        (path / "config.yaml").write_text(json.dumps(config))  # JSON is YAML
        argv = [program, "predict", "-c", str(path / "config.yaml"), "--format", "json"]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began_s = time.monotonic()
        done = subprocess.run(
            [*argv, "--output-dir", str(path / "out")],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            timeout=TIMEOUT_S,
        )
        wall_s = time.monotonic() - began_s
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    figures = json.loads(done.stdout)
    return AiSimulate(
        requests=figures["completed_requests"],
        hit_rate=figures["prefix_cache_reused_ratio"],
        cpu_s=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        wall_s=wall_s,
    )


def _config(
    trace: Path, replicas: int, blocks: int, prefill_ms: float, decode_ms: float
) -> dict[str, object]:
    worker = {
        "parallelism": {"replicas": replicas, "tensor": 2},
        "scheduler": {"max_batched_tokens": 8_192, "max_sequences": 256},
        "kv_cache": {"block_size": 512, "capacity": {"type": "fixed", "blocks": blocks}},
        "timing": {"type": "fixed", "prefill_ms": prefill_ms, "decode_ms": decode_ms},
    }
    source = {"type": "trace", "paths": [str(trace)], "format": "mooncake", "block_size": 512}
    return {
        "traffic": {"source": source, "load": {"type": "trace_timestamps"}},
        "engine": {
            "mode": "aggregated",
            "model": "Qwen/Qwen3-32B",
            "hardware": "h200_sxm",
            "backend": "vllm",
            "context_length": 131_072,
            "workers": {"aggregated": worker},
        },
    }
