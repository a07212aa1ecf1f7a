"""The weather table as a page: what `python -m bench.weather --write` found, and what it means."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "data" / "weather.json"
OURS = "min_ttft"
BASELINE = "least_loaded"  # shown beside ours
TOLERANCE = 0.02

GUIDE = "The first figure is the geometric mean over all cells, `worst` the largest of them."
LOAD_NAMES = {"half": "half", "knee": "knee", "over": "1.2 x"}

_CROWDED = (
    "the prefixes fill most of the caches, so each copy that ours makes to save a wait drives out "
    "another; `spill` makes none before a replica is 64 requests above the mean (inferred)"
)
_OVERLOAD = (
    "no policy keeps up; those that let one replica's queue grow serve fewer requests late, and "
    "more of them in time (inferred)"
)
_SMALL = (
    "prefill is dear on these GPUs and decode is not, so to leave a conversation's replica costs "
    "more than ours expects (inferred)"
)
_UNSHARED = (
    "nothing is shared, so only the order of queues tells; ours counts running requests as work, "
    "where these have short answers or few (inferred)"
)
_ALIKE = "all requests are alike and warm everywhere, so to take turns is best of all (inferred)"
_OLD_NEWS = (
    "copies are made for waits that have passed when they are heard of; `cache_aware` makes none "
    "before loads are 64 requests apart (inferred)"
)
_CHANCE = "two seeds; the difference is smaller than theirs"

REASONS: dict[tuple[str, str], str] = {
    ("conversation", "over"): _OVERLOAD,
    ("llm-d 37", "knee"): _CROWDED,
    ("llm-d 37", "over"): _CROWDED,
    ("llm-d 73", "half"): _CHANCE,
    ("llm-d 73", "knee"): _CHANCE,
    ("llm-d 73", "over"): _CROWDED,
    ("kubeai", "knee"): _SMALL,
    ("kubeai", "over"): _SMALL,
    ("azure-code", "half"): _UNSHARED,
    ("azure-conv", "over"): _UNSHARED,
    ("hot", "half"): _ALIKE,
    ("hot", "knee"): _ALIKE,
    ("hot", "over"): _ALIKE,
    ("zipf", "knee"): _CHANCE,
    ("zipf", "over"): _CHANCE,
    ("multiturn", "over"): _OVERLOAD,
    ("stale-10", "half"): _CHANCE,
    ("stale-10", "knee"): _CHANCE,
    ("stale-10", "over"): _CHANCE,
    ("stale-1000", "over"): _OLD_NEWS,
}
"""Why ours loses a cell, by weather and load; the page says "not explained" where none is."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A cell in which ours is more than the tolerance behind another policy."""

    weather: str
    load: str
    figure: str  # what it is behind in
    ours: float
    best: float
    policy: str  # that has the best

    @property
    def behind(self) -> float:
        """How far, as a share."""
        if self.figure == "TTFT":
            return self.ours / self.best - 1
        return 1 - self.ours / self.best if self.best else 0.0


