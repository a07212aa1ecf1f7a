"""What prefix routing saves, and what it costs."""

from warmroute.dashboard.panel import Color, Look, Panel, Query, Row, Step, Unit
from warmroute.dashboard.promql import fold, quantile, rate, series, share, total

PREDICTED = share(total("warmroute_matched_tokens_total"), total("warmroute_prompt_tokens_total"))
ACTUAL = share(
    total("warmroute_cached_tokens_total"), total("warmroute_answered_prompt_tokens_total")
)
_ENDED = total("warmroute_requests_total")
_ENDED_BADLY = fold(
    "sum",
    rate("warmroute_requests_total", 'status="5xx"')
    + " or "
    + rate("warmroute_requests_total", 'status!="5xx"', 'outcome="broken"'),
)
# Outcomes that never were have no series, so no failure at all would be no data.
FAILED = share(f"({_ENDED_BADLY} or 0 * {_ENDED})", _ENDED)

WORTH = Row(
    "Is it worth it?",
    (
        Panel(
            "Prefix hit rate",
            Unit.SHARE,
            (Query(ACTUAL, "actual"),),
            "Share of prompt tokens that the engines found in their KV cache, by their own word "
            "(usage.prompt_tokens_details.cached_tokens).",
            "several times one over the number of replicas where conversations are long; what "
            "round robin reaches is about the rate of one replica's cache",
            look=Look.NUMBER,
            width=4,
            height=4,
        ),
        Panel(
            "Prefill tokens saved",
            Unit.COUNT,
            (
                Query(
                    f"sum(increase({series('warmroute_cached_tokens_total')}[$__range]))", "saved"
                ),
            ),
            "Prompt tokens that no engine had to compute, over the time shown. Answers without "
            "usage do not count, so it is a lower bound.",
            "it grows as long as prompts share prefixes",
            look=Look.TOTAL,
            width=4,
            height=4,
        ),
        Panel(
            "What the gateway adds",
            Unit.SECONDS,
            (Query(quantile(0.5, "warmroute_router_overhead_seconds"), "p50"),),
            "Median time from a request's last byte until its first attempt is on its way to a "
            "replica: the price of the saving.",
            "below 1 ms; far more means that requests wait for a slot or a connection",
            look=Look.NUMBER,
            steps=(Step(0.002, Color.WARN), Step(0.02, Color.BAD)),
            width=4,
            height=4,
        ),
        Panel(
            "Requests",
            Unit.REQUESTS_PER_S,
            (Query(total("warmroute_requests_total"), "ended"),),
            "Requests ended per second, whatever their outcome.",
            "as many as your clients send",
            look=Look.NUMBER,
            width=4,
            height=4,
        ),
        Panel(
            "Failed",
            Unit.SHARE,
            (Query(FAILED, "failed"),),
            "Share of requests that ended in a 5xx or in a cut answer. Mistakes of clients (4xx) "
            "and clients that left do not count.",
            "0 %; a replica that dies shows as a short peak, as answers that have begun cannot "
            "be sent elsewhere",
            look=Look.NUMBER,
            steps=(Step(0.001, Color.WARN), Step(0.01, Color.BAD)),
            width=4,
            height=4,
        ),
        Panel(
            "Eligible replicas",
            Unit.SHARE,
            (
                Query(
                    share(
                        "sum(" + fold("min", series("warmroute_replica_eligible"), "replica") + ")",
                        "count(" + fold("max", series("warmroute_replica_info"), "replica") + ")",
                    ),
                    "eligible",
                ),
            ),
            "Share of the known replicas that every gateway would send requests to.",
            "100 %; less while one drains, is ejected or does not report",
            look=Look.NUMBER,
            steps=(Step(0.0, Color.BAD), Step(0.5, Color.WARN), Step(0.999, Color.GOOD)),
            width=4,
            height=4,
            top=1,
            nothing="no replicas",
        ),
        Panel(
            "Hit rate, predicted and actual",
            Unit.SHARE,
            (
                Query(ACTUAL, "actual", Color.GOOD),
                Query(PREDICTED, "predicted", Color.NOTE, dashed=True),
            ),
            "Predicted: what the gateway believed to be cached where it sent each request. "
            "Actual: what the engines then said.",
            "the two lines lie on each other; predicted above actual means that caches lose "
            "blocks unseen, below it that engines share more than the gateway knows",
            width=12,
            top=1,
        ),
        Panel(
            "Prompt tokens, computed and saved",
            Unit.TOKENS_PER_S,
            (
                Query(
                    total("warmroute_answered_prompt_tokens_total")
                    + " - "
                    + total("warmroute_cached_tokens_total"),
                    "computed",
                    Color.WARN,
                ),
                Query(total("warmroute_cached_tokens_total"), "saved", Color.GOOD),
            ),
            "Prompt tokens of answers with usage: those that an engine computed, and above them "
            "those that it found in its cache.",
            "a thick green band: at the same traffic, each saved token is prefill time for others",
            look=Look.STACK,
            width=12,
        ),
    ),
)
