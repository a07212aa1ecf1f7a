"""The routers that can be measured, one entry each, and how their command lines are filled in.

A command is a template. `{python}`, `{port}`, `{admin_port}`, `{directory}` (scratch, one per
start) and `{config}` (the filled-in configuration file) may stand anywhere in it. `{urls}` and
`{replica_flags}` stand alone and become several arguments: `URL URL ...` and `--replica URL ...`.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.fake_fleet import FakeReplica

# Where a Debian keeps its daemons; not in every user's PATH.
_SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"])


class RouterMissingError(Exception):
    """The router's program is not installed; the message says how to get it."""


@dataclass(frozen=True, slots=True)
class Site:
    """The place in which one router runs once."""

    port: int
    admin_port: int
    replicas: list[FakeReplica]
    directory: Path


@dataclass(frozen=True, slots=True)
class Router:
    """How to start one router, and the path that answers 200 when it can serve."""

    name: str
    command: str
    ready_path: str
    config: str = ""
    """A file beside this module, filled in at each start."""
    install: str = "is it installed?"

    def argv(self, site: Site) -> list[str]:
        """Write the configuration, if any, and give the command line.

        Raises `RouterMissingError` when the program does not exist.
        """
        several = {
            "{urls}": [replica.url for replica in site.replicas],
            "{replica_flags}": [
                part for replica in site.replicas for part in ("--replica", replica.url)
            ],
        }
        values = {
            "python": sys.executable,
            "port": site.port,
            "admin_port": site.admin_port,
            "directory": site.directory,
            "config": self._write_config(site),
        }
        argv: list[str] = []
        for word in shlex.split(self.command):
            argv.extend(several[word] if word in several else [word.format(**values)])
        return [self._program(argv[0]), *argv[1:]]

    def _program(self, name: str) -> str:
        path = shutil.which(name, path=_SEARCH_PATH)
        if path is None:
            raise RouterMissingError(f"{self.name}: no program {name!r}; {self.install}")
        return path

    def _write_config(self, site: Site) -> Path | None:
        if not self.config:
            return None
        text = Path(__file__).with_name(self.config).read_text()
        servers = " ".join(f"server 127.0.0.1:{replica.port};" for replica in site.replicas)
        text = text.replace("@PORT@", str(site.port)).replace("@SERVERS@", servers)
        path = site.directory / self.config.removesuffix(".in")
        path.write_text(text.replace("@DIRECTORY@", str(site.directory)))
        return path


NGINX = Router(
    "nginx",
    "nginx -p {directory} -c {config}",
    "/health",
    config="nginx.conf.in",
    install="apt-get install nginx-light",
)
WARMROUTE = Router(
    "warmroute",
    "{python} -m warmroute router --host 127.0.0.1 --port {port} --admin-port {admin_port}"
    " --policy prefix_load --set log.log_requests=false {replica_flags}",  # as nginx here
    "/ready",
)
PEERS = [
    Router(
        "vllm-router",
        "vllm-router --host 127.0.0.1 --port {port} --prometheus-port {admin_port}"
        " --worker-urls {urls} --policy cache_aware --worker-startup-check-interval 1"
        " --log-level warning",
        "/health",
        install="pip install vllm-router",
    ),
    Router(
        "sglang-router",
        "{python} -m sglang_router.launch_router --host 127.0.0.1 --port {port}"
        " --prometheus-port {admin_port} --worker-urls {urls} --policy cache_aware"
        " --worker-startup-check-interval 1 --log-level warn",
        "/health",
        install="pip install sglang-router",
    ),
    Router(
        "smg",
        "smg launch --host 127.0.0.1 --port {port} --prometheus-port {admin_port}"
        " --worker-urls {urls} --policy cache_aware --backend vllm --log-level warn",
        "/health",
        install="pip install smg",
    ),
]
