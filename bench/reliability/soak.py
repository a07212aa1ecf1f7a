"""`python -m bench.reliability.soak`: mixed traffic with churn for a long time; nothing may grow.

The fleet and the accidents are those of the chaos run, with more time between accidents. After the
warm-up (a fifth of the time: caches and indexes fill) the gateway's resident memory may not grow by
more than 5 %: the median of the last fifth against that of the second. In the end there may be no
more tasks and descriptors than at first, and nothing may be held.
"""

import argparse
import asyncio
import itertools
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median

from bench.reliability.accidents import Accidents
from bench.reliability.chaos import STOP_S_MAX, told
from bench.reliability.ledger import End, count_ends, forbidden
from bench.reliability.page import put_row
from bench.reliability.real_fleet import Footprint, RealFleet, running
from bench.reliability.strays import stray
from bench.reliability.traffic import Traffic, specs
from bench.reliability.watchdog import Line

GROWTH_MAX = 0.05
SAMPLE_S = 1.0
ROUND_S = 10.0
"""Requests are drawn, judged and forgotten in rounds, so that the judge does not grow either."""

FIFTHS = 5


@dataclass(frozen=True)
class SoakConfig:
    """One run."""

    seed: int
    seconds: float
    rate: float
    gap_s: float


@dataclass
class SoakResult:
    """What came of it."""

    complaints: list[str]
    num_requests: int
    num_whole: int
    early_bytes: float
    late_bytes: float
    stop: Line

    @property
    def growth(self) -> float:
        """Of resident memory after the warm-up, as a share."""
        return self.late_bytes / self.early_bytes - 1


async def soak(config: SoakConfig, folder: Path) -> SoakResult:
    """Run it."""
    result = SoakResult([], 0, 0, 0.0, 0.0, Line(0.0))
    async with running(folder, {}) as fleet:
        baseline = await fleet.footprint()
        sizes: list[Footprint] = []
        accidents = Accidents(fleet, Random(f"accidents {config.seed}"), config.gap_s)
        async with asyncio.TaskGroup() as beside:
            strays = stray(fleet.url, Random(f"strays {config.seed}"))
            tasks = [
                beside.create_task(each)
                for each in (accidents.run(), _sample(fleet, sizes), strays)
            ]
            await _send_rounds(config, fleet, accidents, result)
            for task in tasks:
                task.cancel()
        await accidents.mend()
        left = await fleet.until_at_rest(baseline)
        result.stop = fleet.longest_stop()
    result.complaints += [f"left in the end: {number:g} {what}" for what, number in left.items()]
    _judge_sizes(sizes, result)
    if result.stop.stop_s > STOP_S_MAX:
        result.complaints.append(f"the event loop stood still: {told(result.stop)}")
    return result


async def _send_rounds(
    config: SoakConfig, fleet: RealFleet, accidents: Accidents, result: SoakResult
) -> None:
    end_s = fleet.clock() + config.seconds
    for number in itertools.count():
        if fleet.clock() >= end_s:
            return
        rng = Random(f"traffic {config.seed} {number}")
        half = max(1, round(config.rate * ROUND_S / 2))
        traffic = Traffic(fleet.url, config.rate, fleet.clock)
        await traffic.run(rng, specs(rng, half, half))
        replica_ids = fleet.replica_ids
        result.complaints += [
            f"{each.entry}; {each.why}"
            for each in forbidden(traffic.entries, accidents.troubles, replica_ids, resumes=False)
        ]
        result.num_requests += len(traffic.entries)
        ends = count_ends(traffic.entries)
        result.num_whole += ends[True, End.WHOLE] + ends[False, End.WHOLE]
        accidents.forget_past_troubles()


async def _sample(fleet: RealFleet, sizes: list[Footprint]) -> None:
    while True:
        sizes.append(await fleet.footprint())
        await asyncio.sleep(SAMPLE_S)


def _judge_sizes(sizes: list[Footprint], result: SoakResult) -> None:
    fifth = len(sizes) // FIFTHS
    assert fifth, f"{len(sizes)} samples are too few"
    result.early_bytes = median(size.resident_bytes for size in sizes[fifth : 2 * fifth])
    result.late_bytes = median(size.resident_bytes for size in sizes[-fifth:])
    if result.growth > GROWTH_MAX:
        result.complaints.append(f"resident memory grew by {result.growth:.1%} after the warm-up")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 1 if something grew, or a promise of the chaos run was broken."""
    parser = argparse.ArgumentParser(prog="python -m bench.reliability.soak")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=20.0, help="requests per second")
    parser.add_argument("--gap-s", type=float, default=5.0, help="between two accidents")
    parser.add_argument("--markdown", type=Path, help="page into whose table the result is put")
    given = parser.parse_args(argv)
    config = SoakConfig(given.seed, given.minutes * 60, given.rate, given.gap_s)
    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(soak(config, Path(folder)))
    print(
        f"{given.minutes:g} minutes, seed {given.seed}: {result.num_requests:,} requests, "
        f"{result.num_whole:,} whole; memory {result.early_bytes / 1e6:.1f} MB after the warm-up, "
        f"{result.late_bytes / 1e6:.1f} MB in the end ({result.growth:+.1%}); "
        f"longest stop {told(result.stop)}"
    )
    for complaint in result.complaints:
        print(f"NOT KEPT  {complaint}")
    if given.markdown is not None:
        cells = [
            *(str(given.seed), f"{given.minutes:g}", f"{result.num_requests:,}"),
            *(f"{result.early_bytes / 1e6:.1f} MB", f"{result.late_bytes / 1e6:.1f} MB"),
            *(f"{result.growth:+.1%}", f"{result.stop.stop_s * 1000:.0f} ms"),
            str(len(result.complaints)),
        ]
        put_row(given.markdown, "soak", cells, num_keys=2)
    return 1 if result.complaints else 0


if __name__ == "__main__":
    sys.exit(main())
