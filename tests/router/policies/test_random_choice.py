"""An unweighted draw: even in the mean, blind to load and match, repeated by the request's id."""

from collections import Counter

import pytest

from router.policies.random_choice import RandomChoice
from tests.router.policies.making import request, view


def test_random_draws_every_replica_alike_whatever_its_load_or_match() -> None:
    replicas = [view("a", 100), view("b"), view("c", 5), view("d")]

    picks = Counter(
        RandomChoice().choose(request(f"{n}", b=64), replicas).replica_id for n in range(4_000)
    )

    assert set(picks) == set("abcd")
    for count in picks.values():
        assert count == pytest.approx(1_000, abs=110)  # four standard deviations


def test_random_sends_one_request_to_one_replica_however_often_it_is_asked() -> None:
    replicas = [view(name) for name in "abcd"]

    picks = {RandomChoice().choose(request("same"), replicas).replica_id for _ in range(10)}

    assert len(picks) == 1
