"""What of a GPU's memory a model leaves to its KV cache, and on how many GPUs it fits.

    KV = GPUs x memory x share - weights - activations - GPUs x non-torch

The form and its two constants are llm-d-planner 0.3.3's, calibrated on vLLM 0.19 (H100, 49 runs
of 28 models). Against what vLLM itself reported of two fleets (llm-d's benchmarks of its router)
it is 1.6 % and 0.1 % off; docs/planner.md has the figures.
"""

from dataclasses import dataclass

from contract.hardware import GpuSpec, ModelSpec, Precision
from contract.options import SettingError
from simulator.figures import figure

GIB = 2**30

SHOWN_GIB = {"H100": 79.11, "A100-80": 79.25, "RTX 4090": 23.52}
"""What PyTorch shows as a card's capacity, of which engines take their share: vLLM's issue 27508
(H100), and messages of the same form for the others. Of the rest, the data sheet's bytes."""

ACTIVATIONS_GIB = {"llama": 1.89, "qwen2": 2.25, "qwen3": 2.21, "mixtral": 1.21}
ACTIVATIONS_DENSE_GIB = 2.0
ACTIVATIONS_EXPERTS_GIB = 2.5
"""Peak of the engine's profiling run, by architecture, else by kind: llm-d-planner 0.3.3."""

NON_TORCH_GIB = 0.27
NON_TORCH_SHARED_GIB = 2.10
"""Of each GPU: CUDA's context; and NCCL's buffers, where several share a model. Same source."""

TENSOR_PARALLEL_MAX = 8
"""GPUs of one node."""


class DoesNotFitError(SettingError):
    """The weights and what the engine needs leave no KV cache; the message says what would."""


@dataclass(frozen=True)
class MemoryFit:
    """The memory of one replica, and what its KV cache holds."""

    memory_bytes: float = figure("GPU memory", "bytes", "GPUs x memory as PyTorch shows it")
    usable_bytes: float = figure("usable", "bytes", "GPU memory x share")
    weight_bytes: float = figure("weights", "bytes", "parameters x bytes per element")
    activation_bytes: float = figure(
        "activations", "bytes", "by architecture, llm-d-planner 0.3.3 on vLLM 0.19"
    )
    non_torch_bytes: float = figure(
        "CUDA and NCCL", "bytes", "GPUs x 0.27 GiB, or 2.10 GiB where several share the model"
    )
    kv_memory_bytes: float = figure(
        "memory for KV", "bytes", "usable - weights - activations - CUDA and NCCL"
    )
    kv_bytes_per_token: int = figure(
        "KV cache per token", "bytes", "2 x layers x KV heads x head dimension x bytes per element"
    )
    kv_tokens: int = figure(
        "tokens in KV",
        "tokens",
        "memory for KV / KV cache per token, in whole blocks of 16 (x KV heads / GPUs, if more "
        "GPUs than KV heads)",
    )
    context_tokens: int = figure("longest request", "tokens", "the model's context")
    concurrency_max: float = figure(
        "at full length", "requests", "tokens in KV / longest request, as vLLM's log says it"
    )
    tensor_parallel_valid: tuple[int, ...] = figure(
        "GPUs per replica", "list", "numbers that divide the heads, and on which it fits"
    )


def fit_memory(
    model: ModelSpec,
    gpu: GpuSpec,
    gpus: int,
    *,
    precision: Precision = Precision.BF16,
    kv_precision: Precision = Precision.BF16,
    memory_share: float = 0.9,
    block_size: int = 16,
) -> MemoryFit:
    """Return the memory of a replica of ``gpus`` GPUs that share one copy of ``model``.

    Raises DoesNotFitError with the numbers of GPUs, and the precision, that would do.
    """

    def left_bytes(count: int, weights: Precision = precision) -> float:
        usable = count * shown_bytes(gpu) * memory_share
        needed = activation_bytes(model) + non_torch_bytes(count)
        return usable - model.weight_bytes(weights) - needed

    dividing = _dividing(model)
    valid = tuple(count for count in dividing if left_bytes(count) > 0)
    kv_bytes_per_token = model.kv_bytes_per_token(kv_precision)
    # Beyond one GPU per KV head, each further one keeps a copy.
    held_bytes = kv_bytes_per_token * max(1, gpus / model.kv_heads) * block_size
    kv_tokens = int(max(0.0, left_bytes(gpus)) // held_bytes) * block_size
    if gpus not in dividing or not kv_tokens:
        smaller = [n for n in dividing if left_bytes(n, Precision.FP8) > 0]
        raise DoesNotFitError(_advice(model, gpu, gpus, precision, valid, tuple(smaller)))
    return MemoryFit(
        memory_bytes=gpus * shown_bytes(gpu),
        usable_bytes=gpus * shown_bytes(gpu) * memory_share,
        weight_bytes=model.weight_bytes(precision),
        activation_bytes=activation_bytes(model),
        non_torch_bytes=non_torch_bytes(gpus),
        kv_memory_bytes=left_bytes(gpus),
        kv_bytes_per_token=kv_bytes_per_token,
        kv_tokens=kv_tokens,
        context_tokens=model.context_tokens_max,
        concurrency_max=kv_tokens / model.context_tokens_max,
        tensor_parallel_valid=valid,
    )


def shown_bytes(gpu: GpuSpec) -> float:
    """Return the memory of which an engine takes its share."""
    return SHOWN_GIB[gpu.name] * GIB if gpu.name in SHOWN_GIB else gpu.memory_bytes


def activation_bytes(model: ModelSpec) -> float:
    """Return the peak of the activations, once for a replica."""
    name = model.name.lower().rpartition("/")[2]
    for beginning, gib in ACTIVATIONS_GIB.items():
        if name.startswith(beginning) and (beginning == "mixtral" or not model.experts):
            return gib * GIB
    return (ACTIVATIONS_EXPERTS_GIB if model.experts else ACTIVATIONS_DENSE_GIB) * GIB


def non_torch_bytes(gpus: int) -> float:
    """Return what CUDA and NCCL take of all GPUs of a replica."""
    return gpus * (NON_TORCH_GIB if gpus == 1 else NON_TORCH_SHARED_GIB) * GIB


def _dividing(model: ModelSpec) -> tuple[int, ...]:
    """Powers of two, as engines are run, that share the attention heads evenly."""
    counts = (1, 2, 4, 8)
    return tuple(n for n in counts if n <= TENSOR_PARALLEL_MAX and model.heads % n == 0)


def _advice(
    model: ModelSpec,
    gpu: GpuSpec,
    gpus: int,
    precision: Precision,
    valid: tuple[int, ...],
    smaller: tuple[int, ...],
) -> str:
    weights = model.weight_bytes(precision) / 1e9
    found = (
        f"{model.name} does not fit on {gpus} x {gpu.name}: its weights take {weights:.1f} GB of "
        f"{gpus * shown_bytes(gpu) / 1e9:.1f} GB"
    )
    if valid:
        return f"{found}; use {' or '.join(map(str, valid))} GPUs per replica"
    if smaller and precision is Precision.BF16:
        return f"{found}; with --precision fp8 it fits on {' or '.join(map(str, smaller))} GPUs"
    return f"{found}, and on no more GPUs of one node; use a GPU with more memory"
