"""Published measurements of engines: the mean time per output token of a closed loop.

A row is one benchmark: so many requests kept under way, each of the same prompt and output
lengths, on one engine, model and number of GPUs. The file's columns are those of AIConfigurator's
``silicon_sample.csv``; rows that this project cannot predict fairly are left out, each with its
reason.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from contract.hardware import GpuSpec, HardwareError, ModelSpec, Precision, find_gpu, find_model
from replicas.core.step_time import ENGINES

COLUMNS = (
    *("backend", "model_path", "system", "precision", "isl", "osl", "batch_size", "tp_size"),
    *("silicon_tpot_ms", "silicon_data_source"),
)
MEMORY_SHARE = 0.9
"""Of the GPU memory that engines use by default."""

INFERENCEMAX = re.compile(r"^source_file=\d{4}-\d\d-\d\d\.csv;")
INFERENCEMAX_LENGTH = 0.9
"""InferenceMAX draws lengths evenly from 0.8 to 1.0 of the nominal ones, and stores the KV cache
in FP8 (SemiAnalysisAI/InferenceX at 8973271: random-range-ratio in .github/workflows/
full-sweep-tmpl.yml, kv-cache-dtype in benchmarks/70b_fp8_*.sh)."""

STATED = re.compile(r"silicon_concurrency=(\d+)")


class RowError(ValueError):
    """A row that is not of this format."""


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """One benchmark. Lengths are means, in tokens."""

    engine: str
    model: ModelSpec
    gpu: GpuSpec
    tensor_parallel: int
    precision: Precision
    kv_precision: Precision
    prompt_tokens: float
    output_tokens: float
    concurrency: int
    tpot_us: float

    @property
    def kv_use(self) -> float:
        """Part of the KV memory that the sequences hold, half of their output done; 0..1."""
        total_bytes = self.gpu.memory_bytes * self.tensor_parallel * MEMORY_SHARE
        kv_memory_bytes = total_bytes - self.model.weight_bytes(self.precision)
        copies = max(1.0, self.tensor_parallel / self.model.kv_heads)
        token_bytes = self.model.kv_bytes_per_token(self.kv_precision) * copies
        held_tokens = self.concurrency * (self.prompt_tokens + self.output_tokens / 2)
        return held_tokens * token_bytes / kv_memory_bytes


@dataclass(frozen=True)
class MeasuredRows:
    """What a file holds: the rows to score, and how many were left out for which reason."""

    rows: tuple[MeasuredRow, ...]
    left_out: tuple[tuple[str, int], ...]


def read_rows(records: Iterable[Mapping[str, str]]) -> MeasuredRows:
    """Return the rows of a file, in its order.

    Raises RowError naming the line, for a column that is missing or no number.
    """
    rows: list[MeasuredRow] = []
    left_out: dict[str, int] = {}
    for line, record in enumerate(records, start=2):
        missing = [column for column in COLUMNS if record.get(column) is None]
        if missing:
            raise RowError(f"line {line} has no {missing[0]}, expected {', '.join(COLUMNS)}")
        reason = _reason_against(record)
        try:
            row = _row(record) if reason is None else None
        except (ValueError, HardwareError) as error:
            raise RowError(f"line {line}: {error}") from error
        if row is not None and row.kv_use >= 1:
            reason = "the KV cache does not hold all requests under way: it measures the queue"
        if reason is not None:
            left_out[reason] = left_out.get(reason, 0) + 1
        elif row is not None:
            rows.append(row)
    return MeasuredRows(tuple(rows), tuple(sorted(left_out.items())))


def _reason_against(record: Mapping[str, str]) -> str | None:
    """Return why a record cannot be scored, None if it can."""
    stated = STATED.search(record["silicon_data_source"])
    if record["backend"] not in ENGINES:
        return f"engine {record['backend']} has no constants here"
    if record["precision"] not in ("", "fp8"):
        return f"{record['precision']} weights: the catalogue knows BF16 and FP8"
    if record["model_path"].endswith("Instruct-FP8"):
        return "15 of the 21 rows of this model are faster than their work takes at full speed"
    if stated is None:
        return "its source does not state the concurrency"
    if stated[1] != record["batch_size"]:
        return "its source states another concurrency than its batch size"
    return None


def _row(record: Mapping[str, str]) -> MeasuredRow:
    is_inferencemax = INFERENCEMAX.match(record["silicon_data_source"]) is not None
    length = INFERENCEMAX_LENGTH if is_inferencemax else 1.0
    return MeasuredRow(
        engine=record["backend"],
        model=find_model(record["model_path"]),
        gpu=find_gpu(record["system"].removesuffix("_sxm")),
        tensor_parallel=int(record["tp_size"]),
        precision=Precision.FP8 if record["precision"] == "fp8" else Precision.BF16,
        kv_precision=Precision.FP8 if is_inferencemax else Precision.BF16,
        prompt_tokens=float(record["isl"]) * length,
        output_tokens=float(record["osl"]) * length,
        concurrency=int(record["batch_size"]),
        tpot_us=float(record["silicon_tpot_ms"]) * 1_000,
    )
