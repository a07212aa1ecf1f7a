"""Every setting of one replica."""

import math
from dataclasses import dataclass
from urllib.parse import urlsplit

from contract.hardware import Precision
from contract.options import option
from contract.redis_layout import check_fleet
from replicas.core.scheduler_config import Admission, Batching, SchedulingPolicy
from replicas.server.faults import read_fault


@dataclass(frozen=True)
class ReplicaConfig:
    """One replica: what it imitates, where it listens, what it accepts and whom it tells.

    Raises ValueError for a value out of range.
    """

    model: str = option("llama-3.1-8b", "", "name that requests use; its size sets the step time")
    aliases: tuple[str, ...] = option((), "", "other names that requests may use for the model")
    gpu: str = option("h100", "", "the GPU whose bandwidth and FLOP/s set the step time")
    tensor_parallel: int = option(1, "GPUs", "GPUs that share the model")
    weight_precision: Precision = option(Precision.BF16, "", "how weights are stored")
    kv_precision: Precision = option(Precision.BF16, "", "how the KV cache is stored")
    gpu_memory_utilization: float = option(
        0.9, "0..1", "share of GPU memory for weights and KV when kv_blocks is not given"
    )
    fixed_prefill_ms: float | None = option(
        None, "ms", "time of a step that prefills, instead of the GPU's; any model name will do"
    )
    fixed_decode_ms: float | None = option(
        None, "ms", "time of a step that decodes, instead of the GPU's; any model name will do"
    )
    speedup: float = option(1.0, "x", "how much faster than the imitated engine it runs")
    catch_up_ms_max: float = option(
        50.0, "ms", "a step later than this is not made good by shorter waits: the CPU is too slow"
    )

    kv_blocks: int | None = option(
        None, "blocks", "KV blocks that sequences may hold; none takes what the GPU has left"
    )
    block_size: int = option(16, "tokens", "tokens in one KV block; a token is 4 prompt bytes")
    max_num_batched_tokens: int = option(8_192, "tokens", "most tokens computed in one step")
    max_num_seqs: int = option(1_024, "sequences", "most sequences running at a time")
    max_model_len: int | None = option(
        None, "tokens", "longest context, prompt and output; none takes the model's own"
    )
    scheduling: SchedulingPolicy = option(
        SchedulingPolicy.FCFS, "", "who is served first; with priority, the lowest number"
    )
    batching: Batching = option(
        Batching.CONTINUOUS, "", "static keeps all slots until the longest of the batch ends"
    )
    admission: Admission = option(
        Admission.PAGED, "", "reserve holds blocks for max_model_len from the start"
    )
    enable_prefix_caching: bool = option(True, "", "share computed blocks of equal prefixes")
    data_parallel_size: int = option(
        1, "engines", "engines behind this API, each with its own blocks and prefix cache"
    )
    lora: tuple[str, ...] = option(
        (), "", "adapters that are loaded from the start; requests name one as their model"
    )
    max_loras: int = option(1, "adapters", "most adapters that run together in one step")
    max_loaded_loras: int = option(128, "adapters", "most adapters loaded at a time")
    embedding_dimensions: int = option(
        1_024, "numbers", "length of a vector of /v1/embeddings; a request may ask for fewer"
    )

    host: str = option("127.0.0.1", "", "address to listen on")
    port: int = option(8_000, "TCP port", "port to listen on; 0 takes a free one")
    replica_id: str | None = option(
        None, "", "name in the fleet, kept over restarts; none makes one of host name and port"
    )
    advertise_url: str | None = option(
        None, "URL", "where gateways reach it; none makes one of host (or host name) and port"
    )

    max_body_bytes: int = option(32 * 1024 * 1024, "bytes", "largest request body")
    body_timeout_s: float = option(30.0, "s", "a request body must have arrived within this")
    keepalive_timeout_s: float = option(
        75.0, "s", "an idle connection is kept this long; longer than gateways keep theirs"
    )
    max_queued_requests: int = option(
        5_120, "sequences", "with these waiting or running, others are sent elsewhere with 503"
    )
    max_queued_tokens: int | None = option(
        None, "tokens", "with as many prompt tokens before their first token, likewise; none: any"
    )
    max_sequences_per_request: int = option(128, "sequences", "most prompts x n of one request")
    max_stop_strings: int = option(16, "strings", "most stop strings of one request")
    max_stop_bytes: int = option(1_024, "bytes", "longest stop string")
    open_ended_tokens_max: int = option(
        1_024, "tokens", "where an answer without max_tokens ends at last; the mean is 100"
    )
    stream_buffer_max_bytes: int = option(
        1024 * 1024, "bytes", "a client that leaves more than this unread is cut off"
    )
    last_write_timeout_s: float = option(
        30.0, "s", "a client must have read its whole answer this long after its end"
    )
    drain_s: float = option(30.0, "s", "on a stop signal, running requests may take this long")
    drain_notice_ms: int = option(
        300, "ms", "on a stop signal, time for gateways to read that the replica drains"
    )

    redis_url: str | None = option(
        None, "URL", "where load and KV events are published; none runs alone", secret=True
    )
    fleet: str = option("default", "", "fleet whose gateways send to this replica")
    report_interval_ms: int = option(100, "ms", "time between load reports")
    event_interval_ms: int = option(
        5, "ms", "KV events go out after a step, but no more often than this"
    )
    snapshot_interval_ms: int = option(
        5_000, "ms", "time between snapshots of the cached blocks, for gateways that come late"
    )
    kv_keys_ttl_ms: int = option(
        60_000, "ms", "a dead replica's snapshot and events leave Redis after this"
    )
    pending_events_max: int = option(
        50_000, "events", "beyond these unpublished events gateways are sent a snapshot instead"
    )
    redis_timeout_ms: int = option(1_000, "ms", "a Redis that takes longer counts as away")
    redis_retry_ms: int = option(500, "ms", "time between tries while Redis is away")

    zmq_endpoint: str | None = option(
        None,
        "ZeroMQ address",
        "where KV events are published as by vLLM; bound if it has * or :: or is ipc, else "
        "connected to; the port plus the rank of each engine",
    )
    zmq_replay_endpoint: str | None = option(
        None, "ZeroMQ address", "where past events can be asked for; always bound"
    )
    zmq_topic: str | None = option(
        None, "", "topic of the events; none makes kv@host:port@model of this replica"
    )
    zmq_replay_batches_max: int = option(
        10_000, "batches", "the last ones, which can be asked for again"
    )
    zmq_unsent_batches_max: int = option(
        100_000, "batches", "a reader that leaves more than this unread loses some"
    )

    faults: tuple[str, ...] = option(
        (), "", "faults from the start, each name:parameter=value:...; docs/faults.md lists them"
    )
    fault_seed: int = option(0, "", "with the replica id, draws whom a fault with a share strikes")

    def _check_advertise_url(self) -> None:
        """Complain without quoting the URL: it may hold a password."""
        try:
            parts = urlsplit(self.advertise_url or "http://host")
            is_usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            is_usable = False
        if not is_usable:
            raise ValueError("advertise_url cannot be used, expected http://host:port")

    def __post_init__(self) -> None:
        check_fleet(self.fleet)
        self._check_advertise_url()
        at_least_one = (
            *("tensor_parallel", "block_size", "max_num_batched_tokens", "max_num_seqs"),
            *("data_parallel_size", "max_loras", "max_loaded_loras", "embedding_dimensions"),
            *("max_body_bytes", "max_queued_requests", "max_sequences_per_request"),
            *("open_ended_tokens_max", "stream_buffer_max_bytes", "report_interval_ms"),
            *("snapshot_interval_ms", "kv_keys_ttl_ms", "pending_events_max", "redis_timeout_ms"),
            *("redis_retry_ms", "zmq_replay_batches_max", "zmq_unsent_batches_max"),
        )
        for name in at_least_one:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, must be at least 1")
        for name in ("kv_blocks", "max_model_len", "max_queued_tokens"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, must be at least 1 or none")
        for name in ("fixed_prefill_ms", "fixed_decode_ms"):
            if getattr(self, name) is not None and not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}, must be 0 or more, or none")
        for name in ("catch_up_ms_max", "drain_s", "drain_notice_ms", "event_interval_ms"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}, must be 0 or more")
        if not (self.speedup > 0 and math.isfinite(self.speedup)):
            raise ValueError(f"speedup is {self.speedup}, must be a number above 0")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ValueError(
                f"gpu_memory_utilization is {self.gpu_memory_utilization}, "
                "must be above 0 and at most 1"
            )
        if not 0 <= self.port <= 65_535:
            raise ValueError(f"port is {self.port}, must be 0..65535")
        for fault in self.faults:
            read_fault(fault)
        if not self.model:
            raise ValueError("model is empty, must be a name")
        twice = {*self.lora} & {self.model, *self.aliases}
        if twice:
            raise ValueError(f"lora has {min(twice)!r}, which is a name of the model itself")
        if len(self.lora) > self.max_loaded_loras:
            raise ValueError(
                f"lora has {len(self.lora)} adapters, more than max_loaded_loras "
                f"{self.max_loaded_loras}"
            )
        if self.zmq_replay_endpoint is not None and self.zmq_endpoint is None:
            raise ValueError("zmq_replay_endpoint needs a zmq_endpoint")

    @property
    def has_fixed_steps(self) -> bool:
        """Steps take fixed times, so nothing is looked up in the hardware catalogue."""
        return self.fixed_prefill_ms is not None or self.fixed_decode_ms is not None
