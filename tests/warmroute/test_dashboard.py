"""The dashboard and the rules say only what can be measured; no Prometheus is needed to see it.

What a real Prometheus makes of every expression is in tests/blackbox/test_prometheus.py.
"""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from router.metric_table import Kind, metric_rows
from warmroute.dashboard.grafana import dashboard, dashboard_json
from warmroute.dashboard.panel import Panel, Row
from warmroute.dashboard.promql import quantile, rate, series, share
from warmroute.dashboard.rows import NOT_SHOWN, ROWS

ROOT = Path(__file__).parent.parent.parent
DASHBOARD = ROOT / "deploy" / "grafana" / "warmroute.json"
RULES = (ROOT / "deploy" / "prometheus" / "rules" / "warmroute.rules.yml").read_text()
RULE_TESTS = (ROOT / "deploy" / "prometheus" / "tests" / "warmroute.rules.test.yml").read_text()
METRICS_PAGE = (ROOT / "docs" / "metrics.md").read_text()
GUIDE = (ROOT / "docs" / "dashboards-and-alerts.md").read_text()

PANELS = [panel for row in ROWS for panel in row.panels]
EXPRS = [
    *(query.expr for panel in PANELS for query in panel.queries),
    *(column.expr for panel in PANELS for column in panel.columns),
]
ALERTS = re.findall(r"- alert: (\w+)", RULES)
SINCE_START = {
    *("warmroute_background_restarts_total", "warmroute_odd_usage_total"),
    "warmroute_config_refused_total",
}
"""Counters that a panel shows as they are: one event in a week must not fade."""


def metrics_in(text: str) -> set[str]:
    """Return the gateway's and the engines' names in PromQL; recorded ones have a colon inside."""
    return set(re.findall(r"(?<![\w:])(?:warmroute_\w+|vllm:\w+)(?![\w:])", text))


def undeclared(text: str) -> set[str]:
    """Return the names in PromQL that no gateway and, by docs/metrics.md, no replica exports."""
    declared = dict(re.findall(r"^\| `(\S+)` \| (\w+)", METRICS_PAGE, re.MULTILINE))
    declared |= {row.name: row.kind.value for row in metric_rows()}
    histograms = {name for name, kind in declared.items() if kind == "histogram"}
    parts = {f"{name}_{part}" for name in histograms for part in ("bucket", "count", "sum")}
    return metrics_in(text) - (declared.keys() - histograms) - parts


def test_the_dashboard_is_current() -> None:
    assert DASHBOARD.read_text() == dashboard_json(ROWS), "stale: run `make docs`"


@pytest.mark.parametrize("text", [*EXPRS, RULES])
def test_every_metric_that_is_asked_for_is_declared(text: str) -> None:
    assert metrics_in(text)
    assert undeclared(text) == set()


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("warmroute_cached_tokens_total", "warmroute_cashed_tokens_total"),
        ("warmroute_ttft_seconds_bucket", "warmroute_ttft_seconds"),
        ("warmroute_replica_eligible", "warmroute_replica_eligible_total"),
        ("vllm:num_preemptions_total", "vllm:num_preemptions"),
    ],
)
def test_a_metric_that_nobody_exports_is_found(name: str, other: str) -> None:
    (expr, *_) = [expr for expr in EXPRS if name in expr]

    assert undeclared(expr.replace(name, other)) == {other}


def test_every_metric_is_on_a_panel_or_it_is_said_why_not() -> None:
    asked_for = metrics_in(" ".join(EXPRS))
    shown = {
        row.name
        for row in metric_rows()
        if (f"{row.name}_bucket" if row.kind is Kind.HISTOGRAM else row.name) in asked_for
    }

    assert {row.name for row in metric_rows()} - shown == NOT_SHOWN.keys()
    assert all(NOT_SHOWN.values())


def test_variables_are_asked_for_by_metrics_that_are_declared() -> None:
    variables = dashboard(ROWS)["templating"]["list"]

    queries = [variable["query"]["query"] for variable in variables if variable["name"] in _PICKED]

    assert len(queries) == len(_PICKED)
    assert [undeclared(query) for query in queries] == [set()] * len(queries)


_PICKED = {"model", "gateway", "replica"}


