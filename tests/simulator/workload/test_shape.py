"""Shaping: what each setting changes, what it leaves, and that the provenance tells."""

import pytest

from simulator.request import SimRequest
from simulator.workload.conversations import ConversationSettings, conversation_requests
from simulator.workload.ladder import LadderSettings, ladder_stages
from simulator.workload.prompts import GroupSettings, group_requests
from simulator.workload.reuse import ideal_reuse
from simulator.workload.shape import ShapeSettings, shaped
from simulator.workload.stages import StagedWorkload, one_stage

GROUPS = one_stage("groups", "as is", group_requests(GroupSettings(requests=200, groups=5), "0"))
TALKS = one_stage(
    "talks", "as is", conversation_requests(ConversationSettings(conversations=30), "0")
)


def requests(workload: StagedWorkload, **settings: object) -> tuple[SimRequest, ...]:
    (stage,) = shaped(workload, ShapeSettings(**settings)).stages  # type: ignore[arg-type]
    return stage.requests


def test_nothing_changes_unless_asked_for() -> None:
    assert shaped(GROUPS, ShapeSettings()) == GROUPS


@pytest.mark.parametrize(
    ("settings", "note"),
    [
        ({"first": 5}, "as is; first 5 requests"),
        ({"rate_scale": 2}, "as is; rate x 2"),
        ({"time_scale": 0.5}, "as is; time x 0.5"),
        ({"jitter_ms": 1_500}, "as is; arrivals moved by up to 1500 ms either way, seed '0'"),
        ({"prompt_tokens_max": 9}, "as is; prompts cut to 9 tokens"),
        ({"output_tokens_max": 9}, "as is; answers cut to 9 tokens"),
        ({"share_prefixes": False}, "as is; all prompts made unique"),
    ],
)
def test_the_provenance_tells_each_change(settings: dict[str, float], note: str) -> None:
    shape = ShapeSettings(**settings)  # type: ignore[arg-type]

    assert shaped(GROUPS, shape).provenance == note


def test_a_rate_brings_arrivals_nearer_and_leaves_thinking() -> None:
    for before, after in zip(requests(TALKS), requests(TALKS, rate_scale=2), strict=True):
        assert after.arrival_us == round(before.arrival_us / 2)
        assert after.think_us == before.think_us


def test_time_stretches_arrivals_and_thinking() -> None:
    for before, after in zip(requests(TALKS), requests(TALKS, time_scale=3), strict=True):
        assert after.arrival_us == before.arrival_us * 3
        assert after.think_us == before.think_us * 3


def test_jitter_moves_each_arrival_by_at_most_so_much() -> None:
    moved = {each.request_id: each.arrival_us for each in requests(GROUPS, jitter_ms=300)}

    shifts = [moved[each.request_id] - each.arrival_us for each in requests(GROUPS)]
    assert max(shifts) - min(shifts) <= 2 * 300_000
    assert max(shifts) - min(shifts) > 300_000
    assert sorted(moved.values()) == list(moved.values())
    assert min(moved.values()) == 0


def test_jitter_leaves_who_waits_behind_who_is_waited_for() -> None:
    seen: set[str] = set()
    for each in requests(TALKS, jitter_ms=5_000):
        assert each.after is None or each.after in seen
        assert each.after is None or each.arrival_us == 0
        seen.add(each.request_id)
    assert len(seen) == 150


@pytest.mark.parametrize("tokens_max", [100, 2_000, 2_100, 9_999])  # the beginning has 2,000
def test_a_cut_prompt_keeps_its_beginning(tokens_max: int) -> None:
    cut = requests(GROUPS, prompt_tokens_max=tokens_max)

    for before, after in zip(requests(GROUPS), cut, strict=True):
        assert after.tokens() == before.tokens()[:tokens_max]
        assert all(segment.num_tokens >= 1 for segment in after.segments)


def test_a_cut_answer_is_cut_wherever_a_later_prompt_repeats_it() -> None:
    cut = requests(TALKS, output_tokens_max=50)

    answers = {each.output_id: each.output_tokens for each in cut}
    repeated = [s for each in cut for s in each.segments if s.segment_id in answers]
    assert max(answers.values()) == 50
    assert all(segment.num_tokens == answers[segment.segment_id] for segment in repeated)
    assert len(repeated) > 100


def test_unshared_prompts_keep_their_lengths_and_share_nothing() -> None:
    unshared = requests(GROUPS, share_prefixes=False)

    assert [each.prompt_tokens for each in unshared] == [each.prompt_tokens for each in GROUPS_ALL]
    assert ideal_reuse(GROUPS_ALL, 16).share > 0.8
    assert ideal_reuse(unshared, 16).matched_tokens == 0
    assert len({each.segments[0].segment_id for each in unshared}) == len(unshared)


def test_the_first_requests_may_end_in_the_middle_of_a_ladder() -> None:
    settings = LadderSettings(stages="1x4+2x3")
    ladder = StagedWorkload("ladder", "as is", ladder_stages(settings, "0"))

    assert [len(s.requests) for s in shaped(ladder, ShapeSettings(first=6)).stages] == [4, 2]
    assert [len(s.requests) for s in shaped(ladder, ShapeSettings(first=4)).stages] == [4]


def test_a_ladder_s_stages_shrink_with_its_arrivals() -> None:
    ladder = StagedWorkload("ladder", "", ladder_stages(LadderSettings(stages="1x4+2x4"), "0"))

    fast = shaped(ladder, ShapeSettings(rate_scale=4))

    assert [stage.duration_us for stage in fast.stages] == [1_000_000, 1_000_000]
    assert [each.arrival_us for each in fast.joined().requests][:6] == [
        *(0, 250_000, 500_000, 750_000),
        *(1_000_000, 1_125_000),
    ]


def test_stages_by_the_clock_follow_each_other_and_stay_in_order() -> None:
    settings = LadderSettings(stages="5x10+5x10")
    ladder = StagedWorkload("ladder", "as is", ladder_stages(settings, "0"))

    joined = ladder.joined()

    assert [each.arrival_us for each in joined.requests] == [200_000 * n for n in range(100)]
    assert joined.provenance == "as is; stages by the clock, not drained"


@pytest.mark.parametrize(
    ("name", "value"),
    [("first", 0), ("rate_scale", 0), ("time_scale", -1), ("jitter_ms", -1)]
    + [("prompt_tokens_max", 0), ("output_tokens_max", 0)],
)
def test_an_impossible_setting_is_named(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{name} is {value}, must be from"):
        ShapeSettings(**{name: value})  # type: ignore[arg-type]


GROUPS_ALL = GROUPS.stages[0].requests
