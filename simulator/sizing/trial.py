"""One simulated fleet under one load: what `plan size` asks again and again."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from contract.hardware import GpuSpec, ModelSpec, Precision
from replicas.core.hardware_timing import step_time_spec
from replicas.core.scheduler_config import SchedulerConfig
from replicas.core.step_time import StepTime, StepTimeModel
from router.core.policy import build_policy
from simulator.event_loop import Phase
from simulator.figures import figure
from simulator.fleet_run import FleetRun
from simulator.fleet_spec import Fault, FaultKind, FleetSpec, ReplicaSpec
from simulator.outcome import End, Outcome
from simulator.quantiles import quantile
from simulator.request import SimRequest, Workload
from simulator.sim_replica import PacedStepTime
from simulator.sizing.window import Cut, Window

LATE_SHARE_MAX = 0.01
"""The rule: of 100 requests, one may be late or unanswered."""

CHECK_US = 500_000
"""Virtual time between two looks at whether a run can still hold."""

PATIENCE = 2
"""A client leaves after so many times the longest answer that the SLO allows. It is late by then,
whatever comes; that it leaves keeps a hopeless fleet from piling up work without end."""

BLOCK_SIZE = 16
MODEL = "model"  # one fleet serves one model; its name is of no account


@dataclass(frozen=True, slots=True)
class Limits:
    """The SLO, in microseconds."""

    ttft_us: float
    itl_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One kind of replica, as a fleet has many of. ``step_factor`` stretches its steps."""

    model: ModelSpec
    gpu: GpuSpec
    gpus: int
    precision: Precision
    kv_precision: Precision
    kv_tokens: int
    step_factor: float = 1.0

    def step_time(self) -> StepTime:
        """Return the time of its steps."""
        spec = step_time_spec(self.model, self.gpu, self.gpus, self.precision, self.kv_precision)
        return PacedStepTime(StepTimeModel(spec), self.step_factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run. ``crashed`` is lost at the peak of the window, and does not come back.

    With ``may_stop`` it ends as soon as it can no longer hold the SLO.
    """

    candidate: Candidate
    replicas: int
    policy: str
    cut: Cut
    limits: Limits
    requests_max: int
    seed: int = 0
    crashed: str | None = None
    may_stop: bool = True


class _HopelessError(Exception):
    """The run cannot hold the SLO any more."""


@dataclass(frozen=True, slots=True)
class TrialResult:
    """What became of the judged requests of one run. Milliseconds, shares 0..1."""

    requests: int = figure("requests judged", "requests", "that arrived in the window")
    late_ttft: int = figure("first token late", "requests", "or never")
    late_itl: int = figure("tokens too slow", "requests", "mean ITL above the limit")
    unanswered: int = figure("unanswered", "requests", "refused, failed, or their clients left")
    broken: int = figure("broken", "requests", "lost with their replica, after the first token")
    ttft_p50_ms: float = figure("TTFT p50", "ms", "of those that were answered")
    ttft_p99_ms: float = figure("TTFT p99", "ms", "of those that were answered")
    itl_p99_ms: float = figure("ITL p99", "ms", "mean time between tokens, of each request")
    hit_rate: float = figure("hit rate", "share", "prompt tokens from cache / prompt tokens")
    prompt_tokens_per_s: float = figure("prompts", "tokens/s", "of judged requests / window")
    output_tokens_per_s: float = figure("output", "tokens/s", "of judged requests / window")
    busiest_replica: str = figure("busiest replica", "", "that served most judged requests")
    stopped: bool = False  # the run was ended early, for it could no longer hold

    @property
    def holds(self) -> bool:
        """Say whether the SLO holds: at most 1 % of the judged are late, for either limit."""
        most = LATE_SHARE_MAX * self.requests
        return not self.stopped and self.late_ttft <= most and self.late_itl <= most


def run_trial(trial: Trial, window: Window) -> TrialResult:
    """Run one fleet; the result is a function of its arguments alone."""
    faults = []
    if trial.crashed is not None:
        crash = FaultKind.CRASH
        faults = [
            Fault(
                at_us=window.peak_us,
                kind=crash,
                replica_id=trial.crashed,
                duration_us=10 * (trial.cut.warm_up_us + trial.cut.window_us),
            )
        ]
    spec = FleetSpec(
        replicas=[_replica(trial, index) for index in range(trial.replicas)],
        policy=build_policy(trial.policy, {}),
        faults=faults,
        seed=trial.seed,
    )
    requests = tuple(_patient(request, trial.limits) for request in window.requests)
    run = FleetRun(spec, Workload("window", "", requests))
    judged_count = sum(request.arrival_us >= window.judged_us for request in requests)
    if trial.may_stop:
        run.loop.at(CHECK_US, Phase.END, _check, run, trial.limits, window, judged_count)
    stopped = False
    try:
        run.run()
    except _HopelessError:
        stopped = True
    return _result(trial, _judged(run, window), stopped)


def _patient(request: SimRequest, limits: Limits) -> SimRequest:
    """Return the request as the one model's, of a client that waits PATIENCE times the SLO."""
    allowed_us = limits.ttft_us + limits.itl_us * request.output_tokens
    return replace(request, model=None, patience_us=round(PATIENCE * allowed_us))


def _judged(run: FleetRun, window: Window) -> list[Outcome]:
    return [outcome for outcome in run.outcomes if outcome.arrival_us >= window.judged_us]


def _check(run: FleetRun, limits: Limits, window: Window, judged_count: int) -> None:
    """Stop a run whose late requests are more than 1 % of all that will be judged."""
    judged = [each for each in _judged(run, window) if each.end is not End.BROKEN]
    for late in (_late_ttft(judged, limits), _late_itl(judged, limits)):
        if late > LATE_SHARE_MAX * judged_count:
            raise _HopelessError
    run.loop.at(run.loop.now_us + CHECK_US, Phase.END, _check, run, limits, window, judged_count)


def _late_ttft(judged: Sequence[Outcome], limits: Limits) -> int:
    return sum(
        each.end is not End.COMPLETE or each.ttft_us is None or each.ttft_us > limits.ttft_us
        for each in judged
    )


def _late_itl(judged: Sequence[Outcome], limits: Limits) -> int:
    return sum(
        each.end is not End.COMPLETE or (each.itl_us or 0) > limits.itl_us for each in judged
    )


def _replica(trial: Trial, index: int) -> ReplicaSpec:
    candidate = trial.candidate
    return ReplicaSpec(
        replica_id=f"replica-{index}",
        model=MODEL,
        engine=SchedulerConfig(
            num_blocks=candidate.kv_tokens // BLOCK_SIZE + 1,
            block_size=BLOCK_SIZE,
            max_model_len=candidate.model.context_tokens_max,
        ),
        step_time=candidate.step_time(),
    )


def _result(trial: Trial, judged: list[Outcome], stopped: bool) -> TrialResult:
    limits = trial.limits
    # What broke when its replica died says nothing of the room that was left: no number of
    # replicas saves it. It is counted, and shown, by itself.
    broken = [each for each in judged if each.end is End.BROKEN]
    whole = [each for each in judged if each.end is not End.BROKEN]
    ttft_us = sorted(each.ttft_us for each in whole if each.ttft_us is not None)
    itl_us = sorted(each.itl_us for each in whole if each.itl_us is not None)
    prompt_tokens = sum(each.request.prompt_tokens for each in whole)
    seconds = trial.cut.window_us / 1e6
    served: dict[str, int] = {}
    for each in judged:
        if each.replica_id is not None:
            served[each.replica_id] = served.get(each.replica_id, 0) + 1
    return TrialResult(
        requests=len(judged),
        late_ttft=_late_ttft(whole, limits),
        late_itl=_late_itl(whole, limits),
        unanswered=sum(each.end is not End.COMPLETE for each in whole),
        broken=len(broken),
        ttft_p50_ms=_quantile_ms(ttft_us, 0.5),
        ttft_p99_ms=_quantile_ms(ttft_us, 0.99),
        itl_p99_ms=_quantile_ms(itl_us, 0.99),
        hit_rate=sum(each.cached_tokens for each in whole) / max(1, prompt_tokens),
        prompt_tokens_per_s=prompt_tokens / seconds,
        output_tokens_per_s=sum(each.output_tokens for each in judged) / seconds,
        busiest_replica=max(sorted(served), key=lambda name: served[name], default=""),
        stopped=stopped,
    )


def _quantile_ms(ordered: list[int] | list[float], share: float) -> float:
    return quantile(ordered, share) / 1_000 if ordered else 0.0
