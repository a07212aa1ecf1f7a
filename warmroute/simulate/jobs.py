"""Runs experiments, one after the other or in several processes, and keeps what a report needs.

A result depends on its experiment alone: neither on the number of processes nor on their order.
"""

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing.sharedctypes import Synchronized

from contract.options import SettingError, option
from simulator.fleet_run import FleetRun
from simulator.laws import check_laws
from simulator.summary import Summary, summarise, summarise_stages
from simulator.timeline import Timeline, TimelineTable
from simulator.workload.reuse import ideal_reuse
from simulator.workload.stages import StagedWorkload
from warmroute.simulate.settings import Experiment, fleet_of, workload_of

TTFT_SHARES = 100
"""Parts into which the distribution of the TTFT is cut for its plot."""

TOLD_EVERY = 50
"""Requests between two signs of life: telling of each would cost more than some of them."""

OnEnd = Callable[[int], None]
"""Is told how many more requests have ended."""


@dataclass(frozen=True)
class TimelineSettings:
    """`run`: how often replicas are looked at for the plots over time."""

    timeline_interval_ms: int = option(
        100, "ms", "virtual time between samples; doubles while there are more than the most"
    )
    timeline_samples_max: int = option(400, "samples", "that are kept of each replica")

    def __post_init__(self) -> None:
        if self.timeline_interval_ms < 1:
            raise ValueError(
                f"timeline_interval_ms is {self.timeline_interval_ms}, must be at least 1"
            )
        if self.timeline_samples_max < 2:
            raise ValueError(
                f"timeline_samples_max is {self.timeline_samples_max}, must be at least 2"
            )

    def timeline(self) -> Timeline:
        """Return an empty timeline."""
        return Timeline(self.timeline_interval_ms * 1_000, self.timeline_samples_max)


@dataclass(frozen=True)
class StageResult:
    """One stage of a workload that has several."""

    name: str
    warm_up: bool
    summary: Summary


@dataclass(frozen=True)
class ScaleRow:
    """One change of the fleet by the autoscaler."""

    at_s: float
    in_flight: int
    joining: tuple[str, ...]
    leaving: tuple[str, ...]


@dataclass(frozen=True)
class Result:
    """One run: its figures, and what its plots are made of. Shares 0..1."""

    experiment: Experiment
    provenance: str
    summary: Summary
    hit_ideal: float  # of one endless cache that knows all earlier requests
    stages: tuple[StageResult, ...]  # none where there is one
    ttft_ms: tuple[float, ...]  # at each hundredth of the answered requests, from least to most
    scale_steps: tuple[ScaleRow, ...]
    replica_s: float  # paid for: from being asked for to leaving or the end, over all replicas
    timeline: TimelineTable | None


def run_experiment(
    experiment: Experiment, timeline: TimelineSettings | None = None, on_end: OnEnd | None = None
) -> Result:
    """Run one experiment to its end and check the laws on it."""
    spec = fleet_of(experiment)
    workload = _workload(experiment.workload, experiment.seed)
    told = Told(on_end)
    samples = timeline.timeline() if timeline is not None else None
    run = FleetRun(spec, workload, samples, told.one)
    run.run()
    told.flush()
    check_laws(run)
    block_size = min(replica.engine.block_size for replica in spec.replicas)
    return Result(
        experiment=experiment,
        provenance=workload.provenance,
        summary=summarise(run, experiment.slo),
        hit_ideal=_ideal(experiment.workload, experiment.seed, block_size),
        stages=tuple(_stages(run, experiment)),
        ttft_ms=_quantiles(run),
        scale_steps=tuple(
            ScaleRow(step.at_us / 1e6, step.in_flight, step.joining, step.leaving)
            for step in run.scale_steps
        ),
        replica_s=_replica_s(run),
        timeline=samples.table() if samples is not None else None,
    )


