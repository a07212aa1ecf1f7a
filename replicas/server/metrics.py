"""What a replica counts, and how it is scraped: its own names and those of vLLM.

The ``vllm:`` names have vLLM's meanings (docs.vllm.ai, "Production metrics"), so dashboards and
routers that know vLLM can read a replica. Gauges and engine counters are read from the engine at
the scrape; only what the engine does not keep is counted here, at the cost of an addition.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from replicas.core.engine import EngineStats
from replicas.core.sequence import FinishReason
from replicas.core.sequence import Sequence as EngineSequence

# The bucket bounds of vLLM 0.32, seconds.
TTFT_BOUNDS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
ITL_BOUNDS_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0),
)
REQUEST_BOUNDS_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)


class Histogram:
    """Counts durations. Cheaper than the library's by what a lock and a linear search cost."""

    def __init__(self, bounds_s: Sequence[float]) -> None:
        self._names = [*map(str, bounds_s), "+Inf"]
        self._bounds_us = [round(bound * 1e6) for bound in bounds_s]
        self._counts = [0] * len(self._names)
        self._sum_us = 0

    def observe_us(self, duration_us: int) -> None:
        """Count one duration."""
        self._counts[bisect_left(self._bounds_us, duration_us)] += 1
        self._sum_us += duration_us

    def family(self, name: str, meaning: str, labels: dict[str, str]) -> Metric:
        """Return the histogram in seconds."""
        family = HistogramMetricFamily(name, meaning, labels=list(labels))
        total = 0
        buckets: list[Sequence[str | float]] = []
        for bound, count in zip(self._names, self._counts, strict=True):
            total += count
            buckets.append((bound, total))
        family.add_metric(list(labels.values()), buckets, self._sum_us / 1e6)  # type: ignore[arg-type]  # its stub wants lists of str
        return family


class ReplicaMetrics:
    """Counters and histograms of one process; written by the loop that also reads them."""

    def __init__(self) -> None:
        self.ttft = Histogram(TTFT_BOUNDS_S)
        self.itl = Histogram(ITL_BOUNDS_S)
        self.e2e = Histogram(REQUEST_BOUNDS_S)
        self.queue = Histogram(REQUEST_BOUNDS_S)
        self.finished = dict.fromkeys(FinishReason, 0)
        self.refused: dict[str, int] = {}  # by Failure code, a closed list
        self.slow_clients = 0
        self.lag_us = 0
        self.reports = 0
        self.event_batches = 0
        self.snapshots = 0
        self.redis_failures = 0
        self.stalled_since_us: int | None = None  # last token with work left; None when idle

    def count_token(self, sequence: EngineSequence, last_us: int | None, at_us: int) -> None:
        """Count one token of a sequence whose token before came at ``last_us``."""
        self.stalled_since_us = at_us
        if last_us is not None:
            self.itl.observe_us(at_us - last_us)
            return
        self.ttft.observe_us(at_us - sequence.arrival_us)
        admitted_us = sequence.admitted_us
        if admitted_us is not None:
            self.queue.observe_us(admitted_us - sequence.arrival_us)

    def count_finished(self, sequence: EngineSequence, at_us: int) -> None:
        """Count the end of a sequence that was not aborted."""
        assert sequence.finish_reason is not None
        self.finished[sequence.finish_reason] += 1
        self.e2e.observe_us(at_us - sequence.arrival_us)

    def count_refused(self, code: str) -> None:
        """Count a request that was answered with an error of this replica."""
        self.refused[code] = self.refused.get(code, 0) + 1


