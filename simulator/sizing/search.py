"""The fewest replicas that hold an SLO, found by asking for runs.

A search is a generator: it yields the trials that it needs next and is sent their results. So
many searches go on together, and whoever drives them runs the trials where there are CPUs.

It supposes that one more replica is never worse. What it returns was run with every seed, and the
fleet of one replica less was run, too, and fails.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from simulator.sizing.trial import Trial, TrialResult

GROWTH = 1.5
"""From a fleet that fails to the next one that is tried, until one holds."""

SPARES_MAX = 4
"""Replicas beyond the fewest, up to which the loss of one is tried."""

Result = TypeVar("Result")
Asking = Generator[tuple[Trial, ...], tuple[TrialResult, ...], Result]
Measure = Callable[[Sequence[Trial]], Sequence[TrialResult]]


@dataclass(frozen=True, slots=True)
class Found:
    """The fewest replicas, and what their runs were like, one for each seed.

    ``holds`` is false where the search gave up: then they are the most that were tried.
    ``one_less`` is a run with one replica less, which fails; none where there is no such fleet.
    """

    replicas: int
    holds: bool
    runs: tuple[TrialResult, ...]
    one_less: TrialResult | None
    trials: int


def fewest_replicas(asked: Trial, begin: int, seeds: int, replicas_max: int) -> Asking[Found]:
    """Search from ``begin`` replicas of ``asked``, in both directions."""
    fails, holds, count, down = 0, 0, min(begin, replicas_max), 1
    results: dict[int, TrialResult] = {}
    while not holds or holds - fails > 1:
        (results[count],) = yield (replace(asked, replicas=count),)
        if results[count].holds:
            holds = count
        elif count == replicas_max:
            return Found(count, False, (results[count],), None, len(results))
        else:
            fails = count
        if not holds:
            count = min(replicas_max, max(fails + 1, round(fails * GROWTH)))
        elif not fails:
            # The bracket is a lower bound, so the answer is near it.
            count, down = max(1, holds - down), 2 * down
        else:
            count = (fails + holds) // 2
    trials = len(results)
    one_less = results.get(holds - 1)
    while True:
        if holds not in results:
            (results[holds],) = yield (replace(asked, replicas=holds),)
            trials += 1
        others = tuple(replace(asked, replicas=holds, seed=seed) for seed in range(1, seeds))
        runs = (results[holds], *((yield others) if others else ()))
        trials += len(others)
        if all(run.holds for run in runs):
            return Found(holds, True, runs, one_less, trials)
        if holds == replicas_max:
            return Found(holds, False, runs, one_less, trials)
        one_less = next(run for run in runs if not run.holds)
        holds += 1


def with_one_lost(asked: Trial, least: int, seeds: int, replicas_max: int) -> Asking[Found]:
    """Return the fewest replicas, ``least`` or more, that hold the SLO though one is lost.

    It is the one that has most to do in the same run undisturbed, and is lost at the peak.
    """
    trials = 0
    one_less = None
    most = min(replicas_max, least + SPARES_MAX)
    for count in range(least, most + 1):
        fleets = tuple(replace(asked, replicas=count, seed=seed) for seed in range(seeds))
        calm = yield fleets
        lost = tuple(
            replace(fleet, crashed=run.busiest_replica)
            for fleet, run in zip(fleets, calm, strict=True)
        )
        runs = yield lost
        trials += len(fleets) + len(lost)
        if all(run.holds for run in runs):
            return Found(count, True, runs, one_less, trials)
        one_less = next(run for run in runs if not run.holds)
    return Found(most, False, runs, one_less, trials)


def each_of(trials: Sequence[Trial]) -> Asking[tuple[TrialResult, ...]]:
    """Return the results of ``trials``, as a search that asks once."""
    return (yield tuple(trials))


def remembered(measure: Measure) -> Measure:
    """Return ``measure`` that runs no trial twice."""
    known: dict[Trial, TrialResult] = {}

    def ask(trials: Sequence[Trial]) -> list[TrialResult]:
        unknown = [trial for trial in dict.fromkeys(trials) if trial not in known]
        known.update(zip(unknown, measure(unknown), strict=True))
        return [known[trial] for trial in trials]

    return ask


def run_together(searches: Sequence[Asking[Result]], measure: Measure) -> list[Result]:
    """Drive ``searches`` to their ends; in each round, run what all of them ask for."""
    results: dict[int, Result] = {}
    wanted: dict[int, tuple[Trial, ...]] = {}

    def advance(index: int, answers: tuple[TrialResult, ...] | None) -> None:
        search = searches[index]
        try:
            wanted[index] = next(search) if answers is None else search.send(answers)
        except StopIteration as ended:
            wanted.pop(index, None)
            results[index] = ended.value

    for index in range(len(searches)):
        advance(index, None)
    while wanted:
        asked = list(wanted.items())
        answers = iter(measure([trial for _, trials in asked for trial in trials]))
        for index, trials in asked:
            advance(index, tuple(next(answers) for _ in trials))
    return [results[index] for index in range(len(searches))]
