"""Chats in virtual time, where the gateway learns what replicas hold: answers are part of it."""

import router.policies  # noqa: F401  # registers every policy by its name
from replicas.core.scheduler_config import SchedulerConfig
from replicas.core.step_time import FixedStepTime
from router.core.config import RoutingConfig
from router.core.policy import build_policy
from simulator.fleet_run import FleetRun
from simulator.fleet_spec import FleetSpec, ReplicaSpec, Timing
from simulator.summary import Summary, summarise
from warmroute.workloads import open_workload

CHATS = "multiturn,conversations=24,turns=4,rate=4,output_tokens=200,message_tokens=60"


def run(*, events: bool, answers: bool) -> Summary:
    engine = SchedulerConfig(
        num_blocks=4_000, block_size=16, max_num_batched_tokens=8_192, max_num_seqs=64
    )
    replica = ReplicaSpec(
        replica_id="replica",
        model="m",
        engine=engine,
        step_time=FixedStepTime(prefill_us=100_000, decode_us=20_000),
        publishes_events=events,
    )
    spec = FleetSpec(
        replicas=replica.copies(3),
        policy=build_policy("prefix_load"),
        timing=Timing(report_interval_us=None),
        routing=RoutingConfig(index_block_bytes=64, index_answers=answers),
    )
    fleet_run = FleetRun(spec, open_workload(CHATS))
    fleet_run.run()
    return summarise(fleet_run)


def test_learning_predicts_chats_as_events_do() -> None:
    exact, learned = run(events=True, answers=True), run(events=False, answers=True)

    assert abs(learned.hit_predicted - learned.hit_actual) < 0.02
    assert abs(learned.hit_actual - exact.hit_actual) < 0.02


def test_without_answers_too_little_is_predicted() -> None:
    learned = run(events=False, answers=False)

    assert learned.hit_predicted < learned.hit_actual - 0.1


def test_with_events_answers_change_nothing() -> None:
    assert run(events=True, answers=True) == run(events=True, answers=False)
