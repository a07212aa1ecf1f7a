"""What else `plan size` asks: other GPU types, and what if something were different.

One seed and a shorter window each: good for comparing, not for ordering hardware.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from contract.hardware import GpuSpec, find_gpu
from simulator.capacity import STEP_MODEL_ERROR
from simulator.sizing.bracket import Bracket, MeanLoad, bracket
from simulator.sizing.memory_fit import DoesNotFitError
from simulator.sizing.question import Question
from simulator.sizing.search import Asking, Found, fewest_replicas
from simulator.sizing.trial import Candidate, Trial, TrialResult
from simulator.sizing.window import Cut

PRUNED_ABOVE = 2.5
"""What costs so many times as much as the cheapest by arithmetic is not looked at."""


@dataclass(frozen=True)
class SweepRow:
    """One kind of replica. ``why_not`` says why it was not simulated, or that the search gave up.

    ``on_front``: no other kind is both cheaper and faster to the first token.
    """

    gpu: str
    gpus: int  # of one replica
    replicas: int | None
    usd_per_month: float | None
    run: TrialResult | None
    why_not: str | None = None
    on_front: bool = False


@dataclass(frozen=True)
class WhatIf:
    """The same question, changed in one thing; one seed."""

    change: str
    replicas: int | None
    gpus: int | None
    usd_per_month: float | None
    run: TrialResult | None
    note: str = ""


class Side:
    """The smaller questions, with one seed and a shorter window: GPU types, and what if."""

    def __init__(self, question: Question) -> None:
        self._question = question
        settings = question.settings
        self._requests_max = settings.sweep_requests_max
        self._cut = self._narrowed(1.0)
        self._load = question.load(self._cut, self._requests_max)
        self._usd_max = float("inf")
        self._rows: list[SweepRow | Trial] = []
        self._changes: list[tuple[str, Trial]] = []

    def searches(self, candidate: Candidate) -> list[Asking[Found]]:
        """Return all searches: those of the GPU types, then those of the changes."""
        question = self._question
        names = question.settings.sweep or tuple(question.prices)
        gpus = dict.fromkeys(find_gpu(name).name for name in names)
        kinds = [(find_gpu(name), count) for name in gpus for count in (1, 2, 4, 8)]
        self._rows = self._pruned([self._row(gpu, count) for gpu, count in kinds])
        asked = self._trial(candidate)
        twice = self._narrowed(2.0)
        percent = round(100 * STEP_MODEL_ERROR)
        self._changes = [
            ("as asked", asked),
            ("traffic x 2", replace(asked, cut=twice)),
            ("half of the KV cache", self._changed(asked, kv_tokens=candidate.kv_tokens // 2)),
            (
                f"steps take {percent} % more",
                self._changed(asked, step_factor=1 + STEP_MODEL_ERROR),
            ),
            (
                f"steps take {percent} % less",
                self._changed(asked, step_factor=1 - STEP_MODEL_ERROR),
            ),
        ]
        trials = [row for row in self._rows if isinstance(row, Trial)]
        searches = [self._search(trial, self._usd_max) for trial in trials]
        return [*searches, *(self._search(trial) for _, trial in self._changes)]

    def sweep(self, found: Sequence[Found]) -> tuple[SweepRow, ...]:
        """Return the rows of the GPU types, the cheapest first, with the front marked."""
        answers = iter(found)
        rows = [
            self._swept(row, next(answers)) if isinstance(row, Trial) else row for row in self._rows
        ]
        return mark_front(rows)

    def what_if(self, found: Sequence[Found]) -> tuple[WhatIf, ...]:
        """Return the rows of the changes."""
        rows = []
        for (change, trial), answer in zip(
            self._changes, found[-len(self._changes) :], strict=True
        ):
            gpus = answer.replicas * trial.candidate.gpus
            usd = self._question.monthly(trial.candidate, answer.replicas)
            note = "" if answer.holds else "does not hold, the search gave up here"
            rows.append(WhatIf(change, answer.replicas, gpus, usd, answer.runs[0], note))
        return tuple(rows)

    def _row(self, gpu: GpuSpec, gpus: int) -> SweepRow | Trial:
        try:
            candidate, _ = self._question.candidate(gpu, gpus)
        except DoesNotFitError:
            return SweepRow(gpu.name, gpus, None, None, None, "the model does not fit")
        low = self._bracket(candidate, self._load)
        if low.impossible:
            return SweepRow(gpu.name, gpus, None, None, None, low.impossible)
        return replace(self._trial(candidate), replicas=low.replicas)

    def _pruned(self, rows: Sequence[SweepRow | Trial]) -> list[SweepRow | Trial]:
        """Replace the trials of what arithmetic finds too dear to be looked at."""
        costs = {
            trial: self._question.monthly(trial.candidate, trial.replicas)
            for trial in rows
            if isinstance(trial, Trial)
        }
        self._usd_max = most = PRUNED_ABOVE * min(costs.values(), default=0.0)
        return [
            SweepRow(
                row.candidate.gpu.name,
                row.candidate.gpus,
                None,
                None,
                None,
                f"not simulated: arithmetic asks for {row.replicas} replicas, "
                f"{costs[row] / most * PRUNED_ABOVE:.1f} x the cheapest",
            )
            if isinstance(row, Trial) and costs[row] > most
            else row
            for row in rows
        ]

    def _swept(self, trial: Trial, answer: Found) -> SweepRow:
        candidate, replicas = trial.candidate, answer.replicas
        usd = self._question.monthly(candidate, replicas)
        name, gpus = candidate.gpu.name, candidate.gpus
        if not answer.holds:
            why_not = f"{replicas} replicas do not hold it, more were not tried"
            return SweepRow(name, gpus, None, None, None, why_not)
        return SweepRow(name, gpus, replicas, usd, answer.runs[0])

    def _trial(self, candidate: Candidate) -> Trial:
        return Trial(
            candidate=candidate,
            replicas=0,
            policy=self._question.settings.policy,
            cut=self._cut,
            limits=self._question.limits,
            requests_max=self._requests_max,
        )

    def _changed(self, trial: Trial, **changes: float) -> Trial:
        return replace(trial, candidate=replace(trial.candidate, **changes))  # type: ignore[arg-type]

    def _narrowed(self, rate_scale: float) -> Cut:
        """Return the main window's beginning, behind its whole warm-up: caches are as full."""
        question = self._question
        settings = question.settings
        cut = question.cut(settings.requests_max)
        load = question.load(cut, settings.requests_max)
        share = min(1.0, self._requests_max / (load.requests_per_s * cut.window_us / 1e6))
        if rate_scale != 1:
            cut = question.cut(settings.requests_max, rate_scale)
        return replace(cut, window_us=max(1, int(cut.window_us * share)))

    def _search(self, trial: Trial, usd_max: float = float("inf")) -> Asking[Found]:
        load = self._load
        if trial.cut.rate_scale != 1:
            load = replace(load, requests_per_s=load.requests_per_s * trial.cut.rate_scale)
        low = self._bracket(trial.candidate, load)
        most = self._question.settings.replicas_max
        most = int(min(most, usd_max / self._question.monthly(trial.candidate, 1)))
        return fewest_replicas(trial, max(1, low.replicas), 1, max(1, most))

    def _bracket(self, candidate: Candidate, load: MeanLoad) -> Bracket:
        question = self._question
        return bracket(candidate, load, question.limits, question.settings.replicas_max)


