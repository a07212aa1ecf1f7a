"""SGLang's metrics (``--enable-metrics``), by its documentation; not run against a real one.

Every rank of tensor, pipeline and expert parallelism tells the same, so one of them counts; the
ranks of data parallelism are summed. Since v0.5.11 the cache's size is a gauge; before it was in
the labels of ``sglang:cache_config_info``.
"""

from replicas.agents.engines.exposition import Samples
from replicas.agents.engines.figures import Figures, whole_number

RUNNING = "sglang:num_running_reqs"
WAITING = "sglang:num_queue_reqs"
PROMPT_TOKENS = "sglang:prompt_tokens_total"
CACHED_TOKENS = "sglang:cached_tokens_total"
KV_TOKENS_USED = "sglang:num_used_tokens"
KV_TOKENS = "sglang:max_total_num_tokens"
CACHE_CONFIG = "sglang:cache_config_info"
STARTED = "process_start_time_seconds"

NAMES = frozenset(
    (RUNNING, WAITING, PROMPT_TOKENS, CACHED_TOKENS)
    + (KV_TOKENS_USED, KV_TOKENS, CACHE_CONFIG, STARTED)
)

_COPIES = ("tp_rank", "pp_rank", "moe_ep_rank")
_TOKENS_PER_BLOCK = 1  # its cache is counted in tokens, whatever its page size


def read_sglang(samples: Samples) -> Figures:
    """Return what one page tells."""
    kv_tokens = samples.count(KV_TOKENS, copies=_COPIES) or _kv_tokens_of_old(samples)
    kv_tokens_used = samples.count(KV_TOKENS_USED, copies=_COPIES)
    return Figures(
        waiting_requests=samples.count(WAITING, copies=_COPIES),
        running_requests=samples.count(RUNNING, copies=_COPIES),
        block_size=_TOKENS_PER_BLOCK if kv_tokens is not None else None,
        kv_blocks_total=kv_tokens,
        kv_blocks_used=kv_tokens_used if kv_tokens is not None else None,
        prompt_tokens_total=samples.count(PROMPT_TOKENS, copies=_COPIES),
        cached_tokens_total=samples.count(CACHED_TOKENS, copies=_COPIES),
        started_s=samples.total(STARTED),
    )


def _kv_tokens_of_old(samples: Samples) -> int | None:
    tokens: dict[str, int] = {}
    for sample in samples.of(CACHE_CONFIG):
        page_size = whole_number(sample.labels.get("page_size"))
        num_pages = whole_number(sample.labels.get("num_pages"))
        if page_size is None or num_pages is None:
            return None
        tokens[sample.labels.get("dp_rank", "0")] = page_size * num_pages
    return sum(tokens.values()) or None
