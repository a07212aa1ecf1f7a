"""What a gateway asks of the place where a fleet's replicas leave their reports and KV events.

Rules: a store hands over state, not messages, so a missed read is made good by the next one. It
never decides anything. Every call ends in bounded time, with a value or with
StoreUnavailableError; what cannot be decoded is counted in the answer and spoils nothing else.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from contract.kv_events import KvEventBatch, KvSnapshot
from contract.load_report import GatewayReport, LoadReport, ReportSchemaError


class StoreState(Enum):
    """Whether the store answers."""

    UP = "up"
    DOWN = "down"  # it refuses, or cannot be reached
    FROZEN = "frozen"  # it is connected and does not answer in time


class StoreFault(Enum):
    """Why a call brought nothing."""

    REFUSED = "refused"  # no connection: nobody listens, or the name does not resolve
    LOST = "lost"  # the connection broke
    TIMEOUT = "timeout"
    AUTH = "auth"
    LOADING = "loading"
    READ_ONLY = "read_only"  # a former master; the link asks for the address again
    PROTOCOL = "protocol"  # bytes that are no answer
    REPLY = "reply"  # an error, or an answer of another shape


class StoreUnavailableError(Exception):
    """The store did not answer as it should; the message never holds a password."""

    def __init__(self, fault: StoreFault, message: str) -> None:
        super().__init__(message)
        self.fault = fault

    @property
    def state(self) -> StoreState:
        """What the failure says of the store."""
        return StoreState.FROZEN if self.fault is StoreFault.TIMEOUT else StoreState.DOWN


@dataclass(frozen=True, slots=True)
class SeenReport:
    """A replica's report and how long ago this gateway first read it, on its own clock."""

    replica_id: str
    report: LoadReport | ReportSchemaError
    age_us: int


@dataclass(frozen=True, slots=True)
class StoreRead:
    """One read of the whole fleet. ``present`` has the id of every replica with a report."""

    reports: list[SeenReport]
    present: set[str]
    gateway_reports: list[GatewayReport]
    undecodable: int


@dataclass(frozen=True, slots=True)
class KvArrival:
    """One batch of one replica's KV events."""

    replica_id: str
    batch: KvEventBatch


@dataclass(frozen=True, slots=True)
class KvArrivals:
    """Batches in the order in which each replica wrote them."""

    batches: list[KvArrival]
    undecodable: int


@dataclass(frozen=True, slots=True)
class KvResync:
    """What brings a reader that missed something up to date: the snapshot, then the batches."""

    snapshot: KvSnapshot | None
    batches: list[KvEventBatch]  # oldest first, at least all since the snapshot that are left
    undecodable: int


class Store(Protocol):
    """The gateway's side. ``read`` and the KV calls may run at the same time as each other."""

    async def read(self) -> StoreRead:
        """Return all load reports and gateway reports that have not expired."""

    async def publish_gateway(self, report: GatewayReport) -> None:
        """Write this gateway's own load; it expires when it is not written again."""

    async def retire_gateway(self, gateway_id: str) -> None:
        """Take this gateway's load away, because it stops."""

    async def read_events(self, replica_ids: list[str]) -> KvArrivals:
        """Wait a moment for batches of these replicas, each of which has been resynced before."""

    async def resync(self, replica_id: str) -> KvResync:
        """Return snapshot and batches; ``read_events`` goes on behind the last of them."""

    async def close(self) -> None:
        """Give up all connections."""
