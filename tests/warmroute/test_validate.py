"""The page of checks says what the code checks, and its quick cases hold when they are run."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulator.validation.case import Case
from simulator.validation.catalogue import CASES, EXPERIMENTS, QUICK_CASES
from warmroute.cli import main
from warmroute.simulate.validate import COMMAND, Done, Job, jobs_of, page, rows_of, table, validate

PAGE = Path(__file__).parent.parent.parent / "docs" / "validation.md"
LIVE = "live fleet"


def rows_of_page() -> Iterator[list[str]]:
    for line in PAGE.read_text().splitlines():
        if line.startswith("| ") and not line.startswith("| # |"):
            yield [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_the_page_has_the_cases_of_the_code_with_what_they_expect() -> None:
    rows = [row[:2] for row in rows_of_page() if not row[0].startswith(LIVE)]

    expected = [
        [case.name, f"{case.expected.text(case.form)} {case.unit}".strip()] for case in CASES
    ]
    assert rows == expected, f"stale: run `make validate` ({COMMAND})"


def test_the_page_counts_its_misses_and_has_every_note() -> None:
    text = PAGE.read_text()
    held = [row[3] for row in rows_of_page()]

    assert f"{held.count('yes')} of {len(held)} cases hold" in text
    assert set(held) <= {"yes", "NO"}
    assert [note for case in CASES for note in case.notes if note not in text] == []
    assert [case.name for case in CASES if case.source not in text] == []


def test_every_miss_on_the_page_has_an_explanation() -> None:
    notes = {case.name: case.notes for case in CASES}

    unexplained = [row[0] for row in rows_of_page() if row[3] == "NO" and not notes.get(row[0])]

    assert unexplained == []


@pytest.mark.long
def test_quick_cases_hold_and_give_what_the_page_says() -> None:
    rows = validate(QUICK_CASES, processes=1)

    got = {row[0]: row[2:4] for row in rows_of_page()}
    assert [row.case.name for row in rows if not row.holds] == []
    for row in rows:
        assert got[row.case.name] == list(row.cells()[2:4])


def test_every_case_rests_on_known_experiments_and_every_experiment_is_used() -> None:
    used = {name for case in CASES for name in case.experiments}

    assert used == set(EXPERIMENTS)
    assert len({case.name for case in CASES}) == len(CASES)
    jobs = jobs_of(CASES)
    assert len(set(jobs)) == len(jobs)


def made_up(value: float) -> tuple[list[Case], list[Done]]:
    case = next(case for case in CASES if "random: ITL" in case.name)
    name = case.experiments[0]
    return [case], [Done(Job(name, seed), {"itl_ms": value + seed}, cpu_s=2.0) for seed in range(3)]


@pytest.mark.parametrize(("value", "within"), [(57.0, "yes"), (70.0, "NO")])
def test_a_row_tells_mean_interval_seeds_and_what_it_took(value: float, within: str) -> None:
    (row,) = rows_of(*made_up(value))

    _, expected, got, holds, seeds, cpu_s = row.cells()
    assert (expected, holds, seeds, cpu_s) == ("56.0 to 62.0 ms", within, "3", "6")
    assert re.fullmatch(rf"{value + 1:.1f} ± 2\.5 ms", got)  # t of 2 degrees 4.30 / root of 3


def test_table_and_page_have_a_line_for_each_row() -> None:
    rows = rows_of(*made_up(57.0))

    assert len(table(rows).splitlines()) == 2
    assert page(rows, "2026-01-02").count("\n| 1 | llm-d 37, random: ITL") == 1
    assert "1 of 1 cases hold" in page(rows, "2026-01-02")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--only", "zzz"], ["no case contains 'zzz'", "one is"]),
        (["--processes", "0"], ["processes is 0", "1 to 256"]),
        (["--quick", "--markdown", "/nowhere/x.md"], ["no folder /nowhere"]),
    ],
)
def test_a_wrong_flag_is_named_before_anything_runs(
    argv: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "validate", *argv]) == 3

    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert [word for word in words if word not in error] == []
