"""Theory's own formulas against textbook values; and queues with nobody waiting."""

import pytest

from simulator.fleet_run import FleetRun
from simulator.validation.case import Theory
from simulator.validation.catalogue import EXPERIMENTS
from simulator.validation.queueing import erlang_c, queueing_cases
from simulator.workload.stages import Stage, StagedWorkload
from warmroute.workloads import open_workload


@pytest.mark.parametrize(
    ("servers", "load", "waits"),
    [(1, 0.7, 0.7), (2, 1.0, 1 / 3), (10, 8.0, 0.409)],  # the last from Erlang's tables
)
def test_erlang_s_formula_gives_what_the_tables_have(
    servers: int, load: float, waits: float
) -> None:
    assert erlang_c(servers, load) == pytest.approx(waits, abs=5e-4)


def test_equal_lengths_halve_the_wait() -> None:
    waits = {}
    for case in queueing_cases():
        assert isinstance(case.expected, Theory)
        waits[case.experiments[0]] = case.expected.value

    assert waits["M/M/1"] == pytest.approx(1_400 / 3)
    assert waits["M/D/1"] == pytest.approx(waits["M/M/1"] / 2)
    assert waits["M/M/4"] < waits["M/M/1"] / 4


@pytest.mark.parametrize("name", ["M/M/1", "M/D/1", "M/M/4"])
def test_service_lasts_as_long_as_drawn_and_nobody_is_served_twice(name: str) -> None:
    experiment = EXPERIMENTS[name]
    requests = experiment.workload(open_workload, 0).stages[0].requests[:500]
    run = FleetRun(
        experiment.fleet(0), StagedWorkload("some", "", (Stage(name="all", requests=requests),))
    )
    run.run()

    services_ms = [
        ((outcome.e2e_us or 0) - (outcome.queue_us or 0)) / 1_000 for outcome in run.outcomes
    ]
    steps = [request.output_tokens - 1 for request in requests]
    assert sum(services_ms) / 500 == pytest.approx(sum(steps) / 500, rel=1e-4)
    assert {outcome.attempts for outcome in run.outcomes} == {1}
