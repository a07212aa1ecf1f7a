"""How many GPUs a load needs, found by running it through fleets of all sizes that may do.

The rule: a fleet holds the SLO if in every seed's run at most 1 % of the judged requests have
their first token later than the TTFT limit, or no answer, and at most 1 % have a mean ITL above
the ITL limit or no answer. The answer is the smallest fleet that holds it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from contract.options import SettingError
from simulator.figures import figure
from simulator.sizing.bracket import Bracket, MeanLoad, bracket
from simulator.sizing.memory_fit import DoesNotFitError, MemoryFit
from simulator.sizing.prices import HOURS_PER_MONTH
from simulator.sizing.question import Question
from simulator.sizing.search import (
    Found,
    Measure,
    each_of,
    fewest_replicas,
    remembered,
    run_together,
    with_one_lost,
)
from simulator.sizing.side import Side, SweepRow, WhatIf, gone
from simulator.sizing.trial import Candidate, Trial, TrialResult
from simulator.sizing.window import Cut
from simulator.statistics import Estimate, estimate

RATE_SCALES = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0)


@dataclass(frozen=True)
class Answer:
    """A fleet that holds the SLO, or the largest one tried. Estimates are over the seeds."""

    policy: str
    holds: bool
    replicas: int = figure("replicas", "replicas", "the fewest that hold the SLO, by simulation")
    gpus: int = figure("GPUs", "GPUs", "replicas x GPUs per replica")
    usd_per_month: float = figure("cost", "USD/month", "GPUs x price per hour x 730 h")
    usd_per_million_tokens: float = figure(
        "cost of a million tokens",
        "USD",
        "cost / prompt (cached ones, too) and output tokens, at the window's rate",
    )
    usd_per_million_output_tokens: float = figure(
        "of a million output tokens", "USD", "cost / output tokens, at the window's rate"
    )
    ttft_p50_ms: Estimate = figure("TTFT p50", "ms", "simulated")
    ttft_p99_ms: Estimate = figure("TTFT p99", "ms", "simulated")
    itl_p99_ms: Estimate = figure("ITL p99", "ms", "simulated; mean ITL of each request")
    hit_rate: Estimate = figure("hit rate", "share", "simulated; of prompt tokens")
    late: tuple[int, ...] = figure(
        "late or unanswered", "list", "requests of each seed's run, the worse of the two limits"
    )
    broken: tuple[int, ...] = figure(
        "broken answers", "list", "of each seed's run, begun on the replica that was lost"
    )
    one_less: TrialResult | None = None
    trials: int = 0


@dataclass(frozen=True)
class RateRow:
    """The chosen fleet under another rate; one seed."""

    rate_scale: float
    requests_per_s: float
    run: TrialResult
    holds: bool


@dataclass(frozen=True)
class SizePlan:
    """Everything that was found."""

    gpu: str
    tensor_parallel: int
    usd_per_gpu_hour: float
    fit: MemoryFit
    load: MeanLoad
    cut: Cut
    bracket: Bracket
    chosen: Answer
    spare: Answer  # with one replica lost at the peak
    baseline: Answer
    saved_gpus: int
    saved_usd_per_month: float
    saved_usd_per_million_tokens: float
    rates: tuple[RateRow, ...]
    knee: float | None  # requests per second: the highest rate of the sweep up to which all hold
    sweep: tuple[SweepRow, ...]
    what_if: tuple[WhatIf, ...]
    trials: int


def plan_size(question: Question, measure: Measure) -> SizePlan:
    """Answer ``question``; ``measure`` runs trials, wherever there are CPUs.

    Raises SettingError, naming what would do, where the chosen GPU cannot hold the model or the
    SLO.
    """
    settings = question.settings
    measure = remembered(measure)
    cut = question.cut(settings.requests_max)
    load = question.load(cut, settings.requests_max)
    candidate, fit, low = _chosen(question, load)
    asked = Trial(
        candidate=candidate,
        replicas=0,
        policy=settings.policy,
        cut=cut,
        limits=question.limits,
        requests_max=settings.requests_max,
    )
    compared = replace(asked, policy=settings.baseline)
    seeds, most = settings.seeds, settings.replicas_max
    side = Side(question)
    main = [fewest_replicas(trial, low.replicas, seeds, most) for trial in (asked, compared)]
    found, found_baseline, *others = run_together([*main, *side.searches(candidate)], measure)
    chosen = _answer(question, asked, found)
    baseline = _answer(question, compared, found_baseline)
    spare, rates = _stressed(question, asked, found, measure)
    sweep = side.sweep(others)
    used = sum(each.trials for each in (found, found_baseline, *others)) + spare.trials
    return SizePlan(
        gpu=candidate.gpu.name,
        tensor_parallel=candidate.gpus,
        usd_per_gpu_hour=question.price(candidate.gpu.name),
        fit=fit,
        load=load,
        cut=cut,
        bracket=low,
        chosen=chosen,
        spare=spare,
        baseline=baseline,
        saved_gpus=baseline.gpus - chosen.gpus,
        saved_usd_per_month=baseline.usd_per_month - chosen.usd_per_month,
        saved_usd_per_million_tokens=(
            baseline.usd_per_million_tokens - chosen.usd_per_million_tokens
        ),
        rates=rates,
        knee=_knee(rates),
        sweep=sweep,
        what_if=(*side.what_if(others), *gone(sweep)),
        trials=used + len(rates),
    )


def _chosen(question: Question, load: MeanLoad) -> tuple[Candidate, MemoryFit, Bracket]:
    """Return the replica that was asked for, or that of which arithmetic asks for fewest GPUs."""
    given = question.settings.tensor_parallel
    if given is not None:
        candidate, fit = question.candidate(question.gpu, given)
        low = bracket(candidate, load, question.limits, question.settings.replicas_max)
        if low.impossible:
            raise SettingError(_impossible(candidate, low.impossible))
        return candidate, fit, low
    able = []
    why = ""
    for gpus in (1, 2, 4, 8):
        try:
            candidate, fit = question.candidate(question.gpu, gpus)
        except DoesNotFitError as error:
            why = why or str(error)
            continue
        low = bracket(candidate, load, question.limits, question.settings.replicas_max)
        if low.impossible:
            why = _impossible(candidate, low.impossible)
        else:
            able.append((candidate, fit, low))
    if not able:
        raise SettingError(why)
    return min(able, key=lambda each: each[2].replicas * each[0].gpus)


def _impossible(candidate: Candidate, reason: str) -> str:
    return (
        f"no number of replicas of {candidate.gpus} x {candidate.gpu.name} will do: {reason}; "
        "use more GPUs per replica, a faster GPU, --precision fp8, shorter requests or a "
        "higher limit"
    )


def _answer(question: Question, asked: Trial, found: Found) -> Answer:
    runs = found.runs
    per_month = question.monthly(asked.candidate, found.replicas)
    per_s = per_month / (HOURS_PER_MONTH * 3_600)
    output = sum(run.output_tokens_per_s for run in runs) / len(runs)
    tokens = output + sum(run.prompt_tokens_per_s for run in runs) / len(runs)
    return Answer(
        policy=asked.policy,
        holds=found.holds,
        replicas=found.replicas,
        gpus=found.replicas * asked.candidate.gpus,
        usd_per_month=per_month,
        usd_per_million_tokens=per_s / max(tokens, 1e-9) * 1e6,
        usd_per_million_output_tokens=per_s / max(output, 1e-9) * 1e6,
        ttft_p50_ms=estimate([run.ttft_p50_ms for run in runs]),
        ttft_p99_ms=estimate([run.ttft_p99_ms for run in runs]),
        itl_p99_ms=estimate([run.itl_p99_ms for run in runs]),
        hit_rate=estimate([run.hit_rate for run in runs]),
        late=tuple(max(run.late_ttft, run.late_itl) for run in runs),
        broken=tuple(run.broken for run in runs),
        one_less=found.one_less,
        trials=found.trials,
    )


def _stressed(
    question: Question, asked: Trial, found: Found, measure: Measure
) -> tuple[Answer, tuple[RateRow, ...]]:
    """Return the fleet that may lose a replica, and the chosen one under other rates."""
    settings = question.settings
    fleets = [
        replace(
            asked,
            replicas=found.replicas,
            cut=question.cut(settings.requests_max, rate_scale),
            may_stop=False,
        )
        for rate_scale in RATE_SCALES
    ]
    losing = with_one_lost(asked, found.replicas, settings.seeds, settings.replicas_max + 1)
    spare, runs = run_together([losing, each_of(fleets)], measure)
    assert isinstance(spare, Found)
    assert isinstance(runs, tuple)
    rates = tuple(
        RateRow(rate_scale, run.requests * 1e6 / fleet.cut.window_us, run, run.holds)
        for rate_scale, fleet, run in zip(RATE_SCALES, fleets, runs, strict=True)
    )
    return _answer(question, asked, spare), rates


def _knee(rates: Sequence[RateRow]) -> float | None:
    knee = None
    for row in rates:
        if not row.holds:
            break
        knee = row.requests_per_s
    return knee
