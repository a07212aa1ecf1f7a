"""The page about the weather table: what counts as lost, and what it says of it."""

import json
from pathlib import Path
from typing import Any

import pytest

from warmroute import weather
from warmroute.weather import OURS, cell_table, losses, weather_section


def results(**rows: tuple[float, float]) -> dict[str, Any]:
    """Return results of one cell: TTFT and goodput by policy."""
    cell = {
        policy: [ttft_ms, ttft_ms, 2 * ttft_ms, 30.0, 900.0, goodput, 0.5]
        for policy, (ttft_ms, goodput) in rows.items()
    }
    return {
        "seeds": 1,
        "policies": {policy: {} for policy in rows},
        "figures": ["ttft_ms", "ttft_p50_ms", "ttft_p99_ms", "itl_p99_ms", "e2e_ms"]
        + ["goodput", "hit_rate"],
        "weathers": {
            "calm": {
                "meaning": "few prompts",
                "shares_prefixes": True,
                "definition": "",
                "knee_per_s": 3.0,
                "cells": {"half": cell},
            }
        },
    }


@pytest.mark.parametrize(
    ("ours", "lost"),
    [
        ((102.0, 0.98), []),
        ((102.1, 0.99), ["TTFT"]),
        ((100.0, 0.979), ["goodput"]),
        ((90.0, 0.5), ["goodput"]),
    ],
)
def test_a_cell_is_lost_by_more_than_two_percent(
    ours: tuple[float, float], lost: list[str]
) -> None:
    found = losses(results(min_ttft=ours, least_loaded=(100.0, 1.0)))

    assert [loss.figure for loss in found] == lost


def test_nothing_is_lost_where_nobody_gives_a_good_answer() -> None:
    assert not list(losses(results(min_ttft=(100.0, 0.0), least_loaded=(100.0, 0.0))))


def test_the_best_of_a_cell_stands_on_top() -> None:
    lines = cell_table(results(min_ttft=(90.0, 1.0), random=(80.0, 1.0)), "calm", "half")

    assert [line.split()[0] for line in lines.splitlines()[2:]] == ["random", OURS]


def test_the_section_names_what_is_lost_and_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "weather.json"
    path.write_text(json.dumps(results(min_ttft=(110.0, 1.0), least_loaded=(100.0, 1.0))))
    monkeypatch.setattr(weather, "RESULTS", path)
    monkeypatch.setattr(weather, "REASONS", {("calm", "half"): "so it is"})

    section = weather_section()

    assert "More than 2% behind the best in 1 of 1 cells" in section
    assert "| `calm` | half | TTFT by 10.0% | `least_loaded` | so it is |" in section


def test_there_is_no_section_without_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weather, "RESULTS", tmp_path / "none.json")

    assert weather_section() == ""


def test_every_lost_cell_is_explained() -> None:
    found = weather.read_results()
    if found is None:
        pytest.skip("no results have been written; run `make weather`")

    unexplained = {(loss.weather, loss.load) for loss in losses(found)} - set(weather.REASONS)

    assert not unexplained
