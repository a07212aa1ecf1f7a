"""Impossible routing settings stop the start with a message that names them."""

from typing import Any

import pytest

from contract.options import SettingError, build_section, option_rows
from router.core.config import CENTURY_S, RoutingConfig, micros


def test_every_setting_has_a_meaning() -> None:
    rows = list(option_rows(RoutingConfig))

    assert all(row.meaning for row in rows)
    assert {row.name for row in rows} == set(vars(RoutingConfig()))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("index_block_bytes", 0),
        ("index_block_bytes", 250),
        ("bytes_per_token", -1.0),
        ("bytes_per_token", float("inf")),
        ("report_stale_s", float("nan")),
        ("index_entries_max", 0),
        ("report_dead_s", 0.5),  # before it is stale
        ("retry_budget", 1.5),
        ("breaker_cooldown_max_s", 1.0),  # below the first one
        ("queue_max", -1),
    ],
)
def test_impossible_value_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(SettingError, match=name):
        build_section(RoutingConfig, {name: value}, "[routing]")


@pytest.mark.parametrize("name", ["in_flight_max", "retry_max", "retry_budget", "queue_max"])
def test_zero_switches_off_what_can_be_switched_off(name: str) -> None:
    config = build_section(RoutingConfig, {name: 0}, "[routing]")

    assert getattr(config, name) == 0


@pytest.mark.parametrize("seconds", [float("inf"), 1e308, CENTURY_S])
def test_no_time_is_too_long_to_be_counted(seconds: float) -> None:
    assert micros(seconds) == round(CENTURY_S * 1e6)
