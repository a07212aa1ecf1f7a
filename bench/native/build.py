"""Compile the native programs when their source is newer than what was built.

`python -m bench.native.build` compiles and prints where the programs are.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

SOURCE_DIRECTORY = Path(__file__).resolve().parent
BUILD_DIRECTORY = SOURCE_DIRECTORY.parents[1] / "build" / "bench"

# CC may name another compiler that takes gcc's flags.
FLAGS = ("-std=c11", "-O2", "-Wall", "-Wextra")


class CompilerMissingError(Exception):
    """There is no C compiler."""


class CompilationError(Exception):
    """The compiler refused a source; the message is the compiler's."""


@dataclass(frozen=True, slots=True)
class Programs:
    """Paths of the compiled programs."""

    fake_replica: Path
    load_client: Path


def compiler() -> str:
    """Find the C compiler; raise `CompilerMissingError` when there is none."""
    name = os.environ.get("CC", "gcc")
    path = shutil.which(name)
    if path is None:
        raise CompilerMissingError(
            f"no C compiler {name!r} found; install one: apt-get install gcc libc6-dev"
        )
    return path


def build(directory: Path = BUILD_DIRECTORY) -> Programs:
    """Compile both programs into `directory`, each only if it is older than its sources."""
    directory.mkdir(parents=True, exist_ok=True)
    return Programs(
        fake_replica=_build_program("fake_replica", directory),
        load_client=_build_program("load_client", directory),
    )


def _build_program(name: str, directory: Path) -> Path:
    program = directory / name
    source = SOURCE_DIRECTORY / f"{name}.c"
    if not _is_current(program, [source, *SOURCE_DIRECTORY.glob("*.h")]):
        _compile(source, program)
    return program


def _is_current(program: Path, sources: list[Path]) -> bool:
    if not program.exists():
        return False
    built_at = program.stat().st_mtime_ns
    return all(source.stat().st_mtime_ns < built_at for source in sources)


def _compile(source: Path, program: Path) -> None:
    # Replaced in one step, so that two builds at once never run half a program.
    unfinished = program.with_name(f"{program.name}.{os.getpid()}")
    command = [compiler(), *FLAGS, "-o", str(unfinished), str(source)]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if result.returncode != 0:
            raise CompilationError(f"{' '.join(command)}\n{result.stderr}")
        unfinished.replace(program)
    finally:
        unfinished.unlink(missing_ok=True)


def main() -> None:
    """Build and print the paths."""
    programs = build()
    print(programs.fake_replica)
    print(programs.load_client)


if __name__ == "__main__":
    main()
