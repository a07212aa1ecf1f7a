"""What a panel is, without a word of how Grafana writes it."""

from dataclasses import dataclass
from enum import Enum


class Look(Enum):
    """How a panel shows its numbers."""

    LINES = "lines"
    STACK = "stack"  # parts of a whole, one on the other
    NUMBER = "number"  # one big number with its history behind it
    TOTAL = "total"  # one big number over the whole time shown
    TABLE = "table"  # a row for each value of a shared label, as of now


class Unit(Enum):
    """Grafana's name for a unit."""

    COUNT = "short"
    SHARE = "percentunit"
    TIMES = "suffix: x"
    SECONDS = "s"
    PER_SECOND = "suffix:/s"
    REQUESTS_PER_S = "reqps"
    TOKENS_PER_S = "si:tok/s"
    BYTES = "bytes"
    BYTES_PER_S = "Bps"


class Color(Enum):
    """Grafana's colours with a meaning."""

    GOOD = "green"
    NOTE = "blue"
    OTHER = "purple"
    WARN = "orange"
    BAD = "red"
    QUIET = "text"


@dataclass(frozen=True, slots=True)
class Query:
    """One expression and the name of its lines; ``{{label}}`` stands for a label's value."""

    expr: str
    legend: str
    color: Color | None = None  # None: the palette chooses
    dashed: bool = False  # so that a line under it is seen


@dataclass(frozen=True, slots=True)
class Step:
    """From ``value`` on, the number has this colour; below the first step it is good."""

    value: float
    color: Color


@dataclass(frozen=True, slots=True)
class Word:
    """A number that stands for a word."""

    value: int
    text: str
    color: Color


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: a query, which keeps the labels that its rows share."""

    title: str
    expr: str
    unit: Unit = Unit.COUNT
    steps: tuple[Step, ...] = ()
    words: tuple[Word, ...] = ()


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel; ``meaning`` says what the number is, ``good`` what a healthy one looks like."""

    title: str
    unit: Unit
    queries: tuple[Query, ...]
    meaning: str
    good: str
    look: Look = Look.LINES
    steps: tuple[Step, ...] = ()
    words: tuple[Word, ...] = ()
    columns: tuple[Column, ...] = ()  # of a table, instead of queries
    colors: tuple[tuple[str, Color], ...] = ()  # of lines whose names are label values
    width: int = 8  # of the 24 that a row has
    height: int = 7
    bottom: float | None = 0  # ends of the axis, where the number has them
    top: float | None = None
    logarithmic: bool = False
    noise: float | None = None  # the axis reaches this far at least; None: as the unit says
    nothing: str = "no traffic"  # shown where there are no data


@dataclass(frozen=True, slots=True)
class Row:
    """Panels that answer one question, left to right and then down."""

    title: str
    panels: tuple[Panel, ...]
