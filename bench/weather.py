"""Compares routing policies in every weather: kinds of traffic and fleets, each at three loads.

A run is the gateway's own code and the engine's own scheduler in virtual time, and steps take what
the catalogue's GPUs take: equal arguments give equal figures on any machine.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from bench.weather_cells import LOADS, SEEDS, WEATHERS, Weather
from bench.weather_file import Cell, RunFile, results_of, results_text
from bench.weather_run import find_knee, run_cell
from contract.options import SettingError
from router.core.policy import POLICIES
from simulator.routing import parse_choice
from warmroute.weather import RESULTS, cell_table

QUICK = ("zipf", "azure-code")
QUICK_POLICIES = ("least_loaded", "lmetric", "min_ttft", "prefix_load", "random")
RUNS = Path("build/weather.jsonl")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what has not been run, print the tables, perhaps write the results; return the status."""
    args = _arguments(arguments)
    weathers = [WEATHERS[name] for name in args.weather]
    try:
        for text in args.policy:
            parse_choice(text)
    except SettingError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    runs = RunFile(args.runs)
    with ProcessPoolExecutor(args.jobs) as pool:
        _search_knees(pool, runs, weathers)
        _run_cells(pool, runs, list(_cells(args)))
    results = results_of(runs, weathers, args.policy, args.seeds)
    for weather in weathers:
        for load in LOADS:
            print(cell_table(results, weather.name, load))
    if args.write:
        RESULTS.write_text(results_text(results))
        print(f"written to {RESULTS}; `make docs` brings it into docs/policies.md", file=sys.stderr)
    return 0


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.weather", description=__doc__)
    parser.add_argument(
        "--weather", nargs="+", choices=WEATHERS, metavar="NAME", help="default: all"
    )
    parser.add_argument("--policy", nargs="+", help="NAME or NAME:setting=value,...; default: all")
    parser.add_argument("--seeds", type=int, help=f"runs of each cell, default {SEEDS}")
    parser.add_argument("--quick", action="store_true", help="2 weathers, 5 policies, 1 seed")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument(
        "--runs", type=Path, default=RUNS, help="what has been run is kept, and looked for, here"
    )
    parser.add_argument(
        "--write", action="store_true", help="keep the results for docs/policies.md"
    )
    args = parser.parse_args(arguments)
    args.weather = args.weather or list(QUICK if args.quick else WEATHERS)
    args.policy = args.policy or (QUICK_POLICIES if args.quick else _in_the_box())
    args.seeds = args.seeds or (1 if args.quick else SEEDS)
    return args


def _in_the_box() -> list[str]:
    """Return the policies of this repository, not those that happen to be installed beside it."""
    return sorted(
        name
        for name, policy in POLICIES.items()
        if policy.__module__.startswith("router.policies.")
    )


def _cells(args: argparse.Namespace) -> Iterator[Cell]:
    """Yield the runs in such an order that a process can keep the workload it has read."""
    for name in args.weather:
        for seed in range(args.seeds):
            for load in LOADS:
                for policy in args.policy:
                    yield Cell(name, load, policy, seed)


def _search_knees(pool: ProcessPoolExecutor, runs: RunFile, weathers: Sequence[Weather]) -> None:
    missing = [weather for weather in weathers if runs.knee(weather) is None]
    for weather, knee in zip(missing, pool.map(find_knee, missing), strict=True):
        runs.add_knee(weather, knee)
        print(f"knee of {weather.name}: {knee:g} x its rate", file=sys.stderr)


def _run_cells(pool: ProcessPoolExecutor, runs: RunFile, cells: Sequence[Cell]) -> None:
    missing = {}
    for cell in cells:
        weather = WEATHERS[cell.weather]
        knee = runs.knee(weather)
        assert knee is not None
        if runs.figures(weather, cell) is None:
            future = pool.submit(run_cell, weather, cell.load, cell.policy, cell.seed, knee)
            missing[future] = cell
    for number, future in enumerate(as_completed(missing), start=1):
        cell = missing[future]
        runs.add_figures(WEATHERS[cell.weather], cell, future.result())
        print(f"{number}/{len(missing)} {cell}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
