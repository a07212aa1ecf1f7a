"""How long one engine step takes, from what it computes.

A step's time is a SUM: memory reads, matrix multiplications, all-reduces, and what a layer costs
whatever it computes. The usual roofline, the maximum of memory and compute time, supposes that
they overlap and that nothing else takes time; on measured engines it gives less than half of the
time per output token. One overlap is real and kept: the matrix multiplications of decoded tokens
hide behind the read of the weights that they wait for, until they take longer than it.

    step = memory / memory_efficiency + matmul / compute_efficiency + links
           + layers * (layer_us + layer_sequence_us * decodes)

It is linear in four constants of an engine, which `warmroute plan steptime --fit` finds.
docs/step-time.md has the errors, and where the formula is wrong.
"""

from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

FORESEEN_MAX = 64  # decode steps that are timed in one go; what comes between makes them void


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

    def decode_run_us(self, load: StepLoad, num_steps: int) -> list[int]:
        """Return the durations of steps that only decode, the first of which has ``load``.

        Each step's context is longer than that of the one before by a token of every sequence.
        Whoever overrides this must give the same integers.
        """
        tokens, context = load.decode_tokens, load.decode_context_tokens
        return [
            self.step_time_us(
                StepLoad(decode_tokens=tokens, decode_context_tokens=context + tokens * index)
            )
            for index in range(num_steps)
        ]

    def decode_ends_us(self, load: StepLoad, num_steps: int, begins_us: int) -> list[int] | range:
        """Return when those steps end, one after the other, the first of which begins then.

        The first of them will do, where each takes time to foresee.
        """
        run_us = self.decode_run_us(load, min(num_steps, FORESEEN_MAX))
        return list(accumulate(run_us, initial=begins_us))[1:]


@dataclass(frozen=True)
class FixedStepTime(StepTime):
    """A prefill cost for any step that prefills, plus a decode cost for any that decodes."""

    prefill_us: int
    decode_us: int

    def step_time_us(self, load: StepLoad) -> int:
        """See StepTime."""
        prefill_us = self.prefill_us if load.prefill_tokens else 0
        decode_us = self.decode_us if load.decode_tokens else 0
        return max(1, prefill_us + decode_us)

    def decode_run_us(self, load: StepLoad, num_steps: int) -> list[int]:
        """See StepTime."""
        return [self.step_time_us(load)] * num_steps

    def decode_ends_us(self, load: StepLoad, num_steps: int, begins_us: int) -> range:
        """See StepTime."""
        step_us = self.step_time_us(load)
        return range(begins_us + step_us, begins_us + step_us * num_steps + 1, step_us)


@dataclass(frozen=True, kw_only=True)
class EngineSpeed:
    """How well an engine uses its hardware: the four constants of the sum.

    The efficiencies are shares, of the data sheet's memory bandwidth and of the fastest matrix
    multiplication that was measured on the GPU. ``layer_us`` is what a layer costs whatever it
    computes (launches, synchronisation, all-reduce latency inside a node with NVLink), and
    ``layer_sequence_us`` what each decoding sequence adds to it.
    """

    name: str
    memory_efficiency: float
    compute_efficiency: float
    layer_us: float
    layer_sequence_us: float
    source: str

    def __post_init__(self) -> None:
        for name in ("memory_efficiency", "compute_efficiency"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}, must be above 0, at most 1")
        for name in ("layer_us", "layer_sequence_us"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}, must be 0 or more")


MAY_BE_ZERO = frozenset(
    ("expert_bytes", "experts", "experts_per_token")
    + ("link_bytes_per_token", "link_latency_us", "collectives")
)


