"""vLLM's metrics, by their names of 2026 and, after them, those of older versions.

With data parallelism each rank is a series of its own, told apart by the label ``engine``: counts
are summed, and so are the blocks of the ranks' caches.
"""

from replicas.agents.engines.exposition import Samples
from replicas.agents.engines.figures import Figures, whole_number

RUNNING = ("vllm:num_requests_running",)
WAITING = ("vllm:num_requests_waiting",)
KV_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")  # 0..1 in spite of the name
PROMPT_TOKENS = ("vllm:prompt_tokens_total",)
CACHED_TOKENS = (
    "vllm:prompt_tokens_cached_total",
    "vllm:prefix_cache_hits_total",
    "vllm:gpu_prefix_cache_hits_total",
)
PREFILLED_TOKENS = ("vllm:request_prefill_kv_computed_tokens_sum",)
PREFILL_SECONDS = ("vllm:request_prefill_time_seconds_sum",)
CACHE_CONFIG = ("vllm:cache_config_info",)
SLEEP_STATE = ("vllm:engine_sleep_state",)
STARTED = ("process_start_time_seconds",)

NAMES = frozenset(
    (*RUNNING, *WAITING, *KV_USAGE, *PROMPT_TOKENS, *CACHED_TOKENS, *PREFILLED_TOKENS)
    + (*PREFILL_SECONDS, *CACHE_CONFIG, *SLEEP_STATE, *STARTED)
)


def read_vllm(samples: Samples) -> Figures:
    """Return what one page tells."""
    block_size, blocks_by_rank = _cache(samples)
    blocks_total = sum(blocks_by_rank.values()) or None
    return Figures(
        waiting_requests=samples.count(*WAITING),
        running_requests=samples.count(*RUNNING),
        block_size=block_size,
        kv_blocks_total=blocks_total,
        kv_blocks_used=_blocks_used(samples, blocks_by_rank),
        prompt_tokens_total=samples.count(*PROMPT_TOKENS),
        cached_tokens_total=samples.count(*CACHED_TOKENS),
        prefilled_tokens_total=samples.count(*PREFILLED_TOKENS),
        prefill_seconds_total=samples.total(*PREFILL_SECONDS),
        started_s=samples.total(*STARTED),
        is_asleep=any(
            sample.labels.get("sleep_state") == "awake" and sample.value == 0
            for sample in samples.of(*SLEEP_STATE)
        ),
    )


def _cache(samples: Samples) -> tuple[int | None, dict[str, int]]:
    """Return the block size and each rank's blocks; none if the engine does not tell one of them.

    Where layers differ in what they keep, blocks are not of ``block_size`` tokens each; newer
    versions say how many tokens fit, and that is what counts.
    """
    block_size: int | None = None
    blocks: dict[str, int] = {}
    for sample in samples.of(*CACHE_CONFIG):
        labels = sample.labels
        block_size = whole_number(labels.get("block_size"))
        tokens = whole_number(labels.get("kv_cache_size_tokens"))
        num_blocks = whole_number(labels.get("num_gpu_blocks"))
        if tokens is not None and block_size is not None:
            num_blocks = tokens // block_size
        if num_blocks is None:
            return block_size, {}
        blocks[labels.get("engine", "0")] = num_blocks
    return block_size, blocks


def _blocks_used(samples: Samples, blocks_by_rank: dict[str, int]) -> int | None:
    usage = {s.labels.get("engine", "0"): s.value for s in samples.of(*KV_USAGE)}
    if not blocks_by_rank or usage.keys() != blocks_by_rank.keys():
        return None
    used = 0.0
    for rank, share in usage.items():
        if share is None or not 0 <= share <= 1:
            return None
        used += share * blocks_by_rank[rank]
    return round(used)
