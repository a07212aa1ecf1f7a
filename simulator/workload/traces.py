"""Readers of recorded traces: block ids (Mooncake, ShareGPT), lengths only (Azure, BurstGPT).

A trace's first request arrives at 0, whatever its clock said; rows that are out of order are
sorted, those of one instant stay in the file's order.
"""

from dataclasses import dataclass, field
from itertools import islice

from contract.options import option
from simulator.request import Segment, SimRequest, Workload
from simulator.workload.order import from_zero
from simulator.workload.rows import Row, TraceFile, csv_rows, json_rows
from simulator.workload.segments import SegmentIds

AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
BURSTGPT_COLUMNS = ("Timestamp", "Model", "Request tokens", "Response tokens")
NO_PREFIXES = "the trace does not say which prompts share a prefix, so none do"


@dataclass(frozen=True)
class MooncakeSettings:
    """Mooncake's JSON lines: timestamp (ms), input_length, output_length, hash_ids.

    Source: https://github.com/kvcache-ai/Mooncake, FAST25-release/traces.
    """

    block_tokens: int = option(512, "tokens", "of the prompt that one of hash_ids stands for")

    def __post_init__(self) -> None:
        _check_block_tokens(self.block_tokens)


@dataclass(frozen=True)
class BlocksSettings:
    """JSON lines: arrival_ms, input_length, output_length, hash_ids (those of full blocks)."""

    block_tokens: int = option(16, "tokens", "of the prompt that one of hash_ids stands for")

    def __post_init__(self) -> None:
        _check_block_tokens(self.block_tokens)


@dataclass(frozen=True)
class AzureSettings:
    """Azure's CSV of 2023 and 2024: TIMESTAMP, ContextTokens, GeneratedTokens.

    Source: https://github.com/Azure/AzurePublicDataset. All prompts are unique.
    """


@dataclass(frozen=True)
class BurstGptSettings:
    """BurstGPT's CSV: Timestamp (s), Model, Request tokens, Response tokens, perhaps Session ID.

    Source: https://github.com/HPMLL/BurstGPT. All prompts are unique; failed requests, which have
    no response tokens, are left out.
    """

    models: bool = option(False, "", "keep the models' names, which replicas must then serve")


def read_mooncake(file: TraceFile, settings: MooncakeSettings, first: int | None) -> Workload:
    """Return the workload of a trace, or of its ``first`` rows; a bad row raises TraceError."""
    return _read_blocks(file, "timestamp", settings.block_tokens, first)


def read_blocks(file: TraceFile, settings: BlocksSettings, first: int | None) -> Workload:
    """Return the workload of a trace, or of its ``first`` rows; a bad row raises TraceError."""
    return _read_blocks(file, "arrival_ms", settings.block_tokens, first)


def read_azure(file: TraceFile, _: AzureSettings, first: int | None) -> Workload:
    """Return the workload of a trace, or of its ``first`` rows; a bad row raises TraceError."""
    trace = _Trace(file.name)
    for row in islice(csv_rows(file, AZURE_COLUMNS), first):
        trace.add(
            row.moment_us("TIMESTAMP"),
            (trace.ids.fresh(row.tokens("ContextTokens")),),
            row.tokens("GeneratedTokens"),
        )
    return trace.workload(NO_PREFIXES)


def read_burstgpt(file: TraceFile, settings: BurstGptSettings, first: int | None) -> Workload:
    """Return the workload of a trace, or of its ``first`` rows; a bad row raises TraceError."""
    trace = _Trace(file.name)
    failed = 0
    for row in islice(csv_rows(file, BURSTGPT_COLUMNS), first):
        prompt_tokens = row.tokens("Request tokens", least=0)
        output_tokens = row.tokens("Response tokens", least=0)
        if not prompt_tokens or not output_tokens:
            failed += 1
            continue
        trace.add(
            round(row.number("Timestamp") * 1_000_000),
            (trace.ids.fresh(prompt_tokens),),
            output_tokens,
            model=row.values["Model"] if settings.models else None,
            session=row.values.get("Session ID") or None,
        )
    return trace.workload(f"{NO_PREFIXES}; {failed} failed requests left out")


def _read_blocks(
    file: TraceFile, time_field: str, block_tokens: int, first: int | None
) -> Workload:
    trace = _Trace(file.name)
    for row in islice(json_rows(file), first):
        segments = _prompt(trace, row, block_tokens)
        arrival_us = round(row.number(time_field) * 1_000)
        trace.add(arrival_us, segments, row.tokens("output_length"))
    return trace.workload(f"hash_ids of {block_tokens} tokens each")


def _prompt(trace: "_Trace", row: Row, block_tokens: int) -> tuple[Segment, ...]:
    """Return a segment for each id, the last of which may be partial, then what has no id."""
    names = row.ids("hash_ids")
    left = row.tokens("input_length")
    blocks_max = -(-left // block_tokens)
    if len(names) > blocks_max:
        raise row.error(
            "hash_ids",
            f"at most {blocks_max} ids of {block_tokens} tokens for input_length {left}, "
            f"not {len(names)}",
        )
    segments = []
    for name in names:
        segments.append(trace.block(name, min(block_tokens, left)))
        left -= block_tokens
    if left > 0:
        segments.append(trace.ids.fresh(left))
    return tuple(segments)


@dataclass(slots=True)
class _Trace:
    """The requests read so far; their times count from the first one's."""

    name: str
    ids: SegmentIds = field(default_factory=SegmentIds)
    requests: list[SimRequest] = field(default_factory=list)
    start_us: int = 0
    blocks: dict[int, Segment] = field(default_factory=dict)

    def block(self, name: int, num_tokens: int) -> Segment:
        """Return the segment of a block; equal ones are one object, of which there are many."""
        block = self.blocks.get(name)
        if block is None:
            block = self.blocks[name] = self.ids.fresh(num_tokens)
        elif block.num_tokens != num_tokens:
            block = Segment(block.segment_id, num_tokens)
        return block

    def add(
        self,
        arrival_us: int,
        segments: tuple[Segment, ...],
        output_tokens: int,
        *,
        model: str | None = None,
        session: str | None = None,
    ) -> None:
        if not self.requests:
            self.start_us = arrival_us
        request = SimRequest(
            request_id=f"row-{len(self.requests)}",
            segments=segments,
            output_tokens=output_tokens,
            output_id=self.ids.new(),
            arrival_us=arrival_us - self.start_us,
            model=model,
            session=session,
        )
        self.requests.append(request)

    def workload(self, provenance: str) -> Workload:
        return Workload(self.name, f"{self.name}: {provenance}", from_zero(self.requests))


def _check_block_tokens(block_tokens: int) -> None:
    if block_tokens < 1:
        raise ValueError(f"block_tokens is {block_tokens}, must be 1 or more")
