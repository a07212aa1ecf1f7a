"""The ``vllm:`` metric families of a replica, in the order of vLLM 0.32's own page.

Names, labels, buckets and meanings are vLLM's, so dashboards, autoscalers and routers that know
vLLM can read a replica. What has no meaning here is left out; docs/engine.md lists it.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from replicas.core.engine_stats import EngineStats
from replicas.core.scheduler_config import SchedulerConfig
from replicas.server.histogram import Histogram, histogram_family
from replicas.server.metrics import EngineMetrics


@dataclass(frozen=True, slots=True)
class EngineView:
    """One engine at the moment of the scrape."""

    rank: int
    stats: EngineStats
    metrics: EngineMetrics
    running_adapters: frozenset[str] = frozenset()
    waiting_adapters: frozenset[str] = frozenset()
    deferred_requests: int = 0  # waiting for a place among the running adapters


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One replica at the moment of the scrape."""

    model: str
    config: SchedulerConfig
    engines: Sequence[EngineView]
    has_adapters: bool = False

    @property
    def labels(self) -> tuple[str, str]:
        """The labels of every series of an engine."""
        return ("engine", "model_name")

    def values(self, engine: EngineView) -> list[str]:
        """Return the values of ``labels``."""
        return [str(engine.rank), self.model]


def vllm_families(view: ReplicaView, rejections: Mapping[str, int]) -> Iterable[Metric]:
    """Yield every family that vLLM has and that has a meaning here."""
    yield from _gauges(view)
    yield from _counters(view)
    name, meaning = "vllm:admission_rejections", "Requests refused by a queue limit, by reason."
    rejected = CounterMetricFamily(name, meaning, labels=["model_name", "reason"])
    for reason, count in rejections.items():
        rejected.add_metric([view.model, reason], count)
    yield rejected
    for name, meaning, histogram_of in _HISTOGRAMS:
        series = [(view.values(engine), histogram_of(engine.metrics)) for engine in view.engines]
        yield histogram_family(f"vllm:{name}", meaning, view.labels, series)
    yield _cache_config(view)
    if view.has_adapters:
        yield _adapters(view)


def _gauges(view: ReplicaView) -> Iterable[Metric]:
    for name, meaning, label, values_of in _GAUGES:
        labels = [*view.labels, label] if label else view.labels
        gauge = GaugeMetricFamily(f"vllm:{name}", meaning, labels=labels)
        for engine in view.engines:
            for value, number in values_of(engine).items():
                gauge.add_metric(
                    [*view.values(engine), value] if label else view.values(engine), number
                )
        yield gauge


def _counters(view: ReplicaView) -> Iterable[Metric]:
    for name, meaning, label, values_of in _COUNTERS:
        labels = [*view.labels, label] if label else view.labels
        counter = CounterMetricFamily(f"vllm:{name}", meaning, labels=labels)
        for engine in view.engines:
            for value, number in values_of(engine).items():
                counter.add_metric(
                    [*view.values(engine), value] if label else view.values(engine), number
                )
        yield counter


def _cache_config(view: ReplicaView) -> Metric:
    config = view.config
    settings = {
        "block_size": config.block_size,
        "cache_dtype": "auto",
        "enable_prefix_caching": config.enable_prefix_caching,
        "kv_cache_size_tokens": config.num_blocks * config.block_size,
        "num_gpu_blocks": config.num_blocks,  # the reserved one is among them, as in vLLM
    }
    labels = [*view.labels, *settings]
    info = GaugeMetricFamily("vllm:cache_config_info", "KV cache settings.", labels=labels)
    for engine in view.engines:
        info.add_metric([*view.values(engine), *map(str, settings.values())], 1)
    return info


def _adapters(view: ReplicaView) -> Metric:
    """One series whose labels are the state and whose value is its time, as vLLM has it."""
    labels = ["max_lora", "running_lora_adapters", "waiting_lora_adapters"]
    info = GaugeMetricFamily("vllm:lora_requests_info", "Adapters in use.", labels=labels)
    running = sorted({name for engine in view.engines for name in engine.running_adapters})
    waiting = sorted({name for engine in view.engines for name in engine.waiting_adapters})
    most = str(view.config.max_loras or 0)
    info.add_metric([most, ",".join(running), ",".join(waiting)], time.time())
    return info


def _one(number: float) -> Mapping[str, float]:
    return {"": number}


def _waiting_by_reason(engine: EngineView) -> Mapping[str, float]:
    deferred = engine.deferred_requests
    return {"capacity": engine.stats.waiting_requests - deferred, "deferred": deferred}


def _awake(_engine: EngineView) -> Mapping[str, float]:
    return {"awake": 1, "weights_offloaded": 0, "discard_all": 0}


