"""One declaration of a setting gives its TOML key, its flag, its check and its row in the docs.

A section is a frozen dataclass whose fields are made by ``option(default, unit, meaning)``.
Values arrive typed (TOML) or as text (flags, environment) and leave as the field's type.
"""

import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from enum import Enum
from math import inf
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


class SettingError(ValueError):
    """A setting that is unknown, of the wrong type or out of range; the message names it."""


def option(default: Any, unit: str, meaning: str, *, secret: bool = False) -> Any:
    """Declare one setting. ``unit`` is "" where there is none; ``meaning`` says why and when.

    A secret is never printed, and is better given by the environment than in a file.
    """
    metadata = {"unit": unit, "meaning": meaning, "secret": secret}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class OptionRow:
    """One setting as the docs, ``--help`` and ``warmroute config`` show it."""

    name: str
    type_name: str
    default: Any
    unit: str
    meaning: str
    secret: bool


def option_rows(section: type) -> Iterator[OptionRow]:
    """Yield the settings of ``section`` in the order of their declaration."""
    hints = get_type_hints(section)
    for item in fields(section):
        if "meaning" in item.metadata:
            assert item.default is not MISSING
            meta = item.metadata
            name = _type_name(hints[item.name])
            yield OptionRow(
                item.name, name, item.default, meta["unit"], meta["meaning"], meta["secret"]
            )


def build_section(section: type[T], settings: Mapping[str, Any], where: str) -> T:
    """Build ``section`` from named values. ``where`` is how messages call it ('[gateway]').

    Raises SettingError for an unknown name (with the known ones), a value of another type, or
    whatever the section's own ``__post_init__`` refuses.
    """
    hints = get_type_hints(section)
    known = [row.name for row in option_rows(section)]
    values: dict[str, Any] = {}
    for name, raw in settings.items():
        if name not in known:
            raise SettingError(f"{where} has no setting {name!r}; known: {', '.join(known)}")
        values[name] = _coerce(hints[name], raw, f"{where} {name}")
    try:
        return section(**values)
    except SettingError:
        raise
    except ValueError as error:
        raise SettingError(f"{where}: {error}") from error


def check_numbers(section: object, *, may_be_zero: Collection[str] = (), most: float = inf) -> None:
    """Raise ValueError where a setting is a number and not above 0, infinite, or above ``most``."""
    for name, value in vars(section).items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        is_zero_wrong = value == 0 and name not in may_be_zero
        if not 0 <= value <= most or value == inf or is_zero_wrong:  # NaN is not, either
            least = "0 or more" if name in may_be_zero else "above 0"
            limit = "finite" if most == inf else f"at most {most:g}"
            raise ValueError(f"{name} is {value}, must be {least} and {limit}")


def check_not_negative(section: object, *names: str) -> None:
    """Raise ValueError where one of these settings is not a finite number of 0 or more."""
    for name in names:
        value = getattr(section, name)
        if not 0 <= value < inf:
            raise ValueError(f"{name} is {value}, must be a number of 0 or more")


def check_shares(section: object, *names: str) -> None:
    """Raise ValueError where one of these settings is not from 0 to 1."""
    for name in names:
        value = getattr(section, name)
        if not 0 <= value <= 1:
            raise ValueError(f"{name} is {value}, must be from 0 to 1")


def _coerce(hint: Any, raw: Any, where: str) -> Any:
    if get_origin(hint) in (Union, UnionType):
        members = [member for member in get_args(hint) if member is not NoneType]
        if raw is None or raw == "none":
            return None
        return _coerce(members[0], raw, where)
    if get_origin(hint) is tuple:
        items = _items(raw, where) if isinstance(raw, str) else raw
        if not isinstance(items, list | tuple):
            raise SettingError(f"{where} is {raw!r}, expected a list")
        return tuple(_coerce(get_args(hint)[0], item, where) for item in items if item != "")
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _choice(hint, raw, where)
    return _scalar(hint, raw, where)


def _items(text: str, where: str) -> Any:
    """Return the items of a list that is written as ``a, b``, or as TOML has it."""
    if not text.lstrip().startswith("["):
        return [item.strip() for item in text.split(",")]
    try:
        return tomllib.loads(f"items = {text}")["items"]
    except tomllib.TOMLDecodeError as error:  # the text is not repeated: there are lists of keys
        raise SettingError(f"{where} begins with [ and is no list as TOML has it") from error


def _choice(hint: type[Enum], raw: Any, where: str) -> Enum:
    if isinstance(raw, hint):
        return raw
    choices = [member.value for member in hint]
    if raw not in choices:
        raise SettingError(f"{where} is {raw!r}, expected one of {', '.join(map(str, choices))}")
    return hint(raw)


def _scalar(hint: Any, raw: Any, where: str) -> Any:
    if hint is bool:
        words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        value = raw if isinstance(raw, bool) else words.get(str(raw).lower())
        if value is None:
            raise SettingError(f"{where} is {raw!r}, expected true or false")
        return value
    if hint is str:
        if not isinstance(raw, str):
            raise SettingError(f"{where} is {raw!r}, expected text")
        return raw
    if isinstance(raw, bool) or (hint is int and isinstance(raw, float) and not raw.is_integer()):
        raise SettingError(f"{where} is {raw!r}, expected {_type_name(hint)}")
    try:
        return hint(raw)
    except (TypeError, ValueError) as error:
        raise SettingError(f"{where} is {raw!r}, expected {_type_name(hint)}") from error


def _type_name(hint: Any) -> str:
    if get_origin(hint) in (Union, UnionType):
        members = [_type_name(member) for member in get_args(hint) if member is not NoneType]
        return " or ".join([*members, "none"])
    if get_origin(hint) is tuple:
        return f"list of {_type_name(get_args(hint)[0])}"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return " | ".join(str(member.value) for member in hint)
    names = {int: "whole number", float: "number", str: "text", bool: "true or false"}
    return names.get(hint, getattr(hint, "__name__", str(hint)))
