"""How many servers a load needs: memory, the speed limits of decoding, tokens per second.

All of it is arithmetic, but for the time of a step where none is given: that comes from the
step-time model that the replicas run.
"""

from dataclasses import dataclass
from math import ceil

from contract.hardware import GpuSpec, ModelSpec, Precision
from contract.options import SettingError, option
from replicas.core.hardware_timing import step_time_spec
from replicas.core.step_time import StepLoad, StepTimeModel, StepTimeSpec
from simulator.figures import check_above_zero, figure

DAY_S = 86_400
MEMORY_SHARE_MIN = 0.01
STEP_MODEL_ERROR = 0.15
"""How far the time per token of a model or GPU that no constant was fitted on may be off: on 250
measured rows of vLLM the mean error is 7.5 %, nine in ten are within 18 % (docs/step-time.md)."""


@dataclass(frozen=True)
class CapacitySettings:
    """`plan capacity`: one kind of server, and the load that a fleet of it has to carry."""

    model: str = option("llama-3.1-70b", "", "a known model, or the path of its config.json")
    gpu: str = option("h100", "", "a known GPU")
    gpus: int = option(8, "GPUs", "GPUs of one server, all of which share one copy of the model")
    precision: Precision = option(Precision.BF16, "", "of the weights")  # a field
    kv_precision: Precision = option(Precision.BF16, "", "of the KV cache")  # a field
    memory_share: float = option(0.9, "0..1", "part of the GPU memory that the engine may use")
    reserve_gb: float = option(
        0.0, "GB", "memory of each GPU kept for activations and graphs; 2 to 4 is usual"
    )
    requests_per_day: float = option(20_000_000, "requests", "whole fleet, mean day")
    prompt_tokens: float = option(1_500, "tokens", "mean prompt")
    output_tokens: float = option(300, "tokens", "mean answer")
    peak_factor: float = option(3.0, "", "busiest moment over the mean of the day")
    hit_rate: float = option(0.6, "0..1", "share of prompt tokens found in a prefix cache")
    batch: int = option(128, "sequences", "decoded together on one server at peak")
    step_ms: float | None = option(
        None, "ms", "measured time of a step at that batch; none: from the step-time model"
    )

    def __post_init__(self) -> None:
        check_above_zero(self, may_be_zero=frozenset({"reserve_gb", "hit_rate"}))
        for name in ("prompt_tokens", "output_tokens", "peak_factor"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name):g}, must be 1 or more")
        if not MEMORY_SHARE_MIN <= self.memory_share <= 1:
            raise ValueError(
                f"memory_share is {self.memory_share:g}, must be from {MEMORY_SHARE_MIN} to 1"
            )
        if self.hit_rate >= 1:
            # One token at least of every prompt is computed.
            raise ValueError(f"hit_rate is {self.hit_rate}, must be below 1")

    @property
    def held_tokens(self) -> float:
        """KV tokens that one full-grown sequence holds alone; its cached part is held once."""
        return self.prompt_tokens * (1 - self.hit_rate) + self.output_tokens


@dataclass(frozen=True, kw_only=True)
class Node:
    """One server with its copy of the model, in plain numbers."""

    gpus: int
    gpu_memory_bytes: float
    gpu_memory_bytes_per_s: float
    weight_bytes: float
    read_bytes: float  # of the weights, by a step of many tokens
    least_read_bytes: float  # by a step of one token: a mixture reads few of its experts
    kv_bytes_per_token: int
    kv_heads: int
    context_tokens_max: int | None = None
    step_time: StepTimeSpec | None = None


