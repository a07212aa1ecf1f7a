"""``warmroute plan size``: how many GPUs hold an SLO, found by simulation.

Here the workload is opened or drawn, trials run in as many processes as there are CPUs, and the
answer is printed. What is computed is in `simulator.sizing.plan`.
"""

import argparse
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from math import ceil
from pathlib import Path

import router.policies  # noqa: F401  # registers all of them, also in the processes
from contract.hardware import ModelSpec, find_gpu
from contract.options import SettingError
from router.core.policy import POLICIES
from simulator.request import SimRequest
from simulator.sizing.plan import RATE_SCALES, SizePlan, plan_size
from simulator.sizing.prices import prices_of
from simulator.sizing.question import Question
from simulator.sizing.search import Measure
from simulator.sizing.settings import SizeSettings
from simulator.sizing.trial import Trial, TrialResult, run_trial
from simulator.sizing.window import take
from warmroute.flags import add_flags
from warmroute.plan.size_manifest import compose_yaml, kubernetes_yaml
from warmroute.plan.size_page import size_page
from warmroute.plan.size_text import size_text
from warmroute.workloads import parse_workload, read_workload

SEED_JITTER_MS = 1_000
"""A trace has one course of events; every further seed moves its arrivals by up to so much."""

SPARE_REQUESTS = 1.3
"""Of a drawn workload, so that its last window is full."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where requests come from: a workload as the command line names it."""

    text: str
    is_drawn: bool

    def seeded(self, seed: int) -> str:
        """Return the workload of one seed; 0 is the trace as it was recorded."""
        if self.is_drawn:
            return f"{self.text},seed={seed}"
        return f"{self.text},seed={seed},jitter_ms={SEED_JITTER_MS}" if seed else self.text


def add_size_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `plan size`."""
    add_flags(parser, SizeSettings)
    parser.add_argument(
        "--jobs", type=int, default=0, help="processes that simulate (default: one for each CPU)"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page there, too")
    formats = parser.add_mutually_exclusive_group()
    formats.add_argument(
        "--compose", action="store_true", help="print the fleet as a docker-compose.yml"
    )
    formats.add_argument(
        "--kubernetes", action="store_true", help="print the fleet as Kubernetes manifests"
    )


def find_size(settings: SizeSettings, model: ModelSpec, jobs: int) -> SizePlan:
    """Return the answer; see `simulator.sizing.plan.plan_size`. Raises SettingError, as it does."""
    for name in (settings.policy, settings.baseline):
        if name not in POLICIES:
            known = ", ".join(sorted(POLICIES))
            raise SettingError(f"no policy {name!r}; known: {known}")
    if jobs < 0:
        raise SettingError(f"jobs is {jobs}, must be 0 (one for each CPU) or more")
    source = source_of(settings)
    question = Question(
        settings=settings,
        model=model,
        gpu=find_gpu(settings.gpu),
        prices=prices_of(settings.prices),
        requests=_requests(source.seeded(0)),
        is_drawn=settings.trace is None,
    )
    jobs = jobs or os.cpu_count() or 1
    if jobs == 1:
        return plan_size(question, partial(_measure_here, source))
    with ProcessPoolExecutor(jobs) as pool:
        return plan_size(question, _measure_in(pool, source))


def shown(plan: SizePlan, settings: SizeSettings, args: argparse.Namespace) -> str:
    """Return what is printed, and write the page that was asked for."""
    source = source_of(settings)
    if args.html is not None:
        page = size_page(plan, settings, source.text)
        try:
            args.html.write_text(page, encoding="utf-8")
        except OSError as error:
            raise SettingError(f"cannot write {args.html}: {error.strerror}") from error
    if args.compose:
        return compose_yaml(plan, settings)
    if args.kubernetes:
        return kubernetes_yaml(plan, settings)
    return size_text(plan, settings, source.text)


def source_of(settings: SizeSettings) -> Source:
    """Return the workload that the settings name or describe."""
    if settings.trace is not None:
        spec = parse_workload(settings.trace)
        for name in ("seed", "jitter_ms"):
            if settings.seeds > 1 and f",{name}=" in settings.trace:
                raise SettingError(
                    f"trace has a {name} of its own, which {settings.seeds} seeds would change; "
                    "leave it out or give --seeds 1"
                )
        return Source(settings.trace, not spec.entry.needs.value and spec.entry.shipped is None)
    seconds = settings.warm_up_s + settings.window_s
    requests = min(settings.rate * seconds, settings.requests_max) * max(RATE_SCALES)
    settled = {
        "rate": settings.rate,
        "requests": ceil(requests * SPARE_REQUESTS) + 10,
        "question_tokens": settings.prompt_tokens,
        "output_tokens": settings.output_tokens,
        "length_cv": settings.length_cv,
    }
    name = "unique"
    if settings.shared_tokens:
        name = "groups"
        settled |= {"system_tokens": settings.shared_tokens, "groups": settings.groups, "zipf": 0}
    return Source(",".join((name, *(f"{key}={value}" for key, value in settled.items()))), True)


@lru_cache(maxsize=4)
def _requests(text: str) -> Sequence[SimRequest]:
    return read_workload(text).requests


def _measure(source: Source, trial: Trial) -> TrialResult:
    requests = _requests(source.seeded(trial.seed))
    return run_trial(trial, take(requests, trial.cut, trial.requests_max))


def _measure_here(source: Source, trials: Sequence[Trial]) -> list[TrialResult]:
    return [_measure(source, trial) for trial in trials]


def _measure_in(pool: ProcessPoolExecutor, source: Source) -> Measure:
    def measure(trials: Sequence[Trial]) -> list[TrialResult]:
        # The longest first, so that no process works alone at the end.
        order = sorted(range(len(trials)), key=lambda index: -_weight(trials[index]))
        ordered = [trials[index] for index in order]
        found = pool.map(partial(_measure, source), ordered)
        results = dict(zip(order, found, strict=True))
        return [results[index] for index in range(len(trials))]

    return measure


def _weight(trial: Trial) -> float:
    return trial.cut.end_us * trial.cut.rate_scale * (1 + trial.replicas / 10)
