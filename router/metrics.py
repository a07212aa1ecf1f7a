"""What the gateway counts, at the price of a few additions per request, and how it is scraped.

The names are declared in ``router.metric_table``. Whatever others know already (the fleet, the
store's loops, the event loop's lag) is read from them at the scrape and counted nowhere twice.
"""

import asyncio
import platform
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from contract.failures import RETRYABLE_STATUSES, Failure, Fault
from router.core.fleet import FleetState
from router.core.probing import ProbeResult
from router.core.reason import NotResumed, Outcome, Reason
from router.core.record import ExchangeRecord
from router.fleet_metrics import (
    family,
    fleet_families,
    loop_families,
    plane_families,
    store_families,
)
from router.gateway.data_plane import DataPlaneStats
from router.histogram import Histogram
from router.loop_lag import LoopLag
from router.metric_table import MetricRow, metric_rows
from router.store.sync import FleetSync

__all__ = ["MetricRow", "RouterMetrics", "metric_rows"]

OTHER = "other"
"""The model label of every name that no replica has given."""

MODELS_MAX = 1_024
REPLICAS_MAX = 4_096
NAMES_REFRESH_US = 1_000_000
"""How often an unknown name may cause the fleet to be asked which names it serves."""

TTFT_BOUNDS_S = (
    *(0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0),
    *(3.0, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
E2E_BOUNDS_S = (
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0),
    *(30.0, 60.0, 120.0, 300.0, 600.0),
)
GAP_BOUNDS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15),
    *(0.25, 0.5, 1.0, 2.5, 10.0, 60.0),
)
OVERHEAD_BOUNDS_S = (
    *(0.00005, 0.0001, 0.00015, 0.0002, 0.0003, 0.0005, 0.00075, 0.001, 0.002, 0.005, 0.01),
    *(0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0),
)

_RETRY_REASONS = (
    *(failure.kind.code for failure in Failure if failure.kind.retry_elsewhere),
    *map(str, sorted(RETRYABLE_STATUSES)),
    OTHER,
)
_RESUME_REASONS = (
    *(failure.kind.code for failure in Failure if failure.kind.fault is Fault.REPLICA),
)


class _OfModel:
    """The numbers of one model."""

    __slots__ = (
        *("answered_prompt_tokens", "cached_tokens", "completion_tokens", "e2e"),
        *("matched_tokens", "prompt_tokens", "requests", "ttft"),
    )

    def __init__(self) -> None:
        self.requests: dict[tuple[int, Outcome], int] = defaultdict(int)  # by status // 100
        self.ttft = Histogram(TTFT_BOUNDS_S)
        self.e2e = Histogram(E2E_BOUNDS_S)
        self.prompt_tokens = 0
        self.matched_tokens = 0
        self.answered_prompt_tokens = 0
        self.cached_tokens = 0
        self.completion_tokens = 0