def read_results() -> Any:
    """Return the results; None where none have been written."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else None


def column(results: Mapping[str, Any], weather: str, load: str, figure: str) -> dict[str, float]:
    """Return one figure of a cell, by policy."""
    index = results["figures"].index(figure)
    cell = results["weathers"][weather]["cells"][load]
    return {policy: row[index] for policy, row in cell.items()}


def losses(results: Mapping[str, Any]) -> Iterator[Loss]:
    """Yield what ours loses to the best, in mean TTFT or goodput."""
    for name, load in _cells(results):
        ttft = column(results, name, load, "ttft_ms")
        goodput = column(results, name, load, "goodput")
        found = [
            Loss(name, load, "TTFT", ttft[OURS], *_best(ttft, min)),
            Loss(name, load, "goodput", goodput[OURS], *_best(goodput, max)),
        ]
        yield from (loss for loss in found if round(loss.behind, 6) > TOLERANCE)


def cell_table(results: Mapping[str, Any], weather: str, load: str) -> str:
    """Return every figure of one cell as text, the earliest first token on top."""
    knee = results["weathers"][weather]["knee_per_s"]
    rows = sorted(results["weathers"][weather]["cells"][load].items(), key=lambda row: row[1][0])
    lines = [
        f"{weather}, {LOAD_NAMES[load]} (knee: {knee:g} requests/s)",
        f"{'policy':<24} TTFT ms      p50      p99  ITL p99   E2E ms  goodput    hit",
    ]
    for policy, (ttft, p50, p99, itl, e2e, goodput, hit) in rows:
        lines.append(
            f"{policy:<24} {ttft:7.0f} {p50:8.0f} {p99:8.0f} {itl:8.1f} {e2e:8.0f}"
            f" {goodput:8.3f} {hit:6.3f}"
        )
    return "\n".join((*lines, ""))


def weather_section() -> str:
    """Return the section of docs/policies.md; empty where there are no results."""
    results = read_results()
    if results is None:
        return ""
    num_cells = len(list(_cells(results)))
    lost = list(losses(results))
    parts = [
        _HEAD.format(
            cells=num_cells,
            policies=len(results["policies"]),
            seeds=results["seeds"],
        ),
        _weather_table(results),
        "\n\n### Every policy over all cells\n\n",
        f"Times as ratios to the best of each cell. {GUIDE}\n\n",
        _policy_table(results),
        f"\n\n### `{OURS}`, cell by cell\n\n",
        _own_table(results),
        f"\n\n### What `{OURS}` loses\n\n",
        _loss_text(lost, num_cells),
        "\n",
    ]
    return "".join(parts)


def _weather_table(results: Mapping[str, Any]) -> str:
    rows = [
        (f"`{name}`", weather["meaning"], f"{weather['knee_per_s']:.3g}")
        for name, weather in results["weathers"].items()
    ]
    return table(("weather", "what it is", "knee, requests/s"), rows)


def _policy_table(results: Mapping[str, Any]) -> str:
    """Ratios are to the best of each cell, the geometric mean of them and the worst."""
    cells = list(_cells(results))
    rows = []
    for policy in results["policies"]:
        ttft, p99, itl, goodput, hit = [], [], [], [], []
        for name, load in cells:
            ttft.append(_ratio(column(results, name, load, "ttft_ms"), policy))
            p99.append(_ratio(column(results, name, load, "ttft_p99_ms"), policy))
            itl.append(_ratio(column(results, name, load, "itl_p99_ms"), policy))
            goodput.append(column(results, name, load, "goodput")[policy])
            hit.append(column(results, name, load, "hit_rate")[policy])
        near = sum(ratio <= 1 + TOLERANCE for ratio in ttft)
        rows.append((_geometric(ttft), policy, max(ttft), near, p99, itl, goodput, hit))
    return table(
        ("policy", "TTFT", "worst", "within 2 %", "TTFT p99", "ITL p99", "goodput", "hit rate"),
        [
            (
                f"`{policy}`",
                f"{mean:.3f}",
                f"{worst:.2f}",
                f"{near} of {len(cells)}",
                f"{_geometric(p99):.3f}",
                f"{_geometric(itl):.3f}",
                f"{sum(goodput) / len(goodput):.3f}",
                f"{sum(hit) / len(hit):.3f}",
            )
            for mean, policy, worst, near, p99, itl, goodput, hit in sorted(rows)
        ],
    )


def _own_table(results: Mapping[str, Any]) -> str:
    rows = []
    for name, load in _cells(results):
        ttft = column(results, name, load, "ttft_ms")
        best_ms, best = _best(ttft, min)
        cell = results["weathers"][name]["cells"][load]
        mean, p50, p99, itl, _, goodput, hit = cell[OURS]
        rows.append(
            (
                f"`{name}`",
                LOAD_NAMES[load],
                f"{mean:,.0f} / {p50:,.0f} / {p99:,.0f}",
                f"{itl:.0f}",
                f"{goodput:.3f}",
                f"{hit:.3f}",
                f"{best_ms:,.0f} `{best}`",
                f"{ttft[BASELINE]:,.0f}",
            )
        )
    head = ("weather", "load", "TTFT mean / p50 / p99", "ITL p99", "goodput", "hit rate")
    return table((*head, "best TTFT", f"`{BASELINE}`"), rows)


def _loss_text(lost: Sequence[Loss], num_cells: int) -> str:
    cells = {(loss.weather, loss.load) for loss in lost}
    text = f"More than {TOLERANCE:.0%} behind the best in {len(cells)} of {num_cells} cells."
    if not lost:
        return text
    rows = [
        (
            f"`{loss.weather}`",
            LOAD_NAMES[loss.load],
            f"{loss.figure} by {loss.behind:.1%}",
            f"`{loss.policy}`",
            REASONS.get((loss.weather, loss.load), "not explained"),
        )
        for loss in lost
    ]
    return text + "\n\n" + table(("weather", "load", "behind", "best", "why"), rows)


def _cells(results: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, weather in results["weathers"].items():
        for load in weather["cells"]:
            yield name, load


def _best(values: Mapping[str, float], pick: Any) -> tuple[float, str]:
    policy = pick(values, key=lambda name: values[name])
    return values[policy], policy


def _ratio(values: Mapping[str, float], policy: str) -> float:
    return values[policy] / min(values.values())


def _geometric(values: Sequence[float]) -> float:
    return exp(sum(map(log, values)) / len(values))


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table, without a line's end at its end."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )


_HEAD = """
## The weather table

{cells} cells: every weather below at half of its knee, at the knee and at 1.2 times the knee; all
{policies} policies in each, {seeds} seeds. The gateway's own decisions and the engine's own
scheduler run in virtual time; steps take what the catalogue's GPUs take (docs/step-time.md),
reports are sent every 100 ms, KV events arrive after 1 ms. The knee is the highest rate at which
90 % of the answers are good under `lmetric`, which has no setting: a first token within 1 s (3 s
for the long prompts of Mooncake's traces) and at most 100 ms between tokens. The first fifth of
the requests, on cold caches, is not counted. Made by `make weather`; every figure is in
`warmroute/data/weather.json`.

"""
