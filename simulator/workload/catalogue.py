"""All workloads by name: what each takes, where its data are, and how it is built."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Any

from contract.options import option_rows
from simulator.request import SimRequest, Workload
from simulator.workload.agents import AgentSettings, agent_requests
from simulator.workload.conversations import ConversationSettings, conversation_requests
from simulator.workload.kubeai import KubeAiSettings, kubeai_stages
from simulator.workload.ladder import (
    LadderSettings,
    Llmd37Settings,
    Llmd73Settings,
    ladder_stages,
)
from simulator.workload.prompts import (
    GroupSettings,
    HotSettings,
    UniqueSettings,
    group_requests,
    hot_requests,
    unique_requests,
)
from simulator.workload.rows import TraceError, TraceFile
from simulator.workload.servegen import ServeGenClient, ServeGenSettings, read_servegen
from simulator.workload.shape import ShapeSettings, shaped
from simulator.workload.stages import Stage, StagedWorkload, one_stage
from simulator.workload.traces import (
    AzureSettings,
    BlocksSettings,
    BurstGptSettings,
    MooncakeSettings,
    read_azure,
    read_blocks,
    read_burstgpt,
    read_mooncake,
)


class Needs(Enum):
    """What stands after the name and a colon."""

    NOTHING = ""
    FILE = "FILE"
    FOLDER = "FOLDER"


Build = Callable[["Entry", Sequence[TraceFile], Any, ShapeSettings], StagedWorkload]
Read = Callable[[TraceFile, Any, int | None], Workload]
Generate = Callable[[Any, str], Iterator[SimRequest]]
Climb = Callable[[Any, str], tuple[Stage, ...]]


@dataclass(frozen=True, slots=True)
class Entry:
    """One kind of workload. Its settings are those of ``settings`` and of ShapeSettings."""

    name: str
    settings: type
    summary: str
    build: Build
    needs: Needs = Needs.NOTHING
    shipped: str | None = None  # name of a trace that comes with the program

    def workload(
        self, files: Sequence[TraceFile], settings: object, shape: ShapeSettings
    ) -> StagedWorkload:
        """Return the workload of these files (none for a generator), in the shape asked for.

        Raises TraceError for a row or file that is not what it should be.
        """
        workload = shaped(self.build(self, files, settings, shape), shape)
        if not any(stage.requests for stage in workload.stages):
            names = ", ".join(file.name for file in files) or self.name
            raise TraceError(f"{names}: found no request, expected at least one")
        return workload


def _trace(read: Read) -> Build:
    def build(
        entry: Entry, files: Sequence[TraceFile], settings: Any, shape: ShapeSettings
    ) -> StagedWorkload:
        (file,) = files
        workload = read(file, settings, shape.first)
        return one_stage(entry.name, workload.provenance, workload.requests)

    return build


def _generated(generate: Generate) -> Build:
    def build(
        entry: Entry, _: Sequence[TraceFile], settings: Any, shape: ShapeSettings
    ) -> StagedWorkload:
        requests = islice(generate(settings, shape.seed), shape.first)
        return one_stage(entry.name, _drawn(entry, settings, shape), requests)

    return build


def _climbed(climb: Climb) -> Build:
    def build(
        entry: Entry, _: Sequence[TraceFile], settings: Any, shape: ShapeSettings
    ) -> StagedWorkload:
        stages = climb(settings, shape.seed)
        return StagedWorkload(entry.name, _drawn(entry, settings, shape), stages)

    return build


def _servegen(
    entry: Entry, files: Sequence[TraceFile], settings: ServeGenSettings, shape: ShapeSettings
) -> StagedWorkload:
    """Files are a trace and its dataset, in turns."""
    clients = [
        ServeGenClient(trace.name, trace, dataset)
        for trace, dataset in zip(files[::2], files[1::2], strict=True)
    ]
    workload = read_servegen(entry.name, clients, settings, shape.seed)
    return one_stage(entry.name, workload.provenance, workload.requests)


def _drawn(entry: Entry, settings: object, shape: ShapeSettings) -> str:
    """Say how a generated workload can be had again."""
    values = ((row.name, getattr(settings, row.name)) for row in option_rows(entry.settings))
    text = ", ".join(f"{name}={getattr(value, 'value', value)}" for name, value in values)
    return f"{entry.name}: generated with seed {shape.seed!r}, {text}"


_ENTRIES = (
    Entry(
        "conversation",
        MooncakeSettings,
        "Mooncake's conversation trace: 12,031 requests in 59 minutes, prompts of 12,035 tokens",
        _trace(read_mooncake),
        shipped="mooncake_conversation_trace.jsonl.gz",
    ),
    Entry(
        "synthetic",
        MooncakeSettings,
        "Mooncake's synthetic trace: 3,993 requests in 17 minutes, 65 % of the tokens shared",
        _trace(read_mooncake),
        shipped="mooncake_synthetic_trace.jsonl.gz",
    ),
    Entry(
        "azure-code",
        AzureSettings,
        "Azure 2023, code completion: 8,819 very bursty requests in 57 minutes, no prefixes",
        _trace(read_azure),
        shipped="azure2023_code.csv.gz",
    ),
    Entry(
        "azure-conv",
        AzureSettings,
        "Azure 2023, conversation: 19,366 requests in 58 minutes, no prefixes",
        _trace(read_azure),
        shipped="azure2023_conv.csv.gz",
    ),
    Entry(
        "sharegpt-llama",
        BlocksSettings,
        "300 ShareGPT requests at 10/s, as Llama-3.1-8B's tokenizer cuts them",
        _trace(read_blocks),
        shipped="llmservingsim_sharegpt300_llama31_8b.hash16.jsonl.gz",
    ),
    Entry(
        "sharegpt-qwen",
        BlocksSettings,
        "300 ShareGPT requests at 10/s, as Qwen3-32B's tokenizer cuts them",
        _trace(read_blocks),
        shipped="llmservingsim_sharegpt300_qwen3_32b.hash16.jsonl.gz",
    ),
    Entry(
        "mooncake",
        MooncakeSettings,
        "a trace in Mooncake's format: JSON lines with hash_ids",
        _trace(read_mooncake),
        Needs.FILE,
    ),
    Entry(
        "blocks",
        BlocksSettings,
        "JSON lines with arrival_ms and the hash_ids of full blocks",
        _trace(read_blocks),
        Needs.FILE,
    ),
    Entry("azure", AzureSettings, "a CSV of Azure's LLM traces", _trace(read_azure), Needs.FILE),
    Entry("burstgpt", BurstGptSettings, "a CSV of BurstGPT", _trace(read_burstgpt), Needs.FILE),
    Entry("servegen", ServeGenSettings, "a folder of ServeGen's clients", _servegen, Needs.FOLDER),
    Entry("unique", UniqueSettings, "prompts that share nothing", _generated(unique_requests)),
    Entry("hot", HotSettings, "one beginning for all prompts", _generated(hot_requests)),
    Entry(
        "groups",
        GroupSettings,
        "groups that share a beginning, of unequal popularity",
        _generated(group_requests),
    ),
    Entry(
        "multiturn",
        ConversationSettings,
        "conversations whose prompts grow by the answers, with time to think",
        _generated(conversation_requests),
    ),
    Entry(
        "agents",
        AgentSettings,
        "agent trees: siblings share a parent's context, then are joined",
        _generated(agent_requests),
    ),
    Entry(
        "ladder",
        LadderSettings,
        "rates that rise stage by stage over prompts that repeat",
        _climbed(ladder_stages),
    ),
    Entry("llmd-37", Llmd37Settings, "llm-d's 37-capacity ladder", _climbed(ladder_stages)),
    Entry("llmd-73", Llmd73Settings, "llm-d's 73-capacity ladder", _climbed(ladder_stages)),
    Entry("kubeai", KubeAiSettings, "KubeAI's four levels", _climbed(kubeai_stages)),
)

ENTRIES = {entry.name: entry for entry in _ENTRIES}
