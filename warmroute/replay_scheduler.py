"""``warmroute replay-scheduler``: recordings of vLLM's scheduler against this engine.

Exit status: 0 equal; 1 a difference; 2 the file cannot be read; 3 it is not a recording.
"""

import argparse
import gzip
import json
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from replicas.core.recording import Recording, RecordingError, decode_recording
from replicas.core.replay import Difference, Replayed, replay

EXIT_UNREADABLE = 2
EXIT_FORMAT = 3
GZIP_MAGIC = b"\x1f\x8b"
LINE_BYTES_MAX = 256 * 1024 * 1024
VALUE_CHARACTERS_MAX = 500


def add_replay_scheduler_parser(
    subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]",
) -> None:
    """Add ``replay-scheduler`` to the subcommands of ``warmroute``."""
    parser = subparsers.add_parser(
        "replay-scheduler",
        help="compare the engine with recordings of vLLM's scheduler",
        description="Replays recordings of vLLM's scheduler (tests/data/vllm/README.md has the "
        "format) and compares every step: tokens, block ids, cache hits, victims, queues.",
    )
    parser.add_argument("file", type=Path, help="recordings, one a line: .jsonl or .jsonl.gz")
    parser.add_argument(
        "--leap", action="store_true", help="take the steps as a simulator does, in leaps"
    )
    parser.set_defaults(run=run_replay_scheduler)


def run_replay_scheduler(args: argparse.Namespace) -> int:
    """Print what was compared and the first difference; return the exit status."""
    try:
        return _replay_file(args.file, args.leap)
    except RecordingError as error:
        return _refuse(f"{args.file}: {error}", EXIT_FORMAT)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        return _refuse(f"{args.file} is damaged: {error}", EXIT_FORMAT)
    except OSError as error:
        return _refuse(f"{args.file} cannot be read: {error.strerror}", EXIT_UNREADABLE)


def _replay_file(path: Path, leap: bool) -> int:
    num_workloads = num_steps = num_differences = 0
    ignored: set[str] = set()
    with path.open("rb") as file:
        for line_number, recording in _recordings(file):
            result = _replay_line(line_number, recording, leap)
            if result.differences and not num_differences:
                print(_difference_text(line_number, result.differences[0]))
            num_workloads += 1
            num_steps += result.num_steps
            num_differences += len(result.differences)
            ignored |= result.fields_ignored
    if not num_workloads:
        raise RecordingError("there is no recording in it; each line must be one")
    if ignored:
        print(f"fields not compared, which are not of the format: {', '.join(sorted(ignored))}")
    way = "leaping" if leap else "step by step"
    print(f"{num_workloads} workloads, {num_steps} steps {way}, {num_differences} differences")
    return 1 if num_differences else 0


def _recordings(file: IO[bytes]) -> Iterator[tuple[int, Recording]]:
    """Yield each recording with the number of its line, from 1."""
    is_gzip = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
    file.seek(0)
    lines: IO[bytes] | gzip.GzipFile = gzip.GzipFile(fileobj=file) if is_gzip else file
    line_number = 0
    while line := lines.readline(LINE_BYTES_MAX):
        line_number += 1
        if len(line) == LINE_BYTES_MAX:
            raise RecordingError(f"line {line_number} is longer than {LINE_BYTES_MAX} bytes")
        if not line.isspace():
            try:
                yield line_number, decode_recording(line)
            except RecordingError as error:
                raise RecordingError(f"line {line_number} is no recording: {error}") from error


def _replay_line(line_number: int, recording: Recording, leap: bool) -> Replayed:
    try:
        return replay(recording, leap=leap)
    except RecordingError as error:
        raise RecordingError(f"line {line_number} cannot be run: {error}") from error


def _difference_text(line_number: int, difference: Difference) -> str:
    return (
        f"first difference: line {line_number}, step {difference.step}, {difference.field}\n"
        f"  expected {_short(difference.expected)}\n"
        f"  got      {_short(difference.got)}"
    )


def _short(value: object) -> str:
    text = json.dumps(value)
    if len(text) <= VALUE_CHARACTERS_MAX:
        return text
    return f"{text[:VALUE_CHARACTERS_MAX]}... ({len(text)} characters)"


def _refuse(message: str, status: int) -> int:
    print(f"warmroute: {message}", file=sys.stderr)
    return status
