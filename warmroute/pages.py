"""Pages made from the code, so that they cannot go stale: policies, configuration and the rest."""

import inspect
import sys
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from contract.options import OptionRow, option_rows
from replicas.agents.config import AgentConfig
from replicas.core.engine_stats import EngineStats
from replicas.core.scheduler_config import SchedulerConfig
from replicas.server.collector import ReplicaCollector
from replicas.server.config import ReplicaConfig
from replicas.server.faults import FAULTS, meaning_of
from replicas.server.metrics import EngineMetrics, ReplicaMetrics
from replicas.server.vllm_families import EngineView, ReplicaView
from router.config import SECTIONS
from router.core.exchange import state_diagram
from router.core.policy import DEFAULT_POLICY, POLICIES, Policy
from router.metric_table import Kind, MetricRow, metric_rows
from warmroute.demo.fleet import DemoConfig
from warmroute.fixed_timing import fixed_timing_section
from warmroute.load import LoadConfig
from warmroute.weather import table, weather_section

_MADE = "<!-- made by `{}`; do not edit -->\n"


def policies_text() -> str:
    """Return one line per policy."""
    width = max(map(len, POLICIES))
    lines = (f"{name:<{width}}  {_summary(policy)}" for name, policy in sorted(POLICIES.items()))
    return "\n".join(lines)


def policies_markdown() -> str:
    """Return docs/policies.md."""
    parts = [_MADE.format("warmroute policies --markdown"), _POLICIES_HEAD]
    for name, policy in sorted(POLICIES.items()):
        if not policy.__module__.startswith("router.policies."):
            continue  # of another package: not everybody has it
        default = " (the default)" if name == DEFAULT_POLICY else ""
        parts.append(f"\n## `{name}`{default}\n\n{_doc(policy)}\n")
        rows = list(option_rows(policy))
        if rows:
            parts.append(f"\n{_option_table(rows)}\n")
    return "".join([*parts, weather_section(), fixed_timing_section(), _POLICIES_TAIL])


def configuration_markdown() -> str:
    """Return docs/configuration.md."""
    parts = [_MADE.format("warmroute config --markdown"), _CONFIGURATION_HEAD]
    for name, section in SECTIONS.items():
        parts.append(f"\n### `[{name}]`\n\n{_option_table(option_rows(section))}\n")
    parts.append(
        "\n## The replica: `warmroute replica`\n\nEvery setting is a flag "
        "(`kv_blocks` is `--kv-blocks`).\n\n" + _option_table(option_rows(ReplicaConfig)) + "\n"
    )
    parts.append(
        "\n## The agent beside a real engine: `warmroute agent`\n\nEvery setting is a flag; "
        "`urls` is `--url`, repeated.\n\n" + _option_table(option_rows(AgentConfig)) + "\n"
    )
    parts.append(
        "\n## The load: `warmroute load`\n\nEvery setting is a flag.\n\n"
        + _option_table(option_rows(LoadConfig))
        + "\n"
    )
    parts.append(
        "\n## The demo: `warmroute demo`\n\nEvery setting is a flag.\n\n"
        + _option_table(option_rows(DemoConfig))
        + "\n"
    )
    return "".join(parts)


def metrics_markdown() -> str:
    """Return docs/metrics.md."""
    parts = [_MADE.format("warmroute metrics --markdown"), _METRICS_HEAD]
    for title, rows in (
        ("The gateway (admin port, `/metrics`)", metric_rows()),
        ("A replica (`/metrics`)", _replica_metric_rows()),
    ):
        parts.append(f"\n## {title}\n\n")
        parts.append(
            table(
                ("metric", "type", "labels", "unit", "meaning"),
                [
                    (f"`{row.name}`", str(row.kind), ", ".join(row.labels), row.unit, row.meaning)
                    for row in rows
                ],
            )
        )
        parts.append("\n")
    return "".join(parts)


