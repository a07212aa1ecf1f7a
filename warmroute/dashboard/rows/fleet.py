"""What each replica does, as the gateways see it: the same for imitated and real engines."""

from router.core.probing import ProbeResult
from warmroute.dashboard.panel import Color, Column, Look, Panel, Query, Row, Step, Unit, Word
from warmroute.dashboard.promql import INTERVAL, fold, series, total


def _by_replica(how: str, name: str) -> str:
    return fold(how, series(name), "replica")


def _number_of(gauge: str) -> str:
    """Return how many replicas have it, in the view of at least one gateway."""
    return fold("sum", fold("max", series(gauge), "replica"))


# 1 for eligible; else 2 draining, 4 ejected and 8 mismatched, added up; 0 for all other reasons.
_STANDING = " + ".join(
    (
        _by_replica("min", "warmroute_replica_eligible"),
        "2 * " + _by_replica("max", "warmroute_replica_draining"),
        "4 * " + _by_replica("max", "warmroute_replica_ejected"),
        "8 * " + _by_replica("max", "warmroute_replica_mismatched"),
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
    Word(8, "another contract", Color.BAD),
    Word(9, "another contract in part", Color.BAD),
    Word(10, "another contract, draining", Color.BAD),
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
            "503 a moment ago or is at its limit of requests. 'another contract': its reports are "
            "of a version that the gateways do not read. 'in part': not all gateways agree.",
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
            "Held back",
            Unit.COUNT,
            (
                Query(_number_of("warmroute_replica_ejected"), "ejected", Color.BAD),
                Query(_number_of("warmroute_replica_recovering"), "slow start", Color.WARN),
                Query(_number_of("warmroute_replica_draining"), "draining", Color.NOTE),
                Query(_number_of("warmroute_replica_mismatched"), "another contract", Color.OTHER),
            ),
            "Replicas that a gateway at least gives less than their share: ejected by their "
            "breaker or by probes, back and regaining their traffic (slow start), draining, or "
            "with reports that it cannot read.",
            "zero; ejected and slow start in turns is a replica that fails whenever it is used",
            nothing="no replicas",
        ),
        Panel(
            "Probes",
            Unit.PER_SECOND,
            (Query(total("warmroute_probes_total", "result"), "{{result}}"),),
            "Probes of the replicas' health path by how they ended. A late one counts only "
            "against a replica that has nothing to do or has long been silent.",
            "answered only; late ones come with long prompts, failed ones are replicas that are "
            "not there",
            colors=(
                (ProbeResult.ANSWERED.value, Color.GOOD),
                (ProbeResult.FAILED.value, Color.BAD),
                (ProbeResult.LATE.value, Color.WARN),
            ),
            nothing="no probes",
        ),
        Panel(
            "Slower than its peers",
            Unit.TIMES,
            (
                Query(
                    _by_replica("max", "warmroute_replica_prefill_slowdown_ratio"),
                    "{{replica}} prefill",
                ),
                Query(
                    _by_replica("max", "warmroute_replica_decode_slowdown_ratio"),
                    "{{replica}} decode",
                    dashed=True,
                ),
            ),
            "Times as long as the other replicas of its model for as much work, as learned from "
            "answers; policies reckon with it.",
            "1; a replica that stays above it is on slower or throttled hardware, or shares it",
            steps=(Step(1.5, Color.WARN), Step(3, Color.BAD)),
            noise=2,
            nothing="no replicas",
        ),
        Panel(
            "Prefill speed reckoned with",
            Unit.TOKENS_PER_S,
            (
                Query(
                    _by_replica("min", "warmroute_replica_prefill_tokens_per_second"), "{{replica}}"
                ),
            ),
            "Reported, learned or configured, over the slowdown; a cost in seconds is only as "
            "right as this.",
            "near what an engine reaches under load; equal on equal hardware",
            nothing="no replicas",
        ),
        Panel(
            "Time between two tokens",
            Unit.SECONDS,
            (Query(_by_replica("max", "warmroute_replica_token_seconds"), "{{replica}}"),),
            "Median of each replica's last streams, as the gateways saw their bytes.",
            "lines close together; one above the others has more requests, or is slower",
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
            width=12,
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
            width=12,
            nothing="engines are not scraped",
        ),
    ),
)
