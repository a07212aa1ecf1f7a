"""``warmroute simulate``: whole fleets in virtual time, by the code that serves traffic.

``--json FILE`` writes one object: ``schema``, ``command``, ``inputs`` and ``results``. Times end in
``_us``, ``_ms`` or ``_s``; shares are 0..1. Equal inputs give equal bytes.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from contract.options import SettingError, build_section, option
from router.core.policy import DEFAULT_POLICY, POLICIES
from simulator.plot import Bars, Plot
from simulator.summary import Slo
from warmroute.flags import add_flags, add_policies_flag, given_flags
from warmroute.simulate.figures import Row, knee_of
from warmroute.simulate.fuzz import FuzzSettings, run_fuzz
from warmroute.simulate.html import Page, Table, page_html
from warmroute.simulate.jobs import (
    TimelineSettings,
    num_requests,
    run_all,
    run_experiment,
)
from warmroute.simulate.plots import compare_plots, run_plots, sweep_plots
from warmroute.simulate.progress import Progress
from warmroute.simulate.settings import (
    Experiment,
    SimulateSettings,
    check_experiment,
    parse_autoscale,
    parse_set,
)
from warmroute.simulate.sweep import at_point, parse_sweep, unit_of
from warmroute.simulate.text import (
    experiment_rows,
    facts_text,
    ideal_text,
    rows_table,
    run_cells,
    run_facts,
    run_text,
    scale_table,
    seeds_text,
    stage_table,
    table,
)
from warmroute.simulate.validate import add_validate_parser
from warmroute.workloads import workload_rows

SCHEMA = 1
DEFAULT_REPLICAS = ("4",)
COMPARED = ("round_robin", "least_loaded", "prefix_hash", DEFAULT_POLICY)
"""The demo's; all policies there are take some minutes on a long trace."""

RUNS_MAX = 10_000
PROCESSES_MAX = 256


@dataclass(frozen=True)
class ManySettings:
    """Flags of the commands that run many experiments."""

    seeds: int = option(1, "seeds", "runs of each row, from --seed on; two or more give intervals")
    processes: int | None = option(None, "processes", "that run at a time; none: one for each CPU")

    def __post_init__(self) -> None:
        if not 1 <= self.seeds <= RUNS_MAX:
            raise ValueError(f"seeds is {self.seeds}, must be from 1 to {RUNS_MAX}")
        if self.processes is not None and not 1 <= self.processes <= PROCESSES_MAX:
            raise ValueError(f"processes is {self.processes}, must be from 1 to {PROCESSES_MAX}")

    @property
    def num_processes(self) -> int:
        """How many processes run at a time."""
        return self.processes or len(os.sched_getaffinity(0))


