"""The dashboard's rows, in the order in which one reads them, and what is on none of them."""

from warmroute.dashboard.panel import Row
from warmroute.dashboard.rows.clients import CLIENTS
from warmroute.dashboard.rows.decisions import DECISIONS
from warmroute.dashboard.rows.fleet import FLEET
from warmroute.dashboard.rows.gateway import GATEWAY
from warmroute.dashboard.rows.worth import WORTH

ROWS: tuple[Row, ...] = (WORTH, CLIENTS, FLEET, DECISIONS, GATEWAY)

NOT_SHOWN: dict[str, str] = {
    "warmroute_build_info": "the list of gateways is made of it; as a panel it never changes",
    "warmroute_policy_failures_total": "the log says once which policy failed, and how",
    "warmroute_replica_breaker_state": "'Held back' and 'Replicas' say what follows from it",
    "warmroute_replica_foreign_requests": "running and waiting requests say it in engines' words",
    "warmroute_store_reads_total": "its rate is a setting; 'Store' and 'Store faults' say the rest",
}
"""Metrics that no panel shows, and why: a line too many hides the one that matters."""
