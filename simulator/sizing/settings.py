"""The question that `plan size` answers: a model, a load, and what a good answer is."""

from dataclasses import dataclass

from contract.hardware import Precision
from contract.options import option
from router.core.policy import DEFAULT_POLICY
from simulator.figures import check_above_zero

SEEDS_MAX = 30
REQUESTS_MAX = 1_000_000
MAY_BE_ZERO = frozenset({"length_cv", "warm_up_s", "shared_tokens"})


@dataclass(frozen=True)
class SizeSettings:
    """`plan size`: what is served, by what, and how fast it must be."""

    model: str = option("llama-3.1-70b", "", "a known model, or the path of its config.json")
    gpu: str = option("h100", "", "a known GPU")
    tensor_parallel: int | None = option(
        None, "GPUs", "GPUs that share one copy of the model; none: as arithmetic finds cheapest"
    )
    precision: Precision = option(Precision.BF16, "", "of the weights")  # a field
    kv_precision: Precision = option(Precision.BF16, "", "of the KV cache")  # a field
    memory_share: float = option(0.9, "0..1", "part of the GPU memory that the engine may use")

    trace: str | None = option(
        None, "", "a workload (conversation, mooncake:FILE, azure:FILE, ...); none: drawn as below"
    )
    rate: float = option(10.0, "1/s", "requests per second, Poisson")
    prompt_tokens: int = option(500, "tokens", "mean length of what is new in a prompt")
    shared_tokens: int = option(
        6_000, "tokens", "beginning that the prompts of one group share; 0: nothing is shared"
    )
    groups: int = option(150, "groups", "of prompts, all equally popular")
    output_tokens: int = option(300, "tokens", "mean length of an answer")
    length_cv: float = option(0.5, "", "standard deviation / mean of the lengths, lognormal")

    ttft_p99_ms: float = option(1_000.0, "ms", "99 of 100 requests have their first token by then")
    itl_p99_ms: float = option(
        50.0, "ms", "99 of 100 requests have their further tokens, on average, so far apart"
    )
    policy: str = option(DEFAULT_POLICY, "", "routing policy of the fleet")
    baseline: str = option("least_loaded", "", "routing policy that it is compared with")

    seeds: int = option(3, "runs", "of each answer; the SLO must hold in every one")
    window_s: float = option(60.0, "s", "judged; of a longer trace, its busiest so many seconds")
    warm_up_s: float = option(30.0, "s", "before the window: fills the caches, is not judged")
    requests_max: int = option(
        1_000, "requests", "of one run; a window with more is shortened, and so is its warm-up"
    )
    sweep_requests_max: int = option(
        250, "requests", "judged in a run, where GPU types and changes are compared"
    )
    sweep: tuple[str, ...] = option((), "", "GPU types to compare; none: all that have a price")
    prices: tuple[str, ...] = option((), "USD/h", "GPU=PRICE of one GPU, instead of the default")
    replicas_max: int = option(64, "replicas", "where the search gives up")

    def __post_init__(self) -> None:
        check_above_zero(self, may_be_zero=MAY_BE_ZERO)
        if not 0.01 <= self.memory_share <= 1:
            raise ValueError(f"memory_share is {self.memory_share:g}, must be from 0.01 to 1")
        for name, most in (
            ("seeds", SEEDS_MAX),
            ("requests_max", REQUESTS_MAX),
            ("sweep_requests_max", REQUESTS_MAX),
        ):
            if getattr(self, name) > most:
                raise ValueError(f"{name} is {getattr(self, name)}, must be at most {most}")
