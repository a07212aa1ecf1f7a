"""What became of one request."""

from dataclasses import dataclass
from enum import Enum

from replicas.core.sequence import Sequence
from router.core.reason import Reason
from simulator.request import SimRequest


class End(Enum):
    """How a request ended, each in exactly one way."""

    COMPLETE = "complete"
    BROKEN = "broken"  # its replica was lost after the first token
    FAILED = "failed"  # no replica, or no retry left, before the first token
    REFUSED = "refused"  # longer than any replica could hold
    LEFT = "left"  # its client lost patience


@dataclass(eq=False, slots=True)
class Outcome:
    """One request from its arrival to its end. Times in microseconds of virtual time."""

    request: SimRequest
    arrival_us: int
    stage_index: int = 0
    end: End | None = None  # None while it is under way
    reason: Reason | None = None  # of the last decision
    replica_id: str | None = None
    attempts: int = 0
    predicted_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    queue_us: int | None = None
    ttft_us: int | None = None
    e2e_us: int | None = None
    ended_us: int = 0  # on the clock of the run, as its gateway knows
    preemptions: int = 0

    def take(self, sequence: Sequence, now_us: int) -> None:
        """Keep what an ended sequence knows."""
        self.cached_tokens = sequence.num_cached_tokens or 0
        self.output_tokens = sequence.num_output_tokens
        self.preemptions = sequence.num_preemptions
        if sequence.admitted_us is not None:
            self.queue_us = sequence.admitted_us - self.arrival_us
        self.e2e_us = now_us - self.arrival_us

    @property
    def itl_us(self) -> float | None:
        """Mean time between its tokens; None for one token or none."""
        if self.ttft_us is None or self.e2e_us is None or self.output_tokens < 2:
            return None
        return (self.e2e_us - self.ttft_us) / (self.output_tokens - 1)