def faults_markdown() -> str:
    """Return docs/faults.md."""
    parts = [_MADE.format("make docs"), _FAULTS_HEAD]
    for name, kind in FAULTS.items():
        parameters = _option_table(option_rows(kind), "parameter")
        parts.append(f"\n## `{name}`\n\n{meaning_of(kind)}\n\n{parameters}\n")
    return "".join(parts)


def metrics_text() -> str:
    """Return one line per metric of the gateway."""
    rows = metric_rows()
    width = max(len(row.name) for row in rows)
    return "\n".join(f"{row.name:<{width}}  {row.meaning}" for row in rows)


def effective_text(rows: Iterable[Any]) -> str:
    """Return the effective settings, a line each, with their origin."""
    lines = [(f"{row.section}.{row.name}", str(row.value), row.origin.value) for row in rows]
    widths = [max(len(line[column]) for line in lines) for column in range(2)]
    return "\n".join(
        f"{name:<{widths[0]}}  {value:<{widths[1]}}  {origin}".rstrip()
        for name, value, origin in lines
    )


def _replica_metric_rows() -> list[MetricRow]:
    """Return what an idle replica exports, as rows."""
    counts = {field.name: 0 for field in fields(EngineStats)} | {"kv_blocks_total": 1}
    metrics = ReplicaMetrics()
    metrics.count_refused("a code")
    metrics.faults["a fault"] = 1
    config = SchedulerConfig()
    engine = EngineView(0, EngineStats(**counts), EngineMetrics(config))
    view = ReplicaView("a model", config, [engine], has_adapters=True)
    collector = ReplicaCollector(metrics, lambda: view, lambda: 0, lambda: False)
    return [
        MetricRow(
            name=family.name + ("_total" if family.type == "counter" else ""),
            kind=Kind(family.type),
            labels=tuple(label for label in family.samples[0].labels if label != "le"),
            unit="",
            meaning=family.documentation,
        )
        for family in collector.collect()
    ]


def _doc(policy: type[Policy]) -> str:
    """Return a policy's docstring as Markdown; its indented formula is already a code block."""
    return inspect.cleandoc(policy.__doc__ or "It has no description.").replace("``", "`")


def _summary(policy: type[Policy]) -> str:
    return _doc(policy).splitlines()[0].replace("`", "")


def _option_table(rows: Iterable[OptionRow], name: str = "setting") -> str:
    return table(
        (name, "value", "default", "unit", "meaning"),
        [
            (f"`{row.name}`", row.type_name, _default(row.default), row.unit, row.meaning)
            for row in rows
        ],
    )