@pytest.mark.parametrize("expr", EXPRS)
def test_counters_are_asked_for_their_growth_and_gauges_for_their_value(expr: str) -> None:
    grown = set(re.findall(r"(?:rate|increase)\(([\w:]+)", expr))
    kinds = {row.name: row.kind for row in metric_rows()}

    for name in metrics_in(expr) - SINCE_START:
        counts = kinds.get(name) is not Kind.GAUGE
        assert (name in grown) is counts, name


@pytest.mark.parametrize("expr", [expr for expr in EXPRS if " / " in expr])
def test_no_division_can_be_by_zero(expr: str) -> None:
    for divisor in expr.split(" / ")[1:]:
        depth = [0]
        for character in divisor:
            depth.append(depth[-1] + {"(": 1, ")": -1}.get(character, 0))
        inside = divisor[: depth.index(0, 1) - 1]
        assert inside.endswith(" > 0"), inside


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)
def test_a_panel_says_what_it_is_and_what_is_good(panel: Panel) -> None:
    assert panel.meaning.endswith(".")
    assert panel.good
    assert not panel.good.endswith(".")


def test_a_panel_keeps_its_id_whatever_comes_and_goes_around_it() -> None:
    before = ids(ROWS)

    after = ids((replace(ROWS[0], panels=ROWS[0].panels[:6]), *ROWS[2:]))

    assert after.items() < before.items()
    assert len(set(before.values())) == len(before) == len(PANELS) + len(ROWS)


def ids(rows: tuple[Row, ...]) -> dict[str, int]:
    return {panel["title"]: panel["id"] for panel in dashboard(rows)["panels"]}


def test_panels_lie_side_by_side() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard(ROWS)["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


@pytest.mark.parametrize("width", [5, 30])
def test_a_line_that_panels_do_not_fill_is_refused(width: int) -> None:
    row = Row("uneven", (replace(PANELS[0], width=width),))

    with pytest.raises(ValueError, match="columns"):
        dashboard([row])


def test_promql_refuses_what_is_not_declared() -> None:
    with pytest.raises(ValueError, match="warmroute_nonsense is not a metric"):
        series("warmroute_nonsense")
    with pytest.raises(ValueError, match="has no label colour; it has: model, status, outcome"):
        rate("warmroute_requests_total", 'colour="red"')


def test_promql_is_narrowed_by_the_labels_that_a_metric_has() -> None:
    assert series("warmroute_open_leases") == 'warmroute_open_leases{instance=~"$gateway"}'
    assert rate("warmroute_requests_total", 'outcome!="complete"') == (
        'rate(warmroute_requests_total{instance=~"$gateway", model=~"$model", '
        'outcome!="complete"}[$__rate_interval])'
    )
    assert quantile(0.5, "warmroute_ttft_seconds", "model") == (
        "histogram_quantile(0.5, sum by (le, model) (rate(warmroute_ttft_seconds_bucket"
        '{instance=~"$gateway", model=~"$model"}[$__rate_interval]))) >= 0'
    )
    assert share("a", "b") == "a / (b > 0)"


def test_alerts_have_names_of_their_own() -> None:
    assert len(set(ALERTS)) == len(ALERTS) > 10


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_says_how_bad_it_is_and_what_to_do(name: str) -> None:
    _, _, rule = RULES.partition(f"- alert: {name}\n")
    rule, _, _ = rule.partition("- alert:")

    assert re.search(r"severity: (critical|warning)\b", rule)
    assert "summary: " in rule
    assert "description: " in rule
    assert f"runbook: docs/dashboards-and-alerts.md#{name.lower()}\n" in rule
    assert f"\n### {name}\n" in GUIDE


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_is_seen_to_fire_and_not_to_fire(name: str) -> None:
    checks = [part for part in RULE_TESTS.split("      - expr: ") if f'alertname="{name}"' in part]

    fires = ["exp_samples" in check for check in checks]

    assert set(fires) == {True, False}


@pytest.mark.parametrize("name", re.findall(r"- record: (\S+)", RULES))
def test_a_recording_rule_is_checked_by_hand(name: str) -> None:
    assert re.search(rf"- expr: .*{name}\b", RULE_TESTS)


def test_grafana_s_own_sdk_reads_the_dashboard() -> None:
    models: Any = pytest.importorskip(
        "grafana_foundation_sdk.models.dashboard",
        reason="no Grafana SDK here: pip install grafana-foundation-sdk",
    )

    read = models.Dashboard.from_json(json.loads(DASHBOARD.read_text()))

    assert read.title == "warmroute"
    assert len(read.panels) == len(PANELS) + len(ROWS)
