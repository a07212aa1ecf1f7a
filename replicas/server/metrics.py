"""What a replica counts: for each of its engines, and for the process as a whole.

Only what an engine does not keep is counted here, at the cost of an addition; gauges and the
engine's own counters are read at the scrape (collector.py).
"""

from dataclasses import dataclass

from replicas.core.scheduler import StepOutput, StepPlan
from replicas.core.scheduler_config import SchedulerConfig
from replicas.core.sequence import FinishReason
from replicas.core.sequence import Sequence as EngineSequence
from replicas.server.histogram import (
    CHOICE_BOUNDS,
    ITL_BOUNDS_S,
    PREEMPTION_BOUNDS,
    REQUEST_BOUNDS_S,
    STEP_TOKEN_BOUNDS,
    TTFT_BOUNDS_S,
    Histogram,
    token_bounds,
)

MAX_QUEUED_REQUESTS = "max_num_queued_reqs"
MAX_QUEUED_TOKENS = "max_num_queued_tokens"
"""The reasons of vllm:admission_rejections_total, in vLLM's words."""


@dataclass(slots=True)
class Siblings:
    """What the choices of one prompt share; the last one to end counts their request."""

    num_choices: int
    num_open: int
    longest_output: int = 0  # tokens


class EngineMetrics:
    """Histograms and counters of one engine; written by the loop that also reads them."""

    def __init__(self, config: SchedulerConfig) -> None:
        bounds = token_bounds(config.max_model_len)
        self.ttft = Histogram.of_seconds(TTFT_BOUNDS_S)
        self.itl = Histogram.of_seconds(ITL_BOUNDS_S)
        self.time_per_token = Histogram.of_seconds(ITL_BOUNDS_S)
        self.e2e = Histogram.of_seconds(REQUEST_BOUNDS_S)
        self.queue = Histogram.of_seconds(REQUEST_BOUNDS_S)
        self.inference = Histogram.of_seconds(REQUEST_BOUNDS_S)
        self.prefill = Histogram.of_seconds(REQUEST_BOUNDS_S)
        self.decode = Histogram.of_seconds(REQUEST_BOUNDS_S)
        self.step_tokens = Histogram(STEP_TOKEN_BOUNDS)
        self.prompt_tokens = Histogram(bounds)
        self.computed_tokens = Histogram(bounds)
        self.output_tokens = Histogram(bounds)
        self.longest_output = Histogram(bounds)
        self.max_tokens = Histogram(bounds)
        self.choices = Histogram(CHOICE_BOUNDS)
        self.preemptions = Histogram(PREEMPTION_BOUNDS)
        self.finished = dict.fromkeys(FinishReason, 0)
        self.lag_us = 0
        self.stalled_since_us: int | None = None  # last token with work left; None when idle

    def count_step(self, plan: StepPlan, output: StepOutput) -> None:
        """Count what one step computed and produced."""
        num_tokens = plan.load.prefill_tokens + len(output.new_tokens)
        if num_tokens:
            self.step_tokens.observe(num_tokens)

    def count_token(self, sequence: EngineSequence, last_us: int | None, at_us: int) -> None:
        """Count one token of a sequence whose token before came at ``last_us``."""
        self.stalled_since_us = at_us
        if last_us is None:
            self.ttft.observe(at_us - sequence.arrival_us)
        else:
            self.itl.observe(at_us - last_us)

    def count_finished(self, sequence: EngineSequence, siblings: Siblings, at_us: int) -> None:
        """Count the end of a sequence that was not aborted; it was admitted at some time."""
        assert sequence.finish_reason is not None
        assert sequence.admitted_us is not None
        first_us = at_us if sequence.first_token_us is None else sequence.first_token_us
        num_output = sequence.num_output_tokens
        decode_us = at_us - first_us
        self.finished[sequence.finish_reason] += 1
        self.e2e.observe(at_us - sequence.arrival_us)
        self.queue.observe(sequence.admitted_us - sequence.arrival_us)
        self.inference.observe(at_us - sequence.admitted_us)
        self.prefill.observe(first_us - sequence.admitted_us)
        self.decode.observe(decode_us)
        self.time_per_token.observe(decode_us // (num_output - 1) if num_output > 1 else 0)
        self.prompt_tokens.observe(sequence.num_prompt_tokens)
        self.computed_tokens.observe(sequence.num_prompt_tokens - (sequence.num_cached_tokens or 0))
        self.output_tokens.observe(num_output)
        self.preemptions.observe(sequence.num_preemptions)
        if not sequence.pooling:
            self.max_tokens.observe(sequence.max_tokens)
        siblings.num_open -= 1
        siblings.longest_output = max(siblings.longest_output, num_output)
        if not siblings.num_open:
            self.choices.observe(siblings.num_choices)
            self.longest_output.observe(siblings.longest_output)


class ReplicaMetrics:
    """Counters of one process."""

    def __init__(self) -> None:
        self.refused: dict[str, int] = {}  # by Failure code, a closed list
        self.faults: dict[str, int] = {}  # strikes, by the name of the injected fault
        self.admission_rejections = {MAX_QUEUED_REQUESTS: 0, MAX_QUEUED_TOKENS: 0}
        self.slow_clients = 0
        self.reports = 0
        self.event_batches = 0
        self.snapshots = 0
        self.redis_failures = 0
        self.zmq_batches = 0

    def count_refused(self, code: str) -> None:
        """Count a request that was answered with an error of this replica."""
        self.refused[code] = self.refused.get(code, 0) + 1