@dataclass(frozen=True, kw_only=True)
class CapacityPlan:
    """What `plan_capacity` found.

    ``step_source`` says where ``step_us`` is from; one that was given has no error range.
    """

    weight_bytes: float = figure("weights", "bytes", "parameters x bytes per element")
    kv_bytes_per_token: int = figure(
        "KV cache per token", "bytes", "2 x layers x KV heads x head dimension x bytes per element"
    )
    kv_memory_bytes: float = figure(
        "memory for KV", "bytes", "GPUs x (memory x share - reserve) - weights"
    )
    kv_tokens: int = figure(
        "tokens in KV",
        "tokens",
        "memory for KV / KV cache per token (x GPUs / KV heads, if more GPUs than KV heads)",
    )
    kv_sequences_max: int = figure(
        "sequences in KV",
        "sequences",
        "tokens in KV / (prompt x (1 - hit rate) + output): at full length, hits held once",
    )
    decode_floor_us: float = figure(
        "decode floor", "us", "weights read by a step / (GPUs x bandwidth)"
    )
    step_us: float = figure("step", "us", "")
    prefill_tokens_per_step: float = figure(
        "prefill in a step", "tokens", "batch x prompt x (1 - hit rate) / output"
    )
    node_output_tokens_per_s: float = figure("output of one node", "tokens/s", "batch / step")
    output_tokens_per_s: float = figure(
        "output at peak", "tokens/s", "requests x output / 86,400 s x peak factor"
    )
    prompt_tokens_per_s: float = figure(
        "prompts at peak", "tokens/s", "requests x prompt / 86,400 s x peak factor"
    )
    computed_prompt_tokens_per_s: float = figure(
        "prompts to compute", "tokens/s", "prompts at peak x (1 - hit rate)"
    )
    nodes: int = figure("nodes", "nodes", "output at peak / output of one node, rounded up")
    nodes_if_faster: int | None = figure(
        "nodes, at best", "nodes", "if steps take 15 % less: the model's own error"
    )
    nodes_if_slower: int | None = figure(
        "nodes, at worst", "nodes", "if steps take 15 % more: the model's own error"
    )
    step_source: str


def node_of(model: ModelSpec, gpu: GpuSpec, settings: CapacitySettings) -> Node:
    """Return the server that ``settings`` describe.

    Raises SettingError where the GPUs cannot share the model's heads evenly.
    """
    precision, kv_precision = settings.precision, settings.kv_precision
    try:
        spec = step_time_spec(model, gpu, settings.gpus, precision, kv_precision)
    except ValueError as error:
        raise SettingError(str(error)) from error
    return Node(
        gpus=settings.gpus,
        gpu_memory_bytes=gpu.memory_bytes,
        gpu_memory_bytes_per_s=gpu.memory_bytes_per_s,
        weight_bytes=model.weight_bytes(precision),
        read_bytes=model.read_parameters * precision.element_bytes,
        least_read_bytes=model.linear_parameters * precision.element_bytes,
        kv_bytes_per_token=model.kv_bytes_per_token(kv_precision),
        kv_heads=model.kv_heads,
        context_tokens_max=model.context_tokens_max,
        step_time=spec,
    )


