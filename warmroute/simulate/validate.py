"""``warmroute simulate validate``: the simulator against what is known, in one table."""

import argparse
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path

from contract.options import SettingError, build_section, option
from simulator.statistics import Estimate
from simulator.validation.case import Case, Figures
from simulator.validation.catalogue import CASES, EXPERIMENTS, QUICK_CASES
from simulator.validation.llmd import METHOD
from warmroute.demo.processes import StartError
from warmroute.demo.redis_server import NoRedisServerError
from warmroute.flags import add_flags, given_flags
from warmroute.simulate.validate_live import EXPERIMENT, LiveCheck, LiveFleetError, check_live
from warmroute.workloads import open_workload

COMMAND = "warmroute simulate validate"
HEADS = ("case", "expected", "got", "within?", "seeds", "CPU s")
PROCESSES_MAX = 256


@dataclass(frozen=True)
class Job:
    """One run: a seed of an experiment."""

    experiment: str
    seed: int


@dataclass(frozen=True)
class Done:
    """What a run gave, and what it took."""

    job: Job
    figures: Figures
    cpu_s: float


@dataclass(frozen=True)
class Row:
    """One case with its result. ``cpu_s`` is of all runs that it rests on; cases share runs."""

    case: Case
    got: Estimate
    holds: bool
    cpu_s: float

    def cells(self) -> tuple[str, ...]:
        """Return the row as it is shown."""
        case, got = self.case, self.got
        unit = f" {case.unit}" if case.unit else ""
        spread = "" if got.half_width is None else f" ± {got.half_width:{case.form}}"
        return (
            case.name,
            f"{case.expected.text(case.form)}{unit}",
            f"{got.mean:{case.form}}{spread}{unit}",
            "yes" if self.holds else "NO",
            str(got.n),
            f"{self.cpu_s:.0f}",
        )


@dataclass(frozen=True)
class ValidateSettings:
    """Which cases, and how."""

    only: str | None = option(None, "", "only cases whose name contains this")
    processes: int | None = option(None, "processes", "that run at a time; none: one for each CPU")

    def __post_init__(self) -> None:
        if self.processes is not None and not 1 <= self.processes <= PROCESSES_MAX:
            raise ValueError(f"processes is {self.processes}, must be from 1 to {PROCESSES_MAX}")

    @property
    def num_processes(self) -> int:
        """How many processes run at a time."""
        return self.processes or len(os.sched_getaffinity(0))