def _default(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "(empty)"
    return str(getattr(value, "value", value)) or "(empty)"


def with_picture(architecture: str) -> str:
    """Return docs/architecture.md with its picture drawn anew from the table of the exchange."""
    before, fence, rest = architecture.partition("```mermaid\n")
    _, end, after = rest.partition("```")
    return before + fence + state_diagram() + end + after


def write_pages(folder: Path) -> None:
    """Write all generated pages into ``folder``, where architecture.md is already."""
    (folder / "policies.md").write_text(policies_markdown())
    (folder / "configuration.md").write_text(configuration_markdown())
    (folder / "metrics.md").write_text(metrics_markdown())
    (folder / "faults.md").write_text(faults_markdown())
    architecture = folder / "architecture.md"
    architecture.write_text(with_picture(architecture.read_text()))


_POLICIES_HEAD = """
# Policies

A policy chooses one of the eligible replicas for one request. It is a pure function of the request
and of what the gateway believes of each replica (its own leases, and what reports show beyond
them), so a decision can be replayed. Choose one with `warmroute router --policy NAME`; its settings
go under `[policy.NAME]` in the TOML file or `--set policy.NAME.SETTING=VALUE`.
"""

_POLICIES_TAIL = """
## A policy of your own

A policy is a class in one file, which need not be in this repository. `CostPolicy` gives each
replica a cost and takes the least; `Policy` chooses as it likes. It must depend on the request and
the replicas alone: no state, no clock, not the order of the list, and where it draws, by the
request's id (`draw`, `draw_one`).

```python
from dataclasses import dataclass
from typing import ClassVar

from contract.options import option
from router.core.policy import CostPolicy
from router.core.view import ReplicaView, RouteRequest


@dataclass(frozen=True)
class Frugal(CostPolicy):
    \"""Choose the most of the prompt cached, less so much for each request on the replica.\"""

    name: ClassVar[str] = "frugal"
    unit: ClassVar[str] = "tokens"

    prefix_tokens_max: int = option(50_000, "tokens", "of a match that count")
    request_tokens: int = option(100, "tokens", "what one request on the replica costs")

    def cost(self, request: RouteRequest, replica: ReplicaView) -> float:
        matched_tokens = request.matched_tokens.get(replica.slot, 0)
        return self.request_tokens * replica.requests - min(matched_tokens, self.prefix_tokens_max)
```

Its package names it in the group `warmroute.policies`, here in `pyproject.toml`:

```toml
[project.entry-points."warmroute.policies"]
frugal = "frugal:Frugal"
```

Once that is installed beside warmroute, `warmroute policies` lists it, `--policy frugal` chooses it
and `[policy.frugal]` sets its options. One that cannot be loaded is listed with the reason, and
stops the start only if it is chosen. What a policy may read is in `router/core/view.py`: the
`own_*` and `foreign_*` figures count what was sent since the last report, the others are as last
reported and None if they never were. `python -m bench.policies --policy frugal` compares it with
the rest on recorded traffic, `python -m bench.weather --quick --policy frugal min_ttft` in two
weathers.
"""

_CONFIGURATION_HEAD = """
# Configuration

One TOML file (`--config FILE`), overridden by the environment, by the named flags and by
`--set SECTION.SETTING=VALUE`; secrets belong in the environment (`WARMROUTE_REDIS_URL`). An unknown
name or an impossible value stops the start with exit status 3 and says what was found and what is
known. `warmroute config --config FILE` prints every effective value and where it came from.

Beside the sections, `replicas` is a list of URLs of engines that do not report in Redis, or of
tables `[[replicas]]` with `url`, `id`, `model` and `authorization` (the header that this replica is
sent in the place of any other); a URL is `http://`, `https://` or, here only,
`unix:///path/of/socket`. `[policy]` has `name` and a table for each policy (see policies.md). In
flags and the environment a list is written `a, b`, or as in TOML.

## The gateway: `warmroute router`
"""

_FAULTS_HEAD = """
# Faults

A replica of `warmroute replica` can be told to fail, so that whoever puts a router in front of it
can see what the router does. Set faults at the start, separated by commas:

    warmroute replica --faults reset_mid_stream:after_tokens=5:share=0.1,slow_health:delay_s=2

or while it runs:

    curl -X PUT localhost:8000/admin/faults -d '{"freeze": {"duration_s": 5}}'
    curl localhost:8000/admin/faults                    # what there is, is set, and has struck
    curl -X DELETE localhost:8000/admin/faults/freeze   # or /admin/faults for all

PUT (or POST) sets all that it names, or none if anything is wrong: then a 400 says what was found
and what is known. A fault replaces one of its name and leaves the others; without parameters (`{}`)
it has its defaults. `warmroute_engine_faults_total` counts strikes by fault.

A fault with a `share` strikes by a hash of the request id (`x-request-id`, else the number of the
request), of `--fault-seed` and of `--replica-id`: the same requests again are struck again, and
those that one replica fails can succeed on another. Tokens are counted over all choices of an
answer, and only chat and completion answers are struck in their middle. "Requests" are POSTs below
`/v1/`; probes are `/health` and `/ping`.
"""

_METRICS_HEAD = """
# Metrics

Label values are bounded: no request id, session, path or text of a user is ever a label.
"""


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]))
