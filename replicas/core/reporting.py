"""What an engine says in a load report: the same of a live worker and of a simulated one."""

from msgspec.structs import replace

from contract.load_report import LoadReport
from replicas.core.engine_stats import EngineStats
from replicas.core.step_time import StepLoad, StepTime


def with_figures(report: LoadReport, stats: EngineStats) -> LoadReport:
    """Return ``report``, which says who reports, with the figures of the engine's ``stats``."""
    return replace(
        report,
        waiting_requests=stats.waiting_requests,
        running_requests=stats.running_requests,
        waiting_prefill_tokens=stats.waiting_prefill_tokens,
        kv_blocks_total=stats.kv_blocks_total,
        kv_blocks_used=stats.kv_blocks_used,
        cached_tokens_total=stats.cached_tokens_total,
        prompt_tokens_total=stats.prompt_tokens_total,
        step_time_us=stats.step_time_us,
    )


def step_share(step_time: StepTime, tokens: int) -> float:
    """Return the part of the time of a step full of fresh prompt that one token of it takes too.

    0..1: what a step costs whatever it computes, such as the read of the weights.
    """
    load = StepLoad(prefill_tokens=1, prefill_attention_pairs=0.5)
    full = StepLoad(prefill_tokens=tokens, prefill_attention_pairs=tokens * tokens / 2)
    return min(1.0, step_time.step_time_us(load) / step_time.step_time_us(full))


def full_step_tokens_per_s(step_time: StepTime, tokens: int) -> float:
    """Return what steps full of fresh prompt, ``tokens`` each, compute in a second."""
    load = StepLoad(prefill_tokens=tokens, prefill_attention_pairs=tokens * tokens / 2)
    return tokens * 1e6 / step_time.step_time_us(load)
