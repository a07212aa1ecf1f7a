"""``warmroute``: one command line for the demo, the gateway, the replicas and the planner.

Exit status: 0 done; 1 it ran and something failed; 2 the command line is wrong; 3 it could not
start because of its configuration or a busy port; 130 interrupted.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from contract.options import SettingError, build_section
from replicas.server.config import ReplicaConfig
from replicas.server.serve import run as run_replica_worker
from router.config import SECTIONS, RouterConfig, load_router_config, read_toml
from router.core.policy import POLICIES
from router.serve import run as run_gateway
from warmroute import __version__
from warmroute.agent import add_agent_parser
from warmroute.demo.fleet import DemoConfig
from warmroute.demo.run import run_demo
from warmroute.explain.command import add_explain_parser
from warmroute.flags import add_flags, given_flags
from warmroute.load import add_load_parser
from warmroute.pages import (
    configuration_markdown,
    effective_text,
    metrics_markdown,
    metrics_text,
    policies_markdown,
    policies_text,
)
from warmroute.plan.command import add_plan_parser, run_plan
from warmroute.replay_scheduler import add_replay_scheduler_parser
from warmroute.simulate.command import add_simulate_parser

EXIT_CONFIG = 3
FIRST_FLAGS = ("host", "port", "admin_host", "admin_port", "redis_url", "fleet")
"""Settings of a gateway that have a flag of their own; all others are set by ``--set``."""

Run = Callable[[argparse.Namespace], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    args = _parser().parse_args(argv)
    run: Run = args.run
    try:
        return run(args)
    except SettingError as error:
        print(f"warmroute: {error}", file=sys.stderr)
        return EXIT_CONFIG
    except BrokenPipeError:
        # Whoever reads the output has gone, as in `warmroute policies | head -1`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="warmroute",
        description="Routes LLM requests to the replica whose KV cache holds most of the prompt.",
    )
    shown = f"warmroute {__version__}"
    parser.add_argument("--version", action="version", version=shown, help="print it and end")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_demo(commands.add_parser("demo", help="a real trace through real processes, in a table"))
    _add_router(commands.add_parser("router", help="run a gateway"))
    _add_replica(commands.add_parser("replica", help="run a replica that imitates an engine"))
    add_agent_parser(commands)
    add_load_parser(commands)
    add_plan_parser(commands)
    commands.choices["plan"].set_defaults(run=run_plan)
    add_simulate_parser(commands)
    add_explain_parser(commands)
    add_replay_scheduler_parser(commands)
    _add_page(commands, "policies", "the routing policies", policies_text, policies_markdown)
    _add_config(commands.add_parser("config", help="the effective settings and their origin"))
    _add_page(commands, "metrics", "all metrics and what they mean", metrics_text, metrics_markdown)
    version = commands.add_parser("version", help="print the version")
    version.set_defaults(run=_run_version)
    return parser


def _add_demo(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Starts a Redis, a gateway and replicas, replays a real request trace once for each "
        "policy, prints one table and one decision with its arithmetic, and ends everything."
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there, too")
    parser.add_argument("--keep", action="store_true", help="leave the last fleet running")
    add_flags(parser, DemoConfig)
    parser.set_defaults(run=_run_demo)


def _run_demo(args: argparse.Namespace) -> int:
    config = build_section(DemoConfig, given_flags(args, DemoConfig), "demo")
    unknown = [name for name in config.policies if name not in POLICIES]
    if unknown:
        known = ", ".join(sorted(POLICIES))
        raise SettingError(f"demo policies: no policy {unknown[0]!r}; known: {known}")
    if args.json is not None and not args.json.absolute().parent.is_dir():
        raise SettingError(f"demo --json {args.json}: there is no folder {args.json.parent}")
    return run_demo(config, args.json, args.keep)


def _add_router(parser: argparse.ArgumentParser) -> None:
    parser.description = "Runs one gateway until SIGTERM or SIGINT, which finish what runs."
    _add_router_settings(parser)
    parser.set_defaults(
        run=lambda args: run_gateway(_router_config(args), lambda: _router_config(args))
    )


def _add_router_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE", help="a TOML file of settings")
    parser.add_argument("--policy", metavar="NAME", help=f"one of {', '.join(sorted(POLICIES))}")
    parser.add_argument(
        "--replica",
        action="append",
        metavar="URL",
        help="a replica that does not report in Redis; may be repeated",
    )
    parser.add_argument(
        "--set",
        action="append",
        metavar="SECTION.SETTING=VALUE",
        help="any setting (`warmroute config` lists them); may be repeated",
    )
    for section in SECTIONS.values():
        add_flags(parser, section, only=FIRST_FLAGS)


def _router_config(args: argparse.Namespace) -> RouterConfig:
    given: dict[str, Any] = {}
    for section in SECTIONS.values():
        given |= given_flags(args, section)
    given |= {
        key: value
        for key, value in (("policy", args.policy), ("replicas", args.replica), ("set", args.set))
        if value is not None
    }
    file = read_toml(args.config) if args.config else {}
    return load_router_config(file, given, os.environ)


def _add_replica(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Runs one replica: an OpenAI-compatible server over a simulated engine (paged KV blocks, "
        "continuous batching, prefix cache) at the speed of a chosen GPU."
    )
    add_flags(parser, ReplicaConfig)
    parser.set_defaults(run=_run_replica)


def _run_replica(args: argparse.Namespace) -> int:
    return run_replica_worker(
        build_section(ReplicaConfig, given_flags(args, ReplicaConfig), "replica")
    )


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.description = "Prints every setting of a gateway, its value and where it came from."
    _add_router_settings(parser)
    _add_formats(parser)
    parser.set_defaults(run=_run_config)


def _run_config(args: argparse.Namespace) -> int:
    if args.markdown:
        print(configuration_markdown(), end="")
        return 0
    rows = _router_config(args).effective()
    if args.json:
        shown = [
            {"section": r.section, "name": r.name, "value": r.value, "origin": r.origin.value}
            for r in rows
        ]
        print(json.dumps(shown, indent=2))
    else:
        print(effective_text(rows))
    return 0


def _add_page(
    commands: Any, name: str, about: str, text: Callable[[], str], markdown: Callable[[], str]
) -> None:
    parser = commands.add_parser(name, help=about)
    parser.add_argument("--markdown", action="store_true", help=f"as docs/{name}.md")

    def run(args: argparse.Namespace) -> int:
        print(markdown() if args.markdown else text(), end="" if args.markdown else "\n")
        return 0

    parser.set_defaults(run=run)


def _add_formats(parser: argparse.ArgumentParser) -> None:
    formats = parser.add_mutually_exclusive_group()
    formats.add_argument("--markdown", action="store_true", help="as docs/configuration.md")
    formats.add_argument("--json", action="store_true", help="as a JSON list")


def _run_version(_: argparse.Namespace) -> int:
    print(f"warmroute {__version__}")
    return 0
