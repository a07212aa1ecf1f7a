"""Rows of a recorded trace, each field of which is checked before it is used."""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import Any

import msgspec

from contract.options import SettingError

TOKENS_MAX = 10_000_000
"""Tokens of one prompt or answer; more is a column that was taken for another."""

NUMBER_MAX = 1e12
"""Seconds or milliseconds of a clock; more is not a time."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class TraceError(SettingError):
    """A file that is not what it should be; the message names file, line, field and both values."""


@dataclass(frozen=True, slots=True)
class TraceFile:
    """A file's name, for messages, and its lines."""

    name: str
    lines: Sequence[str]


@dataclass(frozen=True, slots=True)
class Row:
    """One row: fields by name, as JSON values or as text."""

    file: str
    line: int  # from 1
    values: dict[str, Any]

    def tokens(self, name: str, *, least: int = 1) -> int:
        """Return a number of tokens, from ``least`` to TOKENS_MAX."""
        found = self._get(name)
        if isinstance(found, str) and found.isascii() and found.strip().isdecimal():
            value = int(found)
        elif type(found) is int:
            value = found
        else:
            value = -1
        if not least <= value <= TOKENS_MAX:
            raise self.error(name, f"a whole number from {least} to {TOKENS_MAX}")
        return value

    def number(self, name: str) -> float:
        """Return a number from 0 to NUMBER_MAX."""
        found = self._get(name)
        try:
            value = -1.0 if isinstance(found, bool) else float(found)
        except (TypeError, ValueError):
            value = -1.0
        if not isfinite(value) or not 0 <= value <= NUMBER_MAX:
            raise self.error(name, f"a number from 0 to {NUMBER_MAX:g}")
        return value

    def ids(self, name: str) -> Sequence[int]:
        """Return a list of whole numbers."""
        found = self._get(name)
        if type(found) is not list or not all(type(item) is int for item in found):
            raise self.error(name, "a list of whole numbers")
        return found

    def moment_us(self, name: str) -> int:
        """Return a date and time (ISO 8601, UTC if it names no zone) in us since 1970."""
        try:
            moment = datetime.fromisoformat(self._get(name))
        except (TypeError, ValueError):
            raise self.error(name, "a date and time such as 2023-11-16 18:17:03.97") from None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return (moment - EPOCH) // timedelta(microseconds=1)

    def error(self, name: str, expected: str) -> TraceError:
        """Return what to raise for the field ``name``."""
        found = repr(self.values[name])
        shown = found if len(found) <= 60 else f"{found[:60]}..."
        return TraceError(f"{self.file} line {self.line}: {name} is {shown}, expected {expected}")

    def _get(self, name: str) -> Any:
        if name not in self.values:
            known = ", ".join(self.values) or "nothing"
            raise TraceError(
                f"{self.file} line {self.line}: no field {name}, expected one; found {known}"
            )
        return self.values[name]


def json_rows(file: TraceFile) -> Iterator[Row]:
    """Yield one row for each line, which must be a JSON object; empty lines are passed over."""
    for line, text in enumerate(file.lines, start=1):
        if not text.strip():
            continue
        try:
            values = msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise TraceError(
                f"{file.name} line {line}: {text[:60]!r} is not JSON ({error}), expected an object"
            ) from error
        if not isinstance(values, dict):
            raise TraceError(f"{file.name} line {line}: found {text[:60]!r}, expected an object")
        yield Row(file.name, line, values)


def csv_rows(
    file: TraceFile, needed: Sequence[str], header: Sequence[str] | None = None
) -> Iterator[Row]:
    """Yield the rows of a CSV file whose first line names the columns, or which has ``header``."""
    reader = csv.reader(file.lines)
    names = header if header is not None else [name.strip() for name in next(reader, [])]
    missing = [name for name in needed if name not in names]
    if missing:
        raise TraceError(
            f"{file.name} line 1: found columns {', '.join(names) or 'none'}; "
            f"expected also {', '.join(missing)}"
        )
    for cells in reader:
        if not cells:
            continue
        if len(cells) != len(names):
            raise TraceError(
                f"{file.name} line {reader.line_num}: found {len(cells)} fields, "
                f"expected {len(names)}: {', '.join(names)}"
            )
        yield Row(file.name, reader.line_num, dict(zip(names, cells, strict=True)))
