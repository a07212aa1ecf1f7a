"""The simulator against a live fleet: the demo's processes, the same trace, the same figures.

Replicas run at half of the imitated GPU's speed. Faster ones have shorter steps, of which the time
that real processes take for a request would be a part worth noting. The trace tells arrivals in
batches of some seconds. They are spread here: of requests that come at one instant the simulator
puts many into one step, but a real client sends the first of them earlier.
"""

import asyncio
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from contract.hardware import find_gpu, find_model
from replicas.core.hardware_timing import step_time_spec
from replicas.core.scheduler_config import SchedulerConfig
from replicas.core.step_time import StepTimeModel
from router.core.policy import build_policy
from simulator.draws import Draws
from simulator.fleet_run import FleetRun
from simulator.fleet_spec import FleetSpec, ReplicaSpec
from simulator.request import Segment, SimRequest, Workload
from simulator.sim_replica import PacedStepTime
from simulator.summary import summarise as summarise_run
from simulator.validation.case import Case, Figures, about, figure_of, near
from simulator.workload.segments import SegmentIds
from warmroute.demo.fleet import DemoConfig, running_fleet, start_redis
from warmroute.demo.processes import Child, stop_all
from warmroute.demo.redis_server import find_redis
from warmroute.demo.replay import replay
from warmroute.demo.report import summarise as summarise_replay
from warmroute.demo.workload import BLOCK_TOKENS, TraceRequest, demo_trace

POLICY = "prefix_load"
FLEET = DemoConfig(speedup=0.5, time_compression=2.4, requests=1_000)
EXPERIMENT = "live"
HIT_POINT = 0.01
TTFT_SHARE = 0.10
TOKEN_CHARACTERS = 4
BATCH_S = 3.0  # between two instants of the trace
JITTER_S = 0.01
SIMULATIONS = 10
"""Which of two replicas is chosen may hang on a millisecond, and all that follows on that: with
arrivals that differ by JITTER_S the hit rate of this trace moves by a point in either direction."""


class LiveFleetError(Exception):
    """The live fleet did not serve what it was sent, so there is nothing to compare."""


@dataclass(frozen=True)
class LiveCheck:
    """What the live fleet gave, and the cases that compare it with the simulator."""

    cases: tuple[Case, ...]
    figures: Figures
    cpu_s: float  # of the simulation


def check_live() -> LiveCheck:
    """Replay the demo's trace through real processes, then through the simulator.

    Raises LiveFleetError, StartError or NoRedisServerError where there is nothing to compare.
    """
    requests = spread(demo_trace(FLEET.requests))
    live = asyncio.run(_live(requests))
    began_s = time.process_time()
    simulated = _simulated(requests)
    cpu_s = time.process_time() - began_s
    name = (
        f"live fleet, {FLEET.replicas} replicas at speed {FLEET.speedup:g}, {POLICY}, "
        f"{FLEET.requests:,} requests"
    )
    source = (
        "Real processes on one machine (`--live`): got is one live run, expected the mean of "
        f"{SIMULATIONS} simulations with arrivals that differ by up to {JITTER_S * 1e3:g} ms"
    )
    note = (
        "Steps take the same time in both; a live request also waits for real processes, so run "
        "this on a machine that does nothing else."
    )
    cases = (
        Case(
            name=f"{name}: reused / prompt tokens",
            expected=near(simulated["hit"], HIT_POINT),
            experiments=(EXPERIMENT,),
            value=figure_of("hit"),
            source=source,
        ),
        Case(
            name=f"{name}: TTFT p50",
            expected=about(simulated["ttft_ms_p50"], TTFT_SHARE),
            experiments=(EXPERIMENT,),
            value=figure_of("ttft_ms_p50"),
            form=".1f",
            unit="ms",
            source=source,
            notes=(note,),
        ),
    )
    return LiveCheck(cases, live, cpu_s)


async def _live(requests: list[TraceRequest]) -> Figures:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="warmroute-live-")))
        children: list[Child] = []
        stack.push_async_callback(stop_all, children)
        redis_url = await start_redis(find_redis(), folder, children)
        fleet = await stack.enter_async_context(running_fleet(FLEET, POLICY, redis_url, folder))
        result = await replay(
            [fleet.url], FLEET.model, requests, FLEET.time_compression, lambda _: None
        )
    row = summarise_replay(POLICY, result)
    if row.errors:
        raise LiveFleetError(
            f"{row.errors} of {row.requests} requests to the live fleet failed, expected none: "
            f"{row.errors_by_kind}"
        )
    return {"hit": row.hit_rate_actual, "ttft_ms_p50": row.ttft_p50_s * 1e3}


def spread(requests: list[TraceRequest]) -> list[TraceRequest]:
    """Return the requests in the order of their arrivals, each moved by a part of a batch."""
    return _moved(requests, BATCH_S, Draws("live", "arrivals"))


def _moved(requests: list[TraceRequest], by_s: float, draws: Draws) -> list[TraceRequest]:
    moved = [
        replace(request, arrival_s=request.arrival_s + by_s * draws.uniform())
        for request in requests
    ]
    return sorted(moved, key=lambda request: request.arrival_s)


def _simulated(requests: list[TraceRequest]) -> Figures:
    """Return the mean of some runs with arrivals that differ as those of real clients do."""
    jitter_s = JITTER_S * FLEET.time_compression
    runs = [
        _simulate(_moved(requests, jitter_s, Draws("live", "jitter", number)))
        for number in range(SIMULATIONS)
    ]
    return {name: fmean(run[name] for run in runs) for name in runs[0]}


def _simulate(requests: list[TraceRequest]) -> Figures:
    model, gpu = find_model(FLEET.model), find_gpu(FLEET.gpu)
    replicas = ReplicaSpec(
        replica_id="replica",
        model=FLEET.model,
        engine=SchedulerConfig(num_blocks=FLEET.kv_blocks + 1),
        step_time=PacedStepTime(StepTimeModel(step_time_spec(model, gpu)), 1 / FLEET.speedup),
    ).copies(FLEET.replicas)
    spec = FleetSpec(replicas=replicas, policy=build_policy(POLICY))
    run = FleetRun(spec, Workload("demo", "the demo's trace", tuple(as_simulated(requests))))
    run.run()
    summary = summarise_run(run)
    return {"hit": summary.hit_actual, "ttft_ms_p50": summary.ttft_ms.p50}


def as_simulated(requests: list[TraceRequest]) -> list[SimRequest]:
    """Return the same requests in segments: equal blocks of text have equal ids."""
    ids = SegmentIds()
    blocks: dict[str, int] = {}
    return [
        SimRequest(
            request_id=request.request_id,
            segments=tuple(_segments(request.prompt, blocks, ids)),
            output_tokens=request.output_tokens,
            output_id=ids.new(),
            arrival_us=round(request.arrival_s / FLEET.time_compression * 1e6),
        )
        for request in requests
    ]


def _segments(prompt: str, blocks: dict[str, int], ids: SegmentIds) -> list[Segment]:
    """Return one segment for each block; the last, in part, is one that is known or a new one."""
    size = BLOCK_TOKENS * TOKEN_CHARACTERS
    segments = []
    for start in range(0, len(prompt), size):
        text = prompt[start : start + size]
        block = blocks.get(text)
        if block is None:
            block = blocks[text] = ids.new()
        segments.append(Segment(block, len(text) // TOKEN_CHARACTERS))
    return segments
