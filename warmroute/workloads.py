"""Workloads as the command line names them: ``NAME``, ``NAME:FILE``, ``NAME,setting=value,...``.

This is where files are read; what is in them, and what is drawn, is made in `simulator.workload`.
"""

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from os.path import isfile
from pathlib import Path

from contract.options import OptionRow, SettingError, build_section, option_rows
from simulator.request import Workload
from simulator.workload.catalogue import ENTRIES, Entry, Needs
from simulator.workload.rows import TraceFile
from simulator.workload.shape import ShapeSettings
from simulator.workload.stages import StagedWorkload

FILE_BYTES_MAX = 2_000_000_000
"""Of one file, unpacked; the largest BurstGPT file has 220 MB."""

GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True)
class WorkloadSpec:
    """A workload as it was asked for."""

    entry: Entry
    path: str | None
    settings: object
    shape: ShapeSettings


@dataclass(frozen=True)
class WorkloadRow:
    """One workload as the docs and `--help` show it."""

    name: str
    argument: str  # what stands after a colon: "", "FILE" or "FOLDER"
    summary: str
    options: tuple[OptionRow, ...]


def open_workload(text: str) -> StagedWorkload:
    """Return the workload that ``text`` names, stage by stage; all but ladders have one stage.

    Raises SettingError for an unknown name or setting, a file that cannot be read, or a bad row.
    """
    spec = parse_workload(text)
    return spec.entry.workload(list(_files(spec)), spec.settings, spec.shape)


def read_workload(text: str) -> Workload:
    """Return the workload that ``text`` names, a ladder's stages following by the clock."""
    return open_workload(text).joined()


def parse_workload(text: str) -> WorkloadSpec:
    """Return what ``text`` asks for. A path may have no comma; lists are joined by ``+``."""
    head, *items = text.split(",")
    name, colon, path = head.partition(":")
    entry = ENTRIES.get(name)
    if entry is None:
        hint = f"; a file needs its format, as in mooncake:{head}" if isfile(head) else ""
        raise SettingError(f"workload {name!r} is unknown; known: {', '.join(ENTRIES)}{hint}")
    if entry.needs is Needs.NOTHING and colon:
        raise SettingError(f"workload {name!r} takes no file, found {path!r}")
    if entry.needs is not Needs.NOTHING and not path:
        raise SettingError(f"workload {name!r} has no file, expected {name}:{entry.needs.value}")
    given: dict[str, str] = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals or key in given:
            problem = "twice" if equals else "without a value"
            raise SettingError(f"workload {name!r} has {item!r} {problem}, expected setting=value")
        given[key] = value
    where = f"workload {name!r}"
    own = {row.name for row in option_rows(entry.settings)}
    shapes = {row.name for row in option_rows(ShapeSettings)}
    for key in given:
        if key not in own | shapes:
            known = ", ".join((*sorted(own), *sorted(shapes)))
            raise SettingError(f"{where} has no setting {key!r}; known: {known}")
    return WorkloadSpec(
        entry=entry,
        path=path or None,
        settings=build_section(
            entry.settings, {key: given[key] for key in given if key in own}, where
        ),
        shape=build_section(
            ShapeSettings, {key: given[key] for key in given if key in shapes}, where
        ),
    )


def workload_rows() -> Iterator[WorkloadRow]:
    """Yield all workloads with their own settings, in the order of the catalogue."""
    for entry in ENTRIES.values():
        options = tuple(option_rows(entry.settings))
        yield WorkloadRow(entry.name, entry.needs.value, entry.summary, options)


def shape_rows() -> Iterator[OptionRow]:
    """Yield the settings that every workload has."""
    return option_rows(ShapeSettings)


def _files(spec: WorkloadSpec) -> Iterator[TraceFile]:
    if spec.entry.shipped is not None:
        folder = resources.files("warmroute").joinpath("data", "traces")
        yield _read(folder.joinpath(spec.entry.shipped), spec.entry.shipped)
    elif spec.path is not None and spec.entry.needs is Needs.FOLDER:
        yield from _clients(Path(spec.path))
    elif spec.path is not None:
        yield _read(Path(spec.path), spec.path)


def _clients(folder: Path) -> Iterator[TraceFile]:
    """Yield each client's trace and its dataset, in the order of their names."""
    try:
        files = {path.name.removesuffix(".gz"): path for path in sorted(folder.iterdir())}
    except OSError as error:
        raise SettingError(f"{folder} cannot be read ({error.strerror})") from error
    traces = [name for name in files if name.endswith("-trace.csv")]
    if not traces:
        raise SettingError(f"{folder} has no NAME-trace.csv or NAME-trace.csv.gz, expected some")
    for trace in traces:
        dataset = f"{trace.removesuffix('-trace.csv')}-dataset.json"
        if dataset not in files:
            raise SettingError(f"{folder} has {trace} without {dataset}, expected both")
        yield _read(files[trace], files[trace].name)
        yield _read(files[dataset], files[dataset].name)


def _read(path: Path | Traversable, name: str) -> TraceFile:
    """Return a file's lines, unpacked where it begins as gzip does, whatever it is called."""
    try:
        with path.open("rb") as packed:
            is_gzip = packed.read(len(GZIP_MAGIC)) == GZIP_MAGIC
            packed.seek(0)
            stream = gzip.GzipFile(fileobj=packed) if is_gzip else packed
            data = stream.read(FILE_BYTES_MAX + 1)
        text = data.decode("utf-8-sig")
    except (OSError, EOFError, zlib.error) as error:
        raise SettingError(
            f"{name} cannot be read ({error}), expected a text file or .gz"
        ) from error
    except UnicodeDecodeError as error:
        raise SettingError(f"{name} is not UTF-8 at byte {error.start}, expected text") from error
    if len(data) > FILE_BYTES_MAX:
        raise SettingError(f"{name} has more than {FILE_BYTES_MAX} bytes; cut it into pieces")
    return TraceFile(name, text.splitlines())
