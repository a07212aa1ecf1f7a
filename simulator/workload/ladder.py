"""Stage ladders: rising rates over prompts that repeat, as benchmarks of prefix routing climb them.

The client is that of inference-perf (https://github.com/kubernetes-sigs/inference-perf): prompts
are shuffled once, then sent in that order again and again, over all stages. The order matters: it
is the worst for an LRU cache, and independent draws would break a replica later.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, count, cycle

from contract.options import option
from simulator.draws import Draws
from simulator.request import SimRequest
from simulator.workload.arrivals import (
    COUNT_MAX,
    RATE_MAX,
    TOKENS_MAX,
    ArrivalSettings,
    Spacing,
    arrivals_us,
    check_range,
)
from simulator.workload.prompts import GroupSettings, Prompt, shared_prompts
from simulator.workload.segments import SegmentIds
from simulator.workload.stages import Stage

DURATION_S_MAX = 1_000_000


@dataclass(frozen=True)
class LadderSettings:
    """Rates that rise stage by stage, over groups of prompts that repeat as a whole."""

    stages: str = option("2x60+4x60+8x60", "1/s x s", "rate x duration of each stage, with +")
    warm_up: str = option("", "1/s x s", "stages before them that are not to be counted")
    spacing: Spacing = option(Spacing.EVEN, "", "even or poisson gaps between arrivals")
    groups: int = option(50, "groups", "each with a beginning of its own")
    prompts_per_group: int = option(4, "prompts", "different ones in a group")
    system_tokens: int = option(4_000, "tokens", "beginning that a group shares")
    question_tokens: int = option(500, "tokens", "rest of a prompt")
    output_tokens: int = option(500, "tokens", "length of every answer")
    in_flight_max: int | None = option(
        None, "requests", "that the client has under way at a time; none: any number"
    )

    def __post_init__(self) -> None:
        for name in ("groups", "prompts_per_group"):
            check_range(self, name, 1, COUNT_MAX)
        for name in ("system_tokens", "question_tokens", "output_tokens"):
            check_range(self, name, 1, TOKENS_MAX)
        if self.in_flight_max is not None:
            check_range(self, "in_flight_max", 1, COUNT_MAX)
        if self.spacing not in (Spacing.EVEN, Spacing.POISSON):
            raise ValueError(f"spacing is {self.spacing.value}, must be even or poisson")
        if not self.steps or sum(step.requests for step in self.steps) > COUNT_MAX:
            raise ValueError(f"stages is {self.stages!r}, must name 1 to {COUNT_MAX} requests")

    @property
    def steps(self) -> tuple["Step", ...]:
        """The warm-up's steps, then the others."""
        return (
            *parse_steps("warm_up", self.warm_up, warm_up=True),
            *parse_steps("stages", self.stages),
        )


@dataclass(frozen=True)
class Llmd37Settings(LadderSettings):
    """llm-d's "37-capacity": 4 replicas of Llama-3.1-70B, prefixes fill half of the fleet's cache.

    Source: https://github.com/llm-d/llm-d-kv-cache-manager, commit a378f5b,
    benchmarking/37-capacity. Each replica's cache held 461,376 tokens.
    """

    stages: str = option(
        "3x210+4x180+5x120+6x120+8x90+10x70+12x60+15x50+20x50",
        "1/s x s",
        "rate x duration of each stage, with +",
    )
    warm_up: str = option("9x30", "1/s x s", "stages before them that are not to be counted")
    groups: int = option(83, "groups", "each with a beginning of its own")
    prompts_per_group: int = option(3, "prompts", "different ones in a group")
    system_tokens: int = option(8_000, "tokens", "beginning that a group shares")
    question_tokens: int = option(1_000, "tokens", "rest of a prompt")
    output_tokens: int = option(1_000, "tokens", "length of every answer")


