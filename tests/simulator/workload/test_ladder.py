"""Stage ladders: the published numbers, the cyclic order of prompts, and what a stage may be."""

from itertools import pairwise
from statistics import fmean

import pytest

from simulator.workload.arrivals import Spacing
from simulator.workload.kubeai import KubeAiSettings, kubeai_stages
from simulator.workload.ladder import (
    LadderSettings,
    Llmd37Settings,
    Llmd73Settings,
    ladder_stages,
)


@pytest.mark.parametrize(
    ("settings", "counted", "prompts", "prefix_tokens"),
    [
        # 83 x 8,000 + 249 x 1,000 tokens are 49 % of 4 x 461,376.
        (Llmd37Settings(), [630, 720, 600, 720, 720, 700, 720, 750, 1_000], 249, 913_000),
        # 150 x 6,000 + 750 x 1,200 tokens are 73 % of 8 x 307,328.
        (
            Llmd73Settings(),
            [60, 200, 300, 760, 748, 750, 750, 735, 1_520, 1_548, 1_518, 1_470, 1_508, 1_485]
            + [1_482, 1_500],
            750,
            1_800_000,
        ),
    ],
    ids=["37", "73"],
)
def test_the_published_ladders_have_their_numbers(
    settings: LadderSettings, counted: list[int], prompts: int, prefix_tokens: int
) -> None:
    stages = ladder_stages(settings, "0")

    distinct = {each.segments for stage in stages for each in stage.requests}
    segments = {segment for each in distinct for segment in each}
    assert [len(stage.requests) for stage in stages if not stage.warm_up] == counted
    assert [stage.warm_up for stage in stages] == [True] + [False] * len(counted)
    assert len(distinct) == prompts
    assert sum(segment.num_tokens for segment in segments) == prefix_tokens
    assert {each.output_tokens for stage in stages for each in stage.requests} == {1_000}


def test_prompts_are_sent_in_one_shuffled_order_again_and_again_over_all_stages() -> None:
    settings = LadderSettings(stages="1x10+1x10", groups=3, prompts_per_group=2)

    sent = [each.segments for stage in ladder_stages(settings, "0") for each in stage.requests]

    assert len(set(sent[:6])) == 6
    assert sent == (sent[:6] * 4)[:20]
    assert [each[0] for each in sent[:6]] != sorted(
        (each[0] for each in sent[:6]), key=lambda segment: segment.segment_id
    )


def test_request_ids_are_those_of_the_whole_ladder() -> None:
    stages = ladder_stages(LadderSettings(stages="1x2+1x2", warm_up="1x1"), "0")

    ids = [each.request_id for stage in stages for each in stage.requests]
    assert ids == [f"request-{number}" for number in range(5)]


def test_even_stages_are_exact_and_poisson_stages_have_their_rate() -> None:
    (even,) = ladder_stages(LadderSettings(stages="4x2"), "0")
    settings = LadderSettings(stages="50x100", spacing=Spacing.POISSON)
    (poisson,) = ladder_stages(settings, "0")

    assert [each.arrival_us for each in even.requests] == [250_000 * n for n in range(8)]
    gaps = [b.arrival_us - a.arrival_us for a, b in pairwise(poisson.requests)]
    assert abs(fmean(gaps) - 20_000) < 4 * 20_000 / 5_000**0.5
    assert len(set(gaps)) > 4_000


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ("", "stages is ''"),
        ("4x180+5", "stages has '5', expected a rate, x and seconds"),
        ("4xten", "stages has '4xten', expected"),
        ("0x5", "stages has '0x5', expected a rate above 0"),
        ("nanx5", "stages has 'nanx5', expected a rate above 0"),
        ("5xinf", "stages has '5xinf', .* a duration above 0"),
        ("1000000x1000", "must name 1 to 10000000 requests"),
    ],
)
def test_stages_that_cannot_be_are_refused(stages: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LadderSettings(stages=stages)


def test_only_even_and_poisson_stages_have_a_length() -> None:
    with pytest.raises(ValueError, match="spacing is gamma, must be even or poisson"):
        LadderSettings(spacing=Spacing.GAMMA)


def test_kubeai_s_levels_send_the_same_8000_prompts_in_the_same_order() -> None:
    stages = kubeai_stages(KubeAiSettings(), "0")

    assert [stage.in_flight_max for stage in stages] == [800, 1_600, 3_200, 8_000]
    assert {len(stage.requests) for stage in stages} == {8_000}
    assert len({tuple(each.segments for each in stage.requests) for stage in stages}) == 1
    requests = stages[0].requests
    assert fmean(each.prompt_tokens for each in requests) == pytest.approx(832, rel=0.02)
    assert fmean(each.output_tokens for each in requests) == pytest.approx(76, rel=0.02)


def test_kubeai_s_prompts_are_pieces_of_growing_conversations() -> None:
    settings = KubeAiSettings(levels="8@8", conversations=20, turns=4)

    (stage,) = kubeai_stages(settings, "0")

    pieces = {each.segments for each in stage.requests}
    assert sorted(len(piece) for piece in pieces) == [1] * 20 + [3] * 20 + [5] * 20 + [7] * 20
    assert all(piece[:-2] in pieces for piece in pieces if len(piece) > 1)


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        ("", "levels is empty"),
        ("800", "levels has '800', expected a rate, @ and a number of requests"),
        ("0@8", "levels has '0@8', expected a rate above 0"),
        ("8@0", "levels has '8@0', expected .* 1 to"),
    ],
)
def test_levels_that_cannot_be_are_refused(levels: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KubeAiSettings(levels=levels)
