"""The weathers: what is asked of which fleet, and what counts as a good answer there.

A weather is one kind of traffic on one fleet. Each is run at three loads, which are parts of its
knee: the rate up to which nearly all answers are good (`bench.weather_run.find_knee`).
"""

from dataclasses import dataclass
from enum import Enum

from contract.hardware import Precision

LOADS = {"half": 0.5, "knee": 1.0, "over": 1.2}
"""Rates as parts of the knee."""

SEEDS = 3


class Window(Enum):
    """What another seed changes in a workload, besides how ties fall."""

    DRAWN = "drawn"  # all that a generator draws
    CUT = "cut"  # the window of the recording, and up to 1.5 s of each arrival


@dataclass(frozen=True, slots=True)
class Gpus:
    """Replicas of one kind. ``step_tokens`` is vLLM's default for such a GPU."""

    gpu: str
    replicas: int
    tensor_parallel: int = 1
    step_tokens: int = 8_192


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """One kind of traffic on one fleet. ``workload`` is as `warmroute load` reads it."""

    name: str
    meaning: str
    workload: str
    requests: int
    window: Window = Window.DRAWN
    model: str = "llama-3.1-8b"
    precision: Precision = Precision.BF16
    fleet: tuple[Gpus, ...] = (Gpus("h100", 4),)
    block_tokens: int = 64
    kv_tokens: int | None = None  # of each replica; None: what the memory has room for
    slow_factor: float = 1.0  # how much slower the first replica is than its reports say
    num_gateways: int = 1
    report_interval_ms: int = 100
    ttft_ms_max: float = 1_000.0  # of a good answer
    itl_ms_max: float = 100.0  # of a good answer, mean over its tokens
    shares_prefixes: bool = True


ZIPF = (
    "groups,groups=400,zipf=1,system_tokens=4000,question_tokens=300,output_tokens=200"
    ",length_cv=0.7,requests=1500,rate=20"
)
_H100_70B = (Gpus("h100", 4, tensor_parallel=4),)
_H100_32B = (Gpus("h100", 8, tensor_parallel=2),)
_L4 = (Gpus("l4", 8, step_tokens=2_048),)
_MIXED = (Gpus("h100", 2), Gpus("l40s", 2, step_tokens=2_048))


def _stale(interval_ms: int) -> Weather:
    return Weather(
        name=f"stale-{interval_ms}",
        meaning=f"as zipf, through 4 gateways that tell each other all {interval_ms:,} ms",
        workload=ZIPF,
        requests=1_500,
        num_gateways=4,
        report_interval_ms=interval_ms,
    )


_WEATHERS = (
    Weather(
        name="conversation",
        meaning="Mooncake's conversations: prompts of 12,035 tokens",
        workload="conversation",
        requests=1_200,
        window=Window.CUT,
        block_tokens=512,
        kv_tokens=2_560_000,
        ttft_ms_max=3_000,
    ),
    Weather(
        name="synthetic",
        meaning="Mooncake's synthetic trace: 65 % of the tokens shared",
        workload="synthetic",
        requests=1_200,
        window=Window.CUT,
        block_tokens=512,
        kv_tokens=2_560_000,
        ttft_ms_max=3_000,
    ),
    Weather(
        name="llm-d 37",
        meaning="llm-d's 249 prompts in turn, prefixes fill half of the caches",
        workload="llmd-37,stages=2x500,warm_up=,spacing=poisson",
        requests=1_000,
        model="llama-3.1-70b",
        fleet=_H100_70B,
        kv_tokens=461_376,
    ),
    Weather(
        name="llm-d 73",
        meaning="llm-d's 750 prompts in turn, prefixes fill 73 % of the caches",
        workload="llmd-73,stages=10x150,warm_up=,in_flight_max=none",
        requests=1_500,
        model="qwen3-32b",
        fleet=_H100_32B,
        kv_tokens=307_328,
    ),
    Weather(
        name="kubeai",
        meaning="KubeAI's conversations, sent in pieces, on small GPUs",
        workload="kubeai,levels=10@8000,conversations=200",
        requests=2_000,
        precision=Precision.FP8,
        fleet=_L4,
    ),
    Weather(
        name="azure-code",
        meaning="Azure's code completion: bursts, nothing shared",
        workload="azure-code",
        requests=1_500,
        window=Window.CUT,
        shares_prefixes=False,
    ),
    Weather(
        name="azure-conv",
        meaning="Azure's conversations: nothing shared",
        workload="azure-conv",
        requests=1_500,
        window=Window.CUT,
        shares_prefixes=False,
    ),
    Weather(
        name="hot",
        meaning="one beginning of 8,000 tokens for all",
        workload="hot,system_tokens=8000,question_tokens=300,output_tokens=200,length_cv=1"
        ",requests=1500",
        requests=1_500,
    ),
    Weather(
        name="zipf",
        meaning="400 beginnings of 4,000 tokens, popular as 1 / rank",
        workload=ZIPF,
        requests=1_500,
    ),
    Weather(
        name="multiturn",
        meaning="chats of 6 turns with 5 s to think, whose prompts grow to 13,000 tokens",
        workload="multiturn,conversations=250,turns=6,message_tokens=1500,output_tokens=300"
        ",system_tokens=2000,rate=4,think_s=5",
        requests=1_500,
        fleet=(Gpus("h100", 2),),
    ),
    Weather(
        name="mixed",
        meaning="as zipf, on 2 H100 and 2 L40S that report their speed",
        workload=ZIPF,
        requests=1_500,
        fleet=_MIXED,
    ),
    Weather(
        name="one-slow",
        meaning="as zipf, one of 4 replicas 3 times as slow as it reports",
        workload=ZIPF,
        requests=1_500,
        slow_factor=3.0,
    ),
    *map(_stale, (10, 100, 1_000)),
)

WEATHERS = {weather.name: weather for weather in _WEATHERS}
