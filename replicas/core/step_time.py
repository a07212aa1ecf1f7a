"""How long one engine step takes, from what it computes.

A step's time is the SUM of weight reads, KV reads, compute, all-reduce and a fixed overhead. The
usual roofline, the maximum of memory and compute time, supposes that they overlap; on measured
engines (885 rows of AIConfigurator's table, dense models on A100, H100, H200 and B200) they
hardly do: it under-predicts the time per output token by 25 to 54 %, the sum is off by 18 % in
the mean, and by 9 % on the 252 rows of vLLM with 15 us per all-reduce.
"""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StepLoad:
    """What one step computes, summed over its sequences. Units: tokens.

    A decode is one output token being computed; everything else is prefill, also a resumed
    sequence that computes its output again. ``prefill_attention_pairs`` sums, over chunks of t
    tokens behind c, the t * (c + t/2) pairs of tokens that attention compares. ``padded_slots``
    are slots of a static batch whose sequence has ended: computed, and thrown away.
    """

    prefill_tokens: int = 0
    prefill_context_tokens: int = 0  # sum of c
    prefill_attention_pairs: float = 0
    decode_tokens: int = 0
    decode_context_tokens: int = 0
    padded_slots: int = 0


class StepTime(Protocol):
    """The seam between the engine and what it imitates."""

    def step_time_us(self, load: StepLoad) -> int:
        """Return the duration of a step, at least 1 us, so that virtual time always advances."""


@dataclass(frozen=True)
class FixedStepTime:
    """A prefill cost for any step that prefills, plus a decode cost for any that decodes."""

    prefill_us: int
    decode_us: int

    def step_time_us(self, load: StepLoad) -> int:
        """See StepTime."""
        prefill_us = self.prefill_us if load.prefill_tokens else 0
        decode_us = self.decode_us if load.decode_tokens else 0
        return max(1, prefill_us + decode_us)


@dataclass(frozen=True, kw_only=True)
class StepTimeSpec:
    """A model on ``tensor_parallel`` equal GPUs, in plain numbers.

    Weights, parameters and KV bytes are of the whole model; speeds are of one GPU, as its data
    sheet gives them. Raises ValueError for a number that is not above zero.
    """

    weight_bytes: float  # read in every step: all but the input embedding, with the LM head
    linear_params: float  # parameters that multiply every token: the same set
    kv_bytes_per_token: float  # 2 * layers * kv_heads * head_dim * bytes per element
    kv_heads: int  # beyond this many GPUs each one keeps a copy of a head
    layers: int
    hidden: int
    tensor_parallel: int
    memory_bytes_per_s: float
    linear_flops_per_s: float  # peak at the precision of the weights
    attention_flops_per_s: float  # peak at the precision of attention, usually BF16
    nvlink_bytes_per_s: float  # per direction
    activation_bytes: float = 2  # one element of what an all-reduce carries, BF16

    # Chosen before any fit, and confirmed by it: Vidur's H100 profile of Llama-2-70B at TP8 gives
    # 0.58 of peak for the linear layers of 4,096 tokens; AIConfigurator uses 0.8 of bandwidth.
    memory_efficiency: float = 0.8
    compute_efficiency: float = 0.6
    allreduce_us: float = 10  # latency of one all-reduce; 15 fits vLLM best, 20-30 at TP8
    overhead_us: float = 2_000  # scheduling and launches of one step

    def __post_init__(self) -> None:
        may_be_zero = {"allreduce_us", "overhead_us"}
        for name, value in vars(self).items():
            if value < 0 or (value == 0 and name not in may_be_zero):
                raise ValueError(f"{name} is {value}, must be above 0")


class StepTimeModel:
    """The additive model of this file's docstring for one StepTimeSpec.

    weights      weight_bytes / tp / bandwidth
    KV           context tokens * kv_bytes_per_token / min(tp, kv_heads) / bandwidth
    linear       2 * linear_params * tokens / tp / peak
    attention    4 * layers * hidden * pairs / tp / peak      (prefill; a decode's is hidden by
                                                               the KV read it waits for)
    all-reduce   2 * layers * (latency + tokens * hidden * 2 (tp - 1) / tp / nvlink)
    """

    def __init__(self, spec: StepTimeSpec) -> None:
        self.spec = spec
        tp = spec.tensor_parallel
        bandwidth = spec.memory_bytes_per_s * spec.memory_efficiency / 1e6  # bytes per us
        linear = spec.linear_flops_per_s * spec.compute_efficiency / 1e6  # FLOP per us
        attention = spec.attention_flops_per_s * spec.compute_efficiency / 1e6
        weights_us = spec.weight_bytes / tp / bandwidth
        linear_us = 2 * spec.linear_params / tp / linear
        allreduces = 2 * spec.layers if tp > 1 else 0
        carried_bytes = spec.hidden * spec.activation_bytes * 2 * (tp - 1) / tp
        carry_us = allreduces * carried_bytes / (spec.nvlink_bytes_per_s / 1e6)
        self._step_us = spec.overhead_us + weights_us + allreduces * spec.allreduce_us
        self._token_us = linear_us + carry_us
        self._context_us = spec.kv_bytes_per_token / min(tp, spec.kv_heads) / bandwidth
        self._pair_us = 4 * spec.layers * spec.hidden / tp / attention

    def step_time_us(self, load: StepLoad) -> int:
        """See StepTime."""
        tokens = load.prefill_tokens + load.decode_tokens + load.padded_slots
        context = load.prefill_context_tokens + load.decode_context_tokens
        time_us = (
            self._step_us
            + self._token_us * tokens
            + self._context_us * context
            + self._pair_us * load.prefill_attention_pairs
        )
        return max(1, round(time_us))
