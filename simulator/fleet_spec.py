"""What is simulated: replicas, gateways, the time between them, and what goes wrong when."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from replicas.core.scheduler_config import SchedulerConfig
from replicas.core.step_time import StepTime
from router.core.config import RoutingConfig
from router.core.policy import Policy
from simulator.autoscaler import AutoscaleRule


@dataclass(frozen=True, kw_only=True)
class ReplicaSpec:
    """What one replica is. ``model`` is the name that its requests use.

    It joins the fleet at ``joins_us``; ``waiting_max`` is its limit on waiting sequences, beyond
    which it answers 503; a live one counts the running ones, too.
    """

    replica_id: str
    model: str
    engine: SchedulerConfig
    step_time: StepTime
    publishes_events: bool = True
    joins_us: int = 0
    waiting_max: int = 4_096

    def copies(self, count: int) -> list["ReplicaSpec"]:
        """Return so many like this one, whose names are its own and -0, -1 and so on."""
        return [replace(self, replica_id=f"{self.replica_id}-{index}") for index in range(count)]


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Time between the parts, and what is lost there. Units: microseconds, shares 0..1.

    ``report_interval_us`` None: gateways know each replica's first report and their own ledger, as
    if nothing were ever stale.
    """

    send_delay_us: int = 0  # from a gateway to a replica, and back
    report_interval_us: int | None = 100_000
    report_delay_us: int = 1_000
    report_loss: float = 0.0
    event_delay_us: int = 1_000
    event_loss: float = 0.0
    snapshot_delay_us: int = 10_000  # from noticing a gap to having read the snapshot


class FaultKind(Enum):
    """What may happen to a replica."""

    CRASH = "crash"  # all is lost; it is back, cold, after the duration
    STALL = "stall"  # begins no step for the duration
    SLOW = "slow"  # steps take ``factor`` times as long for the duration
    DRAIN = "drain"  # refuses new requests for the duration, and says so


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One thing that goes wrong. Times in microseconds from the start."""

    at_us: int
    kind: FaultKind
    replica_id: str
    duration_us: int
    factor: float = 1.0


@dataclass(frozen=True, kw_only=True)
class FleetSpec:
    """Who is there. Requests go to the gateways in turn.

    With ``autoscale``, ``replicas`` are those of the start; who joins is like one of them, in turn.
    """

    replicas: Sequence[ReplicaSpec]
    policy: Policy
    num_gateways: int = 1
    routing: RoutingConfig = field(default_factory=RoutingConfig)
    timing: Timing = field(default_factory=Timing)
    faults: Sequence[Fault] = ()
    autoscale: AutoscaleRule | None = None
    seed: int = 0
