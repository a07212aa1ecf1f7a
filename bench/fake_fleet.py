"""Fake replicas as a Python program sees them: start some, steer them, ask what they saw."""

from __future__ import annotations

import http.client
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench.processes import POLL_SECONDS, Cores, Processes, ProcessFailedError

START_SECONDS_MAX = 10.0


class ReplicaStats(msgspec.Struct, frozen=True):
    """What one fake replica has counted since it started or was reset."""

    port: int
    requests: int
    streams: int
    done: int
    aborted: int
    cut: int
    open: int
    connections: int
    accepted: int
    events: int
    body_bytes: int
    tokenized: int
    unknown: int
    groups: list[int]
    """Requests of each prompt group, as far as the highest that was seen."""


@dataclass(frozen=True, slots=True)
class FakeReplica:
    """One running fake replica."""

    port: int

    @property
    def url(self) -> str:
        """Its address, without a path."""
        return f"http://127.0.0.1:{self.port}"

    def control(self, **settings: int) -> None:
        """Change behaviour; the names are in `settings` of fake_replica.c."""
        query = "&".join(f"{name}={value}" for name, value in settings.items())
        self._call("POST", f"/control?{query}")

    def stats(self) -> ReplicaStats:
        """Give the counts so far."""
        return msgspec.json.decode(self._call("GET", "/stats"), type=ReplicaStats)

    def reset_stats(self) -> None:
        """Set all counts to zero."""
        self._call("POST", "/stats/reset")

    def _call(self, method: str, target: str) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(method, target)
            response = connection.getresponse()
            body = response.read()
        finally:
            connection.close()
        if response.status != 200:
            raise ValueError(f"{method} {target}: {response.status} {body.decode()}")
        return body


def start_replicas(
    processes: Processes, program: Path, count: int, cores: Cores
) -> list[FakeReplica]:
    """Start `count` fake replicas at ports of their own choice."""
    return [_start_replica(processes, program, f"replica-{n}", cores) for n in range(count)]


def _start_replica(processes: Processes, program: Path, name: str, cores: Cores) -> FakeReplica:
    process = processes.start(name, [str(program)], cores)
    began = time.monotonic()
    while process.poll() is None and time.monotonic() - began < START_SECONDS_MAX:
        word, _, port = processes.log_tail(name).partition(" ")
        if word == "listening":
            return FakeReplica(int(port))
        time.sleep(POLL_SECONDS)
    raise ProcessFailedError(f"{name} does not listen:\n{processes.log_tail(name)}")


def affinity(fleet: list[ReplicaStats]) -> float | None:
    """Give the share of requests that reached the replica which saw most of their group.

    1.0 is perfect; a router that ignores prompts scores a little over 1 / len(fleet). None without
    requests.
    """
    num_groups = max((len(stats.groups) for stats in fleet), default=0)
    counts = [
        [stats.groups[group] if group < len(stats.groups) else 0 for stats in fleet]
        for group in range(num_groups)
    ]
    total = sum(sum(of_group) for of_group in counts)
    return sum(max(of_group) for of_group in counts) / total if total else None
