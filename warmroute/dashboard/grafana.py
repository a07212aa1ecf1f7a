"""Panels as the JSON that Grafana 11 and later import.

A panel's id is a hash of its title, so links to it survive panels that come and go around it; equal
rows give equal bytes.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any
from zlib import crc32

from warmroute.dashboard.panel import Color, Column, Look, Panel, Row, Step, Unit, Word

Json = dict[str, Any]

SCHEMA_VERSION = 39
"""Of Grafana 11.0; later ones migrate it when they load it."""

WIDTH = 24
REPLICAS_OF_MODEL = 'warmroute_replica_info{instance=~"$gateway", model=~"$model"}'
_NOISE = {Unit.COUNT: 1, Unit.PER_SECOND: 0.1}
"""An axis that is no longer than its noise would make a drama of every flat line."""

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_TYPES = {
    Look.LINES: "timeseries",
    Look.STACK: "timeseries",
    Look.NUMBER: "stat",
    Look.TOTAL: "stat",
    Look.TABLE: "table",
}


def dashboard_json(rows: Sequence[Row]) -> str:
    """Return the text of deploy/grafana/warmroute.json."""
    return json.dumps(dashboard(rows), indent=1) + "\n"


def dashboard(rows: Sequence[Row]) -> Json:
    """Return the whole dashboard. Raises ValueError where panels do not fill their lines."""
    return {
        "uid": "warmroute",
        "title": "warmroute",
        "description": "Is prefix routing worth it, what do clients feel, and why.",
        "tags": ["warmroute", "llm"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,  # one crosshair for all panels
        "refresh": "10s",
        "time": {"from": "now-15m", "to": "now"},
        "timezone": "browser",
        "templating": {"list": _variables()},
        "annotations": {"list": []},
        "links": [],
        "panels": list(_panels(rows)),
    }


def _variables() -> list[Json]:
    source = {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
        "current": {},
    }
    return [
        source,
        _label_variable("model", "Model", "warmroute_e2e_seconds_count", "model"),
        _label_variable("gateway", "Gateway", "warmroute_build_info", "instance"),
        # Its "All" is a list, not ".*": a replica's gauges have no label of its model, so this
        # list is what narrows them to the chosen models.
        _label_variable("replica", "Replica", REPLICAS_OF_MODEL, "replica", every=None),
    ]


def _label_variable(
    name: str, label: str, of: str, values_of: str, every: str | None = ".*"
) -> Json:
    query = f"label_values({of}, {values_of})"
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _SOURCE,
        "definition": query,
        "query": {"qryType": 1, "query": query, "refId": name},
        "refresh": 2,  # when the time range changes
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": every,
        "current": {"text": ["All"], "value": ["$__all"], "selected": True},
    }


def _panels(rows: Sequence[Row]) -> Iterator[Json]:
    top = 0
    for row in rows:
        yield {
            "id": _id(row.title),
            "type": "row",
            "title": row.title,
            "collapsed": False,
            "gridPos": {"x": 0, "y": top, "w": WIDTH, "h": 1},
            "panels": [],
        }
        top += 1
        left = 0
        for panel in row.panels:
            if left + panel.width > WIDTH:
                raise ValueError(f"{panel.title!r} is {left + panel.width} of {WIDTH} columns wide")
            yield _panel(panel, left, top)
            left = (left + panel.width) % WIDTH
            top += 0 if left else panel.height
        if left:
            raise ValueError(f"the last line of {row.title!r} ends at {left} of {WIDTH} columns")


def _id(title: str) -> int:
    return crc32(title.encode()) % 1_000_000_000 + 1


def _panel(panel: Panel, left: int, top: int) -> Json:
    columns = panel.look is Look.TABLE
    return {
        "id": _id(panel.title),
        "type": _TYPES[panel.look],
        "title": panel.title,
        "description": f"{panel.meaning}\n\nGood: {panel.good}.",
        "datasource": _SOURCE,
        "gridPos": {"x": left, "y": top, "w": panel.width, "h": panel.height},
        "targets": _column_targets(panel.columns) if columns else _targets(panel),
        "fieldConfig": {"defaults": _defaults(panel), "overrides": list(_overrides(panel))},
        "options": _OPTIONS[panel.look],
        **({"transformations": _transformations(panel.columns)} if columns else {}),
    }


def _targets(panel: Panel) -> list[Json]:
    is_total = panel.look is Look.TOTAL
    return [
        {
            "refId": _ref(index),
            "datasource": _SOURCE,
            "expr": query.expr,
            "legendFormat": query.legend,
            "instant": is_total,
            "range": not is_total,
        }
        for index, query in enumerate(panel.queries)
    ]


def _column_targets(columns: Sequence[Column]) -> list[Json]:
    return [
        {
            "refId": _ref(index),
            "datasource": _SOURCE,
            "expr": column.expr,
            "format": "table",
            "instant": True,
            "range": False,
        }
        for index, column in enumerate(columns)
    ]


def _ref(index: int) -> str:
    return chr(ord("A") + index)


def _defaults(panel: Panel) -> Json:
    defaults: Json = {
        "unit": panel.unit.value,
        "noValue": panel.nothing,
        "thresholds": _thresholds(panel.steps),
        "mappings": _mappings(panel.words),
    }
    ends = {"min": None if panel.logarithmic else panel.bottom, "max": panel.top}
    defaults |= {name: end for name, end in ends.items() if end is not None}
    if panel.look in (Look.NUMBER, Look.TOTAL):
        return defaults | {"color": {"mode": "thresholds"}}
    if panel.look is Look.TABLE:
        kept = {key: defaults[key] for key in ("noValue", "thresholds", "mappings")}
        return kept | {"custom": {"minWidth": 80, "cellOptions": {"type": "auto"}}}
    return defaults | {"color": {"mode": "palette-classic"}, "custom": _drawing(panel)}


def _drawing(panel: Panel) -> Json:
    stacked = panel.look is Look.STACK
    drawing = {
        "drawStyle": "line",
        "lineInterpolation": "linear",
        "lineWidth": 1,
        "fillOpacity": 40 if stacked else 8,
        "showPoints": "auto",
        "spanNulls": False,
        "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
        "thresholdsStyle": {"mode": "dashed" if panel.steps else "off"},
        "axisPlacement": "auto",
        "scaleDistribution": {"type": "log", "log": 10}
        if panel.logarithmic
        else {"type": "linear"},
    }
    noise = panel.noise or _NOISE.get(panel.unit)
    # Beside a hard end of the axis, a soft one would make Grafana follow the data up to the hard.
    if noise is not None and panel.top is None:
        drawing["axisSoftMax"] = noise
    if noise is not None and panel.bottom is None:
        drawing["axisSoftMin"] = -noise
    return drawing


def _thresholds(steps: Sequence[Step]) -> Json:
    first = {"color": "green", "value": None}
    later = [{"color": step.color.value, "value": step.value} for step in steps]
    return {"mode": "absolute", "steps": [first, *later]}


def _mappings(words: Sequence[Word]) -> list[Json]:
    if not words:
        return []
    options = {
        str(word.value): {"text": word.text, "color": word.color.value, "index": index}
        for index, word in enumerate(words)
    }
    return [{"type": "value", "options": options}]


def _overrides(panel: Panel) -> Iterator[Json]:
    for query in panel.queries:
        properties = [] if query.color is None else [_fixed(query.color)]
        if query.dashed:
            properties.append({"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [8, 8]}})
        if properties:
            yield _override(query.legend, properties)
    for name, color in panel.colors:
        yield _override(name, [_fixed(color)])
    for column in panel.columns:
        properties = [{"id": "unit", "value": column.unit.value}]
        if column.steps or column.words:
            properties += [
                {"id": "thresholds", "value": _thresholds(column.steps)},
                {"id": "mappings", "value": _mappings(column.words)},
                {"id": "color", "value": {"mode": "thresholds"}},
                {"id": "custom.cellOptions", "value": {"type": "color-text"}},
            ]
        yield _override(column.title, properties)


def _override(field: str, properties: Sequence[Json]) -> Json:
    return {"matcher": {"id": "byName", "options": field}, "properties": properties}


def _fixed(color: Color) -> Json:
    return {"id": "color", "value": {"mode": "fixed", "fixedColor": color.value}}


def _transformations(columns: Sequence[Column]) -> list[Json]:
    """Join the columns on the labels that they share; the first gives labels only."""
    names = {f"Value #{_ref(index)}": column.title for index, column in enumerate(columns)}
    organize = {
        "excludeByName": {"Time": True, "Value #A": True},
        "indexByName": {"replica": 0, "model": 1, "url": 2},
        "renameByName": names,
    }
    return [{"id": "merge", "options": {}}, {"id": "organize", "options": organize}]


_CALCULATION = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_NUMBER = {
    "reduceOptions": _CALCULATION,
    "colorMode": "value",
    "graphMode": "area",
    "justifyMode": "auto",
    "orientation": "auto",
    "textMode": "auto",
}
_LINES = {
    "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
    "tooltip": {"mode": "multi", "sort": "desc"},
}
_OPTIONS: dict[Look, Json] = {
    Look.LINES: _LINES,
    Look.STACK: _LINES,
    Look.NUMBER: _NUMBER,
    Look.TOTAL: _NUMBER | {"graphMode": "none"},
    Look.TABLE: {"showHeader": True, "cellHeight": "sm", "footer": {"show": False}},
}
