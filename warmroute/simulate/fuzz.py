"""``warmroute simulate fuzz``: random cases in several processes, and how to repeat a bad one."""

import multiprocessing
import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from contract.options import option
from simulator.fuzz import run_case
from warmroute.simulate.progress import Progress

SEEDS_MAX = 10_000_000
PROCESSES_MAX = 256
CHUNK = 8
"""Seeds that a process is given at a time."""


@dataclass(frozen=True)
class FuzzSettings:
    """Which seeds are tried."""

    seeds: int = option(200, "seeds", "to try; each is one random fleet, workload and accidents")
    first: int = option(0, "", "the first seed")
    processes: int | None = option(None, "processes", "that run at a time; none: one for each CPU")

    def __post_init__(self) -> None:
        if not 1 <= self.seeds <= SEEDS_MAX:
            raise ValueError(f"seeds is {self.seeds}, must be from 1 to {SEEDS_MAX}")
        if not 0 <= self.first <= SEEDS_MAX:
            raise ValueError(f"first is {self.first}, must be from 0 to {SEEDS_MAX}")
        if self.processes is not None and not 1 <= self.processes <= PROCESSES_MAX:
            raise ValueError(f"processes is {self.processes}, must be from 1 to {PROCESSES_MAX}")


@dataclass(frozen=True)
class Tried:
    """What became of one seed."""

    seed: int
    num_requests: int
    failure: str | None  # a traceback


def run_fuzz(settings: FuzzSettings) -> int:
    """Try all seeds; print those that fail and how to try them again. 1 if there are any."""
    num_requests = num_failed = 0
    with Progress(lambda: settings.seeds, sys.stderr) as progress:
        for tried in _try_all(settings):
            progress.add(1)
            num_requests += tried.num_requests
            if tried.failure is not None:
                num_failed += 1
                print(
                    f"seed {tried.seed} fails:\n{tried.failure}"
                    f"again: warmroute simulate fuzz --first {tried.seed} --seeds 1\n"
                )
    print(
        f"{settings.seeds:,} seeds from {settings.first}, {num_requests:,} requests: "
        + (f"{num_failed:,} seeds fail" if num_failed else "all laws hold")
    )
    return 1 if num_failed else 0


def _try_all(settings: FuzzSettings) -> Iterator[Tried]:
    seeds: Iterable[int] = range(settings.first, settings.first + settings.seeds)
    processes = settings.processes or len(os.sched_getaffinity(0))
    if processes == 1 or settings.seeds <= CHUNK:
        yield from map(_try, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap(_try, seeds, CHUNK)


def _try(seed: int) -> Tried:
    try:
        return Tried(seed, run_case(seed), None)
    except Exception:  # whatever it is, it is a bug that this seed has found
        return Tried(seed, 0, traceback.format_exc())
