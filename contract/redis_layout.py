"""Names and lifetimes of the Redis keys that replicas write and gateways read.

Every name carries one hash tag, so all keys of a fleet live in one cluster slot and one MGET
reads them. Readers are level-triggered: they read state, not messages, so a lost write is made
good by the next one.
"""

from dataclasses import dataclass

REPORT_TTL_MS = 3_000
"""A report outlives thirty missed intervals of 100 ms, then its replica is unknown, not idle."""

GATEWAY_TTL_MS = 1_500
"""A crashed gateway's load leaves the others' belief within this time."""

KV_STREAM_MAX_BATCHES = 10_000
"""Event batches kept per replica; a reader further behind reads the snapshot."""

BATCH_FIELD = b"b"
"""The one field of a stream entry: an encoded KvEventBatch."""


def check_fleet(name: str) -> None:
    """Raise ValueError for a fleet that no key could name: braces would make another hash tag."""
    if not name or not set(name).isdisjoint("{} \t\r\n"):
        raise ValueError(f"fleet is {name!r}, must be a name without braces or spaces")


@dataclass(frozen=True)
class RedisLayout:
    """The keys of one fleet."""

    fleet: str = "default"

    def _key(self, name: str) -> str:
        return f"wr:{{{self.fleet}}}:{name}"

    @property
    def replicas(self) -> str:
        """Set of replica ids that have reported."""
        return self._key("replicas")

    @property
    def gateways(self) -> str:
        """Set of gateway ids."""
        return self._key("gateways")

    def replica(self, replica_id: str) -> str:
        """An encoded LoadReport, expires after REPORT_TTL_MS."""
        return self._key(f"replica:{replica_id}")

    def gateway(self, gateway_id: str) -> str:
        """An encoded GatewayReport, expires after GATEWAY_TTL_MS."""
        return self._key(f"gateway:{gateway_id}")

    def kv_events(self, replica_id: str) -> str:
        """Stream of encoded KvEventBatch, capped at KV_STREAM_MAX_BATCHES."""
        return self._key(f"kv:{replica_id}")

    def kv_snapshot(self, replica_id: str) -> str:
        """An encoded KvSnapshot for readers that come late or missed a batch."""
        return self._key(f"kvsnap:{replica_id}")
