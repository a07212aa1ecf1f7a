"""What each replica does, as the gateways see it: the same for imitated and real engines."""

from warmroute.dashboard.panel import Color, Column, Look, Panel, Query, Row, Step, Unit, Word
from warmroute.dashboard.promql import INTERVAL, fold, series


def _by_replica(how: str, name: str) -> str:
    return fold(how, series(name), "replica")


# 1 for eligible; else 2 for draining and 4 for ejected, added up; 0 for all other reasons.
_STANDING = " + ".join(
    (
        _by_replica("min", "warmroute_replica_eligible"),
        "2 * " + _by_replica("max", "warmroute_replica_draining"),
        "4 * " + _by_replica("max", "warmroute_replica_ejected"),
    )
)
_WORDS = (
    Word(0, "left out", Color.WARN),
    Word(1, "eligible", Color.GOOD),
    Word(2, "draining", Color.NOTE),
    Word(3, "draining in part", Color.NOTE),
    Word(4, "ejected", Color.BAD),
    Word(5, "ejected in part", Color.BAD),
    Word(6, "draining, ejected", Color.BAD),
)
_KV_STEPS = (Step(0.8, Color.WARN), Step(0.95, Color.BAD))
_AGE_STEPS = (Step(1, Color.WARN), Step(3, Color.BAD))

FLEET = Row(
    "The fleet",
    (
        Panel(
            "Replicas",
            Unit.COUNT,
            (),
            "Every known replica as of now. 'left out': it does not report, has answered 429 or "
            "503 a moment ago, is at its limit of requests or cuts blocks another way. 'in part': "
            "not all gateways agree.",
            "all eligible; ahead tokens and KV use of the same order everywhere",
            look=Look.TABLE,
            columns=(
                Column(
                    "info", fold("max", series("warmroute_replica_info"), "replica", "model", "url")
                ),
                Column("standing", _STANDING, words=_WORDS),
                Column("in flight", _by_replica("sum", "warmroute_replica_in_flight_requests")),
                Column("running", _by_replica("max", "warmroute_replica_running_requests")),
                Column("waiting", _by_replica("max", "warmroute_replica_waiting_requests")),
                Column("tokens ahead", _by_replica("max", "warmroute_replica_ahead_tokens")),
                Column(
                    "KV use",
                    _by_replica("max", "warmroute_replica_kv_usage_ratio"),
                    Unit.SHARE,
                    _KV_STEPS,
                ),
                Column(
                    "report age",
                    _by_replica("max", "warmroute_replica_report_age_seconds"),
                    Unit.SECONDS,
                    _AGE_STEPS,
                ),
            ),
            width=24,
            height=6,
            nothing="no replicas",
        ),
        Panel(
            "Running requests",
            Unit.COUNT,
            (Query(_by_replica("max", "warmroute_replica_running_requests"), "{{replica}}"),),
            "Sequences in the engine's batch, as last reported.",
            "lines close together; a flat top is the engine's limit of sequences",
        ),
        Panel(
            "Waiting requests",
            Unit.COUNT,
            (Query(_by_replica("max", "warmroute_replica_waiting_requests"), "{{replica}}"),),
            "Sequences that the engine has accepted and not admitted, as last reported.",
            "near zero; one line far above the others means that warm prefixes attract more than "
            "that replica can do, all of them that the fleet is too small",
        ),
        Panel(
            "KV cache held",
            Unit.SHARE,
            (Query(_by_replica("max", "warmroute_replica_kv_usage_ratio"), "{{replica}}"),),
            "KV blocks held by running sequences, of all; cached blocks that nobody uses are free.",
            "below 80 %: above it engines preempt, and prefixes are evicted as they are needed",
            steps=_KV_STEPS,
            top=1,
        ),
        Panel(
            "Age of load reports",
            Unit.SECONDS,
            (Query(_by_replica("max", "warmroute_replica_report_age_seconds"), "{{replica}}"),),
            "Time since the last new report of each replica reached the gateway that knows least.",
            "0.1 to 0.3 s; from 1 s on its cache earns no credit, from 3 s on it gets no requests "
            "while others report",
            steps=_AGE_STEPS,
            nothing="no reports",
        ),
        Panel(
            "Preemptions",
            Unit.PER_SECOND,
            (
                Query(
                    f"sum by (instance) (rate(vllm:num_preemptions_total[{INTERVAL}]))",
                    "{{instance}}",
                ),
            ),
            "Sequences thrown out of the batch for lack of KV blocks, per engine (scraped from "
            "the engines themselves, so not narrowed by the variables).",
            "zero; each is prefill computed twice: lower the engine's limit of sequences, or add "
            "replicas",
            nothing="engines are not scraped",
        ),
        Panel(
            "Queue in the engine, p99",
            Unit.SECONDS,
            (
                Query(
                    "histogram_quantile(0.99, sum by (le, instance) "
                    f"(rate(vllm:request_queue_time_seconds_bucket[{INTERVAL}]))) >= 0",
                    "{{instance}}",
                ),
            ),
            "From a sequence's arrival to its admission, per engine (scraped from the engines "
            "themselves, so not narrowed by the variables).",
            "a small part of the time to first token; its lowest bucket is 0.3 s",
            nothing="engines are not scraped",
        ),
    ),
)
