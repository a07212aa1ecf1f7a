"""Metrics read at the scrape from what others keep: fleet, store, event loop and data plane."""

from collections.abc import Iterable, Iterator

from prometheus_client.core import Metric

from router.core.belief import Freshness
from router.core.fleet import FleetState
from router.core.health import BreakerState
from router.core.reason import Ineligible
from router.core.status import ReplicaStatus
from router.gateway.data_plane import DataPlaneStats
from router.loop_lag import LoopLag
from router.metric_table import ROWS, Kind
from router.store.seam import StoreFault, StoreState
from router.store.sync import FleetSync

LabelValues = tuple[str, ...]


def family(name: str, rows: Iterable[tuple[LabelValues, float]]) -> Metric:
    """Return a declared metric with ``rows`` of label values, in the table's order, and value."""
    row = ROWS[name]
    base = name.removesuffix("_total") if row.kind is Kind.COUNTER else name
    metric = Metric(base, row.meaning, row.kind.value)
    for values, value in rows:
        metric.add_sample(name, dict(zip(row.labels, values, strict=True)), value)
    return metric


def fleet_families(fleet: FleetState) -> Iterator[Metric]:
    """Yield what the fleet knows of each replica, and of itself."""
    statuses = fleet.views()
    yield family(
        "warmroute_replica_info",
        (((s.view.replica_id, s.view.url, s.view.model or ""), 1) for s in statuses),
    )
    for field in _PER_REPLICA:
        values = ((s.view.replica_id, value) for s in statuses for value in [_value(s, field)])
        rows = (((replica,), value) for replica, value in values if value is not None)
        yield family(f"warmroute_replica_{field}", rows)
    yield family(
        "warmroute_replica_breaker_state",
        (
            ((s.view.replica_id, state.value), float(s.breaker is state))
            for s in statuses
            for state in BreakerState
        ),
    )
    for name, total in (
        ("warmroute_open_leases", len(fleet.ledger)),
        ("warmroute_leases_expired_total", fleet.ledger.expired_total),
        ("warmroute_policy_failures_total", fleet.policy_failures.total),
        ("warmroute_index_entries", fleet.index.num_entries),
        ("warmroute_index_evicted_total", fleet.index.evicted_total),
        ("warmroute_index_bytes", fleet.index.num_bytes),
        ("warmroute_index_corrections_total", fleet.prediction_errors.corrections),
        ("warmroute_overpredicted_tokens_total", fleet.prediction_errors.over_tokens),
        ("warmroute_underpredicted_tokens_total", fleet.prediction_errors.under_tokens),
    ):
        yield family(name, [((), total)])


_PER_REPLICA = (
    *("in_flight_requests", "foreign_requests", "ahead_tokens", "waiting_requests"),
    *("running_requests", "kv_usage_ratio", "report_age_seconds", "believed_blocks"),
    *("prefill_tokens_per_second", "prefill_slowdown_ratio", "decode_slowdown_ratio"),
    *("token_seconds", "eligible", "ejected", "recovering", "mismatched", "draining"),
)


def _value(status: ReplicaStatus, field: str) -> float | None:
    """Return one gauge of one replica, None where it is unknown: absent, never zero."""
    view, report = status.view, status.report
    if status.freshness is Freshness.DEAD:
        report = None  # what it said last is no longer so
    match field:
        case "in_flight_requests":
            return view.own_requests
        case "foreign_requests":
            return view.foreign_requests
        case "ahead_tokens":
            return view.ahead_tokens
        case "waiting_requests" | "running_requests":
            return None if report is None else getattr(report, field)
        case "kv_usage_ratio":
            return None if report is None else view.kv_usage
        case "report_age_seconds":
            return None if status.report_age_us is None else status.report_age_us / 1e6
        case "believed_blocks":
            return status.believed_blocks
        case "prefill_tokens_per_second":
            return view.prefill_tokens_per_s
        case "prefill_slowdown_ratio":
            return view.prefill_slowdown
        case "decode_slowdown_ratio":
            return view.decode_slowdown
        case "token_seconds":
            return None if view.token_us is None else view.token_us / 1e6
        case "eligible":
            return status.standing is None
        case "ejected":
            return status.standing is Ineligible.EJECTED
        case "mismatched":
            return status.standing is Ineligible.CONTRACT_MISMATCH
        case "recovering":
            return status.is_recovering
    assert field == "draining"
    return status.is_draining


def store_families(sync: FleetSync) -> Iterator[Metric]:
    """Yield what the loops between store and fleet have seen."""
    counts = sync.counts
    states = (((state.value,), float(sync.state is state)) for state in StoreState)
    faults = (((fault.value,), counts.faults[fault]) for fault in StoreFault)
    yield family("warmroute_store_state", states)
    yield family("warmroute_store_faults_total", faults)
    for name, total in (
        ("warmroute_store_reads_total", counts.reads),
        ("warmroute_store_undecodable_total", counts.undecodable),
        ("warmroute_kv_batches_total", counts.kv_batches),
        ("warmroute_kv_gaps_total", counts.kv_gaps),
        ("warmroute_kv_resyncs_total", counts.kv_resyncs),
    ):
        yield family(name, [((), total)])


def loop_families(lag: LoopLag) -> Iterator[Metric]:
    """Yield how late the event loop is, and how much is going on in it."""
    rows = [(("ewma",), lag.ewma_s), (("max",), lag.max_s)]
    yield family("warmroute_event_loop_lag_seconds", rows)
    yield family("warmroute_event_loop_tasks", [((), lag.num_tasks)])


def plane_families(stats: DataPlaneStats) -> Iterator[Metric]:
    """Yield what the data plane holds now, and whom it did not let in."""
    for name, value in (
        ("warmroute_queued_requests", stats.queued),
        ("warmroute_client_connections", stats.clients),
        ("warmroute_buffered_bytes", stats.buffered_bytes),
    ):
        yield family(name, [((), value)])
    refused = ((("limit",), stats.turned_away), (("tls",), stats.handshakes_failed))
    yield family("warmroute_connections_refused_total", refused)
