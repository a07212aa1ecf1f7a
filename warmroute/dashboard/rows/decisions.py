"""Why the policy chose what it chose, and how well it knew."""

from router.core.reason import Reason
from warmroute.dashboard.panel import Color, Look, Panel, Query, Row, Step, Unit
from warmroute.dashboard.promql import fold, series, total
from warmroute.dashboard.rows.worth import ACTUAL, PREDICTED

_REPLICAS = fold("count", fold("max", series("warmroute_replica_info"), "replica"))
_ANSWERS = total("warmroute_replica_answers_total", "replica")
_IN_FLIGHT = fold("sum", series("warmroute_replica_in_flight_requests"), "replica")


def _imbalance(by_replica: str) -> str:
    """Return max over mean; a replica without a series counts as one without requests."""
    return f"max({by_replica}) * {_REPLICAS} / (sum({by_replica}) > 0)"


DECISIONS = Row(
    "Why requests go where they go",
    (
        Panel(
            "Decisions by reason",
            Unit.REQUESTS_PER_S,
            (Query(total("warmroute_decisions_total", "reason"), "{{reason}}"),),
            "warm: to the replica that holds most of the prompt. spread: away from it, as its "
            "load would cost more than the prefix saves. cold: nobody holds any of it. Others "
            "say why there was no choice.",
            "mostly warm with some spread; much spread means that a few prefixes carry the load, "
            "all cold that prompts share nothing or that the gateway does not see the caches",
            look=Look.STACK,
            colors=(
                (Reason.WARM.value, Color.WARN),
                (Reason.SPREAD.value, Color.OTHER),
                (Reason.COLD.value, Color.NOTE),
                (Reason.ONLY_ONE.value, Color.GOOD),
                (Reason.QUEUED.value, Color.BAD),
            ),
        ),
        Panel(
            "Requests by replica",
            Unit.REQUESTS_PER_S,
            (Query(_ANSWERS, "{{replica}}"),),
            "Ended requests by the replica that had them last.",
            "of the same order everywhere, not equal: a warm replica does more with less work",
        ),
        Panel(
            "Imbalance, max over mean",
            Unit.COUNT,
            (
                Query(_imbalance(_ANSWERS), "requests ended"),
                Query(_imbalance(_IN_FLIGHT), "requests in flight"),
            ),
            "The busiest replica's share against an equal one: 1 is even, the number of replicas "
            "is all on one. Choose one model, as replicas of different models do not share load.",
            "below 1.5 under load; in a quiet fleet it jumps and says nothing",
            steps=(Step(2, Color.WARN),),
            nothing="no traffic",
        ),
        Panel(
            "Tokens ahead",
            Unit.COUNT,
            (
                Query(
                    fold("max", series("warmroute_replica_ahead_tokens"), "replica"), "{{replica}}"
                ),
            ),
            "Prompt tokens believed to be accepted and not yet computed: what a new request "
            "would wait for.",
            "well below what an engine computes in your time to first token",
        ),
        Panel(
            "Prediction error",
            Unit.SHARE,
            (Query(f"{PREDICTED} - {ACTUAL}", "predicted - actual"),),
            "Hit rate predicted minus actual.",
            "within 5 % of zero; without KV events the gateway learns from what it sent, and "
            "overestimates caches that are under pressure",
            bottom=None,
            noise=0.1,
        ),
        Panel(
            "Blocks believed cached",
            Unit.COUNT,
            (
                Query(
                    fold("max", series("warmroute_replica_believed_blocks"), "replica"),
                    "{{replica}}",
                ),
                Query(
                    fold("max", series("warmroute_index_entries"), "instance"),
                    "{{instance}}, all entries",
                    dashed=True,
                ),
            ),
            "Blocks of prompt that the index believes in each replica's cache, and of all replicas "
            "in each gateway's index.",
            "rises to what the KV cache holds and stays; a fall to zero is a replica that began "
            "anew, or a gap in its KV events",
            nothing="no replicas",
        ),
        Panel(
            "KV events",
            Unit.PER_SECOND,
            (
                Query(total("warmroute_kv_batches_total"), "batches read"),
                Query(total("warmroute_kv_gaps_total"), "gaps", Color.BAD),
                Query(total("warmroute_kv_resyncs_total"), "resyncs", Color.WARN),
            ),
            "Batches of KV events that the gateways read, holes in their numbers, and snapshots "
            "asked for because of one.",
            "no gaps; each costs its replica all cache credit until the snapshot is read",
            width=6,
        ),
        Panel(
            "Forgotten by the index",
            Unit.PER_SECOND,
            (
                Query(total("warmroute_index_evicted_total"), "entries"),
                Query(total("warmroute_index_corrections_total"), "answers that corrected it"),
            ),
            "Entries that the index dropped for lack of room, or did not keep; and answers whose "
            "cached_tokens showed that what it had learned of a replica was gone.",
            "zero with KV events; above it, see [routing] index_entries_max and index_bytes_max",
            width=6,
        ),
        Panel(
            "Memory of the index",
            Unit.BYTES,
            (Query(fold("max", series("warmroute_index_bytes"), "instance"), "{{instance}}"),),
            "What the index takes, estimated, of each gateway.",
            "flat once caches are full, and below [routing] index_bytes_max",
            width=6,
            nothing="no gateway",
        ),
        Panel(
            "Tokens mispredicted",
            Unit.TOKENS_PER_S,
            (
                Query(
                    total("warmroute_overpredicted_tokens_total"),
                    "believed cached, and computed",
                    Color.BAD,
                ),
                Query(
                    total("warmroute_underpredicted_tokens_total"),
                    "cached, and not believed",
                    Color.NOTE,
                ),
            ),
            "Request by request, where the difference of the hit rates adds both up: tokens that "
            "an engine had to compute against the belief, and tokens that it had beyond it.",
            "small beside the tokens saved; much of the first is evictions unseen, of the second "
            "prefixes that the gateway does not cut like the engine",
            width=6,
        ),
    ),
)
