"""Runs one agent as a process: signals, a ready line, an exit code."""

import asyncio
import logging
import signal
import sys

import uvloop

from contract.options import SettingError
from replicas.agents.agent import running_agent
from replicas.agents.config import AgentConfig

EXIT_CANNOT_START = 3

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run(config: AgentConfig) -> int:
    """Watch until a stop signal and return the exit code.

    Neither an engine nor a Redis that is away keeps the agent from starting. What does is one
    line on stderr and code 3.
    """
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(config))
    except SettingError as error:
        sys.stderr.write(f"cannot start: {error}\n")
        return EXIT_CANNOT_START
    return 0


async def _serve(config: AgentConfig) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop.set)
    async with running_agent(config) as replica_ids:
        sys.stdout.write(f"ready: watching {config.engine.value} {' '.join(replica_ids)}\n")
        sys.stdout.flush()
        await stop.wait()
