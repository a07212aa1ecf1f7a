"""The comparison of policies on recorded traffic: what it prints, and that it repeats itself."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from bench.policies import OURS_HERE, TARGETS, Case, Result, Target, main, run, tables
from simulator.routing import parse_choice
from warmroute import fixed_timing

SHORT = "conversation,first=300"


def result(policy: str, **changes: float) -> Result:
    figures = {"reuse": 0.3, "ttft_ms": 200.0, "ttft_p99_ms": 1000.0, "e2e_ms": 7000.0}
    figures |= {"e2e_p99_ms": 20_000.0, "imbalance": 1.1} | changes
    return Result(Case("conversation", 2_000, policy), 12_031, 12_031, **figures)


def test_the_same_case_gives_the_same_figures() -> None:
    case = Case(SHORT, 2_000, "min_ttft")

    assert run(case) == run(case)


def test_affinity_is_seen_in_reuse() -> None:
    reuse = {policy: run(Case(SHORT, 2_000, policy)).reuse for policy in ("random", "prefix_load")}

    assert reuse["prefix_load"] > 1.2 * reuse["random"] > 0


def test_a_policy_that_reads_reports_finds_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else every replica would seem as empty as it was at the start."""
    case = Case(SHORT, 2_000, "dynamo_cost")
    with_reports = run(case)
    monkeypatch.setattr("bench.policies.READ_REPORTS", set())

    assert run(case) != with_reports


@pytest.mark.parametrize(
    ("changes", "is_met"),
    [
        ({}, True),
        ({"reuse": 0.2496}, True),  # shown as 0.250
        ({"reuse": 0.2494}, False),
        ({"ttft_ms": 226.6}, False),
        ({"ttft_p99_ms": 1201.6}, False),
    ],
)
def test_a_target_is_met_by_all_three_figures_as_shown(
    changes: dict[str, float], is_met: bool
) -> None:
    at_limit = {"reuse": 0.25, "ttft_ms": 226.4, "ttft_p99_ms": 1201.4}

    assert Target(0.25, 226, 1_201).is_met(result("x", **(at_limit | changes))) is is_met


def test_a_table_has_the_earliest_first_token_on_top_and_the_target_below() -> None:
    lines = list(tables([result("late", ttft_ms=300.0), result("soon", ttft_ms=100.0)]))

    assert lines[0] == "conversation, 8 x 2,000 blocks of 512 tokens"
    assert [line.split()[0] for line in lines[2:5]] == ["soon", "late", "target"]
    assert lines[2].endswith("met")
    assert lines[3].endswith("-")


def test_all_policies_and_sizes_are_run_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"

    status = main(
        ["--workload", "conversation,first=5", "--blocks", "2000", "5000", "--json", str(out)]
        + ["--policy", "random", "chwbl:load_factor=2"]
    )

    cases = [figures["case"] for figures in json.loads(out.read_text())]
    assert status == 0
    assert [(case["num_blocks"], case["policy"]) for case in cases] == [
        (2_000, "random"),
        (2_000, "chwbl:load_factor=2"),
        (5_000, "random"),
        (5_000, "chwbl:load_factor=2"),
    ]
    assert capsys.readouterr().out.count("chwbl:load_factor=2") == 2


def test_the_page_shows_what_was_wanted_and_what_came_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "results.json"
    monkeypatch.setattr("bench.policies.RESULTS", path)
    monkeypatch.setattr(fixed_timing, "RESULTS", path)
    monkeypatch.setattr("bench.policies.run", _run)
    monkeypatch.setattr("bench.policies._opened", lambda _: None)  # whole traces take seconds
    monkeypatch.setattr("bench.policies.ProcessPoolExecutor", ThreadPoolExecutor)

    assert fixed_timing.fixed_timing_section() == ""
    assert main(["--policy", "random", "min_ttft", "--write"]) == 0
    section = fixed_timing.fixed_timing_section()

    assert section.count("\n### ") == section.count("| wanted |") == len(TARGETS)
    assert "| `min_ttft` | 0.300 | 200 | 1,000 | 7,000 | yes |" in section


def _run(case: Case) -> Result:
    return replace(result(case.policy), case=case)


def test_ours_is_told_what_these_steps_are_like() -> None:
    assert parse_choice(OURS_HERE).name == "min_ttft"


@pytest.mark.parametrize("arguments", [["--policy", "best"], ["--workload", "talk"]])
def test_an_unknown_name_ends_with_status_3_and_the_known_ones(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 3
    assert "known: " in capsys.readouterr().err
