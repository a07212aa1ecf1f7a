"""A timeline keeps a bounded number of samples, at equal distances, and changes no run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.fleet_run import FleetRun
from simulator.fuzz import fuzz_case
from simulator.timeline import ReplicaSample, Timeline

SAMPLE = ReplicaSample(running=1, waiting=2, kv_usage=0.5)


@given(num_samples=st.integers(1, 300), samples_max=st.integers(2, 20))
def test_samples_are_few_and_at_equal_distances(num_samples: int, samples_max: int) -> None:
    timeline, now_us, last_us = Timeline(1_000, samples_max), 0, 0

    for _ in range(num_samples):
        last_us, now_us = now_us, timeline.take(now_us, {"a": SAMPLE})
        assert now_us > last_us

    at_s = timeline.table().at_s
    assert len(at_s) <= samples_max
    assert at_s == tuple(k * timeline.interval_us / 1e6 for k in range(len(at_s)))
    assert last_us < len(at_s) * timeline.interval_us, "the end is missing"


def test_a_replica_is_none_where_it_is_not_in_the_fleet() -> None:
    timeline = Timeline(1_000_000, 10)

    timeline.take(0, {"a": SAMPLE})
    timeline.take(1_000_000, {"a": SAMPLE, "b": SAMPLE})
    timeline.take(2_000_000, {"b": SAMPLE})

    table = timeline.table()
    assert table.at_s == (0.0, 1.0, 2.0)
    assert table.replicas["a"].running == (1, 1, None)
    assert table.replicas["b"].kv_usage == (None, 0.5, 0.5)


@pytest.mark.parametrize("seed", range(12))
def test_looking_at_a_run_does_not_change_it(seed: int) -> None:
    case = fuzz_case(seed)

    plain, watched = (
        FleetRun(case.spec, case.workload, timeline) for timeline in (None, Timeline(700, 50))
    )

    def outcomes(run: FleetRun) -> list[tuple[object, ...]]:
        return [
            (each.request.request_id, each.end, each.replica_id, each.ttft_us, each.e2e_us)
            for each in run.run()
        ]

    assert outcomes(plain) == outcomes(watched)
