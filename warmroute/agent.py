"""``warmroute agent``: reports real engines to a fleet's gateways."""

import argparse
import os
from typing import Any

from contract.options import build_section, option_rows
from replicas.agents.config import AgentConfig
from replicas.agents.serve import run as run_agent
from warmroute.flags import add_flags, given_flags

FROM_ENVIRONMENT = {
    "redis_url": "WARMROUTE_REDIS_URL",
    "api_key": "WARMROUTE_ENGINE_API_KEY",
}
"""Secrets, which are better not given as flags: other users of the machine can read those."""


def add_agent_parser(commands: Any) -> None:
    """Add the command to the parser's ``commands``."""
    parser = commands.add_parser("agent", help="report real engines to a fleet's gateways")
    parser.description = (
        "Reads the metrics of real engines (vLLM, llama.cpp, SGLang, TGI) and reports their load "
        "in Redis, where gateways find them. Runs until SIGTERM or SIGINT."
    )
    parser.add_argument(
        "--url",
        dest="urls",
        action="append",
        metavar="URL",
        default=argparse.SUPPRESS,
        help="an engine, http://host:port; may be repeated",
    )
    names = [row.name for row in option_rows(AgentConfig) if row.name != "urls"]
    add_flags(parser, AgentConfig, only=names)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    found = {
        name: os.environ[variable]
        for name, variable in FROM_ENVIRONMENT.items()
        if os.environ.get(variable)
    }
    return run_agent(build_section(AgentConfig, found | given_flags(args, AgentConfig), "agent"))
