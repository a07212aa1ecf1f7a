"""What clients notice: how long they wait, and how often in vain."""

from contract.failures import Failure
from router.core.reason import Outcome
from warmroute.dashboard.panel import Color, Look, Panel, Query, Row, Step, Unit
from warmroute.dashboard.promql import quantile, total


def _p50_p99(name: str, *labels: str) -> tuple[Query, ...]:
    prefix = "".join(f"{{{{{label}}}}} " for label in labels)
    return tuple(
        Query(quantile(q, name, *labels), f"{prefix}{q_name}")
        for q, q_name in ((0.5, "p50"), (0.99, "p99"))
    )


_AT_THE_DOOR = (
    *(Failure.INVALID_API_KEY, Failure.NOT_ALLOWED, Failure.BAD_HTTP, Failure.REQUEST_TIMEOUT),
    *(Failure.HEADERS_TOO_LARGE, Failure.BODY_TOO_LARGE, Failure.OVERLOADED),
)
_DOOR = ('code=~"' + "|".join(failure.kind.code for failure in _AT_THE_DOOR) + '"',)

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
                Query(total("warmroute_stale_connections_total"), "resent: connection was stale"),
                Query(total("warmroute_client_disconnects_total"), "client left"),
                Query(total("warmroute_broken_answers_total"), "answer broken", Color.BAD),
            ),
            "Attempts on another replica by what the one before failed with; requests sent once "
            "more as the replica had just closed the kept connection; clients that closed first; "
            "answers that had begun and could not be ended.",
            "flat at zero; clients that leave are often those that waited too long",
        ),
        Panel(
            "Broken streams, continued",
            Unit.PER_SECOND,
            (
                Query(f"{total('warmroute_resumes_total', 'reason')} > 0", "{{reason}}"),
                Query(
                    f"{total('warmroute_resumes_refused_total', 'reason')} > 0",
                    "not continued: {{reason}}",
                ),
            ),
            "With [gateway] failover = resume: streams whose rest was asked of another replica, by "
            "what broke them, and those that were not continued, by why not.",
            "nothing here; clients see nothing of a continued stream, so this is where a replica "
            "that dies again and again shows",
            nothing="none broken",
        ),
        Panel(
            "Refused at the door",
            Unit.PER_SECOND,
            (
                Query(
                    f"{total('warmroute_failures_total', 'code', where=_DOOR)} > 0",
                    "{{code}}",
                ),
                Query(
                    total("warmroute_connections_refused_total", "reason"),
                    "connections: {{reason}}",
                ),
                Query(total("warmroute_admin_keys_refused_total"), "admin port: no key"),
            ),
            "Requests refused for their key or for a limit, by error code; connections beyond "
            "[gateway] connections_max (limit) or without a TLS session (tls: a check that only "
            "connects counts too); requests to the admin port without a key that it knows.",
            "zero; a step up is a client that lost its key, a limit that is too low for what "
            "clients send, or somebody who tries keys",
        ),
        Panel(
            "Tokens generated",
            Unit.TOKENS_PER_S,
            (Query(total("warmroute_completion_tokens_total", "model"), "{{model}}"),),
            "By the engines' own count, as answers end.",
            "follows requests; less at as many requests means shorter or failing answers",
        ),
    ),
)
