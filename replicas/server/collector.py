"""The scraped page of a replica: vLLM's names with vLLM's meanings, and the replica's own."""

from collections.abc import Callable, Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from replicas.core.engine_stats import EngineStats
from replicas.server.metrics import EngineMetrics, ReplicaMetrics
from replicas.server.vllm_families import EngineView, ReplicaView, vllm_families

Now = Callable[[], int]


class ReplicaCollector(Collector):
    """Turns the state of one replica into metric families, at the scrape."""

    def __init__(
        self,
        metrics: ReplicaMetrics,
        view: Callable[[], ReplicaView],
        now_us: Now,
        is_draining: Callable[[], bool],
    ) -> None:
        self._metrics = metrics
        self._view = view
        self._now_us = now_us
        self._is_draining = is_draining

    def collect(self) -> Iterable[Metric]:
        """Yield every family."""
        view = self._view()
        yield from vllm_families(view, self._metrics.admission_rejections)
        yield from self._gauges(view)
        yield from self._engine_counters(view)
        yield from self._process_counters(view)

    def _gauges(self, view: ReplicaView) -> Iterable[Metric]:
        for name, meaning, value_of in _ENGINE_GAUGES:
            family = GaugeMetricFamily(_PREFIX + name, meaning, labels=view.labels)
            for engine in view.engines:
                family.add_metric(view.values(engine), value_of(engine.stats))
            yield family
        name, meaning = "stalled_seconds", "Since the last token, with work left."
        stalled = GaugeMetricFamily(_PREFIX + name, meaning, labels=view.labels)
        for engine in view.engines:
            stalled.add_metric(view.values(engine), self._stalled_s(engine.metrics))
        yield stalled
        name, meaning = "draining", "1 while no new request is accepted."
        draining = GaugeMetricFamily(_PREFIX + name, meaning, labels=["model_name"])
        draining.add_metric([view.model], self._is_draining())
        yield draining

    def _stalled_s(self, metrics: EngineMetrics) -> float:
        since_us = metrics.stalled_since_us
        return 0.0 if since_us is None else (self._now_us() - since_us) / 1e6

    def _engine_counters(self, view: ReplicaView) -> Iterable[Metric]:
        for name, meaning, value_of in _ENGINE_COUNTERS:
            family = CounterMetricFamily(_PREFIX + name, meaning, labels=view.labels)
            for engine in view.engines:
                family.add_metric(view.values(engine), value_of(engine))
            yield family

    def _process_counters(self, view: ReplicaView) -> Iterable[Metric]:
        metrics = self._metrics
        for name, meaning, value in (
            ("slow_clients", "Streams cut as their client did not read.", metrics.slow_clients),
            ("reports", "Load reports published.", metrics.reports),
            ("event_batches", "KV event batches published.", metrics.event_batches),
            ("zmq_batches", "KV event batches published as vLLM does.", metrics.zmq_batches),
            ("snapshots", "KV snapshots published.", metrics.snapshots),
            ("redis_failures", "Times that Redis was away or too slow.", metrics.redis_failures),
        ):
            family = CounterMetricFamily(_PREFIX + name, meaning, labels=["model_name"])
            family.add_metric([view.model], value)
            yield family
        yield _by_label(
            view.model, "refused", "Requests refused, by code.", "code", metrics.refused
        )
        yield _by_label(
            view.model, "faults", "Strikes of injected faults.", "fault", metrics.faults
        )


def _by_label(model: str, name: str, meaning: str, label: str, counts: dict[str, int]) -> Metric:
    family = CounterMetricFamily(_PREFIX + name, meaning, labels=["model_name", label])
    for value, count in counts.items():
        family.add_metric([model, value], count)
    return family


_PREFIX = "warmroute_engine_"

_ENGINE_GAUGES: Sequence[tuple[str, str, Callable[[EngineStats], float]]] = (
    ("running_requests", "Sequences running.", lambda stats: stats.running_requests),
    ("waiting_requests", "Sequences waiting.", lambda stats: stats.waiting_requests),
    (
        "waiting_prefill_tokens",
        "Tokens accepted and not yet computed.",
        lambda stats: stats.waiting_prefill_tokens,
    ),
    ("kv_blocks_total", "KV blocks that sequences may hold.", lambda stats: stats.kv_blocks_total),
    ("kv_blocks_used", "KV blocks held by sequences.", lambda stats: stats.kv_blocks_used),
)

_ENGINE_COUNTERS: Sequence[tuple[str, str, Callable[[EngineView], float]]] = (
    ("steps", "Engine steps.", lambda engine: engine.stats.steps_total),
    (
        "computed_prefill_tokens",
        "Prefill computed, again after a preemption.",
        lambda engine: engine.stats.computed_prefill_tokens_total,
    ),
    ("aborted", "Sequences whose client left.", lambda engine: engine.stats.aborted_total),
    (
        "lag_seconds",
        "Time lost as the CPU could not keep up.",
        lambda engine: engine.metrics.lag_us / 1e6,
    ),
)