@dataclass(frozen=True, kw_only=True)
class StepTimeSpec:
    """What one of the GPUs that share a model reads, multiplies and sends, and how fast it can.

    All GPUs of a replica do the same in a step, so one stands for them all. Raises ValueError for
    a number that is not above zero, where zero has no meaning.
    """

    layers: int
    weight_bytes: float  # read in every step: no look-up table, no experts
    expert_bytes: float = 0  # of all experts
    experts: int = 0  # of a layer; 0: a dense model
    experts_per_token: int = 0
    expert_ranks: int = 1  # replicas in lockstep that share the experts; the load is of one
    kv_bytes_per_token: float
    linear_flops_per_token: float  # 2 for each parameter that multiplies a token
    attention_flops_per_pair: float  # 4 * layers * heads * head_dim, for two tokens compared
    link_bytes_per_token: float = 0  # sent in all-reduces
    collectives: int = 0  # all-reduces, or their halves, of one step

    memory_bytes_per_s: float
    linear_flops_per_s: float  # fastest measured at the precision of the weights
    attention_flops_per_s: float  # the same in BF16
    link_bytes_per_s: float = 1.0
    link_latency_us: float = 0

    engine: EngineSpeed

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name == "engine":
                continue
            if value < 0 or (value == 0 and name not in MAY_BE_ZERO):
                raise ValueError(f"{name} is {value}, must be above 0")


@dataclass(frozen=True, slots=True)
class StepTerms:
    """One step in the parts whose sum is its time: us at full speed, and counts."""

    memory_us: float
    compute_us: float
    link_us: float
    layers: float
    layer_sequences: float  # decodes, once for each layer

    def time_us(self, engine: EngineSpeed) -> float:
        """Return the time of these parts on ``engine``."""
        return (
            self.memory_us / engine.memory_efficiency
            + self.compute_us / engine.compute_efficiency
            + self.link_us
            + self.layers * engine.layer_us
            + self.layer_sequences * engine.layer_sequence_us
        )


def experts_touched(experts: int, experts_per_token: int, tokens: int) -> float:
    """Return how many of a layer's experts ``tokens`` tokens use, in expectation.

    Each token draws ``experts_per_token`` of them; one expert is missed by all with probability
    (1 - k/E)^n if tokens draw independently and evenly. Real routers are less even, and touch
    fewer.
    """
    if not experts:
        return 0.0
    return experts * (1.0 - (1.0 - experts_per_token / experts) ** tokens)


