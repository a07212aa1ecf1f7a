"""NVIDIA's AISimulate as bench.simulator runs it: what it is asked, and what is read of its answer.

The program is played by a function: it is 1.5 GB, and this is about the seam.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bench.aisimulate import TIMEOUT_S, replay

TRACE = b'{"timestamp": 0, "input_length": 600, "output_length": 2, "hash_ids": [0, 1]}\n'
ANSWER = {"completed_requests": 1, "prefix_cache_reused_ratio": 0.25, "duration_ms": 140.0}


class Program:
    """Stands for subprocess.run: keeps what it was asked, gives ``answer``."""

    def __init__(self, answer: str) -> None:
        self.answer = answer
        self.argv: list[str] = []
        self.options: dict[str, Any] = {}
        self.config: dict[str, Any] = {}
        self.trace = b""

    def __call__(self, argv: list[str], **options: Any) -> "subprocess.CompletedProcess[str]":
        self.argv, self.options = argv, options
        self.config = json.loads(Path(argv[argv.index("-c") + 1]).read_text())
        self.trace = Path(self.config["traffic"]["source"]["paths"][0]).read_bytes()
        return subprocess.CompletedProcess(argv, 0, stdout=self.answer)


def replayed(monkeypatch: pytest.MonkeyPatch, answer: str) -> tuple[Program, Any]:
    program = Program(answer)
    monkeypatch.setattr("bench.aisimulate.subprocess.run", program)
    got = replay("aisim", TRACE, replicas=8, blocks=2_000, prefill_ms=100.0, decode_ms=20.0)
    return program, got


def test_it_is_asked_for_the_fleet_that_is_simulated_here(monkeypatch: pytest.MonkeyPatch) -> None:
    program, _ = replayed(monkeypatch, json.dumps(ANSWER))

    worker = program.config["engine"]["workers"]["aggregated"]
    assert program.argv[:3] == ["aisim", "predict", "-c"]
    assert program.trace == TRACE
    assert worker["parallelism"]["replicas"] == 8
    assert worker["scheduler"] == {"max_batched_tokens": 8_192, "max_sequences": 256}
    assert worker["kv_cache"]["capacity"] == {"type": "fixed", "blocks": 2_000}
    assert worker["timing"] == {"type": "fixed", "prefill_ms": 100.0, "decode_ms": 20.0}
    assert (program.options["timeout"], program.options["check"]) == (TIMEOUT_S, True)


def test_requests_and_reuse_are_its_own_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    _, got = replayed(monkeypatch, json.dumps(ANSWER))

    assert (got.requests, got.hit_rate) == (1, 0.25)
    assert got.cpu_s >= -1e-6  # a difference of sums


def test_what_it_was_given_is_gone_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    program, _ = replayed(monkeypatch, json.dumps(ANSWER))

    assert not Path(program.argv[3]).parent.exists()


def test_an_answer_without_figures_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyError, match="completed_requests"):
        replayed(monkeypatch, "{}")
