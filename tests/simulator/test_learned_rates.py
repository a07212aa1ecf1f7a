"""What a fleet gains from learning how slow its replicas are, and that an even one loses nothing.

The replicas report no speed that differs: one of them only takes three times as long.
"""

from functools import cache
from statistics import mean

import pytest

from router.core.view import ReplicaView
from simulator.fleet_run import FleetRun
from simulator.summary import Summary, summarise
from warmroute.simulate.settings import Experiment, fleet_of, parse_set, workload_of

pytestmark = pytest.mark.long

WORKLOAD = "groups,groups=20,rate=40,requests=300,question_tokens=800,length_cv=1,output_tokens=30"
SLOW = ("slow:replica=0,at_s=0,for_s=1000,factor=3",)
SEEDS = (1, 2)


@cache
def run(faults: tuple[str, ...], learn: bool, seed: int) -> tuple[Summary, list[ReplicaView]]:
    timing, routing = parse_set([f"routing.learn_rates={learn}"])
    experiment = Experiment(
        workload=WORKLOAD, faults=faults, timing=timing, routing=routing, seed=seed
    )
    fleet_run = FleetRun(fleet_of(experiment), workload_of(experiment))
    fleet_run.run()
    views = [status.view for status in fleet_run.gateways[0].fleet.views()]
    return summarise(fleet_run), views


def test_mixed_fleet_gains_without_tuning() -> None:
    blind, learned = ([run(SLOW, learn, seed)[0] for seed in SEEDS] for learn in (False, True))

    for figure in ("ttft_ms", "e2e_ms"):
        blind_ms, learned_ms = (
            mean(getattr(summary, figure).mean for summary in summaries)
            for summaries in (blind, learned)
        )
        assert learned_ms < 0.97 * blind_ms


def test_slow_replica_is_known_by_the_end_and_the_others_are_not_suspected() -> None:
    for seed in SEEDS:
        slow, *others = run(SLOW, True, seed)[1]

        assert 2 < slow.prefill_slowdown < 4
        assert 1.5 < slow.decode_slowdown < 4
        assert {(each.prefill_slowdown, each.decode_slowdown) for each in others} == {(1, 1)}


def test_even_fleet_is_routed_as_if_nothing_were_learned() -> None:
    for seed in SEEDS:
        assert run((), True, seed)[0] == run((), False, seed)[0]