def add_simulate_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add ``simulate`` and its subcommands to those of ``warmroute``."""
    summary = "run whole fleets in virtual time: one, policies side by side, a sweep, random ones"
    parser = subparsers.add_parser("simulate", help=summary, description=summary)
    parts = parser.add_subparsers(dest="simulate_part", required=True, metavar="PART")

    run = _part(parts, "run", "one fleet, one workload, one policy", _run)
    run.add_argument("--policy", metavar="NAME[:SETTING=VALUE,...]", default=DEFAULT_POLICY)
    add_flags(run, TimelineSettings)

    compare = _part(parts, "compare", "policies on the same workload and seeds", _compare)
    add_policies_flag(compare, f"policies to compare, or all (default: {' '.join(COMPARED)})")
    add_flags(compare, ManySettings)

    sweep = _part(parts, "sweep", "one setting at several values", _sweep)
    sweep.add_argument(
        "--over",
        required=True,
        metavar="SETTING=VALUE,VALUE,...",
        help="rate, replicas, gateways, or any setting of the replicas, policy or workload, or "
        "timing.SETTING or routing.SETTING",
    )
    add_policies_flag(sweep, f"policies to sweep (default: {DEFAULT_POLICY})")
    add_flags(sweep, ManySettings)

    about = "random fleets, workloads and accidents; the laws must hold on each"
    fuzz = parts.add_parser("fuzz", help=about, description=about, allow_abbrev=False)
    add_flags(fuzz, FuzzSettings)
    fuzz.set_defaults(
        run=lambda args: run_fuzz(
            build_section(FuzzSettings, given_flags(args, FuzzSettings), "simulate fuzz")
        )
    )

    add_validate_parser(parts)

    about = "the workloads that there are"
    parts.add_parser("workloads", help=about, description=about).set_defaults(run=_workloads)


def _part(
    parts: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    about: str,
    run: Callable[[argparse.Namespace], int],
) -> argparse.ArgumentParser:
    parser = parts.add_parser(name, help=about, description=about, allow_abbrev=False)
    add_flags(parser, SimulateSettings)
    for flag, metavar, text in (
        ("--replicas", "N[:SETTING=VALUE,...]", "so many equal replicas; repeat it for a mix"),
        ("--set", "SECTION.SETTING=VALUE", "timing.SETTING or routing.SETTING; may be repeated"),
        ("--fault", "KIND:SETTING=VALUE,...", "crash, stall, slow or drain; may be repeated"),
    ):
        parser.add_argument(flag, action="append", default=[], metavar=metavar, help=text)
    parser.add_argument(
        "--autoscale",
        nargs="?",
        const="",
        metavar="SETTING=VALUE,...",
        help="replicas join and leave by the requests under way",
    )
    for kind, text in (("json", "all results"), ("html", "a report"), ("png", "the plots")):
        parser.add_argument(f"--{kind}", type=Path, metavar="FILE", help=f"write {text} there")
    parser.set_defaults(run=run)
    return parser


def _run(args: argparse.Namespace) -> int:
    experiment = _experiment(args, args.policy)
    timeline = build_section(TimelineSettings, given_flags(args, TimelineSettings), "simulate run")
    with _progress([experiment]) as progress:
        result = run_experiment(experiment, timeline, progress.add)
    print(run_text(result))
    tables = [Table("Figures", ("figure", "value", "unit", "origin"), run_cells(result), range(4))]
    if result.stages:
        tables.append(Table("Stages", *stage_table(result.stages), (0,)))
    if result.scale_steps:
        tables.append(Table("Autoscaler", *scale_table(result), (2, 3)))
    title = f"One fleet under {experiment.policy}"
    page = Page(title, run_facts(result), (), tables, run_plots(result))
    _write(args, msgspec.to_builtins(experiment), msgspec.to_builtins(result), page)
    return 0


def _compare(args: argparse.Namespace) -> int:
    policies = sorted(POLICIES) if args.policies == ["all"] else args.policies or COMPARED
    rows = _rows(args, [("", _experiment(args, policy)) for policy in policies])
    first = rows[0].results[0]
    notes = [seeds_text(rows), ideal_text(rows)]
    headings, cells = rows_table(rows)
    facts = experiment_rows(first.experiment, first.provenance)
    print("\n\n".join((facts_text(facts), table(headings, cells, (0,)), "\n".join(notes))))
    tables = [Table("Policies", headings, cells, (0,))]
    page = Page("Policies side by side", facts, notes, tables, compare_plots(rows))
    _write(args, _inputs(first.experiment, policies), [row.document() for row in rows], page)
    return 0


def _sweep(args: argparse.Namespace) -> int:
    sweep = parse_sweep(args.over)
    policies = args.policies or [DEFAULT_POLICY]
    bases = [_experiment(args, policy) for policy in policies]
    points = [
        (point, at_point(base, sweep.name, point)) for base in bases for point in sweep.points
    ]
    rows = _rows(args, points)
    first = bases[0]
    notes = [seeds_text(rows), ideal_text(rows)]
    plots: list[Plot | Bars] = []
    if sweep.is_numeric:
        plots = sweep_plots(sweep.name, unit_of(first, sweep.name), rows)
    if sweep.name == "rate":
        notes += [_knee_text(rows, policy) for policy in policies]
    headings, cells = rows_table(rows, sweep.name)
    facts = [("swept", args.over), *experiment_rows(first, first.workload)]
    print("\n\n".join((facts_text(facts), table(headings, cells, (1,)), "\n".join(notes))))
    tables = [Table(f"At each {sweep.name}", headings, cells, (1,))]
    page = Page(f"A fleet over {sweep.name}", facts, notes, tables, plots)
    inputs = _inputs(first, policies) | {"over": args.over}
    _write(args, inputs, [row.document() for row in rows], page)
    return 0


def _workloads(_: argparse.Namespace) -> int:
    for row in workload_rows():
        name = f"{row.name}:{row.argument}" if row.argument else row.name
        print(f"{name:<17} {row.summary}")
        settings = ", ".join(f"{each.name}={each.default}" for each in row.options)
        if settings:
            print(f"{'':<17} {settings}")
    return 0


def _experiment(args: argparse.Namespace, policy: str) -> Experiment:
    where = f"simulate {args.simulate_part}"
    settings = build_section(SimulateSettings, given_flags(args, SimulateSettings), where)
    timing, routing = parse_set(args.set)
    experiment = Experiment(
        workload=settings.workload,
        policy=policy,
        replicas=tuple(args.replicas) or DEFAULT_REPLICAS,
        gateways=settings.gateways,
        timing=timing,
        routing=routing,
        faults=tuple(args.fault),
        autoscale=None if args.autoscale is None else parse_autoscale(args.autoscale),
        slo=Slo(settings.slo_ttft_ms, settings.slo_itl_ms),
        seed=settings.seed,
    )
    check_experiment(experiment)
    for path in (args.json, args.html, args.png):
        if path is not None and not path.absolute().parent.is_dir():
            raise SettingError(f"{where}: cannot write {path}, there is no folder {path.parent}")
    return experiment


def _rows(args: argparse.Namespace, points: Sequence[tuple[str, Experiment]]) -> list[Row]:
    """Run every point with every seed; return a row for each point, in order."""
    where = f"simulate {args.simulate_part}"
    many = build_section(ManySettings, given_flags(args, ManySettings), where)
    experiments = [
        replace(experiment, seed=experiment.seed + number)
        for _, experiment in points
        for number in range(many.seeds)
    ]
    if len(experiments) > RUNS_MAX:
        raise SettingError(f"{where}: {len(experiments)} runs, expected at most {RUNS_MAX}")
    for experiment in experiments:
        check_experiment(experiment)
    with _progress(experiments) as progress:
        results = iter(run_all(experiments, many.num_processes, progress.add))
    return [
        Row(experiment.policy, point, tuple(next(results) for _ in range(many.seeds)))
        for point, experiment in points
    ]


def _progress(experiments: Sequence[Experiment]) -> Progress:
    # The requests of the first stand for those of all: to count all would be to read them all.
    return Progress(lambda: num_requests(experiments[0]) * len(experiments), sys.stderr)


def _knee_text(rows: Sequence[Row], policy: str) -> str:
    own = [row for row in rows if row.policy == policy]
    knee = knee_of(own)
    where = f"at rate {knee.point}" if knee is not None else "not inside the sweep"
    return f"knee of {policy} (greatest rate / mean TTFT, Kleinrock's power): {where}"


def _inputs(experiment: Experiment, policies: Sequence[str]) -> dict[str, Any]:
    inputs: dict[str, Any] = msgspec.to_builtins(experiment)
    del inputs["policy"]
    return inputs | {"policies": list(policies)}


def _write(args: argparse.Namespace, inputs: Any, results: Any, page: Page) -> None:
    """Write what was asked for. Raises SettingError where a file cannot be written."""
    document = {
        "schema": SCHEMA,
        "command": args.simulate_part,
        "inputs": inputs,
        "results": results,
    }
    try:
        if args.json is not None:
            args.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        if args.html is not None:
            args.html.write_text(page_html(page), encoding="utf-8")
        if args.png is not None:
            # Loaded for who wants it only: it takes longer than many a simulation.
            import_module("warmroute.simulate.png").write_png(page.title, page.plots, args.png)
    except OSError as error:
        raise SettingError(f"cannot write {error.filename}: {error.strerror}") from error