class StepTimeModel(StepTime):
    """The sum of this file's docstring, for one StepTimeSpec.

    memory   (weight_bytes + expert_bytes * touched experts / experts
              + context tokens * kv_bytes_per_token) / memory_bytes_per_s
    matmul   linear_flops_per_token * (prefill + decodes that outlast the read of the weights)
             / linear_flops_per_s
             + attention_flops_per_pair * prefill pairs / attention_flops_per_s
               (a decode's attention is hidden by the KV read that it waits for)
    links    collectives * link_latency_us + link_bytes_per_token * tokens / link_bytes_per_s
    """

    def __init__(self, spec: StepTimeSpec) -> None:
        self.spec = spec
        bytes_per_us = spec.memory_bytes_per_s / 1e6
        self._dense_us = spec.weight_bytes / bytes_per_us
        self._expert_us = spec.expert_bytes / bytes_per_us / max(1, spec.experts)
        self._context_us = spec.kv_bytes_per_token / bytes_per_us
        self._token_us = spec.linear_flops_per_token / spec.linear_flops_per_s * 1e6
        self._pair_us = spec.attention_flops_per_pair / spec.attention_flops_per_s * 1e6
        self._link_token_us = spec.link_bytes_per_token / spec.link_bytes_per_s * 1e6
        self._latency_us = spec.collectives * spec.link_latency_us
        self._multiply_constants(spec)

    def _multiply_constants(self, spec: StepTimeSpec) -> None:
        engine = spec.engine
        self._experts, self._ranks = spec.experts, spec.expert_ranks
        self._per_memory = 1 / engine.memory_efficiency
        self._per_compute = 1 / engine.compute_efficiency
        self._fixed_us = self._latency_us + spec.layers * engine.layer_us
        self._context_cost_us = self._context_us * self._per_memory
        self._prefill_cost_us = self._token_us * self._per_compute + self._link_token_us
        self._pair_cost_us = self._pair_us * self._per_compute
        self._decode_cost_us = self._link_token_us + spec.layers * engine.layer_sequence_us

    def terms(self, load: StepLoad) -> StepTerms:
        """Return the parts of a step's time."""
        spec = self.spec
        decodes = load.decode_tokens + load.padded_slots
        tokens = load.prefill_tokens + decodes
        touched = experts_touched(spec.experts, spec.experts_per_token, tokens * spec.expert_ranks)
        weights_us = self._dense_us + self._expert_us * touched
        context = load.prefill_context_tokens + load.decode_context_tokens
        unhidden_us = max(0.0, self._token_us * decodes - weights_us)
        return StepTerms(
            memory_us=weights_us + self._context_us * context,
            compute_us=(
                self._token_us * load.prefill_tokens
                + unhidden_us
                + self._pair_us * load.prefill_attention_pairs
            ),
            link_us=self._latency_us + self._link_token_us * tokens,
            layers=spec.layers,
            layer_sequences=spec.layers * decodes,
        )

    def step_time_us(self, load: StepLoad) -> int:
        """See StepTime."""
        # terms().time_us() with the engine's constants multiplied in: it runs once for each step,
        # and parts as objects would take twice as long.
        decodes = load.decode_tokens + load.padded_slots
        prefills = load.prefill_tokens
        weights_us = self._dense_us
        if self._experts:
            touched = experts_touched(
                self._experts, self.spec.experts_per_token, (prefills + decodes) * self._ranks
            )
            weights_us += self._expert_us * touched
        time_us = (
            self._fixed_us
            + weights_us * self._per_memory
            + (load.prefill_context_tokens + load.decode_context_tokens) * self._context_cost_us
            + prefills * self._prefill_cost_us
            + load.prefill_attention_pairs * self._pair_cost_us
            + decodes * self._decode_cost_us
        )
        unhidden_us = self._token_us * decodes - weights_us
        if unhidden_us > 0:
            time_us += unhidden_us * self._per_compute
        return max(1, round(time_us))

    def decode_run_us(self, load: StepLoad, num_steps: int) -> list[int]:
        """See StepTime."""
        # Only the context changes. The sums are those above in the same order, or the last bit of
        # one, and so a microsecond, could differ.
        decodes, context = load.decode_tokens, load.decode_context_tokens
        weights_us = self._dense_us
        if self._experts:
            touched = experts_touched(
                self._experts, self.spec.experts_per_token, decodes * self._ranks
            )
            weights_us += self._expert_us * touched
        before_us = self._fixed_us + weights_us * self._per_memory
        after_us = decodes * self._decode_cost_us
        unhidden_us = max(0.0, self._token_us * decodes - weights_us) * self._per_compute
        cost_us = self._context_cost_us
        return [
            max(1, round(before_us + total * cost_us + after_us + unhidden_us))
            for total in range(context, context + decodes * num_steps, decodes)
        ]


FITTED = (
    "`warmroute plan steptime --fit` on AIConfigurator 0.12.0's silicon_sample.csv (tests/data/aic)"
)

VLLM = EngineSpeed(
    name="vLLM",
    memory_efficiency=0.887,
    compute_efficiency=0.837,
    layer_us=67.0,
    layer_sequence_us=0.807,
    source=f"{FITTED}: 250 rows of 2025-10 and of 0.12",
)
SGLANG = EngineSpeed(
    name="SGLang",
    memory_efficiency=0.961,
    compute_efficiency=1.0,  # held at its bound: see docs/step-time.md, do not trust it
    layer_us=18.7,
    layer_sequence_us=0.8,
    source=f"{FITTED}: 127 rows of 0.5.1 to 0.5.8",
)
TENSORRT_LLM = EngineSpeed(
    name="TensorRT-LLM",
    memory_efficiency=0.995,
    compute_efficiency=0.796,
    layer_us=61.5,
    layer_sequence_us=0.54,
    source=f"{FITTED}: 484 rows of 1.0rc3 to 1.3rc1 and of 2025-10",
)
ENGINES = {"vllm": VLLM, "sglang": SGLANG, "trtllm": TENSORRT_LLM}
"""The fitted engines, by the names that AIConfigurator gives them."""
