"""llama.cpp's metrics (``llama-server --metrics``).

It does not tell how many tokens its cache holds. The slots' contexts would not do: they may share
one cache, and prompts that had to leave it are kept in host memory (``--cache-ram``).
"""

from replicas.agents.engines.exposition import Samples
from replicas.agents.engines.figures import Figures

RUNNING = "llamacpp:requests_processing"
WAITING = "llamacpp:requests_deferred"
PREFILLED_TOKENS = "llamacpp:prompt_tokens_total"  # without cached ones
CACHED_TOKENS = "llamacpp:prompt_tokens_cached_total"
PREFILL_SECONDS = "llamacpp:prompt_seconds_total"

NAMES = frozenset((RUNNING, WAITING, PREFILLED_TOKENS, CACHED_TOKENS, PREFILL_SECONDS))


def read_llamacpp(samples: Samples) -> Figures:
    """Return what one page tells."""
    prefilled_tokens = samples.count(PREFILLED_TOKENS)
    cached_tokens = samples.count(CACHED_TOKENS)
    prompt_tokens = None
    if prefilled_tokens is not None and cached_tokens is not None:
        prompt_tokens = prefilled_tokens + cached_tokens
    return Figures(
        waiting_requests=samples.count(WAITING),
        running_requests=samples.count(RUNNING),
        prompt_tokens_total=prompt_tokens,
        cached_tokens_total=cached_tokens,
        prefilled_tokens_total=prefilled_tokens,
        prefill_seconds_total=samples.total(PREFILL_SECONDS),
    )