class ReplicaCollector(Collector):
    """Turns the state of one replica into metric families, at the scrape."""

    def __init__(
        self,
        metrics: ReplicaMetrics,
        stats: Callable[[], EngineStats],
        now_us: Callable[[], int],
        is_draining: Callable[[], bool],
        model: str,
        block_size: int,
    ) -> None:
        self._metrics = metrics
        self._stats = stats
        self._now_us = now_us
        self._is_draining = is_draining
        self._model = {"model_name": model}
        self._block_size = block_size

    def collect(self) -> Iterable[Metric]:
        """Yield every family."""
        stats = self._stats()
        yield from self._as_vllm(stats)
        yield from self._durations()
        yield from self._own_gauges(stats)
        yield from self._own_counters(stats)

    def _gauge(self, name: str, meaning: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, meaning, labels=list(self._model))
        family.add_metric(list(self._model.values()), value)
        return family

    def _counter(self, name: str, meaning: str, value: float) -> Metric:
        family = CounterMetricFamily(name, meaning, labels=list(self._model))
        family.add_metric(list(self._model.values()), value)
        return family

    def _by_label(self, name: str, meaning: str, label: str, values: dict[str, int]) -> Metric:
        family = CounterMetricFamily(name, meaning, labels=[*self._model, label])
        for value, count in values.items():
            family.add_metric([*self._model.values(), value], count)
        return family

    def _as_vllm(self, stats: EngineStats) -> Iterable[Metric]:
        usage = stats.kv_blocks_used / stats.kv_blocks_total
        gauge, counter = self._gauge, self._counter
        yield gauge("vllm:num_requests_running", "Sequences running.", stats.running_requests)
        yield gauge("vllm:num_requests_waiting", "Sequences waiting.", stats.waiting_requests)
        yield gauge("vllm:kv_cache_usage_perc", "Share of KV blocks held, 0..1.", usage)
        hits, queries = stats.cached_tokens_total, stats.prompt_tokens_total
        yield counter("vllm:prefix_cache_queries", "Prompt tokens looked up.", queries)
        yield counter("vllm:prefix_cache_hits", "Prompt tokens found cached.", hits)
        preemptions = stats.preemptions_total
        yield counter("vllm:num_preemptions", "Preemptions of sequences.", preemptions)
        yield counter("vllm:prompt_tokens", "Prompt tokens of admitted sequences.", queries)
        yield counter("vllm:generation_tokens", "Tokens generated.", stats.output_tokens_total)
        ends = {reason.value: count for reason, count in self._metrics.finished.items()}
        name = "vllm:request_success"
        yield self._by_label(name, "Sequences ended, by reason.", "finished_reason", ends)
        labels = [*self._model, "block_size", "num_gpu_blocks"]
        config = GaugeMetricFamily("vllm:cache_config_info", "KV cache settings.", labels=labels)
        num_blocks = str(stats.kv_blocks_total)
        config.add_metric([*self._model.values(), str(self._block_size), num_blocks], 1)
        yield config

    def _durations(self) -> Iterable[Metric]:
        metrics, labels = self._metrics, self._model
        for name, meaning, histogram in (
            ("time_to_first_token", "From arrival to the first token.", metrics.ttft),
            ("inter_token_latency", "Between two tokens of a sequence.", metrics.itl),
            ("e2e_request_latency", "From arrival to the last token.", metrics.e2e),
            ("request_queue_time", "From arrival to admission.", metrics.queue),
        ):
            yield histogram.family(f"vllm:{name}_seconds", meaning, labels)

    def _own_gauges(self, stats: EngineStats) -> Iterable[Metric]:
        since_us = self._metrics.stalled_since_us
        stalled_s = 0.0 if since_us is None else (self._now_us() - since_us) / 1e6
        for name, meaning, value in (
            ("running_requests", "Sequences running.", stats.running_requests),
            ("waiting_requests", "Sequences waiting.", stats.waiting_requests),
            (
                "waiting_prefill_tokens",
                "Tokens accepted and not yet computed.",
                stats.waiting_prefill_tokens,
            ),
            ("kv_blocks_total", "KV blocks that sequences may hold.", stats.kv_blocks_total),
            ("kv_blocks_used", "KV blocks held by sequences.", stats.kv_blocks_used),
            ("draining", "1 while no new request is accepted.", self._is_draining()),
            ("stalled_seconds", "Since the last token, with work left.", stalled_s),
        ):
            yield self._gauge(f"warmroute_engine_{name}", meaning, value)

    def _own_counters(self, stats: EngineStats) -> Iterable[Metric]:
        metrics = self._metrics
        computed = stats.computed_prefill_tokens_total
        for name, meaning, value in (
            ("steps", "Engine steps.", stats.steps_total),
            ("computed_prefill_tokens", "Prefill computed, again after a preemption.", computed),
            ("aborted", "Sequences whose client left.", stats.aborted_total),
            ("lag_seconds", "Time lost as the CPU could not keep up.", metrics.lag_us / 1e6),
            ("slow_clients", "Streams cut as their client did not read.", metrics.slow_clients),
            ("reports", "Load reports published.", metrics.reports),
            ("event_batches", "KV event batches published.", metrics.event_batches),
            ("snapshots", "KV snapshots published.", metrics.snapshots),
            ("redis_failures", "Times that Redis was away or too slow.", metrics.redis_failures),
        ):
            yield self._counter(f"warmroute_engine_{name}", meaning, value)
        yield self._by_label(
            "warmroute_engine_refused", "Requests refused, by code.", "code", metrics.refused
        )
