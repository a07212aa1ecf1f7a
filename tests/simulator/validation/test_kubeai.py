"""KubeAI's fleet, and what is measured of each level."""

import pytest

from router.core.request import prefix_key
from router.core.view import NO_ROOT
from simulator.fleet_run import FleetRun
from simulator.validation.catalogue import EXPERIMENTS
from warmroute.workloads import open_workload

HASH = EXPERIMENTS["KubeAI, bounded prefix hash"]
SMALL = "kubeai,levels=20@8+20@16+20@32+20@80,conversations=8,turns=3"


def test_the_hash_reads_the_first_100_characters() -> None:
    routing = HASH.fleet(0).routing
    start = b"x" * 100

    keys = {prefix_key(start + rest, NO_ROOT, routing) for rest in (b"", b"y" * 50, b"z" * 400)}

    assert len(keys) == 1
    assert prefix_key(b"y" + start, NO_ROOT, routing) not in keys


def test_an_l4_has_room_for_the_model_and_for_all_slots_at_the_mean_length() -> None:
    fleet = HASH.fleet(0)

    (engine,) = {replica.engine for replica in fleet.replicas}
    assert len(fleet.replicas) == 8
    assert engine.num_blocks * engine.block_size > engine.max_num_seqs * (832 + 76)


def test_a_level_s_throughput_counts_from_its_own_beginning_to_its_last_end() -> None:
    run = FleetRun(HASH.fleet(0), open_workload(SMALL))
    run.run()

    figures = HASH.measure(run)

    total_s = run.loop.now_us / 1e6
    levels_s = [24 / figures[f"requests_per_s_at_{n}"] for n in (800, 1_600, 3_200, 8_000)]
    assert sum(levels_s) == pytest.approx(total_s, rel=0.05)  # one begins where one has ended
    assert all(figures[f"ttft_s_at_{n}"] > 0 for n in (800, 1_600, 3_200, 8_000))
