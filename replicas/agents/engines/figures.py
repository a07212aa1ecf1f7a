"""What an agent wants to know of an engine, whatever the engine calls it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figures:
    """An engine's state as one page of its metrics tells it. None is unknown, never zero."""

    waiting_requests: int | None = None
    running_requests: int | None = None
    block_size: int | None = None  # tokens
    kv_blocks_total: int | None = None
    kv_blocks_used: int | None = None
    prompt_tokens_total: int | None = None  # cached ones included
    cached_tokens_total: int | None = None
    prefilled_tokens_total: int | None = None  # computed, so without cached ones, and
    prefill_seconds_total: float | None = None  # the time that took, summed over requests
    started_s: float | None = None  # Unix time of the process's start
    is_asleep: bool = False  # up, but it would not serve

    def has_gone_back(self, before: "Figures") -> bool:
        """Whether something that only grows has shrunk since ``before``: it is another process."""
        pairs = (
            (self.prompt_tokens_total, before.prompt_tokens_total),
            (self.cached_tokens_total, before.cached_tokens_total),
            (self.prefilled_tokens_total, before.prefilled_tokens_total),
            (self.prefill_seconds_total, before.prefill_seconds_total),
        )
        return any(now is not None and then is not None and now < then for now, then in pairs)


def whole_number(text: str | None) -> int | None:
    """Return a label's value as a number above zero, None where it is none ('None', 'auto')."""
    return int(text) if text is not None and text.isdecimal() and int(text) > 0 else None
