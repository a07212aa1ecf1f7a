"""From a model and a GPU of the catalogue to the numbers that a step's time is made of."""

from dataclasses import replace

from contract.hardware import GpuSpec, ModelSpec, Precision
from replicas.core.step_time import VLLM, EngineSpeed, StepTimeSpec

ACTIVATION_BYTES = 2
"""One element of what an all-reduce carries, BF16."""


def step_time_spec(
    model: ModelSpec,
    gpu: GpuSpec,
    tensor_parallel: int = 1,
    precision: Precision = Precision.BF16,
    kv_precision: Precision = Precision.BF16,
    engine: EngineSpeed = VLLM,
) -> StepTimeSpec:
    """Return the spec of ``model`` spread over ``tensor_parallel`` GPUs.

    Whether the weights fit is the planner's question, not asked here. Raises ValueError if the
    attention heads cannot be shared out evenly, as engines require.
    """
    if tensor_parallel < 1 or model.heads % tensor_parallel:
        raise ValueError(
            f"{model.name} has {model.heads} attention heads, which {tensor_parallel} GPUs cannot "
            "share evenly; choose a number of GPUs that divides them"
        )
    gpus = tensor_parallel
    # A ring all-reduce sends (n - 1) / n of the data twice; one follows the attention and one the
    # MLP of every layer.
    ring_bytes = model.hidden * ACTIVATION_BYTES * 2 * (gpus - 1) / gpus
    return StepTimeSpec(
        layers=model.layers,
        weight_bytes=model.always_read_parameters * precision.element_bytes / gpus,
        expert_bytes=model.expert_parameters * precision.element_bytes / gpus,
        experts=model.experts,
        experts_per_token=model.experts_per_token,
        # Beyond one GPU per KV head, each further one keeps a copy and reads it.
        kv_bytes_per_token=model.kv_bytes_per_token(kv_precision) / min(gpus, model.kv_heads),
        # Only sampled tokens meet the head, and their share of it hides behind its read.
        linear_flops_per_token=2 * (model.linear_parameters - model.vocab * model.hidden) / gpus,
        attention_flops_per_pair=4 * model.layers * model.heads * model.head_dim / gpus,
        link_bytes_per_token=2 * model.layers * ring_bytes,
        collectives=2 * model.layers if gpus > 1 else 0,
        memory_bytes_per_s=gpu.memory_bytes_per_s,
        linear_flops_per_s=gpu.matmul_flops_per_s(precision),
        attention_flops_per_s=gpu.matmul_flops_per_s(Precision.BF16),
        link_bytes_per_s=gpu.allreduce_bytes_per_s,
        link_latency_us=gpu.link_latency_us,
        engine=engine,
    )


def expert_parallel_spec(
    model: ModelSpec,
    gpu: GpuSpec,
    ranks: int,
    precision: Precision = Precision.BF16,
    kv_precision: Precision = Precision.BF16,
    engine: EngineSpeed = VLLM,
) -> StepTimeSpec:
    """Return the spec of one of ``ranks`` replicas in lockstep, one GPU each, that share experts.

    Each has all of the model but the experts, of which it has an equal part (vLLM: data parallel
    with expert parallel). Its step lasts as long as that of the busiest rank: that is the load to
    give. In every layer an all-gather brings each rank the tokens of all, and a reduce-scatter
    the results back.
    """
    alone = step_time_spec(model, gpu, 1, precision, kv_precision, engine)
    return replace(
        alone,
        expert_bytes=alone.expert_bytes / ranks,
        expert_ranks=ranks,
        link_bytes_per_token=model.layers * model.hidden * ACTIVATION_BYTES * 2 * (ranks - 1),
        collectives=2 * model.layers if ranks > 1 else 0,
    )
