"""PromQL made from declared metrics: a name that nothing exports cannot get into a panel.

A selector is narrowed to what the dashboard's variables pick: every metric by its gateway
(Prometheus' own label ``instance``), and by model and replica where it has these labels. Gauges of
a replica are each gateway's view of it, so they are folded over gateways: ``max`` where the worst
view counts, ``sum`` where each gateway tells its own part.
"""

import re
from collections.abc import Sequence

from router.metric_table import ROWS, Kind

INTERVAL = "$__rate_interval"
_VARIABLES = {"instance": "$gateway", "model": "$model", "replica": "$replica"}


def series(name: str, *matchers: str) -> str:
    """Return a selector, ``matchers`` being further ones such as ``outcome="broken"``.

    Raises ValueError for a metric or a label that ``router.metric_table`` does not declare.
    """
    row = ROWS.get(name)
    if row is None:
        raise ValueError(f"{name} is not a metric of the gateway; see router/metric_table.py")
    for matcher in matchers:
        label = re.split("[=!]", matcher)[0]
        if label not in row.labels:
            raise ValueError(f"{name} has no label {label}; it has: {', '.join(row.labels)}")
    picked = [f'{of}=~"{by}"' for of, by in _VARIABLES.items() if of in {"instance", *row.labels}]
    suffix = "_bucket" if row.kind is Kind.HISTOGRAM else ""
    return f"{name}{suffix}{{{', '.join([*picked, *matchers])}}}"


def rate(name: str, *matchers: str) -> str:
    """Return a counter's growth per second."""
    return f"rate({series(name, *matchers)}[{INTERVAL}])"


def fold(how: str, expr: str, *labels: str) -> str:
    """Return ``expr`` folded with ``sum``, ``max``, ``min`` or ``avg``; ``labels`` stay."""
    return f"{how} by ({', '.join(labels)}) ({expr})" if labels else f"{how}({expr})"


def total(name: str, *labels: str, where: Sequence[str] = ()) -> str:
    """Return a counter's growth per second, summed; ``labels`` stay, ``where`` are matchers."""
    return fold("sum", rate(name, *where), *labels)


def share(part: str, whole: str) -> str:
    """Return ``part / whole``, and nothing instead of NaN where there was nothing."""
    return f"{part} / ({whole} > 0)"


def quantile(q: float, name: str, *labels: str) -> str:
    """Return a quantile of a histogram in seconds, and nothing where nothing was observed."""
    # A comparison drops NaN, which is what the function gives for empty buckets.
    return f"histogram_quantile({q}, {fold('sum', rate(name), 'le', *labels)}) >= 0"
