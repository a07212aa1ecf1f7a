"""The catalogue of faults that a replica can be told to have, as data.

A fault is a frozen dataclass: its name is ``Fault.name``, its docstring is its meaning, its fields
are its parameters. Flags, the admin route, checks and docs/faults.md are all made from it. What a
fault does is not said here, but where it strikes: ``fault_routes``, ``fault_receivers``,
``fault_reports``, and ``fault_injector`` for the engine as a whole.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, ClassVar, TypeVar

from contract.options import SettingError, build_section, option

SHARE_OF_REQUESTS = "share of requests, drawn by a hash of the request id and the seed"
SHARE_OF_REPORTS = "share of load reports, drawn by a hash of their number and the seed"
SHARE_OF_BATCHES = "share of event batches, drawn by a hash of their number and the seed"


class Figures(Enum):
    """What is absurd about a load report; AbsurdLoad says what each is."""

    HUGE = "huge"
    NEGATIVE = "negative"
    NOT_A_NUMBER = "not_a_number"
    OVERFULL = "overfull"
    IDLE = "idle"
    OTHER_SCHEMA = "other_schema"


class Numbers(Enum):
    """Which sequence numbers stale load reports have."""

    NEW = "new"
    OLD = "old"


@dataclass(frozen=True)
class Fault:
    """One fault with its parameters. Raises ValueError for a parameter out of range."""

    name: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        cls.name = re.sub(r"(?<=[a-z])(?=[A-Z0-9])", "_", cls.__name__).lower()

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name == "share" and not 0 <= value <= 1:
                raise ValueError(f"share is {value}, expected 0 to 1")
            is_amount = each.name.endswith(("_s", "_tokens")) and value is not None
            if is_amount and not 0 <= value < math.inf:
                raise ValueError(f"{each.name} is {value}, expected 0 or more")


@dataclass(frozen=True)
class ErrorStatus(Fault):
    """Requests are answered with an error instead of being served."""

    share: float = option(1.0, "0..1", SHARE_OF_REQUESTS)
    status: int = option(500, "HTTP status", "the answer; 500, 502, 503 and 429 are the usual ones")
    retry_after_s: int | None = option(None, "s", "the answer's Retry-After; none sends none")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 400 <= self.status <= 599:
            raise ValueError(f"status is {self.status}, expected 400 to 599")


@dataclass(frozen=True)
class Admission503(Fault):
    """Requests are refused as when the waiting line is full: 503, Retry-After, try elsewhere."""

    share: float = option(1.0, "0..1", SHARE_OF_REQUESTS)


@dataclass(frozen=True)
class SlowStart(Fault):
    """The replica gets ready late, and is slow at first, as while kernels are compiled.

    Until it is ready, requests and probes are answered with 503. Ends by itself.
    """

    ready_after_s: float = option(0.0, "s", "from when the fault is set to the first request")
    slow_for_s: float = option(0.0, "s", "from then on, time during which steps are slow")
    slowdown: float = option(10.0, "x", "how much longer a slow step takes")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.slowdown < math.inf:
            raise ValueError(f"slowdown is {self.slowdown}, expected 1 or more")


@dataclass(frozen=True)
class SlowHealth(Fault):
    """Probes are answered late."""

    delay_s: float = option(5.0, "s", "time until a probe is answered")
    share: float = option(1.0, "0..1", "share of probes, drawn by a hash of their number")


@dataclass(frozen=True)
class Stall(Fault):
    """An answer stops between two tokens, then what was held back comes at once.

    The engine goes on meanwhile; to clear the fault lets the tokens go.
    """

    after_tokens: int = option(5, "tokens", "of the answer, that pass first")
    duration_s: float | None = option(None, "s", "how long; none is until the fault is cleared")
    share: float = option(1.0, "0..1", SHARE_OF_REQUESTS)


@dataclass(frozen=True)
class CloseMidStream(Fault):
    """An answer's connection is closed in order (FIN), but before the answer's end.

    A stream gets no finish reason, no ``[DONE]`` and no last HTTP chunk; an answer in one piece
    gets no byte at all.
    """

    after_tokens: int = option(5, "tokens", "of the answer, that pass first; 0 leaves no head")
    share: float = option(1.0, "0..1", SHARE_OF_REQUESTS)


@dataclass(frozen=True)
class ResetMidStream(Fault):
    """An answer's connection is reset (RST) before the answer's end, as when a process is killed.

    A reset overtakes what the network still holds, so fewer tokens may arrive.
    """

    after_tokens: int = option(5, "tokens", "of the answer, that pass first; 0 leaves no head")
    share: float = option(1.0, "0..1", SHARE_OF_REQUESTS)


@dataclass(frozen=True)
class Freeze(Fault):
    """The engine completes no step. Sockets accept, load and metrics are still reported."""

    duration_s: float | None = option(None, "s", "how long; none is until the fault is cleared")
    health_answers: bool = option(True, "", "if false, probes get no answer until the end")


@dataclass(frozen=True)
class Restart(Fault):
    """The engine starts anew under the same replica id, as after a crash, in the same process.

    Running requests are cut, caches and the engine's counters are empty, the incarnation is new and
    the numbers in Redis begin again (those of ZeroMQ go on). Strikes once; other faults stay set.
    """

    after_s: float = option(0.0, "s", "from when the fault is set to the restart")


@dataclass(frozen=True)
class DropLoadReports(Fault):
    """Load reports are not published, though their numbers are used."""

    share: float = option(1.0, "0..1", SHARE_OF_REPORTS)


@dataclass(frozen=True)
class StaleLoad(Fault):
    """Load reports repeat the figures of the moment when the fault was set."""

    numbers: Numbers = option(
        Numbers.NEW, "", "sequence numbers: new ones look fresh, old ones are the same report again"
    )


@dataclass(frozen=True)
class AbsurdLoad(Fault):
    """Load reports have figures that cannot be.

    ``huge``: every number is 2^62. ``negative``: every number is -1. ``not_a_number``: the prefill
    speed is NaN. ``overfull``: ten times as many KV blocks are held as there are. ``idle``: nothing
    waits, runs or is held, whatever is true. ``other_schema``: the schema is one that nobody reads.
    """

    figures: Figures = option(Figures.HUGE, "", "what is wrong with them")
    share: float = option(1.0, "0..1", SHARE_OF_REPORTS)


@dataclass(frozen=True)
class LoseKvEvents(Fault):
    """Batches of KV events get lost on their way to Redis."""

    share: float = option(1.0, "0..1", SHARE_OF_BATCHES)
    noticed: bool = option(
        True, "", "true: a number is missing; false: its number comes without its events"
    )


@dataclass(frozen=True)
class ReorderKvEvents(Fault):
    """Batches of KV events reach Redis after the batch that follows them."""

    share: float = option(1.0, "0..1", SHARE_OF_BATCHES)


FAULTS: Mapping[str, type[Fault]] = {
    kind.name: kind
    for kind in (
        *(ErrorStatus, Admission503, SlowStart, SlowHealth),
        *(Stall, CloseMidStream, ResetMidStream, Freeze, Restart),
        *(DropLoadReports, StaleLoad, AbsurdLoad, LoseKvEvents, ReorderKvEvents),
    )
}
"""Every fault by its name."""

F = TypeVar("F", bound=Fault)


def meaning_of(kind: type[Fault]) -> str:
    """Return what a fault does, in Markdown, on one line."""
    return " ".join((kind.__doc__ or "").split()).replace("``", "`")


def fault_kind(name: str) -> type[Fault]:
    """Return the fault of this name. Raises SettingError, with the known ones."""
    if name not in FAULTS:
        raise SettingError(f"there is no fault {name!r}; known: {', '.join(FAULTS)}")
    return FAULTS[name]


def build_fault(name: str, parameters: Mapping[str, Any]) -> Fault:
    """Build a fault from its parameters, typed or as text. Raises SettingError."""
    return build_section(fault_kind(name), parameters, f"fault {name!r}")


def read_fault(text: str) -> Fault:
    """Read ``name:parameter=value:...``, as a flag has it. Raises SettingError."""
    name, *pairs = text.split(":")
    parameters: dict[str, str] = {}
    for pair in pairs:
        parameter, equals, value = pair.partition("=")
        if not equals:
            raise SettingError(
                f"fault {text!r} has {pair!r}, expected name:parameter=value:parameter=value"
            )
        parameters[parameter] = value
    return build_fault(name, parameters)
