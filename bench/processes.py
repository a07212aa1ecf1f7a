"""Start, pin, account for and end the processes of a measurement.

Linux only: CPU time and memory are read from /proc. A process is measured with all its
descendants, because routers fork workers; the CPU time of those that have ended is counted by the
ancestor that waited for them.
"""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

CLOCK_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
POLL_SECONDS = 0.02
STOP_SECONDS_MAX = 10.0

Cores = frozenset[int]


class ProcessFailedError(Exception):
    """A process ended, or did not become ready; the message holds the end of its log."""


# ---- accounting


@dataclass(frozen=True, slots=True)
class _Stat:
    """The fields of /proc/PID/stat that are used here; times in clock ticks."""

    parent_id: int
    cpu_ticks: int


def _read_stat(pid: int) -> _Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command name is in parentheses and may itself hold spaces and parentheses.
    fields = text.rpartition(")")[2].split()
    # utime, stime, and the same of children that have ended and were waited for.
    return _Stat(parent_id=int(fields[1]), cpu_ticks=sum(int(field) for field in fields[11:15]))


def _all_stats() -> dict[int, _Stat]:
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    stats = ((pid, _read_stat(pid)) for pid in pids)
    return {pid: stat for pid, stat in stats if stat is not None}


def _tree(root: int, stats: dict[int, _Stat]) -> list[int]:
    children = defaultdict(list)
    for pid, stat in stats.items():
        children[stat.parent_id].append(pid)
    found = [root]
    for pid in found:  # grows while it is read: breadth first
        found.extend(children[pid])
    return found


def process_tree(pid: int) -> list[int]:
    """Give `pid` and all its living descendants, ancestors first."""
    return _tree(pid, _all_stats())


def cpu_seconds(pid: int) -> float:
    """Give the user and system CPU seconds that the tree of `pid` has used so far."""
    stats = _all_stats()
    ticks = sum(stats[member].cpu_ticks for member in _tree(pid, stats) if member in stats)
    return ticks / CLOCK_TICKS_PER_SECOND


def resident_bytes(pid: int) -> int:
    """Give the resident memory of the tree; pages that its processes share count for each."""
    total = 0
    for member in process_tree(pid):
        with suppress(FileNotFoundError, ProcessLookupError):
            pages = int(Path(f"/proc/{member}/statm").read_text().split()[1])
            total += pages * os.sysconf("SC_PAGE_SIZE")
    return total


def machine_cpu_seconds() -> float:
    """Give the CPU seconds that everything on the machine has used since it started."""
    line = Path("/proc/stat").read_text().partition("\n")[0]
    # user nice system idle iowait irq softirq steal; the guest fields are parts of user and nice.
    ticks = [int(field) for field in line.split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / CLOCK_TICKS_PER_SECOND


# ---- placement


@dataclass(frozen=True, slots=True)
class Placement:
    """Which cores the process under test may use, and which the measuring side."""

    router: Cores
    load: Cores

    @property
    def is_split(self) -> bool:
        """Whether the two sides do not compete for a core."""
        return not self.router & self.load


def placement() -> Placement:
    """Give the router the first core and the load the second; one core is shared if need be."""
    cores = sorted(os.sched_getaffinity(0))
    return Placement(router=frozenset(cores[:1]), load=frozenset(cores[1:2] or cores[:1]))


@contextmanager
def pinned(cores: Cores) -> Iterator[None]:
    """Run the body on `cores`; processes started in it inherit them."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


# ---- ports


def free_ports(count: int) -> list[int]:
    """Find TCP ports of 127.0.0.1 that nobody listens on at the moment."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _answers_200(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


# ---- starting and ending


class Processes:
    """Processes that end, with their descendants, when the `with` block is left in any way."""

    def __init__(self, log_directory: Path) -> None:
        self._log_directory = log_directory
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for process in list(self._running.values()):
            self.stop(process)

    def log_path(self, name: str) -> Path:
        """Give the file that holds what the process `name` printed."""
        return self._log_directory / f"{name}.log"

    def start(self, name: str, command: Sequence[str], cores: Cores) -> subprocess.Popen[bytes]:
        """Start `command` on `cores`, in a process group of its own."""
        with self.log_path(name).open("wb") as log, pinned(cores):
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._running[process.pid] = process
        return process

    def stop(self, process: subprocess.Popen[bytes]) -> None:
        """Ask the process to end, then end its whole group; do nothing if it was stopped."""
        if self._running.pop(process.pid, None) is None:
            return
        if process.poll() is None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS_MAX)
        # The group lives on if a worker outlived its parent.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def log_tail(self, name: str, num_lines: int = 8) -> str:
        """Give the last lines that the process `name` printed."""
        lines = self.log_path(name).read_text(errors="replace").splitlines()
        return "\n".join(lines[-num_lines:])

    def wait_until_ready(
        self,
        name: str,
        process: subprocess.Popen[bytes],
        port: int,
        path: str,
        seconds_max: float,
    ) -> float:
        """Poll `path` until it answers 200; give the seconds that this took.

        Raises `ProcessFailedError` when the process ends, or the time does.
        """
        began = time.monotonic()
        while time.monotonic() - began < seconds_max:
            if process.poll() is not None:
                raise ProcessFailedError(
                    f"{name} ended with status {process.returncode}:\n{self.log_tail(name)}"
                )
            if _answers_200(port, path):
                return time.monotonic() - began
            time.sleep(POLL_SECONDS)
        raise ProcessFailedError(
            f"{name} did not answer 200 at {path} within {seconds_max:.0f} s:\n"
            f"{self.log_tail(name)}"
        )