class RouterMetrics:
    """One gateway's metrics, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(_Exporter(self._families))
        self._in_flight = 0
        self._known: frozenset[str] = frozenset()
        self._known_until_us = 0
        self._models: dict[str, _OfModel] = {OTHER: _OfModel()}
        self._gap = Histogram(GAP_BOUNDS_S)
        self._gap_counts, self._gap_bounds_us = self._gap.counts, self._gap.bounds_us
        self._overhead = Histogram(OVERHEAD_BOUNDS_S)
        self._decisions: dict[tuple[str, Reason], int] = defaultdict(int)
        self._answers: dict[tuple[str, Outcome], int] = defaultdict(int)
        # These are born at zero: rate() cannot see the first event of a series that is born at one.
        self._retries = dict.fromkeys(_RETRY_REASONS, 0)
        self._failures = dict.fromkeys(Failure, 0)
        self._resumes = dict.fromkeys(_RESUME_REASONS, 0)
        self._resumes_refused = dict.fromkeys(NotResumed, 0)
        self._stale_connections = 0
        self._probes = dict.fromkeys(ProbeResult, 0)
        self._restarts: dict[str, int] = {}
        self._odd_usage = 0
        self._body_bytes = 0
        self._answer_bytes = 0
        self.config_generation = 1
        self._config_refusals = 0
        self._fleet: FleetState | None = None
        self._sync: FleetSync | None = None
        self._lag: LoopLag | None = None
        self._admin_keys_refused = 0
        self._stats: Callable[[], DataPlaneStats] | None = None

    def attach(
        self,
        fleet: FleetState,
        sync: FleetSync | None = None,
        lag: LoopLag | None = None,
        stats: Callable[[], DataPlaneStats] | None = None,
    ) -> None:
        """Read these at every scrape, and know the fleet's model names from now on."""
        self._fleet, self._sync, self._lag, self._stats = fleet, sync, lag, stats

    def config_refused(self) -> None:
        """Count a reload that changed nothing because something was wrong."""
        self._config_refusals += 1

    def admin_key_refused(self) -> None:
        """Count a request to the admin port without a key that it knows."""
        self._admin_keys_refused += 1

    def exchange_started(self) -> None:
        """Count a request in flight; ``exchange_ended`` must follow."""
        self._in_flight += 1

    def chunk_gap_us(self, gap_us: int) -> None:
        """Count the time between two arrivals of a stream's bytes. Called for every chunk."""
        self._gap_counts[bisect_left(self._gap_bounds_us, gap_us)] += 1
        self._gap.sum_us += gap_us

    def retry(self, reason: str) -> None:
        """Count one more attempt, by the error code or status of the attempt before."""
        self._retries[reason if reason in self._retries else OTHER] += 1

    def resume(self, reason: str) -> None:
        """Count one more attempt for the rest of a stream, by the error code of what broke it."""
        self._resumes[reason] = self._resumes.get(reason, 0) + 1

    def resume_refused(self, why: NotResumed) -> None:
        """Count a stream that broke and was not continued."""
        self._resumes_refused[why] += 1

    def went_stale(self) -> None:
        """Count a kept connection that turned out to be closed when a request was sent on it."""
        self._stale_connections += 1

    def probe(self, result: ProbeResult) -> None:
        """Count one probe of a replica's health."""
        self._probes[result] += 1

    def background_restarted(self, task: str) -> None:
        """Count that a background loop failed and begins again."""
        self._restarts[task] = self._restarts.get(task, 0) + 1

    def exchange_ended(self, record: ExchangeRecord) -> None:
        """Count a request's end, once."""
        self._in_flight -= 1
        of_model = self._of_model(record)
        outcome = record.outcome
        of_model.requests[record.status // 100, outcome] += 1
        received_us = record.received_us
        of_model.e2e.observe_us(record.ended_us - received_us)
        if record.stream and record.first_byte_us is not None:
            of_model.ttft.observe_us(record.first_byte_us - received_us)
        if record.sent_us is not None:
            of_model.prompt_tokens += record.prompt_tokens
            of_model.matched_tokens += record.matched_tokens
            if record.attempts == 1:
                self._overhead.observe_us(record.sent_us - received_us)
        if record.reason is not None:
            self._decisions[record.policy, record.reason] += 1
        if record.replica_id is not None:
            self._answers[record.replica_id, outcome] += 1
            if len(self._answers) > REPLICAS_MAX:
                self._forget_replicas()
        if record.failure is not None and outcome is not Outcome.COMPLETE:
            self._failures[record.failure] += 1
        if record.usage is not None or record.usage_unreadable:
            self._count_usage(record, of_model)
        self._body_bytes += record.body_bytes
        self._answer_bytes += record.answer_bytes

    def render(self) -> bytes:
        """Return the text that Prometheus reads, all of one moment."""
        return generate_latest(self.registry)

    async def render_in_turns(self) -> bytes:
        """Return the same, with requests served between two metrics.

        With 100 replicas it is 15 ms of work, which no request should wait for.
        """
        parts = []
        for metric in self._families():
            parts.append(generate_latest(_Exporter([metric].__iter__)))
            await asyncio.sleep(0)
        return b"".join(parts)

    def _of_model(self, record: ExchangeRecord) -> _OfModel:
        model = record.model
        if model is None:
            return self._models[OTHER]
        if model not in self._known:
            self._refresh_names(record.ended_us)
            if model not in self._known:
                return self._models[OTHER]
        of_model = self._models.get(model)
        if of_model is None:
            if len(self._models) >= MODELS_MAX:
                self._forget_models()
            if len(self._models) >= MODELS_MAX:
                return self._models[OTHER]
            of_model = self._models[model] = _OfModel()
        return of_model

    def _refresh_names(self, now_us: int) -> None:
        if self._fleet is not None and now_us >= self._known_until_us:
            self._known_until_us = now_us + NAMES_REFRESH_US
            self._known = frozenset(self._fleet.models())

    def _forget_models(self) -> None:
        for gone in self._models.keys() - self._known - {OTHER}:
            del self._models[gone]

    def _forget_replicas(self) -> None:
        present = set() if self._fleet is None else _replica_ids(self._fleet)
        for gone in [key for key in self._answers if key[0] not in present]:
            del self._answers[gone]

    def _count_usage(self, record: ExchangeRecord, of_model: _OfModel) -> None:
        """Add the engine's own word, cut to what is possible: a counter must never go back."""
        usage = record.usage
        if usage is None:
            self._odd_usage += 1
            return
        cached_tokens, prompt_tokens = usage.cached_tokens, usage.prompt_tokens
        generated_tokens = usage.completion_tokens
        if not 0 <= (cached_tokens or 0) <= prompt_tokens or generated_tokens < 0:
            self._odd_usage += 1
            prompt_tokens, generated_tokens = max(0, prompt_tokens), max(0, generated_tokens)
            if cached_tokens is not None:
                cached_tokens = min(max(0, cached_tokens), prompt_tokens)
        of_model.completion_tokens += generated_tokens
        if cached_tokens is not None:
            of_model.answered_prompt_tokens += prompt_tokens
            of_model.cached_tokens += cached_tokens

    def _families(self) -> Iterator[Metric]:
        self._forget_replicas()
        yield from self._request_families()
        yield from self._token_families()
        yield from self._total_families()
        if self._fleet is not None:
            yield from fleet_families(self._fleet)
        if self._sync is not None:
            yield from store_families(self._sync)
        if self._lag is not None:
            yield from loop_families(self._lag)
        if self._stats is not None:
            yield from plane_families(self._stats())
        yield family("warmroute_cpu_seconds_total", [((), time.process_time())])
        policy = "" if self._fleet is None else self._fleet.policy.name
        labels = (_version(), policy, platform.python_version())
        yield family("warmroute_build_info", [(labels, 1)])

    def _request_families(self) -> Iterator[Metric]:
        models = self._models.items()
        yield family(
            "warmroute_requests_total",
            (
                ((model, f"{status}xx" if status else "none", outcome.value), count)
                for model, of_model in models
                for (status, outcome), count in of_model.requests.items()
            ),
        )
        yield _histograms("warmroute_ttft_seconds", ((m, n.ttft) for m, n in models))
        yield _histograms("warmroute_e2e_seconds", ((m, n.e2e) for m, n in models))
        yield _histograms("warmroute_router_overhead_seconds", [("", self._overhead)])
        yield _histograms("warmroute_chunk_gap_seconds", [("", self._gap)])

    def _token_families(self) -> Iterator[Metric]:
        for field in (
            *("prompt_tokens", "matched_tokens", "answered_prompt_tokens"),
            *("cached_tokens", "completion_tokens"),
        ):
            rows = [((model,), getattr(n, field)) for model, n in self._models.items()]
            yield family(f"warmroute_{field}_total", rows)

    def _total_families(self) -> Iterator[Metric]:
        def total(outcome: Outcome) -> int:
            counts = (c for n in self._models.values() for c in n.requests.items())
            return sum(count for (_, ended), count in counts if ended is outcome)

        yield family(
            "warmroute_decisions_total",
            (((policy, reason.value), n) for (policy, reason), n in self._decisions.items()),
        )
        yield family(
            "warmroute_replica_answers_total",
            (((replica, outcome.value), n) for (replica, outcome), n in self._answers.items()),
        )
        yield family(
            "warmroute_retries_total", (((reason,), n) for reason, n in self._retries.items())
        )
        yield family(
            "warmroute_resumes_total", (((reason,), n) for reason, n in self._resumes.items())
        )
        yield family(
            "warmroute_resumes_refused_total",
            (((why.value,), n) for why, n in self._resumes_refused.items()),
        )
        yield family("warmroute_stale_connections_total", [((), self._stale_connections)])
        yield family(
            "warmroute_probes_total", (((result.value,), n) for result, n in self._probes.items())
        )
        yield family(
            "warmroute_failures_total",
            (((failure.kind.code,), n) for failure, n in self._failures.items()),
        )
        yield family(
            "warmroute_background_restarts_total",
            (((task,), n) for task, n in self._restarts.items()),
        )
        for name, value in (
            ("warmroute_in_flight_requests", self._in_flight),
            ("warmroute_client_disconnects_total", total(Outcome.CLIENT_LEFT)),
            ("warmroute_broken_answers_total", total(Outcome.BROKEN)),
            ("warmroute_odd_usage_total", self._odd_usage),
            ("warmroute_body_bytes_total", self._body_bytes),
            ("warmroute_answer_bytes_total", self._answer_bytes),
            ("warmroute_config_generation", self.config_generation),
            ("warmroute_config_refused_total", self._config_refusals),
            ("warmroute_admin_keys_refused_total", self._admin_keys_refused),
        ):
            yield family(name, [((), value)])


class _Exporter(Collector):
    """What the registry asks at every scrape."""

    def __init__(self, families: Callable[[], Iterable[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families()


def _histograms(name: str, rows: Iterable[tuple[str, Histogram]]) -> Metric:
    """Return one family; an empty label stands for a metric without labels."""
    metric = family(name, [])
    for model, histogram in rows:
        histogram.add_to(metric, {"model": model} if model else {})
    return metric


def _replica_ids(fleet: FleetState) -> Collection[str]:
    return {status.view.replica_id for status in fleet.views()}


def _version() -> str:
    try:
        return version("warmroute")
    except PackageNotFoundError:
        return "unknown"
