"""The limits on time that one request is held to, and those that a model may have otherwise."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class AnswerLimits:
    """What one request waits for, each part of it. Names as in the settings, without the unit."""

    connect_timeout: int
    first_byte_timeout: int
    answer_timeout: int
    between_bytes_timeout: int
    total_timeout: int  # from the request's last byte to the end of its answer


PER_MODEL = tuple(f"{field.name}_s" for field in fields(AnswerLimits))
"""The settings that one model may have otherwise."""


def read_model_timeouts(entries: Sequence[str]) -> Mapping[str, Mapping[str, float]]:
    """Return the limits of each model out of ``'name first_byte_timeout_s=300 ...'``.

    Raises ValueError that names the entry.
    """
    found: dict[str, dict[str, float]] = {}
    for entry in entries:
        model, *settings = entry.split()
        own = found.setdefault(model, {})
        for setting in settings:
            name, _, value = setting.partition("=")
            if name not in PER_MODEL:
                raise ValueError(f"{entry!r} has no limit {name!r}; known: {', '.join(PER_MODEL)}")
            try:
                own[name] = float(value)
            except ValueError as error:
                raise ValueError(f"{entry!r} has {name} = {value!r}, expected seconds") from error
            if not 0 <= own[name] < float("inf"):
                raise ValueError(f"{entry!r} has {name} = {value}, must be 0 or more")
    return found
