"""The format in which a scheduler is recorded: one workload and what was seen of it, one a line.

What each field means is written down in tests/data/vllm/README.md.
"""

from collections import Counter
from typing import Any

import msgspec

from replicas.core.scheduler_config import SchedulerConfig, SchedulingPolicy


class RecordingError(ValueError):
    """Something that is not a recording; the message says what is wrong with it."""


class RecordedRequest(msgspec.Struct, frozen=True):
    """A request and the step before which it was added; ids are numbers in order of arrival."""

    id: str
    at_step: int
    prompt: list[int]
    max_tokens: int
    priority: int = 0
    adapter: str | None = None
    pooling: bool = False


class RecordedAbort(msgspec.Struct, frozen=True):
    """The step before which a request was aborted, if it was live."""

    id: str
    at_step: int


class Recording(msgspec.Struct, frozen=True):
    """One workload, and for each step in which something was live what was observed of it."""

    num_blocks: int
    block_size: int
    max_num_batched_tokens: int
    max_num_seqs: int
    policy: SchedulingPolicy
    requests: list[RecordedRequest]
    steps: list[dict[str, Any]]
    free_queue_at_end: list[int]
    aborts: list[RecordedAbort] = []
    complete: bool = True  # all requests ended
    enable_prefix_caching: bool = True
    max_loras: int | None = None

    def config(self) -> SchedulerConfig:
        """Return the engine's limits. Raises RecordingError for what cannot run."""
        try:
            return SchedulerConfig(
                num_blocks=self.num_blocks,
                block_size=self.block_size,
                max_num_batched_tokens=self.max_num_batched_tokens,
                max_num_seqs=self.max_num_seqs,
                policy=self.policy,
                enable_prefix_caching=self.enable_prefix_caching,
                max_loras=self.max_loras,
            )
        except ValueError as error:
            raise RecordingError(str(error)) from error


def decode_recording(line: bytes) -> Recording:
    """Return the recording that is one line of JSON. Raises RecordingError."""
    try:
        recording = msgspec.json.decode(line, type=Recording)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecordingError(str(error)) from error
    ids = Counter(request.id for request in recording.requests)
    for request in recording.requests:
        if not request.id.isascii() or not request.id.isdecimal():
            raise RecordingError(f"the id of a request is {request.id!r}, must be a number")
        if ids[request.id] > 1:
            raise RecordingError(f"{ids[request.id]} requests have the id {request.id}")
        if not request.prompt or request.max_tokens < 1:
            raise RecordingError(f"request {request.id} has no prompt or no token to generate")
        if min(request.prompt) < 0 or max(request.prompt) >= 2**32:
            raise RecordingError(f"request {request.id} has a token id outside of 0..2**32-1")
    for step in recording.steps:
        if not isinstance(step.get("step"), int):
            raise RecordingError("a step has no number: 'step' is missing or no integer")
    return recording
