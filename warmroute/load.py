"""`warmroute load`: the demo's trace through gateways that run already, and one row for each."""

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from contract.options import build_section, option
from warmroute.demo.replay import ReplayResult, replay
from warmroute.demo.report import RunRow, progress_bar, summarise, table
from warmroute.demo.workload import TraceRequest, demo_trace
from warmroute.flags import add_flags, given_flags

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


@dataclass(frozen=True)
class LoadConfig:
    """What is sent, where and how fast."""

    urls: tuple[str, ...] = option(
        ("http://127.0.0.1:8080",), "URLs", "gateways; requests go to them in turn"
    )
    model: str = option("llama-3.1-8b", "", "the model that is asked for")
    requests: int = option(1_750, "requests", "how much of the shipped trace is replayed")
    repeat: int = option(
        1, "times", "the trace is sent this often in a row; after the first, caches are warm"
    )
    time_compression: float = option(24.0, "x", "how much faster than recorded requests arrive")

    def __post_init__(self) -> None:
        if not self.urls:
            raise ValueError("urls is empty, must name at least one gateway")
        for url in self.urls:
            if not url.startswith(("http://", "https://")) or url.endswith("/"):
                raise ValueError(f"urls has {url!r}, expected http://HOST:PORT")
        if len(set(self.urls)) < len(self.urls):
            raise ValueError("urls names a gateway twice")
        for name in ("requests", "repeat"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, must be 1 or more")
        if not self.time_compression > 0:
            raise ValueError(f"time_compression is {self.time_compression}, must be above 0")


def add_load_parser(commands: Any) -> None:
    """Add the command to ``commands``, the subparsers of the whole command line."""
    parser = commands.add_parser("load", help="send the demo's trace to running gateways")
    parser.description = (
        "Replays a real request trace through gateways in front of this project's replicas, "
        "checks every token of every answer, and prints one row per gateway. "
        "Exit status 1 if any request failed."
    )
    add_flags(parser, LoadConfig)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    return run_load(build_section(LoadConfig, given_flags(args, LoadConfig), "load"))


def run_load(config: LoadConfig) -> int:
    """Send the load; return the exit status (0, 1 when a request failed, 130 on a stop signal)."""
    try:
        result = asyncio.run(_replay(config))
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("\ninterrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    print(table(rows_of(config.urls, result), names="gateway"))
    for kind, count in result.errors.most_common():
        print(f"failed: {count:,} with {kind}")
    return EXIT_FAILED if result.errors else EXIT_DONE


async def _replay(config: LoadConfig) -> ReplayResult:
    task = asyncio.current_task()
    assert task is not None
    # As the first process of a container it would not end on SIGTERM by itself.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    requests = repeated(demo_trace(config.requests), config.repeat)
    progress = progress_bar("load", len(requests))
    return await replay(config.urls, config.model, requests, config.time_compression, progress)


def repeated(requests: Sequence[TraceRequest], times: int) -> list[TraceRequest]:
    """Return ``requests`` over and over: each round begins where the one before ended."""
    span_s = requests[-1].arrival_s
    return [
        replace(
            request,
            request_id=f"{request.request_id}-round-{number}",
            arrival_s=request.arrival_s + number * span_s,
        )
        for number in range(times)
        for request in requests
    ]


def rows_of(urls: Sequence[str], result: ReplayResult) -> list[RunRow]:
    """Return a row for each gateway and, where there are several, one for all."""
    rows = [summarise(url, result.through(url)) for url in urls]
    return rows if len(rows) == 1 else [*rows, summarise("all", result)]
