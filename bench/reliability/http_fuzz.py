"""`python -m bench.reliability.http_fuzz`: hostile bytes from both sides, judged after every case.

A case is a seed and a number, and nothing else: the same again gives the same bytes at the same
virtual times. A case that breaks a law is printed with the command that repeats it.
"""

import argparse
import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from bench.reliability.http_judge import broken_laws
from bench.reliability.http_world import Tally, World
from bench.reliability.page import put_row

CHUNK = 50
"""Cases that a process is given at a time."""

FAILURES_SHOWN_MAX = 5


@dataclass(frozen=True)
class Tried:
    """What became of one case."""

    number: int
    num_exchanges: int
    num_attempts: int
    failures: tuple[str, ...]


class _Faults(logging.Handler):
    """Keeps what the gateway logs as its own fault."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(self.format(record))


_tally = Tally()


@contextmanager
def _kept_faults() -> Iterator[list[str]]:
    """Keep what the gateway logs as its own fault, and show it nowhere, inside the block."""
    faults, log = _Faults(), logging.getLogger("router")
    propagates = log.propagate
    log.addHandler(faults)
    log.propagate = False
    try:
        yield faults.messages
    finally:
        log.propagate = propagates
        log.removeHandler(faults)


def play(seed: int, number: int) -> World:
    """Run one case and return all that it left."""
    world = World(Random(f"{seed}:{number}"), _tally)
    world.run()
    return world


def try_case(seed: int, number: int) -> Tried:
    """Run and judge one case."""
    try:
        with _kept_faults() as faults:
            world = play(seed, number)
            failures = [*faults, *broken_laws(world)]
            world.loop.close()
    except Exception as error:  # whatever it is, this case has found it
        return Tried(number, 0, 0, (f"{type(error).__name__}: {error}",))
    return Tried(number, len(world.tally.ended), len(world.attempts), tuple(failures))


@dataclass
class Result:
    """Sums over a run."""

    seed: int
    seconds: float = 0.0
    num_cases: int = 0
    num_exchanges: int = 0
    num_attempts: int = 0
    num_failed: int = 0


def fuzz(seed: int, first: int, count: int, processes: int) -> Result:
    """Try cases ``first`` to ``first + count``; print those that break a law."""
    result, began = Result(seed), time.monotonic()
    for tried in _try_all(seed, first, count, processes):
        result.num_cases += 1
        result.num_exchanges += tried.num_exchanges
        result.num_attempts += tried.num_attempts
        if tried.failures:
            result.num_failed += 1
            if result.num_failed <= FAILURES_SHOWN_MAX:
                print(f"case {tried.number} fails:")
                print("\n".join(f"  {failure}" for failure in tried.failures))
                print(f"again: {command(seed, tried.number)}\n", flush=True)
    result.seconds = time.monotonic() - began
    return result


def command(seed: int, first: int, count: int = 1) -> str:
    """Return the command that runs these cases."""
    return f"python -m bench.reliability.http_fuzz --seed {seed} --first {first} --count {count}"


def _try_all(seed: int, first: int, count: int, processes: int) -> Iterator[Tried]:
    jobs = [(seed, number) for number in range(first, first + count)]
    if processes == 1 or count <= CHUNK:
        for job in jobs:
            yield _try_job(job)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap(_try_job, jobs, CHUNK)


def _try_job(job: tuple[int, int]) -> Tried:
    return try_case(*job)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 1 if a case breaks a law."""
    parser = argparse.ArgumentParser(prog="python -m bench.reliability.http_fuzz")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--count", type=int, default=20_000, help="cases to try")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--processes", type=int, default=cores, help="that run at a time")
    parser.add_argument("--markdown", type=Path, help="page into whose table the result is put")
    given = parser.parse_args(argv)
    result = fuzz(given.seed, given.first, given.count, given.processes)
    print(
        f"{result.num_cases:,} cases from {given.first:,} of seed {given.seed} in "
        f"{result.seconds:,.0f} s ({result.num_cases / result.seconds:,.0f}/s): "
        f"{result.num_exchanges:,} requests, {result.num_attempts:,} reached a replica, "
        + (f"{result.num_failed:,} cases fail" if result.num_failed else "all laws hold")
    )
    if given.markdown is not None:
        cells = [
            *(str(given.seed), f"{result.num_cases:,}", f"{result.num_exchanges:,}"),
            *(f"{result.num_attempts:,}", f"{result.num_cases / result.seconds:,.0f}/s"),
            f"{result.num_failed:,}",
        ]
        put_row(given.markdown, "http", cells, num_keys=2)
    return 1 if result.num_failed else 0


if __name__ == "__main__":
    sys.exit(main())