def add_validate_parser(
    subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]",
) -> None:
    """Add ``validate`` to the subcommands of ``warmroute simulate``."""
    summary = "compare the simulator with what is known: measured, published or proved"
    parser = subparsers.add_parser(
        "validate", help=summary, description=summary, allow_abbrev=False
    )
    parser.add_argument("--quick", action="store_true", help="only the cases that take seconds")
    parser.add_argument(
        "--live", action="store_true", help="also against real processes, for some four minutes"
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write docs/validation.md")
    add_flags(parser, ValidateSettings)
    parser.set_defaults(run=run_validate)


def run_validate(args: argparse.Namespace) -> int:
    """Run the cases and print the table; return 1 if one does not hold.

    Raises SettingError for a wrong flag before anything is run.
    """
    where = "simulate validate"
    settings = build_section(ValidateSettings, given_flags(args, ValidateSettings), where)
    cases = chosen_cases(quick=args.quick, only=settings.only)
    if not cases:
        raise SettingError(f"{where}: no case contains {settings.only!r}; one is {CASES[0].name!r}")
    if args.markdown is not None and not args.markdown.absolute().parent.is_dir():
        raise SettingError(f"{where}: there is no folder {args.markdown.parent}")
    rows = validate(cases, settings.num_processes)
    failure: Exception | None = None
    try:
        rows += live_rows(check_live()) if args.live else []
    except (LiveFleetError, StartError, NoRedisServerError) as error:
        failure = error
    print(table(rows))
    if failure is not None:
        # What was computed for many minutes is not lost with it.
        print(f"{COMMAND} --live: {failure}", file=sys.stderr)
    if args.markdown is not None:
        args.markdown.write_text(page(rows, datetime.now(UTC).date().isoformat()))
    return 0 if failure is None and all(row.holds for row in rows) else 1


def chosen_cases(*, quick: bool = False, only: str | None = None) -> list[Case]:
    """Return the quick cases or all, whose name contains ``only``."""
    return [case for case in (QUICK_CASES if quick else CASES) if (only or "") in case.name]


def live_rows(check: LiveCheck) -> list[Row]:
    """Return the rows of a live fleet's check."""
    return rows_of(check.cases, [Done(Job(EXPERIMENT, 0), check.figures, check.cpu_s)])


def validate(cases: Sequence[Case], processes: int) -> list[Row]:
    """Run what ``cases`` rest on, each experiment once, and return their rows."""
    return rows_of(cases, run_jobs(jobs_of(cases), processes))


def jobs_of(cases: Iterable[Case]) -> list[Job]:
    """Return every run that ``cases`` rest on, once."""
    names = dict.fromkeys(name for case in cases for name in case.experiments)
    return [Job(name, seed) for name in names for seed in range(EXPERIMENTS[name].seeds)]


def run_jobs(jobs: Sequence[Job], processes: int) -> list[Done]:
    """Return what ``jobs`` gave, in their order; who ran which changes nothing."""
    if processes == 1:
        return list(map(run_job, jobs))
    # A fork would copy the caller's threads in whatever state they are.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        return list(pool.map(run_job, jobs))


def rows_of(cases: Iterable[Case], done: Iterable[Done]) -> list[Row]:
    """Return the rows of ``cases``, all of whose runs are ``done``."""
    by_experiment: dict[str, list[Done]] = {}
    for each in done:
        by_experiment.setdefault(each.job.experiment, []).append(each)
    findings = {name: [each.figures for each in runs] for name, runs in by_experiment.items()}
    rows = []
    for case in cases:
        got = case.got(findings)
        cpu_s = sum(each.cpu_s for name in case.experiments for each in by_experiment[name])
        rows.append(Row(case, got, case.expected.holds(got, case.form), cpu_s))
    return rows


def run_job(job: Job) -> Done:
    """Do one run; this is what a process is given."""
    began_s = time.process_time()
    figures = EXPERIMENTS[job.experiment].run(open_workload, job.seed)
    return Done(job, figures, time.process_time() - began_s)


def table(rows: Sequence[Row]) -> str:
    """Return the rows as text, aligned."""
    lines = [HEADS, *(row.cells() for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def page(rows: Sequence[Row], date: str) -> str:
    """Return docs/validation.md."""
    held = sum(row.holds for row in rows)
    lines = [
        "# What the simulator is checked against",
        "",
        "The fleet simulator runs the code that serves traffic in virtual time. This page",
        "compares it with numbers that do not come from it: of another simulator, of published",
        "benchmarks on real GPUs, and of queueing theory. A case that misses stays in the table.",
        "",
        f"Written on {date} by `{COMMAND} --markdown docs/validation.md`",
        f"(`make validate`; `--live` adds real processes): {held} of {len(rows)} cases hold.",
        "`--quick` runs those that have one right answer, in some seconds. `got` is the mean over",
        "the seeds with its 95 % confidence interval (Student's t; 99 % for the queues). `CPU s`",
        "is of all runs that a case rests on; cases share runs.",
        "",
        *_markdown_table(rows),
        "",
        "## How the ladders are run",
        "",
        *METHOD.splitlines(),
        "",
        "## Where the numbers are from, and why they may miss",
        "",
        *_notes(rows),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _markdown_table(rows: Sequence[Row]) -> Iterator[str]:
    yield f"| # | {' | '.join(HEADS)} |"
    yield f"|{'---|' * (len(HEADS) + 1)}"
    for number, row in enumerate(rows, start=1):
        yield f"| {number} | {' | '.join(row.cells())} |"


def _notes(rows: Sequence[Row]) -> Iterator[str]:
    """Yield each source with its notes, and each note once, with the numbers of its cases."""
    numbered = enumerate((row.case for row in rows), start=1)
    for source, group in groupby(numbered, key=lambda pair: pair[1].source):
        numbers: dict[str, list[str]] = {}
        for number, case in group:
            for note in case.notes:
                numbers.setdefault(note, []).append(f"{number}")
        yield f"**{source}**"
        yield ""
        for note, about in numbers.items():
            yield f"- {', '.join(about)}: {note}"
        yield ""
