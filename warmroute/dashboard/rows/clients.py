"""What clients notice: how long they wait, and how often in vain."""

from router.core.reason import Outcome
from warmroute.dashboard.panel import Color, Look, Panel, Query, Row, Step, Unit
from warmroute.dashboard.promql import quantile, total


def _p50_p99(name: str, *labels: str) -> tuple[Query, ...]:
    prefix = "".join(f"{{{{{label}}}}} " for label in labels)
    return tuple(
        Query(quantile(q, name, *labels), f"{prefix}{q_name}")
        for q, q_name in ((0.5, "p50"), (0.99, "p99"))
    )


CLIENTS = Row(
    "What clients feel",
    (
        Panel(
            "Time to first token",
            Unit.SECONDS,
            _p50_p99("warmroute_ttft_seconds", "model"),
            "Streams: from a request's last byte to the first token towards the client.",
            "p50 near the prefill time of the uncached part of a prompt; a p99 that leaves it "
            "means queues in the engines",
            steps=(Step(5, Color.BAD),),
        ),
        Panel(
            "Between two chunks of a stream",
            Unit.SECONDS,
            _p50_p99("warmroute_chunk_gap_seconds"),
            "Time between two arrivals of a stream's bytes, which is about one token.",
            "p50 is the engines' step time; p99 rises where long prefills share steps with "
            "answers that are being generated",
            logarithmic=True,
        ),
        Panel(
            "Whole answer",
            Unit.SECONDS,
            _p50_p99("warmroute_e2e_seconds", "model"),
            "From a request's last byte to its end, streamed or not, failures included.",
            "steady at steady lengths of answers",
        ),
        Panel(
            "Requests by outcome",
            Unit.REQUESTS_PER_S,
            (Query(total("warmroute_requests_total", "outcome"), "{{outcome}}"),),
            "How requests ended: complete, replica_error (the replica's own error, passed on), "
            "refused (by the gateway), broken (cut after it had begun), client_left.",
            "all complete",
            look=Look.STACK,
            colors=(
                (Outcome.COMPLETE.value, Color.GOOD),
                (Outcome.REPLICA_ERROR.value, Color.OTHER),
                (Outcome.REFUSED.value, Color.WARN),
                (Outcome.BROKEN.value, Color.BAD),
                (Outcome.CLIENT_LEFT.value, Color.QUIET),
            ),
        ),
        Panel(
            "Errors by code",
            Unit.PER_SECOND,
            (Query(f"{total('warmroute_failures_total', 'code')} > 0", "{{code}}"),),
            "Requests that the gateway refused or broke off, by the code in the error body.",
            "nothing here; docs/dashboards-and-alerts.md says what to do for each alert",
            nothing="no errors",
        ),
        Panel(
            "Second tries and lost clients",
            Unit.PER_SECOND,
            (
                Query(f"{total('warmroute_retries_total', 'reason')} > 0", "retry: {{reason}}"),
                Query(total("warmroute_client_disconnects_total"), "client left"),
                Query(total("warmroute_broken_answers_total"), "answer broken", Color.BAD),
            ),
            "Attempts on another replica by what the one before failed with; clients that closed "
            "first; answers that had begun and could not be ended.",
            "flat at zero; clients that leave are often those that waited too long",
        ),
    ),
)
