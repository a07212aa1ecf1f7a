"""Settings: one declaration, typed from TOML or from text, with errors that name them."""

from dataclasses import dataclass
from enum import Enum
from typing import Any

import pytest

from contract.options import SettingError, build_section, option, option_rows


class Mode(Enum):
    FAST = "fast"
    SAFE = "safe"


@dataclass(frozen=True)
class Section:
    count: int = option(3, "requests", "how many")
    share: float = option(0.5, "0..1", "how much")
    limit: float | None = option(1.25, "", "how far, or none")
    name: str = option("x", "", "what it is called")
    on: bool = option(False, "", "whether")
    mode: Mode = option(Mode.SAFE, "", "how")
    urls: tuple[str, ...] = option((), "", "where")
    key: str = option("", "", "secret", secret=True)

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError(f"count is {self.count}, must be 0 or more")


@pytest.mark.parametrize(
    ("name", "raw", "value"),
    [
        ("count", 7, 7),
        ("count", "7", 7),
        ("count", 7.0, 7),
        ("share", 1, 1.0),
        ("share", "0.25", 0.25),
        ("limit", "none", None),
        ("limit", None, None),
        ("limit", "2", 2.0),
        ("name", "7", "7"),
        ("on", True, True),
        ("on", "yes", True),
        ("on", "False", False),
        ("mode", "fast", Mode.FAST),
        ("mode", Mode.FAST, Mode.FAST),
        ("urls", "a,b", ("a", "b")),
        ("urls", "a, b,", ("a", "b")),
        ("urls", """ ["a", 'b, c'] """, ("a", "b, c")),
        ("urls", ["a", "b"], ("a", "b")),
        ("urls", "", ()),
    ],
)
def test_value_arrives_as_the_fields_type(name: str, raw: Any, value: Any) -> None:
    built = getattr(build_section(Section, {name: raw}, "[s]"), name)

    assert built == value
    assert type(built) is type(value)


@pytest.mark.parametrize(
    ("name", "raw", "expected"),
    [
        ("count", "many", "whole number"),
        ("count", 1.5, "whole number"),
        ("count", True, "whole number"),
        ("share", "half", "number"),
        ("share", True, "number"),
        ("name", 7, "text"),
        ("on", "maybe", "true or false"),
        ("mode", "slow", "fast, safe"),
        ("urls", 7, "list"),
        ("urls", "[a", "list"),
    ],
)
def test_value_of_another_type_is_refused_with_what_was_found(
    name: str, raw: Any, expected: str
) -> None:
    with pytest.raises(SettingError, match=rf"\[s\] {name} .*is .*{expected}"):
        build_section(Section, {name: raw}, "[s]")


def test_unknown_setting_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SettingError, match=r"\[s\] has no setting 'cuont'; known: count, share"):
        build_section(Section, {"cuont": 1}, "[s]")


def test_what_the_section_refuses_names_the_section() -> None:
    with pytest.raises(SettingError, match=r"\[s\]: count is -1"):
        build_section(Section, {"count": -1}, "[s]")


def test_rows_show_every_setting_in_order() -> None:
    rows = list(option_rows(Section))

    assert [row.name for row in rows][:3] == ["count", "share", "limit"]
    assert [row.type_name for row in rows[:3]] == ["whole number", "number", "number or none"]
    assert rows[5].type_name == "fast | safe"
    assert [row.name for row in rows if row.secret] == ["key"]
