"""Child processes of the demo: started with a ready line, ended without fail.

Each child gets its own process group and dies with its parent even if that is killed (Linux:
PR_SET_PDEATHSIG), so neither Ctrl-C nor kill -9 of the demo leaves one behind.
"""

import asyncio
import contextlib
import ctypes
import itertools
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from random import SystemRandom

START_TIMEOUT_S = 30.0
"""A replica imports, binds and prints its ready line in about a second; slow disks get more."""

STOP_TIMEOUT_S = 5.0
"""Between SIGTERM and SIGKILL."""

_PR_SET_PDEATHSIG = 1

_PORTS = range(16_000, 32_000)
"""Below those that a kernel gives to connections (32768 and up on Linux, 49152 elsewhere): any
connection of the machine could take one of them before it is bound."""

# A place of its own for each process, as two may look for ports at the same time.
_places = itertools.count(SystemRandom().randrange(len(_PORTS)))


class StartError(Exception):
    """A child did not get ready; the message has its last output."""


def free_port() -> int:
    """Return a TCP port of the loopback address that was free a moment ago. Raises OSError."""
    for place in itertools.islice(_places, len(_PORTS)):
        port = _PORTS[place % len(_PORTS)]
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError(f"no port of 127.0.0.1 from {_PORTS[0]} to {_PORTS[-1]} is free")


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Child:
    """One child process whose output goes to ``log``."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self.process = process
        self.log = log

    @classmethod
    async def start(
        cls, name: str, argv: Sequence[str], log: Path, ready: str, children: "list[Child]"
    ) -> "Child":
        """Start ``argv`` and wait until its log has ``ready``. Raises StartError.

        The child is in ``children`` from its first moment; whoever owns that list ends it, also
        when this wait is cancelled.
        """
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
            )
        child = cls(name, process, log)
        children.append(child)
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                while ready not in child.output():
                    if process.returncode is not None:
                        raise StartError(child._complaint(f"ended with {process.returncode}"))
                    await asyncio.sleep(0.02)
        except TimeoutError as error:
            raise StartError(child._complaint(f"not ready in {START_TIMEOUT_S:g} s")) from error
        return child

    def output(self) -> str:
        """Return all that the child has printed so far."""
        return self.log.read_text(errors="replace")

    def _complaint(self, what: str) -> str:
        tail = self.output().strip().splitlines()[-5:]
        return f"{self.name} {what}; its last output:\n  " + "\n  ".join(tail or ["(none)"])

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the child's whole group, if it is still there."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    async def stop(self) -> None:
        """End the child: SIGTERM, and SIGKILL if that is not enough."""
        if self.process.returncode is not None:
            return
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self.process.wait()
        except TimeoutError:
            self.signal(signal.SIGKILL)
            await self.process.wait()


async def stop_all(children: Sequence[Child]) -> None:
    """End all children at once."""
    await asyncio.gather(*(child.stop() for child in children))
