"""Runs one replica as a process: signals, a ready line, an exit code."""

import asyncio
import logging
import signal
import sys

import uvloop

from contract.options import SettingError
from replicas.server.config import ReplicaConfig
from replicas.server.replica import Replica, running_replica

EXIT_CANNOT_START = 3

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run(config: ReplicaConfig) -> int:
    """Serve until a stop signal and return the exit code.

    The first signal drains, the second one stops at once. What keeps the replica from starting
    is one line on stderr and code 3.
    """
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(config))
    except (SettingError, OSError) as error:
        sys.stderr.write(f"cannot start: {error}\n")
        return EXIT_CANNOT_START
    return 0


async def _serve(config: ReplicaConfig) -> None:
    signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, signals.put_nowait, number)
    async with running_replica(config) as replica:
        sys.stdout.write(f"ready: {replica.url} id={replica.replica_id}\n")
        sys.stdout.flush()
        await signals.get()
        await _drain_unless_hurried(replica, signals)


async def _drain_unless_hurried(replica: Replica, signals: asyncio.Queue[signal.Signals]) -> None:
    draining = asyncio.create_task(replica.drain())
    hurried = asyncio.create_task(signals.get())
    await asyncio.wait((draining, hurried), return_when=asyncio.FIRST_COMPLETED)
    for task in (draining, hurried):
        task.cancel()
    await asyncio.wait((draining, hurried))
