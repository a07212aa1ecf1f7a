"""Policies on recorded traffic with steps of one price, as a page: what `bench.policies` found."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from warmroute.weather import table

RESULTS = Path(__file__).parent / "data" / "fixed_timing.json"


def read_results() -> Any:
    """Return the results; None where none have been written."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else None


def fixed_timing_section() -> str:
    """Return the section of docs/policies.md; empty where there are no results."""
    results = read_results()
    if results is None:
        return ""
    return "".join([_HEAD, *map(_case_text, results)])


def _case_text(case: Mapping[str, Any]) -> str:
    rows = [
        (
            f"`{row['policy']}`",
            f"{row['reuse']:.3f}",
            f"{row['ttft_ms']:.0f}",
            f"{row['ttft_p99_ms']:,.0f}",
            f"{row['e2e_ms']:,.0f}",
            "yes" if row["met"] else "",
        )
        for row in case["rows"]
    ]
    wanted = case["target"]
    p99 = "" if wanted["ttft_p99_ms"] is None else f"{wanted['ttft_p99_ms']:,.0f}"
    rows.append(("wanted", f"{wanted['reuse']:.3f}", f"{wanted['ttft_ms']:.0f}", p99, "", ""))
    head = ("policy", "reuse", "TTFT ms", "p99", "E2E ms", "met")
    return f"\n### {case['workload']}, {case['num_blocks']:,} blocks\n\n{table(head, rows)}\n"


_HEAD = """
## Recorded traffic, steps of one price

Mooncake's traces, whole, through 8 replicas with blocks of 512 tokens, 8,192 tokens a step and 256
sequences; a step takes 100 ms if it prefills anything, and 20 ms if it decodes anything. Nothing
is stale. Such steps hardly tell policies apart, and a rerun in which ties fall otherwise moves
reuse by up to 0.005; the weather table decides. Made by `python -m bench.policies --write`.
"""
