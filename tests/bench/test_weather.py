"""The weather table: what a run depends on, how a knee is found, and that runs can be resumed."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench import weather as command
from bench.weather_cells import LOADS, WEATHERS, Gpus, Weather
from bench.weather_file import Cell, RunFile, definition_of, results_of, results_text, settings_of
from bench.weather_run import Figures, find_knee, run_at
from warmroute.weather import OURS, read_results

SMALL = Weather(
    name="small",
    meaning="a few prompts",
    workload="groups,groups=4,system_tokens=1000,question_tokens=50,output_tokens=20,requests=60",
    requests=60,
    fleet=(Gpus("h100", 2),),
)
FIGURES = Figures(100.0, 90.0, 500.0, 20.0, 900.0, 1.0, 0.5)


@pytest.fixture
def only_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "WEATHERS", {"small": SMALL})


def test_the_same_run_gives_the_same_figures_and_another_seed_others() -> None:
    first = run_at(SMALL, 1.0, "random", 0)

    assert run_at(SMALL, 1.0, "random", 0) == first
    assert run_at(SMALL, 1.0, "random", 1) != first


def test_prefixes_are_found_by_a_policy_that_looks_for_them() -> None:
    warm, cold = run_at(SMALL, 1.0, OURS, 0), run_at(SMALL, 1.0, "random", 0)

    assert warm.hit_rate >= cold.hit_rate > 0.5


def test_a_replica_that_is_slower_than_it_reports_makes_first_tokens_late() -> None:
    slow = replace(SMALL, slow_factor=3.0)

    assert run_at(slow, 1.0, "random", 0).ttft_ms > 1.5 * run_at(SMALL, 1.0, "random", 0).ttft_ms


def test_the_knee_is_where_goodput_crosses_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(_: Weather, scale: float, *__: object) -> Figures:
        return replace(FIGURES, goodput=1.0 if scale <= 5.5 else 0.5)

    monkeypatch.setattr("bench.weather_run.run_at", run)

    assert 5.5 / 1.03 <= find_knee(SMALL) <= 5.5


def test_a_fleet_that_is_good_at_any_rate_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.weather_run.run_at", lambda *_: FIGURES)

    assert find_knee(SMALL) >= 64


def test_what_has_been_run_is_found_again_until_its_setting_changes(tmp_path: Path) -> None:
    runs = RunFile(tmp_path / "runs.jsonl")
    runs.add_knee(SMALL, 2.0)
    cell = Cell("small", "knee", "min_ttft", 0)
    runs.add_figures(SMALL, cell, FIGURES)

    again = RunFile(tmp_path / "runs.jsonl")

    assert again.knee(SMALL) == 2.0
    assert again.figures(SMALL, cell) == FIGURES
    assert again.knee(replace(SMALL, ttft_ms_max=5.0)) is None
    assert again.figures(SMALL, replace(cell, policy="min_ttft:step_share=1")) is None
    assert again.figures(SMALL, replace(cell, seed=1)) is None


@pytest.mark.usefixtures("only_small")
def test_the_command_runs_what_is_missing_and_prints_every_load(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "runs.jsonl"
    RunFile(path).add_knee(SMALL, 1.0)
    arguments = ["--runs", str(path), "--seeds", "1", "--weather", "small", "--policy"]

    assert command.main([*arguments, "random"]) == 0
    assert command.main([*arguments, "random", "min_ttft"]) == 0

    output = capsys.readouterr()
    assert output.out.count("small, ") == 2 * len(LOADS)
    assert output.err.count("policy='random'") == len(LOADS)  # once, not twice
    assert len(path.read_text().splitlines()) == 1 + 2 * len(LOADS)


@pytest.mark.usefixtures("only_small")
def test_an_unknown_policy_ends_with_status_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--weather", "small", "--policy", "best"]) == 3
    assert "known: " in capsys.readouterr().err


def test_results_are_means_over_the_seeds_and_are_read_as_they_were_written(
    tmp_path: Path,
) -> None:
    runs = RunFile(tmp_path / "runs.jsonl")
    runs.add_knee(SMALL, 2.0)
    for load in LOADS:
        for seed in range(2):
            figures = replace(FIGURES, ttft_ms=100.0 + 10 * seed)
            runs.add_figures(SMALL, Cell("small", load, OURS, seed), figures)

    results = results_of(runs, [SMALL], [OURS], 2)

    assert results["weathers"]["small"]["cells"]["half"][OURS][0] == 105
    assert json.loads(results_text(results)) == results
    with pytest.raises(LookupError, match="random"):
        results_of(runs, [SMALL], ["random"], 2)


def test_the_results_are_of_these_weathers_and_these_settings() -> None:
    results = read_results()
    if results is None:
        pytest.skip("no results have been written; run `make weather`")

    stale = "stale: run `make weather`, then `make docs`"
    assert results["policies"] == {name: settings_of(name) for name in results["policies"]}, stale
    defined = {name: row["definition"] for name, row in results["weathers"].items()}
    assert defined == {name: definition_of(WEATHERS[name]) for name in defined}, stale
