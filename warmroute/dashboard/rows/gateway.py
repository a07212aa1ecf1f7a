"""Whether the gateway itself is well."""

from router.store.seam import StoreState
from warmroute.dashboard.panel import Color, Look, Panel, Query, Row, Step, Unit, Word
from warmroute.dashboard.promql import fold, quantile, series, total

_UP, _FROZEN, _DOWN = (
    series("warmroute_store_state", f'state="{state.value}"')
    for state in (StoreState.UP, StoreState.FROZEN, StoreState.DOWN)
)
_STORE = fold("sum", f"2 * {_UP} or {_FROZEN} or 0 * {_DOWN}", "instance")

GATEWAY = Row(
    "The gateway itself",
    (
        Panel(
            "Store",
            Unit.COUNT,
            (Query(_STORE, "{{instance}}"),),
            "Whether Redis answers each gateway; without Redis it is always up.",
            "up; while it is not, gateways serve on, blind to each other and to new replicas",
            look=Look.NUMBER,
            words=(
                Word(0, "down", Color.BAD),
                Word(1, "frozen", Color.WARN),
                Word(2, "up", Color.GOOD),
            ),
            width=6,
            height=4,
            nothing="no gateway",
        ),
        Panel(
            "In flight",
            Unit.COUNT,
            (Query(fold("sum", series("warmroute_in_flight_requests")), "requests"),),
            "Requests received and not yet ended.",
            "follows traffic and falls to zero with it",
            look=Look.NUMBER,
            width=6,
            height=4,
            nothing="no gateway",
        ),
        Panel(
            "Queued in the gateway",
            Unit.COUNT,
            (Query(fold("sum", series("warmroute_queued_requests")), "requests"),),
            "Requests that wait in a gateway for a slot of a replica (only with [routing] "
            "in_flight_max).",
            "0",
            look=Look.NUMBER,
            steps=(Step(1, Color.WARN), Step(100, Color.BAD)),
            width=6,
            height=4,
            nothing="no gateway",
        ),
        Panel(
            "Leases taken back",
            Unit.COUNT,
            (
                Query(
                    f"sum(increase({series('warmroute_leases_expired_total')}[$__range]))",
                    "leases",
                ),
            ),
            "Leases that ran out in silence, over the time shown.",
            "0: each hides a bug worth a report",
            look=Look.TOTAL,
            steps=(Step(0.5, Color.BAD),),
            width=6,
            height=4,
            nothing="no gateway",
        ),
        Panel(
            "Gateway overhead",
            Unit.SECONDS,
            (
                Query(quantile(0.5, "warmroute_router_overhead_seconds"), "p50"),
                Query(quantile(0.99, "warmroute_router_overhead_seconds"), "p99"),
            ),
            "From a request's last byte until its first attempt is on its way: parse, decide, "
            "and where it comes to that the wait for a slot or a new connection.",
            "p50 below 1 ms, p99 below 10 ms",
            logarithmic=True,
        ),
        Panel(
            "CPU",
            Unit.SHARE,
            (Query(total("warmroute_cpu_seconds_total", "instance"), "{{instance}}"),),
            "Of one core, which is all that a gateway's event loop can use.",
            "below 70 % at the peak, so that a lost gateway's clients find room on the others",
            steps=(Step(0.7, Color.WARN), Step(0.9, Color.BAD)),
            top=1,
            nothing="no gateway",
        ),
        Panel(
            "Event-loop lag",
            Unit.SECONDS,
            (
                Query(
                    fold(
                        "max",
                        series("warmroute_event_loop_lag_seconds", 'statistic="ewma"'),
                        "instance",
                    ),
                    "{{instance}} average",
                ),
                Query(
                    fold(
                        "max",
                        series("warmroute_event_loop_lag_seconds", 'statistic="max"'),
                        "instance",
                    ),
                    "{{instance}} worst of 10 s",
                ),
            ),
            "How late a timer of the gateway fires: all that it does waits as long.",
            "average below 5 ms; above 50 ms the process has more work than its core can do, so "
            "add a gateway",
            steps=(Step(0.05, Color.WARN),),
            nothing="no gateway",
        ),
        Panel(
            "Bytes",
            Unit.BYTES_PER_S,
            (
                Query(total("warmroute_body_bytes_total"), "request bodies"),
                Query(total("warmroute_answer_bytes_total"), "answers"),
            ),
            "Bodies of requests received, and of answers passed on, of requests that ended.",
            "as your clients send",
        ),
        Panel(
            "Client connections",
            Unit.COUNT,
            (
                Query(
                    fold("max", series("warmroute_client_connections"), "instance"), "{{instance}}"
                ),
            ),
            "Open, with or without a request.",
            "well below [gateway] connections_max, and of the same order on all gateways; those "
            "beyond it are in 'Refused at the door'",
            nothing="no gateway",
        ),
        Panel(
            "Requests and leases",
            Unit.COUNT,
            (
                Query(fold("sum", series("warmroute_in_flight_requests")), "requests in flight"),
                Query(fold("sum", series("warmroute_open_leases")), "leases", dashed=True),
            ),
            "A lease is the load that an attempt has booked; a request has at most one.",
            "leases no more than requests, and both zero when there is no traffic",
            nothing="no gateway",
        ),
        Panel(
            "Tasks of the event loop",
            Unit.COUNT,
            (Query(fold("max", series("warmroute_event_loop_tasks"), "instance"), "{{instance}}"),),
            "Tasks at the scrape: a dozen of the gateway's own, one for each probe, and one for "
            "each connection that is being opened.",
            "flat; one that only grows is a leak worth a report",
            nothing="no gateway",
        ),
        Panel(
            "Request bodies held",
            Unit.BYTES,
            (Query(fold("max", series("warmroute_buffered_bytes"), "instance"), "{{instance}}"),),
            "Bodies that are arriving, or kept for a second try.",
            "falls to zero with traffic; at [gateway] buffered_bytes_max requests get 503",
            nothing="no gateway",
        ),
        Panel(
            "Settings",
            Unit.COUNT,
            (
                Query(
                    fold("max", series("warmroute_config_generation"), "instance"),
                    "{{instance}} generation",
                ),
                Query(
                    fold("max", series("warmroute_config_refused_total"), "instance"),
                    "{{instance}} reloads refused",
                    dashed=True,
                ),
            ),
            "Generation of each gateway's settings, 1 at its start and one more with every "
            "reload; and reloads that changed nothing as something was wrong.",
            "a step of all gateways at once where you reload, and no refusal",
            nothing="no gateway",
        ),
        Panel(
            "Store faults",
            Unit.PER_SECOND,
            (
                Query(f"{total('warmroute_store_faults_total', 'fault')} > 0", "{{fault}}"),
                Query(f"{total('warmroute_store_undecodable_total')} > 0", "undecodable values"),
            ),
            "Calls to Redis that brought nothing, and values in it that are no report or event.",
            "nothing here",
            width=12,
            nothing="no faults",
        ),
        Panel(
            "Bugs met",
            Unit.COUNT,
            (
                Query(
                    fold("sum", series("warmroute_background_restarts_total"), "task"),
                    "restart of {{task}}",
                ),
                Query(fold("sum", series("warmroute_odd_usage_total")), "impossible usage"),
            ),
            "Background loops begun again after an unforeseen error, and answers with an "
            "impossible usage, since each gateway started.",
            "flat",
            width=12,
            nothing="no gateway",
        ),
    ),
)
