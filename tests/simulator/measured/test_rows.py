"""What is read from a row of measurements, what is left out, and how a bad one is named."""

from pathlib import Path

import pytest

from contract.hardware import Precision
from simulator.measured.rows import RowError, read_rows

ROW = {
    "backend": "vllm",
    "model_path": "meta-llama/Llama-3.1-70B",
    "system": "h100_sxm",
    "precision": "fp8",
    "isl": "1000",
    "osl": "100",
    "batch_size": "8",
    "tp_size": "4",
    "silicon_tpot_ms": "12.5",
    "silicon_data_source": "source_file=h100_sxm/vllm/x.csv; silicon_concurrency=8",
}
INFERENCEMAX = "source_file=2026-04-06.csv; model=Llama-3.1-70B; silicon_concurrency=8"


def test_a_row_has_its_values_at_their_places() -> None:
    (row,) = read_rows([ROW]).rows

    assert (row.engine, row.model.name, row.gpu.name) == ("vllm", "Llama-3.1-70B", "H100")
    assert (row.tensor_parallel, row.concurrency) == (4, 8)
    assert (row.precision, row.kv_precision) == (Precision.FP8, Precision.BF16)
    assert (row.prompt_tokens, row.output_tokens, row.tpot_us) == (1_000, 100, 12_500)


def test_inferencemax_draws_shorter_lengths_and_keeps_the_cache_in_fp8() -> None:
    (row,) = read_rows([ROW | {"silicon_data_source": INFERENCEMAX}]).rows

    assert (row.prompt_tokens, row.output_tokens) == (900, 90)
    assert row.kv_precision is Precision.FP8


def test_an_unquantised_row_is_bf16() -> None:
    (row,) = read_rows([ROW | {"precision": ""}]).rows

    assert row.precision is Precision.BF16


def test_kv_use_is_what_the_sequences_hold_half_way_through() -> None:
    (row,) = read_rows([ROW]).rows

    # 8 x 1,050 tokens of 327,680 bytes in 4 x 72 GB less 70.55 GB.
    assert row.kv_use == pytest.approx(8 * 1_050 * 327_680 / (288e9 - 70_553_706_496))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"backend": "mlx"}, "engine mlx has no constants here"),
        ({"precision": "fp4"}, "fp4 weights: the catalogue knows BF16 and FP8"),
        ({"model_path": "nvidia/Llama-3.1-8B-Instruct-FP8"}, "15 of the 21 rows"),
        ({"silicon_data_source": "source_file=x.csv"}, "does not state the concurrency"),
        ({"batch_size": "4"}, "states another concurrency than its batch size"),
        ({"isl": "200000"}, "the KV cache does not hold all requests under way"),
    ],
)
def test_a_row_that_cannot_be_scored_is_left_out_with_its_reason(
    change: dict[str, str], reason: str
) -> None:
    measured = read_rows([ROW, ROW | change, ROW | change])

    assert len(measured.rows) == 1
    ((said, number),) = measured.left_out
    assert reason in said
    assert number == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"silicon_tpot_ms": None}, "line 2 has no silicon_tpot_ms, expected backend, "),
        ({"isl": "long"}, "line 2: could not convert string to float: 'long'"),
        ({"model_path": "gpt-5"}, "line 2: no model 'gpt-5'; known: "),
        ({"system": "abacus"}, "line 2: no GPU 'abacus'; known: "),
    ],
)
def test_a_bad_row_is_named_by_its_line(change: dict[str, str | None], message: str) -> None:
    with pytest.raises(RowError, match=message):
        read_rows([ROW | change])  # type: ignore[list-item]  # csv gives None for a short line


def test_the_file_that_is_shipped_says_where_it_is_from() -> None:
    text = Path("tests/data/aic/README.md").read_text()

    assert "Apache-2.0" in text
    assert "aiconfigurator-core" in text
