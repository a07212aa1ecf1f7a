"""`python -m bench.reliability.chaos`: thousands of requests through a fleet that falls apart.

Three replicas, one gateway and a Redis, as processes. From the seed come the requests and when,
which client leaves and when, and what is killed, frozen, restarted, reset or drained meanwhile. At
least one replica is well at any time. Exit status 1, with the requests concerned, unless

    no request hung, was falsely complete or got a wrong byte
    none failed that had not begun, while a replica was well all its life; with `--failover resume`
    no stream broke then either
    no answer broke whose replica was in no trouble
    in the end no lease, block, task or socket is left
    the gateway's event loop never stood still for more than 50 ms
"""

import argparse
import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from bench.reliability.accidents import GAP_S, Accidents
from bench.reliability.ledger import End, count_ends, forbidden
from bench.reliability.page import put_row
from bench.reliability.real_fleet import running
from bench.reliability.strays import stray
from bench.reliability.traffic import Traffic, specs
from bench.reliability.watchdog import Line

STOP_S_MAX = 0.05
SHOWN_MAX = 20


@dataclass(frozen=True)
class ChaosConfig:
    """One run."""

    seed: int
    num_streams: int = 2000
    num_plain: int = 2000
    rate: float = 25.0  # requests per second
    gap_s: float = GAP_S
    resumes: bool = False


@dataclass
class ChaosResult:
    """What came of it: ``complaints`` of requests and of what they left, and the longest stop."""

    complaints: list[str]
    ends: Counter[tuple[bool, End]]
    accidents: Counter[str]
    seconds: float
    stop: Line

    def broken_promises(self) -> list[str]:
        """Return all that did not go as promised."""
        stood_still = self.stop.stop_s > STOP_S_MAX
        return self.complaints + [f"the event loop stood still: {told(self.stop)}"] * stood_still


async def chaos(config: ChaosConfig, folder: Path) -> ChaosResult:
    """Run it once."""
    failover = "resume" if config.resumes else "off"
    async with running(folder, {"gateway.failover": failover}) as fleet:
        baseline = await fleet.footprint()
        traffic = Traffic(fleet.url, config.rate, fleet.clock)
        accidents = Accidents(fleet, Random(f"accidents {config.seed}"), config.gap_s)
        rng = Random(f"traffic {config.seed}")
        async with asyncio.TaskGroup() as beside:
            strays = stray(fleet.url, Random(f"strays {config.seed}"))
            tasks = [
                beside.create_task(each)
                for each in (accidents.run(), fleet.watch_beliefs(), strays)
            ]
            await traffic.run(rng, specs(rng, config.num_streams, config.num_plain))
            for task in tasks:
                task.cancel()
        await accidents.mend()
        seconds = fleet.clock()
        left = await fleet.until_at_rest(baseline)
        stop = fleet.longest_stop()
        replica_ids = fleet.replica_ids
    troubles = accidents.troubles
    complaints = [
        f"{each.entry}; {each.why}; believed then: {fleet.belief_at(each.entry.ended_s)}; "
        f"logged: {fleet.log_of(each.entry.request_id) if each.entry.request_id else '-'}"
        for each in forbidden(traffic.entries, troubles, replica_ids, resumes=config.resumes)
    ]
    complaints += [f"left in the end: {number:g} {what}" for what, number in left.items()]
    ends = count_ends(traffic.entries)
    return ChaosResult(complaints, ends, accidents.counts, seconds, stop)


def told(stop: Line) -> str:
    """Return a stop in words."""
    return (
        f"{stop.stop_s * 1000:.0f} ms ({stop.stop_cpu_s * 1000:.0f} ms of CPU; "
        f"the lag was {stop.lag_s * 1000:.0f} ms, the longest garbage collection of that second "
        f"{stop.collection_s * 1000:.0f} ms)"
    )


def report(config: ChaosConfig, result: ChaosResult) -> str:
    """Return what to print."""
    lines = [f"seed {config.seed}, {result.seconds:.0f} s"]
    for is_stream, what in ((True, "streams"), (False, "plain")):
        ends = {end: number for (kind, end), number in result.ends.items() if kind is is_stream}
        parts = ", ".join(f"{ends[end]:,} {end.value}" for end in End if end in ends)
        lines.append(f"{what:<10}{sum(ends.values()):,}: {parts}")
    parts = ", ".join(f"{number} {kind}" for kind, number in sorted(result.accidents.items()))
    lines.append(f"accidents {sum(result.accidents.values())}: {parts}")
    lines.append(f"loop      longest stop {told(result.stop)}")
    broken = result.broken_promises()
    lines += [f"NOT KEPT  {promise}" for promise in broken[:SHOWN_MAX]]
    num_more = len(broken) - SHOWN_MAX
    if num_more > 0:
        lines.append(f"          and {num_more} more")
    if not broken:
        lines.append("all promises kept")
    return "\n".join(lines)


def row(config: ChaosConfig, result: ChaosResult) -> list[str]:
    """Return the cells of the page's table."""
    ends: Counter[End] = Counter()
    for (_, end), number in result.ends.items():
        ends[end] += number
    return [
        str(config.seed),
        "resume" if config.resumes else "off",
        f"{config.num_streams:,} + {config.num_plain:,}",
        str(sum(result.accidents.values())),
        *(f"{ends[end]:,}" for end in End),
        f"{result.stop.stop_s * 1000:.0f} ms",
        f"{len(result.broken_promises())}",
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.reliability.chaos")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--streams", type=int, default=2000)
    parser.add_argument("--plain", type=int, default=2000)
    parser.add_argument("--rate", type=float, default=25.0, help="requests per second")
    parser.add_argument("--gap-s", type=float, default=GAP_S, help="between two accidents")
    parser.add_argument("--failover", choices=("off", "resume"), default="off")
    parser.add_argument("--markdown", type=Path, help="page into whose table the result is put")
    parser.add_argument("--logs", type=Path, help="folder for the logs, else they are dropped")
    given = parser.parse_args(argv)
    config = ChaosConfig(
        seed=given.seed,
        num_streams=given.streams,
        num_plain=given.plain,
        rate=given.rate,
        gap_s=given.gap_s,
        resumes=given.failover == "resume",
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.logs or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        result = asyncio.run(chaos(config, folder))
    print(report(config, result))
    if given.markdown is not None:
        put_row(given.markdown, "chaos", row(config, result), num_keys=3)
    return 1 if result.broken_promises() else 0


if __name__ == "__main__":
    sys.exit(main())
