"""The levels at which KubeAI compared its prefix hash: recorded conversations, re-sent in pieces.

Source: https://github.com/substratusai/kubeai, docs/benchmarks/prefix-aware-load-balancing.md: a
prompt is a conversation up to one of its user's messages, and the 8,000 prompts of 800
conversations are sent in random order. The texts are not here; lengths are drawn so that prompts
have 832 and answers 76 tokens in the mean, as reported (6,656,338 and 608,447 tokens in all).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from contract.options import option
from simulator.draws import Draws
from simulator.request import Segment, SimRequest
from simulator.workload.arrivals import (
    COUNT_MAX,
    CV_MAX,
    RATE_MAX,
    TOKENS_MAX,
    ArrivalSettings,
    arrivals_us,
    check_range,
    length_of,
)
from simulator.workload.prompts import Prompt
from simulator.workload.segments import SegmentIds
from simulator.workload.stages import Stage


@dataclass(frozen=True)
class KubeAiSettings:
    """KubeAI's four levels, 8 replicas of Llama-3.1-8B: rate and most requests under way.

    The caches stay warm from one level to the next; name a single level for cold ones.
    """

    levels: str = option(
        "800@800+200@1600+200@3200+800@8000",
        "1/s @ requests",
        "arrivals per second @ most requests under way, with +",
    )
    conversations: int = option(800, "conversations", "that prompts are pieces of")
    turns: int = option(10, "prompts", "of each conversation, each with all before it")
    message_tokens: int = option(89, "tokens", "mean length of a user's message")
    output_tokens: int = option(76, "tokens", "mean length of an answer")
    length_cv: float = option(
        1.0, "", "standard deviation / mean of both lengths, lognormal; not reported"
    )

    def __post_init__(self) -> None:
        for name in ("conversations", "turns"):
            check_range(self, name, 1, COUNT_MAX)
        for name in ("message_tokens", "output_tokens"):
            check_range(self, name, 1, TOKENS_MAX)
        check_range(self, "length_cv", 0, CV_MAX)
        if not self.steps:
            raise ValueError("levels is empty, must name at least one, such as 800@800")

    @property
    def steps(self) -> tuple["Level", ...]:
        """The levels in order; raises ValueError for one that cannot be read."""
        return tuple(map(_level, self.levels.split("+") if self.levels else ()))


@dataclass(frozen=True, slots=True)
class Level:
    """One run of all prompts."""

    rate: float
    in_flight_max: int


def kubeai_stages(settings: KubeAiSettings, seed: str) -> tuple[Stage, ...]:
    """Return one stage for each level, of the same prompts in the same order."""
    ids = SegmentIds()
    numbers = count()
    prompts = Draws(seed, "order").shuffled(_prompts(settings, ids, Draws(seed, "lengths")))
    return tuple(
        Stage(
            name=f"{level.rate:g}@{level.in_flight_max}",
            requests=tuple(_requests(level, index, prompts, ids, numbers, seed)),
            in_flight_max=level.in_flight_max,
        )
        for index, level in enumerate(settings.steps)
    )


def _prompts(settings: KubeAiSettings, ids: SegmentIds, draws: Draws) -> Iterator[Prompt]:
    """Yield the prompts; the answers in them are the recorded ones, not the engine's."""
    for _ in range(settings.conversations):
        context: tuple[Segment, ...] = ()
        for _ in range(settings.turns):
            message = ids.fresh(length_of(settings.message_tokens, settings.length_cv, draws))
            answer = ids.fresh(length_of(settings.output_tokens, settings.length_cv, draws))
            yield Prompt((*context, message), answer.num_tokens)
            context = (*context, message, answer)


def _requests(
    level: Level,
    level_index: int,
    prompts: list[Prompt],
    ids: SegmentIds,
    numbers: Iterator[int],
    seed: str,
) -> Iterator[SimRequest]:
    times = arrivals_us(ArrivalSettings(rate=level.rate), Draws(seed, "arrivals", level_index))
    for prompt in prompts:
        yield SimRequest(
            request_id=f"request-{next(numbers)}",
            segments=prompt.segments,
            output_tokens=prompt.output_tokens,
            output_id=ids.new(),
            arrival_us=next(times),
        )


def _level(text: str) -> Level:
    rate_text, _, in_flight_text = text.partition("@")
    try:
        level = Level(float(rate_text), int(in_flight_text))
    except ValueError:
        raise ValueError(
            f"levels has {text!r}, expected a rate, @ and a number of requests, such as 800@1600"
        ) from None
    if not (0 < level.rate <= RATE_MAX and 0 < level.in_flight_max <= COUNT_MAX):
        raise ValueError(
            f"levels has {text!r}, expected a rate above 0 and at most {RATE_MAX}, "
            f"and 1 to {COUNT_MAX} requests"
        )
    return level
