"""llm-d's scorers: the arithmetic of the docstring, and what a match, no match and a tie do."""

from collections import Counter

import pytest

from contract.options import SettingError
from router.core.policy import build_policy
from router.core.view import ReplicaView
from router.policies.llmd_scorers import LlmdScorers, Match
from tests.router.policies.making import request, view


def used(replica: ReplicaView, kv_usage: float) -> ReplicaView:
    replica.kv_usage = kv_usage
    return replica


REPLICAS = [used(view("a", 4), 0.9), used(view("b", 2), 0.5), view("c")]


@pytest.mark.parametrize(
    ("match", "scores", "pick"),
    [(Match.RELATIVE, [2.1, 1.0, 2.0], "a"), (Match.SHARE, [1.7, 1.8, 2.0], "c")],
)
def test_scores_are_those_of_the_docstring(match: Match, scores: list[float], pick: str) -> None:
    prompt = request(tokens=100, a=80, b=40)
    policy = LlmdScorers(match=match)

    assert policy.scores(prompt, REPLICAS) == pytest.approx(scores)
    assert policy.choose(prompt, REPLICAS).replica_id == pick


def test_equal_matches_all_have_the_full_score_and_no_match_has_none() -> None:
    scores = LlmdScorers(kv_weight=0, requests_weight=0).scores(request(a=32, b=32), REPLICAS)

    assert scores == [2.0, 2.0, 0.0]


@pytest.mark.parametrize("match", list(Match))
def test_beyond_its_limit_a_longer_match_is_worth_no_more(match: Match) -> None:
    policy = LlmdScorers(match=match, match_tokens_max=32, kv_weight=0, requests_weight=0)

    assert policy.scores(request(tokens=100, a=80, b=40), REPLICAS) == [2.0, 2.0, 0.0]


def test_without_any_match_the_load_decides_and_equals_are_drawn() -> None:
    idle = [view(name) for name in "abcd"]

    picks = Counter(LlmdScorers().choose(request(f"{n}"), idle).replica_id for n in range(400))

    assert LlmdScorers().choose(request(), REPLICAS).replica_id == "c"
    for count in picks.values():
        assert count == pytest.approx(100, abs=35)  # four standard deviations
    assert set(picks) == set("abcd")


@pytest.mark.parametrize(
    ("setting", "value"), [("kv_weight", -1.0), ("prefix_weight", "inf"), ("match_tokens_max", 0)]
)
def test_impossible_weight_is_refused_by_name(setting: str, value: object) -> None:
    with pytest.raises(SettingError, match=setting):
        build_policy("llmd_scorers", {setting: value})