def run_all(
    experiments: Sequence[Experiment], processes: int, on_end: OnEnd | None = None
) -> list[Result]:
    """Run all experiments, in as many processes; return their results in the same order."""
    if processes == 1 or len(experiments) == 1:
        return [run_experiment(each, on_end=on_end) for each in experiments]
    # A fresh interpreter for each: a fork would inherit whatever this process has under way.
    context = multiprocessing.get_context("spawn")
    counter: Synchronized[int] = context.Value("q", 0)
    workers = min(processes, len(experiments))
    with ProcessPoolExecutor(workers, context, _share_counter, (counter,)) as pool:
        futures = [pool.submit(_run_counted, each) for each in experiments]
        try:
            _watch(futures, counter, on_end)
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def num_requests(experiment: Experiment) -> int:
    """Return how many requests the experiment has."""
    workload = _workload(experiment.workload, experiment.seed)
    return sum(len(stage.requests) for stage in workload.stages)


def natural_rate(experiment: Experiment) -> float:
    """Return the mean arrivals per second of a workload in one stage. Raises SettingError."""
    stages = _workload(experiment.workload, experiment.seed).stages
    arrivals = [request.arrival_us for request in stages[0].requests if request.after is None]
    span_us = max(arrivals) - min(arrivals)
    if len(stages) > 1 or not span_us:
        raise SettingError(
            f"--over rate: {experiment.workload!r} has no single rate, sweep over rate_scale"
        )
    return (len(arrivals) - 1) / span_us * 1e6


class Told:
    """Counts ended requests and tells of them now and then."""

    def __init__(self, on_end: OnEnd | None) -> None:
        self._on_end = on_end
        self._untold = 0

    def one(self) -> None:
        """One more has ended."""
        self._untold += 1
        if self._untold == TOLD_EVERY:
            self.flush()

    def flush(self) -> None:
        """Tell of the rest."""
        if self._on_end is not None and self._untold:
            self._on_end(self._untold)
        self._untold = 0


class _Worker:
    """What a process of the pool has from its beginning."""

    counter: "Synchronized[int] | None" = None


def _share_counter(counter: "Synchronized[int]") -> None:
    _Worker.counter = counter


def _run_counted(experiment: Experiment) -> Result:
    counter = _Worker.counter
    assert counter is not None

    def count(num_ended: int) -> None:
        with counter.get_lock():
            counter.value += num_ended

    return run_experiment(experiment, on_end=count)


def _watch(
    futures: Sequence["Future[Result]"], counter: "Synchronized[int]", on_end: OnEnd | None
) -> None:
    """Pass the count on until all have ended or one has failed."""
    pending, told = set(futures), 0
    while pending:
        done, pending = wait(pending, timeout=0.2)
        if on_end is not None and counter.value > told:
            now = counter.value
            on_end(now - told)
            told = now
        for future in done:
            future.result()


@lru_cache(maxsize=2)
def _workload(text: str, seed: int) -> StagedWorkload:
    return workload_of(Experiment(workload=text, seed=seed))


@lru_cache(maxsize=16)
def _ideal(text: str, seed: int, block_size: int) -> float:
    """Return the ceiling of the hit rate: all stages fill the cache, those that count are read."""
    return ideal_reuse(_workload(text, seed).joined().requests, block_size).share


def _stages(run: FleetRun, experiment: Experiment) -> Iterator[StageResult]:
    if len(run.stages) > 1:
        for index, stage in enumerate(run.stages):
            summary = summarise_stages(run, (index,), experiment.slo)
            yield StageResult(stage.name, stage.warm_up, summary)


def _quantiles(run: FleetRun) -> tuple[float, ...]:
    ordered = sorted(
        each.ttft_us / 1_000
        for each in run.outcomes
        if each.ttft_us is not None and not run.stages[each.stage_index].warm_up
    )
    if not ordered:
        return ()
    last = len(ordered) - 1
    return tuple(ordered[last * part // TTFT_SHARES] for part in range(TTFT_SHARES + 1))


def _replica_s(run: FleetRun) -> float:
    end_us = run.loop.now_us
    ends = (end_us if each.left_us is None else each.left_us for each in run.replicas.values())
    starts = (each.started_us for each in run.replicas.values())
    return sum(end - start for start, end in zip(starts, ends, strict=True)) / 1e6
