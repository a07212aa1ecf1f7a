"""Reads the metrics that are wanted out of a page in Prometheus' text format, and skips the rest.

A page of a real engine is some 60 KB of which a dozen lines matter, four times a second; so lines
are told apart by their name before anything of them is parsed, and nothing else on the page can
be wrong enough to matter.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import isfinite

_LINE = re.compile(r"[\w:]+(?:\{(?P<labels>.*)\})?[ \t]+(?P<value>\S+)(?:[ \t]+-?\d+)?[ \t\r]*")
_LABEL = re.compile(r'[ \t]*(\w+)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*(?:,|$)')
_ESCAPE = re.compile(r"\\(.)")
_SHOWN_MAX = 80  # characters of a line, and
_NAMES_SHOWN_MAX = 3  # names, that a message quotes


class MetricsPageError(ValueError):
    """The page cannot be used; the message says what was found and what was expected."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One series; ``value`` is None where the page says NaN or infinity, which is unknown."""

    labels: Mapping[str, str]
    value: float | None


@dataclass(frozen=True, slots=True)
class Samples:
    """The wanted series of one page by the metric's name."""

    by_name: Mapping[str, list[Sample]] = field(default_factory=dict)

    def of(self, *names: str) -> list[Sample]:
        """Return the series of the first of ``names`` that is on the page: newest name first."""
        return next((self.by_name[name] for name in names if name in self.by_name), [])

    def total(self, *names: str, copies: Collection[str] = ()) -> float | None:
        """Return the sum over the series of the first of ``names`` that is on the page.

        Series that differ in the labels ``copies`` alone tell the same thing and count once. None
        where there is no such metric, or where one of its values is unknown or negative.
        """
        values: dict[frozenset[tuple[str, str]], float | None] = {}
        for sample in self.of(*names):
            key = frozenset((k, v) for k, v in sample.labels.items() if k not in copies)
            values.setdefault(key, sample.value)
        known = [value for value in values.values() if value is not None and value >= 0]
        return sum(known) if known and len(known) == len(values) else None

    def count(self, *names: str, copies: Collection[str] = ()) -> int | None:
        """Return ``total()`` as a whole number."""
        total = self.total(*names, copies=copies)
        return None if total is None else round(total)


def read_page(text: str, wanted: Collection[str]) -> Samples:
    """Return the ``wanted`` series of a page. Raises MetricsPageError for one that is no series."""
    by_name: dict[str, list[Sample]] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        name = _name_of(line)
        if name in wanted:
            by_name.setdefault(name, []).append(_sample(line, number))
    return Samples(by_name)


def names_on(text: str) -> list[str]:
    """Return the names of the metrics on a page, each once, in their order."""
    names = (_name_of(line) for line in text.split("\n"))
    return list(dict.fromkeys(name for name in names if re.fullmatch(r"[a-zA-Z_:][\w:]*", name)))


def shown(names: Collection[str]) -> str:
    """Return the first few of ``names`` for a message."""
    some = ", ".join(list(names)[:_NAMES_SHOWN_MAX])
    return f"{some}, ..." if len(names) > _NAMES_SHOWN_MAX else some


def _name_of(line: str) -> str:
    if line.startswith("#"):
        return ""
    return line.partition("{")[0].partition(" ")[0].partition("\t")[0]


def _sample(line: str, number: int) -> Sample:
    match = _LINE.fullmatch(line)
    try:
        if match is None:
            raise ValueError("no name, labels and value")
        value = float(match["value"])
        labels = _labels(match["labels"] or "")
    except ValueError as error:
        raise MetricsPageError(
            f"line {number} of the metrics page is {line[:_SHOWN_MAX]!r}, "
            "expected a metric in Prometheus' text format"
        ) from error
    return Sample(labels, value if isfinite(value) else None)


def _labels(text: str) -> dict[str, str]:
    labels: dict[str, str] = {}
    at = 0
    while at < len(text.rstrip()):
        match = _LABEL.match(text, at)
        if match is None:
            raise ValueError("not a label")
        labels[match[1]] = _ESCAPE.sub(lambda found: _unescaped(found[1]), match[2])
        at = match.end()
    return labels


def _unescaped(character: str) -> str:
    return "\n" if character == "n" else character