def plan_capacity(node: Node, settings: CapacitySettings) -> CapacityPlan:
    """Return what one ``node`` holds and computes, and how many of them the load needs.

    Raises SettingError for a model that does not fit, a batch that does not fit beside it, a
    request longer than the context, or a step that is faster than the memory.
    """
    kv_memory_bytes = _kv_memory_bytes(node, settings)
    # Beyond one GPU per KV head, a head is copied; the GPU count need not be a multiple.
    held_bytes_per_token = node.kv_bytes_per_token * max(1, node.gpus / node.kv_heads)
    kv_tokens = int(kv_memory_bytes // held_bytes_per_token)
    kv_sequences_max = int(kv_tokens // settings.held_tokens)
    _check_request(node, settings, kv_sequences_max)
    step_us, step_source = _step(node, settings)
    requests_per_s = settings.requests_per_day * settings.peak_factor / DAY_S
    output_tokens_per_s = requests_per_s * settings.output_tokens
    node_output_tokens_per_s = settings.batch / step_us * 1e6
    nodes = output_tokens_per_s / node_output_tokens_per_s
    is_modelled = settings.step_ms is None
    return CapacityPlan(
        weight_bytes=node.weight_bytes,
        kv_bytes_per_token=node.kv_bytes_per_token,
        kv_memory_bytes=kv_memory_bytes,
        kv_tokens=kv_tokens,
        kv_sequences_max=kv_sequences_max,
        decode_floor_us=_read_us(node, node.read_bytes),
        step_us=step_us,
        prefill_tokens_per_step=_prefill_tokens_per_step(settings),
        node_output_tokens_per_s=node_output_tokens_per_s,
        output_tokens_per_s=output_tokens_per_s,
        prompt_tokens_per_s=requests_per_s * settings.prompt_tokens,
        computed_prompt_tokens_per_s=(
            requests_per_s * settings.prompt_tokens * (1 - settings.hit_rate)
        ),
        nodes=_whole(nodes),
        nodes_if_faster=_whole(nodes * (1 - STEP_MODEL_ERROR)) if is_modelled else None,
        nodes_if_slower=_whole(nodes * (1 + STEP_MODEL_ERROR)) if is_modelled else None,
        step_source=step_source,
    )


def _kv_memory_bytes(node: Node, settings: CapacitySettings) -> float:
    usable = node.gpu_memory_bytes * settings.memory_share - settings.reserve_gb * 1e9
    kv_memory_bytes = node.gpus * usable - node.weight_bytes
    if kv_memory_bytes <= 0:
        advice = "lower reserve_gb or raise memory_share"
        if usable > 0:
            # The smallest number of GPUs that leaves any room at all.
            advice = f"use {int(node.weight_bytes // usable) + 1} GPUs or more"
        raise SettingError(
            f"the weights take {node.weight_bytes / 1e9:.1f} GB, {node.gpus} x "
            f"{max(0, usable) / 1e9:.1f} GB are usable; {advice}"
        )
    return kv_memory_bytes


def _check_request(node: Node, settings: CapacitySettings, kv_sequences_max: int) -> None:
    length = settings.prompt_tokens + settings.output_tokens
    if node.context_tokens_max is not None and length > node.context_tokens_max:
        raise SettingError(
            f"prompt and output make {length:g} tokens, the model's context is "
            f"{node.context_tokens_max}; lower prompt_tokens or output_tokens"
        )
    if settings.batch > kv_sequences_max:
        raise SettingError(
            f"batch is {settings.batch}, the KV memory holds {kv_sequences_max} such sequences; "
            "lower batch or use more GPUs"
        )


def _step(node: Node, settings: CapacitySettings) -> tuple[float, str]:
    """Return the time of a step in us, and where it is from."""
    if settings.step_ms is None:
        assert node.step_time is not None
        modelled_us = StepTimeModel(node.step_time).step_time_us(_load(settings))
        return float(modelled_us), "replicas.core.step_time for this batch and its share of prefill"
    step_us = settings.step_ms * 1_000
    least_us = _read_us(node, node.least_read_bytes)
    if step_us < least_us:
        raise SettingError(
            f"step_ms is {settings.step_ms:g}, reading the weights alone takes "
            f"{least_us / 1_000:.2f} ms; give the time of a whole step"
        )
    return step_us, "as given"


def _load(settings: CapacitySettings) -> StepLoad:
    """Return the mean step of a server in the steady state: each sequence that ends is replaced."""
    begun_per_step = settings.batch / settings.output_tokens
    context = settings.prompt_tokens * settings.hit_rate
    chunk = settings.prompt_tokens - context
    mean_length = settings.prompt_tokens + settings.output_tokens / 2
    return StepLoad(
        prefill_tokens=round(begun_per_step * chunk),
        prefill_context_tokens=round(begun_per_step * context),
        prefill_attention_pairs=begun_per_step * chunk * (context + chunk / 2),
        decode_tokens=settings.batch,
        decode_context_tokens=round(settings.batch * mean_length),
    )


def _prefill_tokens_per_step(settings: CapacitySettings) -> float:
    computed = settings.prompt_tokens * (1 - settings.hit_rate)
    return settings.batch * computed / settings.output_tokens


def _read_us(node: Node, num_bytes: float) -> float:
    return num_bytes / (node.gpus * node.gpu_memory_bytes_per_s) * 1e6


def _whole(nodes: float) -> int:
    """Round up, but not because of the last digits of a float."""
    return max(1, ceil(round(nodes, 9)))
