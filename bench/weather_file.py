"""What has been run, line by line, so that a run can be stopped and resumed; and the results.

A line counts as long as what it was made from is as it was: the weather, its knee, and the
policy's settings. The code is not part of that, so begin with a new file after changing it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from xxhash import xxh3_64_hexdigest

from bench.weather_cells import LOADS, Weather
from bench.weather_run import Figures, rate_of
from contract.options import option_rows
from router.core.policy import POLICIES, build_policy
from simulator.routing import parse_choice


@dataclass(frozen=True, slots=True)
class Cell:
    """One run."""

    weather: str
    load: str
    policy: str
    seed: int


class RunFile:
    """Knees and figures that have been found; every new one is on the disk at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: dict[str, Any] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                row = json.loads(line)
                self._lines[row["key"]] = row["value"]

    def knee(self, weather: Weather) -> float | None:
        """Return the knee of ``weather``, None if it is to be searched."""
        knee: float | None = self._lines.get(_key(weather))
        return knee

    def add_knee(self, weather: Weather, knee: float) -> None:
        """Keep a knee."""
        self._add(_key(weather), knee)

    def figures(self, weather: Weather, cell: Cell) -> Figures | None:
        """Return what came of ``cell``, None if it is to be run."""
        values = self._lines.get(self._key_of(weather, cell))
        return None if values is None else Figures(**values)

    def add_figures(self, weather: Weather, cell: Cell, figures: Figures) -> None:
        """Keep what came of ``cell``."""
        self._add(self._key_of(weather, cell), asdict(figures))

    def _key_of(self, weather: Weather, cell: Cell) -> str:
        return _key(weather, self.knee(weather), cell, settings_of(cell.policy))

    def _add(self, key: str, value: Any) -> None:
        self._lines[key] = value
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps({"key": key, "value": value}) + "\n")


def settings_of(policy: str) -> dict[str, Any]:
    """Return the settings with which ``policy``, as `parse_choice` reads it, decides."""
    choice = parse_choice(policy)
    built = build_policy(choice.name, choice.settings)
    return {row.name: str(getattr(built, row.name)) for row in option_rows(POLICIES[choice.name])}


def definition_of(weather: Weather) -> str:
    """Return a digest of all that a weather is; its meaning is but words."""
    return _key({**asdict(weather), "meaning": ""})


def results_of(
    runs: RunFile, weathers: Sequence[Weather], policies: Sequence[str], seeds: int
) -> dict[str, Any]:
    """Return what docs/policies.md is made from: the mean over the seeds of every figure.

    Raises LookupError, naming it, for a cell that has not been run.
    """
    return {
        "seeds": seeds,
        "policies": {policy: settings_of(policy) for policy in policies},
        "figures": list(Figures.__dataclass_fields__),
        "weathers": {
            weather.name: _weather_results(runs, weather, policies, seeds) for weather in weathers
        },
    }


def results_text(results: Mapping[str, Any]) -> str:
    """Return the file's text: one line for each policy in each cell, so that changes show."""
    rows: list[str] = []
    weathers = results["weathers"]
    for name, weather in weathers.items():
        head = json.dumps({key: weather[key] for key in weather if key != "cells"})[:-1]
        cells = [
            f"   {json.dumps(load)}: {{\n"
            + ",\n".join(f"    {json.dumps(key)}: {json.dumps(row)}" for key, row in cell.items())
            + "}"
            for load, cell in weather["cells"].items()
        ]
        rows.append(f'  {json.dumps(name)}: {head}, "cells": {{\n' + ",\n".join(cells) + "}}")
    head = json.dumps({key: results[key] for key in results if key != "weathers"}, indent=1)
    return head[:-2] + ',\n "weathers": {\n' + ",\n".join(rows) + "\n}}\n"


def _weather_results(
    runs: RunFile, weather: Weather, policies: Sequence[str], seeds: int
) -> dict[str, Any]:
    knee = runs.knee(weather)
    if knee is None:
        raise LookupError(f"the knee of {weather.name} has not been searched")
    return {
        "meaning": weather.meaning,
        "shares_prefixes": weather.shares_prefixes,
        "definition": definition_of(weather),
        "knee_per_s": round(knee * rate_of(weather), 3),
        "cells": {
            load: {policy: _mean(runs, weather, load, policy, seeds) for policy in policies}
            for load in LOADS
        },
    }


def _mean(runs: RunFile, weather: Weather, load: str, policy: str, seeds: int) -> list[float]:
    rows = []
    for seed in range(seeds):
        cell = Cell(weather.name, load, policy, seed)
        figures = runs.figures(weather, cell)
        if figures is None:
            raise LookupError(f"{cell} has not been run")
        rows.append(list(asdict(figures).values()))
    return [_short(sum(column) / seeds) for column in zip(*rows, strict=True)]


def _short(value: float) -> float:
    """Return four digits: enough to tell 2 % apart."""
    return float(f"{value:.4g}")


def _key(*parts: object) -> str:
    return xxh3_64_hexdigest(json.dumps(parts, sort_keys=True, default=_plain).encode())


def _plain(part: Any) -> Any:
    return part.value if isinstance(part, Enum) else asdict(part)