def mark_front(rows: Sequence[SweepRow]) -> tuple[SweepRow, ...]:
    """Return ``rows``, the cheapest first, those last that have no fleet; mark the Pareto front."""
    marked = []
    fastest_ms = float("inf")
    for row in sorted(rows, key=_cost_order):
        if row.run is not None and row.run.ttft_p99_ms < fastest_ms:
            fastest_ms = row.run.ttft_p99_ms
            row = replace(row, on_front=True)
        marked.append(row)
    return tuple(marked)


def _cost_order(row: SweepRow) -> tuple[float, float]:
    if row.usd_per_month is None or row.run is None:
        return float("inf"), 0.0
    return row.usd_per_month, row.run.ttft_p99_ms


def gone(sweep: Sequence[SweepRow]) -> tuple[WhatIf, ...]:
    """Return, for each GPU type that is the cheapest or on the front, what is best without it."""
    rows = []
    for name in dict.fromkeys(row.gpu for row in sweep if row.on_front):
        left = [row for row in sweep if row.gpu != name and row.replicas is not None]
        change = f"no {name} to be had"
        if not left:
            rows.append(WhatIf(change, None, None, None, None, "no other GPU type will do"))
            continue
        best = left[0]
        assert best.replicas is not None
        note = f"{best.replicas} replicas of {best.gpus} x {best.gpu}"
        gpus = best.replicas * best.gpus
        rows.append(WhatIf(change, best.replicas, gpus, best.usd_per_month, best.run, note))
    return tuple(rows)