def _by_source(engine: EngineView) -> Mapping[str, float]:
    cached = engine.stats.cached_tokens_total
    return {
        "local_compute": engine.stats.prompt_tokens_total - cached,
        "local_cache_hit": cached,
        "external_kv_transfer": 0,
    }


def _cached_by_source(engine: EngineView) -> Mapping[str, float]:
    others = dict.fromkeys(("host", "p2p", "disk", "external_unspecified"), 0)
    return {"device": engine.stats.cached_tokens_total} | others


def _finished(engine: EngineView) -> Mapping[str, float]:
    ends = {reason.value: count for reason, count in engine.metrics.finished.items()}
    return {"stop": 0, "length": 0, "abort": 0, "error": 0, "repetition": 0} | ends


_Values = Callable[[EngineView], Mapping[str, float]]

_GAUGES: Sequence[tuple[str, str, str, _Values]] = (
    ("num_requests_running", "Sequences running.", "", lambda e: _one(e.stats.running_requests)),
    ("num_requests_waiting", "Sequences waiting.", "", lambda e: _one(e.stats.waiting_requests)),
    (
        "num_requests_waiting_by_reason",
        "Sequences waiting for room, or for a place among the running adapters.",
        "reason",
        _waiting_by_reason,
    ),
    ("engine_sleep_state", "An engine here never sleeps.", "sleep_state", _awake),
    (
        "kv_cache_usage_perc",
        "Share of KV blocks held, 0..1.",
        "",
        lambda e: _one(e.stats.kv_blocks_used / e.stats.kv_blocks_total),
    ),
)

_COUNTERS: Sequence[tuple[str, str, str, _Values]] = (
    (
        "prefix_cache_queries",
        "Prompt tokens looked up.",
        "",
        lambda e: _one(e.stats.prompt_tokens_total),
    ),
    (
        "prefix_cache_hits",
        "Prompt tokens found cached.",
        "",
        lambda e: _one(e.stats.cached_tokens_total),
    ),
    (
        "num_preemptions",
        "Preemptions of sequences.",
        "",
        lambda e: _one(e.stats.preemptions_total),
    ),
    (
        "prompt_tokens",
        "Prompt tokens of admitted sequences.",
        "",
        lambda e: _one(e.stats.prompt_tokens_total),
    ),
    ("prompt_tokens_by_source", "Prompt tokens, by where their KV is from.", "source", _by_source),
    (
        "prompt_tokens_cached",
        "Prompt tokens that were cached.",
        "",
        lambda e: _one(e.stats.cached_tokens_total),
    ),
    (
        "prompt_tokens_cached_by_source",
        "Cached prompt tokens, by memory.",
        "source",
        _cached_by_source,
    ),
    ("generation_tokens", "Tokens generated.", "", lambda e: _one(e.stats.output_tokens_total)),
    ("request_success", "Sequences ended, by reason.", "finished_reason", _finished),
)

_HISTOGRAMS: Sequence[tuple[str, str, Callable[[EngineMetrics], Histogram]]] = (
    ("request_prompt_tokens", "Prompt tokens of a sequence.", lambda m: m.prompt_tokens),
    ("request_generation_tokens", "Tokens generated for a sequence.", lambda m: m.output_tokens),
    ("iteration_tokens_total", "Tokens computed and generated in a step.", lambda m: m.step_tokens),
    (
        "request_max_num_generation_tokens",
        "Tokens of the longest choice of a request.",
        lambda m: m.longest_output,
    ),
    ("request_params_n", "Choices asked for.", lambda m: m.choices),
    ("request_params_max_tokens", "Tokens asked for at most.", lambda m: m.max_tokens),
    ("time_to_first_token_seconds", "From arrival to the first token.", lambda m: m.ttft),
    ("inter_token_latency_seconds", "Between two tokens of a sequence.", lambda m: m.itl),
    (
        "request_time_per_output_token_seconds",
        "Mean time between the tokens of one sequence.",
        lambda m: m.time_per_token,
    ),
    ("e2e_request_latency_seconds", "From arrival to the last token.", lambda m: m.e2e),
    ("request_queue_time_seconds", "From arrival to admission.", lambda m: m.queue),
    ("request_inference_time_seconds", "From admission to the last token.", lambda m: m.inference),
    ("request_prefill_time_seconds", "From admission to the first token.", lambda m: m.prefill),
    ("request_decode_time_seconds", "From the first token to the last.", lambda m: m.decode),
    ("request_num_preemptions", "Preemptions of one sequence.", lambda m: m.preemptions),
    (
        "request_prefill_kv_computed_tokens",
        "Prompt tokens that were not cached.",
        lambda m: m.computed_tokens,
    ),
)
