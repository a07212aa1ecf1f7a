"""Run the load client and read its result."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench.processes import Cores, ProcessFailedError, pinned

# load_client ends a counted run after 300 s and drains for 30 s: this is only for a hung one.
RUN_SECONDS_MAX = 400.0


class Percentiles(msgspec.Struct, frozen=True):
    """A distribution of times in microseconds."""

    count: int
    mean: float
    p50: int
    p90: int
    p99: int
    max: int


class LoadResult(msgspec.Struct, frozen=True):
    """What the load client saw; the fields are explained at the head of load_client.c."""

    ok: int
    bad: int
    truncated: int
    errors: int
    unfinished: int
    reconnects: int
    seconds: float
    rps: float
    chunks: int
    chunks_per_second: float
    latency_us: Percentiles | None
    ttft_us: Percentiles | None
    chunk_delay_us: Percentiles | None
    statuses: dict[str, int]

    @property
    def failed(self) -> int:
        """Requests that did not get a whole answer with status 200."""
        return self.bad + self.truncated + self.errors + self.unfinished


@dataclass(frozen=True, slots=True)
class Load:
    """How to send the requests of a file: until `count` of them, or for `seconds`."""

    bodies: Path
    concurrency: int
    count: int = 0
    seconds: float = 0.0
    rate: float = 0.0
    """Requests per second of an open loop; 0: a closed loop."""
    drain_seconds: float = 30.0
    path: str = "/v1/chat/completions"

    def arguments(self, port: int) -> list[str]:
        """Give the command line of load_client, without the program."""
        limit = ["--count", str(self.count)] if self.count else ["--seconds", str(self.seconds)]
        return [
            *("--port", str(port)),
            *("--bodies", str(self.bodies)),
            *("--concurrency", str(self.concurrency)),
            *limit,
            *("--rate", str(self.rate)),
            *("--path", self.path),
            *("--drain", str(self.drain_seconds)),
        ]


def run_load(program: Path, load: Load, port: int, cores: Cores) -> LoadResult:
    """Send `load` to `port` from `cores` and wait for its end."""
    with pinned(cores):
        result = subprocess.run(
            [str(program), *load.arguments(port)],
            capture_output=True,
            timeout=RUN_SECONDS_MAX,
            check=False,
        )
    if result.returncode != 0:
        raise ProcessFailedError(f"load_client failed: {result.stderr.decode()}")
    return msgspec.json.decode(result.stdout, type=LoadResult)
