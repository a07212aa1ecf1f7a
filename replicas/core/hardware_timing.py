"""From a model and a GPU of the catalogue to the numbers that a step's time is made of."""

from contract.hardware import GpuSpec, ModelSpec, Precision
from replicas.core.step_time import StepTimeSpec


def step_time_spec(
    model: ModelSpec,
    gpu: GpuSpec,
    tensor_parallel: int = 1,
    precision: Precision = Precision.BF16,
    kv_precision: Precision = Precision.BF16,
) -> StepTimeSpec:
    """Return the spec of ``model`` on ``tensor_parallel`` GPUs, at the default efficiencies.

    A mixture of experts reads all its experts in every step here, which is true of large batches
    and too slow for small ones. Whether the weights fit is the planner's question, not asked here.
    Raises ValueError if the attention heads cannot be shared out evenly, as engines require.
    """
    if tensor_parallel < 1 or model.heads % tensor_parallel:
        raise ValueError(
            f"{model.name} has {model.heads} attention heads, which {tensor_parallel} GPUs cannot "
            "share evenly; choose a number of GPUs that divides them"
        )
    return StepTimeSpec(
        weight_bytes=model.read_parameters * precision.element_bytes,
        linear_params=model.linear_parameters,
        kv_bytes_per_token=model.kv_bytes_per_token(kv_precision),
        kv_heads=model.kv_heads,
        layers=model.layers,
        hidden=model.hidden,
        tensor_parallel=tensor_parallel,
        memory_bytes_per_s=gpu.memory_bytes_per_s,
        linear_flops_per_s=gpu.flops_per_s(precision),
        attention_flops_per_s=gpu.bf16_flops_per_s,
        nvlink_bytes_per_s=gpu.link_bytes_per_s,
    )
