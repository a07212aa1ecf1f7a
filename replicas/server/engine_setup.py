"""From settings to an engine: step time, KV blocks and context of a model on its GPUs."""

from contract.hardware import GpuSpec, HardwareError, ModelSpec, find_gpu, find_model
from contract.options import SettingError
from replicas.core.hardware_timing import step_time_spec
from replicas.core.reporting import full_step_tokens_per_s
from replicas.core.scheduler_config import SchedulerConfig
from replicas.core.step_time import FixedStepTime, StepTime, StepTimeModel
from replicas.server.config import ReplicaConfig

RESERVED_BLOCKS = 1  # the engine never gives out block 0; kv_blocks counts usable ones

# With fixed step times there is no GPU to ask.
DEFAULT_KV_BLOCKS = 20_000
DEFAULT_MODEL_LEN = 131_072


def engine_settings(config: ReplicaConfig) -> SchedulerConfig:
    """Return the engine's limits. Raises SettingError for what cannot run."""
    if config.has_fixed_steps:
        kv_blocks = config.kv_blocks or DEFAULT_KV_BLOCKS
        max_model_len = config.max_model_len or DEFAULT_MODEL_LEN
    else:
        model, gpu = _look_up(config)
        kv_blocks = config.kv_blocks or _kv_blocks_left(config, model, gpu)
        max_model_len = config.max_model_len or model.context_tokens_max
    try:
        return SchedulerConfig(
            num_blocks=kv_blocks + RESERVED_BLOCKS,
            block_size=config.block_size,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_num_seqs=config.max_num_seqs,
            max_model_len=max_model_len,
            policy=config.scheduling,
            batching=config.batching,
            admission=config.admission,
            enable_prefix_caching=config.enable_prefix_caching,
            max_loras=config.max_loras,
        )
    except ValueError as error:
        raise SettingError(f"[replica]: {error}") from error


def step_time_of(config: ReplicaConfig) -> StepTime:
    """Return the time of steps at speed-up 1. Raises SettingError for unknown hardware."""
    if config.has_fixed_steps:
        prefill_ms, decode_ms = config.fixed_prefill_ms or 0, config.fixed_decode_ms or 0
        return FixedStepTime(round(prefill_ms * 1_000), round(decode_ms * 1_000))
    model, gpu = _look_up(config)
    try:
        spec = step_time_spec(
            model, gpu, config.tensor_parallel, config.weight_precision, config.kv_precision
        )
    except ValueError as error:
        raise SettingError(f"[replica]: {error}") from error
    return StepTimeModel(spec)


def prefill_tokens_per_s(config: ReplicaConfig, step_time: StepTime) -> float:
    """Return what steps full of fresh prompt compute in a second of the wall clock."""
    return full_step_tokens_per_s(step_time, config.max_num_batched_tokens) * config.speedup


def _look_up(config: ReplicaConfig) -> tuple[ModelSpec, GpuSpec]:
    try:
        return find_model(config.model), find_gpu(config.gpu)
    except HardwareError as error:
        raise SettingError(
            f"[replica]: {error}; or give fixed_prefill_ms and fixed_decode_ms"
        ) from error


def _kv_blocks_left(config: ReplicaConfig, model: ModelSpec, gpu: GpuSpec) -> int:
    gpus = config.tensor_parallel
    memory_bytes = gpu.memory_bytes * gpus * config.gpu_memory_utilization
    left_bytes = memory_bytes - model.weight_bytes(config.weight_precision)
    # Beyond one GPU per KV head, each further one keeps a copy.
    copies = max(1.0, gpus / model.kv_heads)
    block_bytes = model.kv_bytes_per_token(config.kv_precision) * config.block_size * copies
    kv_blocks = int(left_bytes / block_bytes) - RESERVED_BLOCKS
    if kv_blocks < 1:
        raise SettingError(
            f"[replica]: {model.name} leaves no memory for KV blocks on {gpus} x {gpu.name}; "
            "raise tensor_parallel or give kv_blocks"
        )
    return kv_blocks