@dataclass(frozen=True)
class Llmd73Settings(LadderSettings):
    """llm-d's "73-capacity": 8 replicas of Qwen3-32B, prefixes fill 73 % of the fleet's cache.

    Source: https://github.com/llm-d/llm-d-kv-cache-manager, commit a378f5b,
    benchmarking/73-capacity. Each replica's cache held 307,328 tokens. The report does not say how
    many requests its client kept under way; 800 (8 processes of 100) fits its figures.
    """

    stages: str = option(
        "3x20+10x20+15x20+20x38+22x34+25x30+30x25+35x21+40x38+43x36+46x33+49x30+52x29+55x27+57x26"
        "+60x25",
        "1/s x s",
        "rate x duration of each stage, with +",
    )
    warm_up: str = option("15x50", "1/s x s", "stages before them that are not to be counted")
    spacing: Spacing = option(Spacing.POISSON, "", "even or poisson gaps between arrivals")
    groups: int = option(150, "groups", "each with a beginning of its own")
    prompts_per_group: int = option(5, "prompts", "different ones in a group")
    system_tokens: int = option(6_000, "tokens", "beginning that a group shares")
    question_tokens: int = option(1_200, "tokens", "rest of a prompt")
    output_tokens: int = option(1_000, "tokens", "length of every answer")
    in_flight_max: int | None = option(
        800, "requests", "that the client has under way at a time; none: any number"
    )


@dataclass(frozen=True, slots=True)
class Step:
    """One stage as it is planned."""

    rate: float
    duration_s: float
    warm_up: bool = False

    @property
    def requests(self) -> int:
        """Requests of the stage, rounded down as in inference-perf."""
        return int(self.rate * self.duration_s)

    @property
    def name(self) -> str:
        """As `parse_steps` reads it."""
        return f"{self.rate:g}x{self.duration_s:g}"


def parse_steps(setting: str, text: str, *, warm_up: bool = False) -> tuple[Step, ...]:
    """Return the steps written as ``rate x seconds + ...``; raises ValueError for anything else."""
    steps = []
    for item in text.split("+") if text else ():
        rate_text, _, duration_text = item.partition("x")
        try:
            step = Step(float(rate_text), float(duration_text), warm_up)
        except ValueError:
            raise ValueError(
                f"{setting} has {item!r}, expected a rate, x and seconds, such as 4x180"
            ) from None
        if not (0 < step.rate <= RATE_MAX and 0 < step.duration_s <= DURATION_S_MAX):
            raise ValueError(
                f"{setting} has {item!r}, expected a rate above 0 and at most {RATE_MAX}, "
                f"and a duration above 0 and at most {DURATION_S_MAX} s"
            )
        steps.append(step)
    return tuple(steps)


def ladder_stages(settings: LadderSettings, seed: str) -> tuple[Stage, ...]:
    """Return the stages, warm-up first."""
    ids = SegmentIds()
    numbers = count()
    prompts = cycle(_prompts(settings, ids, seed))
    return tuple(
        Stage(
            name=step.name,
            requests=tuple(_requests(settings, step, index, prompts, ids, numbers, seed)),
            duration_us=round(step.duration_s * 1_000_000),
            in_flight_max=settings.in_flight_max,
            warm_up=step.warm_up,
        )
        for index, step in enumerate(settings.steps)
    )


def _prompts(settings: LadderSettings, ids: SegmentIds, seed: str) -> list[Prompt]:
    groups = GroupSettings(
        groups=settings.groups,
        prompts_per_group=settings.prompts_per_group,
        system_tokens=settings.system_tokens,
        question_tokens=settings.question_tokens,
        output_tokens=settings.output_tokens,
    )
    prompts = shared_prompts(groups, ids, Draws(seed, "lengths"))
    return Draws(seed, "order").shuffled(chain.from_iterable(prompts))


def _requests(
    settings: LadderSettings,
    step: Step,
    step_index: int,
    prompts: Iterator[Prompt],
    ids: SegmentIds,
    numbers: Iterator[int],
    seed: str,
) -> Iterator[SimRequest]:
    arrivals = ArrivalSettings(rate=step.rate, spacing=settings.spacing)
    times = arrivals_us(arrivals, Draws(seed, "arrivals", step_index))
    for _ in range(step.requests):
        prompt = next(prompts)
        yield SimRequest(
            request_id=f"request-{next(numbers)}",
            segments=prompt.segments,
            output_tokens=prompt.output_tokens,
            output_id=ids.new(),
            arrival_us=next(times),
        )
