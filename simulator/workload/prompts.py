"""Prompts of one turn: unique ones, one beginning for all, groups with a beginning each."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from contract.options import option
from simulator.draws import Draws, Weighted, zipf_weights
from simulator.request import Segment, SimRequest
from simulator.workload.arrivals import (
    COUNT_MAX,
    TOKENS_MAX,
    PromptSettings,
    arrivals_us,
    check_range,
    length_of,
)
from simulator.workload.segments import SegmentIds

ZIPF_MAX = 10


@dataclass(frozen=True)
class UniqueSettings(PromptSettings):
    """Prompts that share nothing: the least that a prefix cache can do."""


@dataclass(frozen=True)
class HotSettings(PromptSettings):
    """One beginning for all prompts: affinity alone would send everything to one replica."""

    system_tokens: int = option(2_000, "tokens", "beginning that prompts share")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "system_tokens", 1, TOKENS_MAX)


@dataclass(frozen=True)
class GroupSettings(HotSettings):
    """Groups of prompts that share a beginning, some groups more popular than others.

    A request is of the group of rank r with a probability in proportion to 1 / r ** zipf.
    """

    groups: int = option(50, "groups", "each with a beginning of its own")
    zipf: float = option(1.0, "", "exponent of the groups' popularity; 0: all equally popular")
    prompts_per_group: int | None = option(
        None, "prompts", "that repeat as a whole; none: every request asks something new"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "groups", 1, COUNT_MAX)
        check_range(self, "zipf", 0, ZIPF_MAX)
        if self.prompts_per_group is not None:
            check_range(self, "prompts_per_group", 1, COUNT_MAX)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt and the length of its answer."""

    segments: tuple[Segment, ...]
    output_tokens: int


def unique_requests(settings: UniqueSettings, seed: str) -> Iterator[SimRequest]:
    """Yield the requests, in the order of their arrival."""
    lengths = Draws(seed, "lengths")
    ids = SegmentIds()
    return _arriving(_asked(ids, (), settings, lengths), settings, ids, seed)


def hot_requests(settings: HotSettings, seed: str) -> Iterator[SimRequest]:
    """Yield the requests, in the order of their arrival."""
    lengths = Draws(seed, "lengths")
    ids = SegmentIds()
    system = (ids.fresh(settings.system_tokens),)
    return _arriving(_asked(ids, system, settings, lengths), settings, ids, seed)


def group_requests(settings: GroupSettings, seed: str) -> Iterator[SimRequest]:
    """Yield the requests, in the order of their arrival."""
    ids = SegmentIds()
    return _arriving(_grouped(settings, ids, seed), settings, ids, seed)


def shared_prompts(settings: GroupSettings, ids: SegmentIds, draws: Draws) -> list[list[Prompt]]:
    """Return ``prompts_per_group`` prompts for each group."""
    assert settings.prompts_per_group is not None
    return [
        list(
            islice(
                _asked(ids, (ids.fresh(settings.system_tokens),), settings, draws),
                settings.prompts_per_group,
            )
        )
        for _ in range(settings.groups)
    ]


def _grouped(settings: GroupSettings, ids: SegmentIds, seed: str) -> Iterator[Prompt]:
    ranks = Weighted(zipf_weights(settings.groups, settings.zipf))
    popular, lengths = Draws(seed, "popularity"), Draws(seed, "lengths")
    if settings.prompts_per_group is None:
        asked = [
            _asked(ids, (ids.fresh(settings.system_tokens),), settings, lengths)
            for _ in range(settings.groups)
        ]
        while True:
            yield next(asked[ranks.draw(popular)])
    prompts = shared_prompts(settings, ids, lengths)
    while True:
        yield prompts[ranks.draw(popular)][popular.below(settings.prompts_per_group)]


def _asked(
    ids: SegmentIds, system: tuple[Segment, ...], settings: PromptSettings, draws: Draws
) -> Iterator[Prompt]:
    """Yield prompts without end that ask something new after the same beginning."""
    while True:
        question = ids.fresh(length_of(settings.question_tokens, settings.length_cv, draws))
        answer = length_of(settings.output_tokens, settings.length_cv, draws)
        yield Prompt((*system, question), answer)


def _arriving(
    prompts: Iterator[Prompt], settings: PromptSettings, ids: SegmentIds, seed: str
) -> Iterator[SimRequest]:
    times = arrivals_us(settings, Draws(seed, "arrivals"))
    for index, arrival_us in enumerate(islice(times, settings.requests)):
        prompt = next(prompts)
        yield SimRequest(
            request_id=f"request-{index}",
            segments=prompt.segments,
            output_tokens=prompt.output_tokens,
            output_id=ids.new(),
            arrival_us=arrival_us,
        )
