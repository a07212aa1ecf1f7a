"""Unique, hot and grouped prompts: what is shared, what repeats, which group is asked for."""

from collections import Counter

import pytest

from simulator.workload.prompts import (
    GroupSettings,
    HotSettings,
    UniqueSettings,
    group_requests,
    hot_requests,
    unique_requests,
)
from simulator.workload.reuse import ideal_reuse


def test_unique_prompts_share_nothing() -> None:
    requests = list(unique_requests(UniqueSettings(requests=200), "0"))

    ids = [segment.segment_id for each in requests for segment in each.segments]
    ids += [each.output_id for each in requests]
    assert len(set(ids)) == 400
    assert ideal_reuse(requests, 16).matched_tokens == 0


def test_hot_prompts_share_their_beginning_and_nothing_else() -> None:
    settings = HotSettings(requests=200, system_tokens=1_600, question_tokens=100)

    requests = list(hot_requests(settings, "0"))

    assert len({each.segments[0] for each in requests}) == 1
    assert len({each.segments[1] for each in requests}) == 200
    assert ideal_reuse(requests, 16).matched_tokens == 199 * 1_600


def test_groups_have_a_beginning_each() -> None:
    requests = list(group_requests(GroupSettings(requests=500, groups=5), "0"))

    assert len({each.segments[0] for each in requests}) == 5
    assert len({each.segments[1] for each in requests}) == 500


def test_a_group_is_asked_as_often_as_its_rank_says() -> None:
    settings = GroupSettings(requests=20_000, groups=3, zipf=2)

    counts = Counter(each.segments[0] for each in group_requests(settings, "0"))

    shares = [count / 20_000 for _, count in counts.most_common()]
    total = 1 + 1 / 4 + 1 / 9
    assert shares == pytest.approx([1 / total, 1 / 4 / total, 1 / 9 / total], abs=0.014)


def test_whole_prompts_repeat_when_a_group_has_so_many() -> None:
    settings = GroupSettings(requests=500, groups=5, prompts_per_group=3, zipf=0)

    requests = list(group_requests(settings, "0"))

    assert len({each.segments for each in requests}) == 15
    assert len({each.segments[0] for each in requests}) == 5
    assert len({each.output_id for each in requests}) == 500


def test_a_repeated_prompt_has_the_same_answer_length() -> None:
    settings = GroupSettings(requests=300, groups=3, prompts_per_group=3, length_cv=1)

    lengths = {(each.segments, each.output_tokens) for each in group_requests(settings, "0")}

    assert len(lengths) == 9


def test_popularity_does_not_change_with_the_lengths() -> None:
    def groups_of(length_cv: float) -> list[int]:
        settings = GroupSettings(requests=100, groups=5, length_cv=length_cv)
        return [each.segments[0].segment_id for each in group_requests(settings, "0")]

    order = {segment_id: rank for rank, segment_id in enumerate(sorted(set(groups_of(0))))}
    other = {segment_id: rank for rank, segment_id in enumerate(sorted(set(groups_of(1))))}
    assert [order[each] for each in groups_of(0)] == [other[each] for each in groups_of(1)]


@pytest.mark.parametrize(
    ("name", "value"),
    [("requests", 0), ("groups", 0), ("zipf", -1), ("prompts_per_group", 0), ("system_tokens", 0)],
)
def test_an_impossible_setting_is_named(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{name} is {value}, must be from"):
        GroupSettings(**{name: value})  # type: ignore[arg-type]
