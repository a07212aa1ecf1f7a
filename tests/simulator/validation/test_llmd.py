"""The ladders' fleets, what is measured on them, and small ones run to the end."""

from dataclasses import replace
from math import inf

import pytest

from simulator.fleet_run import FleetRun
from simulator.validation.catalogue import CASES, EXPERIMENTS
from simulator.validation.ladder_figures import knee_qps
from warmroute.workloads import open_workload

SMALL = "ladder,stages=1x4+4x5,warm_up=2x2,groups=3,prompts_per_group=2,output_tokens=20"


@pytest.mark.parametrize(
    ("ladder", "knee"),
    [
        ([(3.0, 1.0), (4.0, 100.0)], 3.5),  # 10 s lies half way between 1 and 100 in logarithms
        ([(3.0, 20.0), (4.0, 40.0)], 3.0),
        ([(3.0, 1.0), (4.0, 10.0)], inf),
        ([(3.0, 1.0), (4.0, 0.5), (6.0, 50.0)], 4.0 + 2.0 * 0.6505),
    ],
)
def test_the_knee_is_where_the_latency_first_passes_the_limit(
    ladder: list[tuple[float, float]], knee: float
) -> None:
    assert knee_qps(ladder, 10.0) == pytest.approx(knee, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "replicas", "kv_tokens"),
    [("llm-d 37, random", 4, 461_376), ("llm-d 73, precise", 8, 307_328)],
)
def test_a_ladder_has_the_fleet_that_was_published(
    name: str, replicas: int, kv_tokens: int
) -> None:
    fleet = EXPERIMENTS[name].fleet(0)

    engines = [replica.engine for replica in fleet.replicas]
    assert len(engines) == replicas
    assert {(each.num_blocks - 1) * each.block_size for each in engines} == {kv_tokens // 64 * 64}


def test_only_the_precise_way_is_told_what_replicas_cache() -> None:
    tells = {
        name: {replica.publishes_events for replica in each.fleet(0).replicas}
        for name, each in EXPERIMENTS.items()
        if name.startswith("llm-d")
    }

    assert {name for name, told in tells.items() if told == {True}} == {
        "llm-d 37, precise",
        "llm-d 73, precise",
    }


def test_the_small_index_forgets_what_replicas_still_hold() -> None:
    routing = EXPERIMENTS["llm-d 37, approximate, small index"].fleet(0).routing

    held = routing.index_entries_max / 4 * routing.index_block_bytes / 4
    assert held == pytest.approx(86_000, rel=0.03)  # of 461,376 tokens


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name.startswith("llm-d 37")])
def test_a_ladder_gives_every_figure_that_its_cases_ask_for(name: str) -> None:
    """A small ladder, on the rates that cases ask for."""
    rates = "+".join(f"{rate}x1" for rate in (6, 8, 15, 20))
    small = replace(
        EXPERIMENTS[name],
        workload=lambda opener, seed: opener(f"{SMALL.replace('1x4+4x5', rates)},seed={seed}"),
    )

    figures = small.run(open_workload, 0)

    for case in CASES:
        if set(case.experiments) == {name} and "knee" not in case.name:
            assert case.value([figures]) > 0
    assert figures == small.run(open_workload, 0)


def test_warm_up_is_not_measured() -> None:
    experiment = EXPERIMENTS["llm-d 37, random"]
    workload = open_workload(SMALL.replace("1x4+4x5", "6x2"))
    run = FleetRun(experiment.fleet(0), workload)
    run.run()

    figures = experiment.measure(run)

    assert "itl_ms_at_6" in figures
    assert "itl_ms_at_2" not in figures
