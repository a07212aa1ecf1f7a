"""Numbers that say what they are: each result field carries a label, a unit and its origin."""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

from contract.options import check_numbers

NUMBER_MAX = 1e15
"""No figure of a fleet is larger; what is, would only overflow in a product."""


def figure(label: str, unit: str, how: str) -> Any:
    """Declare one number of a result. ``how`` is its formula, or the code that was stepped."""
    return field(metadata={"label": label, "unit": unit, "how": how})


@dataclass(frozen=True)
class FigureRow:
    """One number as a table shows it."""

    name: str
    label: str
    value: Any  # int, float, or a tuple of ints
    unit: str
    how: str


def figure_rows(result: Any) -> Iterator[FigureRow]:
    """Yield the numbers of ``result``, a dataclass instance, in the order of their declaration."""
    for item in fields(result):
        if "label" in item.metadata:
            meta = item.metadata
            value = getattr(result, item.name)
            yield FigureRow(item.name, meta["label"], value, meta["unit"], meta["how"])


def check_above_zero(settings: Any, *, may_be_zero: frozenset[str] = frozenset()) -> None:
    """Raise ValueError, naming the setting, for a number that is not above zero, or absurd."""
    check_numbers(settings, may_be_zero=may_be_zero, most=NUMBER_MAX)
