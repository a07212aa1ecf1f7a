"""``warmroute plan steptime``: the step-time model against published measurements."""

import argparse
import csv
import gzip
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from contract.options import SettingError
from replicas.core.step_time import EngineSpeed
from simulator.measured.rows import MeasuredRows, RowError, read_rows
from simulator.measured.step_time_check import EngineCheck, Score, check_rows, predict_us
from warmroute.plan.picture import picture_svg

HEADS = ("", "rows", "MAPE", "median", "p90", "bias")


@dataclass(frozen=True)
class StepTimeInputs:
    """What was asked for."""

    check: str
    fit: bool = False
    picture: str | None = None


@dataclass(frozen=True)
class StepTimeResults:
    """Scores by engine, and what was not scored."""

    engines: dict[str, EngineCheck]
    left_out: tuple[tuple[str, int], ...]


def add_steptime_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``plan steptime``."""
    parser.add_argument(
        "--check",
        metavar="FILE",
        required=True,
        help="measured rows, a CSV (.gz) with the columns of AIConfigurator's silicon_sample.csv",
    )
    parser.add_argument(
        "--fit",
        action="store_true",
        help="fit the four constants of each engine to these rows first, and print them",
    )
    parser.add_argument(
        "--picture",
        metavar="FILE",
        help="write predicted against measured there, an SVG of the rows of the first engine",
    )


def plan_steptime(inputs: StepTimeInputs) -> StepTimeResults:
    """Return the scores. Writes the picture, if one is asked for.

    Raises SettingError for a file that holds no rows of this format or cannot be written.
    """
    measured = _read(Path(inputs.check))
    if not measured.rows:
        raise SettingError(f"{inputs.check} has no row that can be scored")
    checks = check_rows(measured.rows, refit=inputs.fit)
    if inputs.picture is not None:
        _write_picture(Path(inputs.picture), measured, next(iter(checks.items())))
    return StepTimeResults(checks, measured.left_out)


def steptime_text(inputs: StepTimeInputs, results: StepTimeResults) -> str:
    """Return the scores as tables, one for each engine."""
    origin = "fitted to these rows" if inputs.fit else "of the catalogue"
    parts = [_engine_text(name, check, origin) for name, check in results.engines.items()]
    return "\n\n".join([*parts, _left_out_text(results.left_out)])


def speed_text(engine: EngineSpeed) -> str:
    """Return the four constants in one line."""
    return (
        f"memory {engine.memory_efficiency:.3f}, compute {engine.compute_efficiency:.3f}, "
        f"layer {engine.layer_us:.1f} us + {engine.layer_sequence_us:.3f} us per sequence"
    )


def _read(path: Path) -> MeasuredRows:
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
            return read_rows(csv.DictReader(file))
    except RowError as error:
        raise SettingError(f"{path}: {error}") from error
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise SettingError(f"cannot read {path}: {error}; give a CSV of measured rows") from error


def _write_picture(path: Path, measured: MeasuredRows, named: tuple[str, EngineCheck]) -> None:
    name, check = named
    rows = [row for row in measured.rows if row.engine == name]
    groups = []
    for gpu in sorted({row.gpu.name for row in rows}):
        own = [row for row in rows if row.gpu.name == gpu]
        dots = [(row.tpot_us / 1e3, predict_us(row, check.engine) / 1e3) for row in own]
        groups.append((f"{gpu}, {len(own)} rows", dots))
    title = f"{check.engine.name}: time per output token; grey: within 10 %"
    try:
        path.write_text(picture_svg(title, groups))
    except OSError as error:
        raise SettingError(f"cannot write {path}: {error.strerror}") from error


def _engine_text(name: str, check: EngineCheck, origin: str) -> str:
    title = f"{check.engine.name} ({name}): {speed_text(check.engine)}; {origin}"
    rows: list[Sequence[str]] = [HEADS, _row(check.total)]
    for kind, scores in check.by.items():
        rows += [(f"by {kind}",), *map(_row, scores)]
    for kind, scores in check.without.items():
        rows += [(f"fitted without that {kind}",), *map(_row, scores)]
    return "\n".join([title, *_table(rows)])


def _row(score: Score) -> Sequence[str]:
    shares = (score.mape, score.median, score.p90)
    return (
        f"  {score.group}",
        str(score.rows),
        *(f"{100 * share:.1f} %" for share in shares),
        f"{100 * score.bias:+.1f} %",
    )


def _table(rows: Iterable[Sequence[str]]) -> Iterable[str]:
    for head, *cells in rows:
        yield "".join([f"  {head:<26}", *(f"{cell:>9}" for cell in cells)]).rstrip()


def _left_out_text(left_out: tuple[tuple[str, int], ...]) -> str:
    if not left_out:
        return "No row was left out."
    lines = [f"  {rows:>5}  {reason}" for reason, rows in left_out]
    return "\n".join(["Rows left out:", *lines])
