"""Every metric of the gateway, declared once: the exporter and the docs are made from this table.

Rule: a label's values come from a closed list or from the fleet's own ids and model names, never
from a request: no path, no user, no session, no text that a client chose.
"""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What may be done with the numbers."""

    COUNTER = "counter"  # only grows; take its rate
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class MetricRow:
    """One metric. ``name`` is as scraped, a counter's with ``_total``."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    unit: str
    meaning: str


C, G, H = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM
_REPLICA = ("replica",)
_MODEL = ("model",)

METRICS: tuple[MetricRow, ...] = (
    MetricRow(
        *("warmroute_requests_total", C, ("model", "status", "outcome"), "requests"),
        "ended, each once; status 2xx..5xx, or none where no head was sent; model 'other' where "
        "no replica serves that name",
    ),
    MetricRow("warmroute_in_flight_requests", G, (), "requests", "received and not yet ended"),
    MetricRow("warmroute_queued_requests", G, (), "requests", "waiting for a replica's slot"),
    MetricRow("warmroute_client_connections", G, (), "connections", "open, of clients"),
    MetricRow(
        *("warmroute_connections_refused_total", C, ("reason",), "connections"),
        "of clients, closed before any request: limit beyond connections_max; tls for want of a "
        "session, as a check that only connects has none either",
    ),
    MetricRow(
        *("warmroute_buffered_bytes", G, (), "bytes"),
        "of request bodies that are held; see [gateway] buffered_bytes_max",
    ),
    MetricRow(
        *("warmroute_ttft_seconds", H, _MODEL, "s"),
        "streams: from the request's last byte to the first token towards the client",
    ),
    MetricRow("warmroute_e2e_seconds", H, _MODEL, "s", "from a request's last byte to its end"),
    MetricRow(
        *("warmroute_router_overhead_seconds", H, (), "s"),
        "from a request's last byte until its first attempt is on its way: parse, decide, and "
        "where it comes to that the wait for a slot or a new connection",
    ),
    MetricRow(
        *("warmroute_chunk_gap_seconds", H, (), "s"), "streams: between two arrivals of bytes"
    ),
    MetricRow(
        *("warmroute_decisions_total", C, ("policy", "reason"), "requests"),
        "why each request went where it went, or nowhere",
    ),
    MetricRow(
        *("warmroute_replica_answers_total", C, ("replica", "outcome"), "requests"),
        "ended requests by the replica that had them last",
    ),
    MetricRow(
        *("warmroute_retries_total", C, ("reason",), "attempts"),
        "further attempts on another replica, by what the attempt before failed with",
    ),
    MetricRow(
        *("warmroute_resumes_total", C, ("reason",), "attempts"),
        "asked of another replica for the rest of a broken stream, by what broke it",
    ),
    MetricRow(
        *("warmroute_resumes_refused_total", C, ("reason",), "streams"),
        "broken and not continued although `failover` is `resume`, and why not",
    ),
    MetricRow(
        *("warmroute_stale_connections_total", C, (), "attempts"),
        "sent once more because the replica had closed the kept connection meanwhile",
    ),
    MetricRow(
        *("warmroute_probes_total", C, ("result",), "probes"), "of replicas' health, and their ends"
    ),
    MetricRow(
        *("warmroute_failures_total", C, ("code",), "requests"),
        "requests that the gateway refused or had to break off, by error code",
    ),
    MetricRow("warmroute_client_disconnects_total", C, (), "requests", "whose client left first"),
    MetricRow(
        "warmroute_broken_answers_total", C, (), "requests", "whose begun answer could not be ended"
    ),
    MetricRow(
        *("warmroute_prompt_tokens_total", C, _MODEL, "tokens"),
        "prompt tokens of requests that reached a replica, as estimated from their bytes",
    ),
    MetricRow(
        *("warmroute_matched_tokens_total", C, _MODEL, "tokens"),
        "of these, predicted to be in the replica's cache; hit rate predicted: the ratio of rates",
    ),
    MetricRow(
        *("warmroute_answered_prompt_tokens_total", C, _MODEL, "tokens"),
        "prompt tokens by the engines' own count, of answers that tell how many were cached",
    ),
    MetricRow(
        *("warmroute_cached_tokens_total", C, _MODEL, "tokens"),
        "of these, cached by the engines' own word; hit rate actual: the ratio of rates",
    ),
    MetricRow(
        *("warmroute_completion_tokens_total", C, _MODEL, "tokens"),
        "generated, by the engines' own count",
    ),
    MetricRow(
        *("warmroute_odd_usage_total", C, (), "answers"),
        "whose usage was impossible (negative, more cached than sent): left out, or cut to size",
    ),
    MetricRow("warmroute_body_bytes_total", C, (), "bytes", "request bodies received"),
    MetricRow("warmroute_answer_bytes_total", C, (), "bytes", "answer bodies relayed"),
    MetricRow(
        *("warmroute_replica_info", G, ("replica", "url", "model"), ""),
        "1 for each known replica",
    ),
    MetricRow(
        *("warmroute_replica_in_flight_requests", G, _REPLICA, "requests"),
        "this gateway's own, exact",
    ),
    MetricRow(
        *("warmroute_replica_foreign_requests", G, _REPLICA, "requests"),
        "believed to be there from others",
    ),
    MetricRow(
        *("warmroute_replica_ahead_tokens", G, _REPLICA, "tokens"),
        "prompt tokens believed accepted and not yet computed, own and others'",
    ),
    MetricRow(
        *("warmroute_replica_waiting_requests", G, _REPLICA, "requests"),
        "as last reported; absent if it does not say, or no longer reports",
    ),
    MetricRow(
        *("warmroute_replica_running_requests", G, _REPLICA, "requests"),
        "as last reported; absent if it does not say, or no longer reports",
    ),
    MetricRow(
        *("warmroute_replica_kv_usage_ratio", G, _REPLICA, "0..1"),
        "KV blocks held by sequences, as last reported; absent if it does not say, or no longer "
        "reports",
    ),
    MetricRow(
        *("warmroute_replica_report_age_seconds", G, _REPLICA, "s"),
        "since the last new report; absent if it never reported",
    ),
    MetricRow(
        *("warmroute_replica_believed_blocks", G, _REPLICA, "blocks"),
        "of prompt that the index believes in its cache",
    ),
    MetricRow(
        *("warmroute_replica_prefill_tokens_per_second", G, _REPLICA, "tokens/s"),
        "prefill speed that policies reckon with: reported or configured, over the slowdown",
    ),
    MetricRow(
        *("warmroute_replica_prefill_slowdown_ratio", G, _REPLICA, "x"),
        "times as long as its peers for as much prefill, learned from answers; 1 in the dead band",
    ),
    MetricRow(
        *("warmroute_replica_decode_slowdown_ratio", G, _REPLICA, "x"),
        "times as long as its peers for a token beside as many requests, likewise",
    ),
    MetricRow(
        *("warmroute_replica_token_seconds", G, _REPLICA, "s"),
        "median between two tokens of its last streams; absent if there were none",
    ),
    MetricRow(
        *("warmroute_replica_eligible", G, _REPLICA, ""), "1 if it may be chosen, as it stands"
    ),
    MetricRow(
        *("warmroute_replica_ejected", G, _REPLICA, ""),
        "1 while its breaker or its probes keep it out",
    ),
    MetricRow("warmroute_replica_recovering", G, _REPLICA, "", "1 during its slow start"),
    MetricRow(
        *("warmroute_replica_mismatched", G, _REPLICA, ""),
        "1 while its reports cannot be used: another schema, hash scheme or none that is read",
    ),
    MetricRow("warmroute_replica_draining", G, _REPLICA, "", "1 while it takes nothing new"),
    MetricRow(
        *("warmroute_replica_breaker_state", G, ("replica", "state"), ""),
        "1 for the state it is in",
    ),
    MetricRow("warmroute_open_leases", G, (), "leases", "attempts whose load is booked"),
    MetricRow(
        *("warmroute_leases_expired_total", C, (), "leases"),
        "taken back because nobody renewed them; each hides a bug",
    ),
    MetricRow(
        "warmroute_index_entries", G, (), "entries", "blocks that the index knows, over replicas"
    ),
    MetricRow(
        "warmroute_index_evicted_total", C, (), "entries", "forgotten for lack of room, or not kept"
    ),
    MetricRow(
        *("warmroute_index_bytes", G, (), "bytes"),
        "memory of the index, estimated; see [routing] index_bytes_max",
    ),
    MetricRow(
        *("warmroute_index_corrections_total", C, (), "answers"),
        "whose cached_tokens made the index forget what it had learned",
    ),
    MetricRow(
        *("warmroute_overpredicted_tokens_total", C, (), "tokens"),
        "of prompts believed cached that the engine had to compute, by its own cached_tokens",
    ),
    MetricRow(
        *("warmroute_underpredicted_tokens_total", C, (), "tokens"),
        "of prompts that the engine had cached beyond what was believed",
    ),
    MetricRow(
        *("warmroute_store_state", G, ("state",), ""),
        "1 for the state it is in; up is constant without Redis",
    ),
    MetricRow("warmroute_store_reads_total", C, (), "reads", "of all reports, that succeeded"),
    MetricRow(
        "warmroute_store_faults_total", C, ("fault",), "calls", "to the store that brought nothing"
    ),
    MetricRow(
        *("warmroute_store_undecodable_total", C, (), "values"),
        "reports, batches and snapshots that were no such thing",
    ),
    MetricRow("warmroute_kv_batches_total", C, (), "batches", "of KV events read"),
    MetricRow(
        "warmroute_kv_gaps_total", C, (), "gaps", "in KV events; each costs that replica's credit"
    ),
    MetricRow("warmroute_kv_resyncs_total", C, (), "resyncs", "snapshots asked for"),
    MetricRow(
        *("warmroute_policy_failures_total", C, (), "decisions"),
        "in which the policy raised, or chose what it was not shown, so that one was drawn",
    ),
    MetricRow(
        *("warmroute_background_restarts_total", C, ("task",), "restarts"),
        "of a background loop after an unforeseen error; each is a bug",
    ),
    MetricRow(
        *("warmroute_config_generation", G, (), ""),
        "1 at the start, one more for every reload that is in force",
    ),
    MetricRow(
        *("warmroute_config_refused_total", C, (), "reloads"),
        "that changed nothing because a setting was wrong or needs a restart",
    ),
    MetricRow(
        *("warmroute_event_loop_lag_seconds", G, ("statistic",), "s"),
        "how late a timer fires: ewma, and max over the last 10 to 20 s",
    ),
    MetricRow(
        *("warmroute_admin_keys_refused_total", C, (), "requests"),
        "to the admin port, without a key that it knows",
    ),
    MetricRow("warmroute_event_loop_tasks", G, (), "tasks", "of the event loop, at the scrape"),
    MetricRow(
        *("warmroute_cpu_seconds_total", C, (), "CPU s"),
        "of this process; its event loop cannot use more than one core",
    ),
    MetricRow(
        "warmroute_build_info", G, ("version", "policy", "python"), "", "1, with what is running"
    ),
)

ROWS: dict[str, MetricRow] = {row.name: row for row in METRICS}


def metric_rows() -> tuple[MetricRow, ...]:
    """Return the table in the order in which it is exported and documented."""
    return METRICS
