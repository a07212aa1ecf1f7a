"""How many replicas a fleet should have, by the requests that are under way.

The rule is that of the Kubernetes Horizontal Pod Autoscaler (its documentation, "Algorithm
details" and "Stabilization window"): what is under way over what one replica should have, rounded
up; upwards at once, downwards only to the most that was wanted within a window.
"""

from collections import deque
from dataclasses import dataclass
from math import ceil, isfinite

from contract.options import option

REPLICAS_MAX = 1_000


@dataclass(frozen=True)
class AutoscaleRule:
    """When replicas join and leave. Raises ValueError for a value out of range."""

    target_in_flight: float = option(8.0, "requests", "that one replica should have under way")
    replicas_min: int = option(1, "replicas", "that always stay")
    replicas_max: int = option(16, "replicas", "that there are at most")
    interval_s: float = option(15.0, "s", "time between two looks at the fleet")
    cold_start_s: float = option(60.0, "s", "from asking for a replica to its first request")
    scale_down_delay_s: float = option(
        300.0, "s", "fewer replicas only when no look within this time wanted more"
    )

    def __post_init__(self) -> None:
        for name in ("target_in_flight", "interval_s"):
            if not (getattr(self, name) > 0 and isfinite(getattr(self, name))):
                raise ValueError(f"{name} is {getattr(self, name)}, must be a number above 0")
        for name in ("cold_start_s", "scale_down_delay_s"):
            if not (getattr(self, name) >= 0 and isfinite(getattr(self, name))):
                raise ValueError(f"{name} is {getattr(self, name)}, must be a number, 0 or more")
        if not 1 <= self.replicas_min <= self.replicas_max <= REPLICAS_MAX:
            raise ValueError(
                f"replicas_min is {self.replicas_min} and replicas_max {self.replicas_max}, "
                f"must be in this order from 1 to {REPLICAS_MAX}"
            )


@dataclass(frozen=True, slots=True)
class ScaleStep:
    """One change of the fleet, and what it was made for."""

    at_us: int
    in_flight: int
    joining: tuple[str, ...] = ()  # replica ids; they serve after the cold start
    leaving: tuple[str, ...] = ()  # they drain first


class Autoscaler:
    """The rule and what it wanted of late; ``num_replicas`` are wanted at the start."""

    def __init__(self, rule: AutoscaleRule, num_replicas: int) -> None:
        self.rule = rule
        self._wanted: deque[tuple[int, int]] = deque()  # (when, replicas)
        self._want(0, num_replicas)

    def desired(self, now_us: int, in_flight: int) -> int:
        """Return how many replicas there should be, those that start up included."""
        self._want(now_us, ceil(in_flight / self.rule.target_in_flight))
        while self._wanted[0][0] < now_us - self.rule.scale_down_delay_s * 1e6:
            self._wanted.popleft()
        return max(replicas for _, replicas in self._wanted)

    def _want(self, now_us: int, replicas: int) -> None:
        rule = self.rule
        self._wanted.append((now_us, min(max(replicas, rule.replicas_min), rule.replicas_max)))
