"""The settings of the store and of the loops that read it."""

from dataclasses import dataclass

from contract.options import check_numbers, option
from contract.redis_layout import check_fleet


@dataclass(frozen=True)
class StoreConfig:
    """`[store]`. Without ``redis_url`` a gateway knows the replicas it is told, and only itself."""

    redis_url: str = option(
        "",
        "",
        "redis://, rediss:// or unix:// URL where replicas report; empty: no store. "
        "WARMROUTE_REDIS_URL is read where it is not given",
        secret=True,
    )
    fleet: str = option("default", "", "name in the keys; several fleets can share one Redis")
    gateway_id: str = option("", "", "name of this gateway among others; empty: host and process")
    read_interval_s: float = option(
        0.1, "s", "between two reads of all reports, as often as replicas write them"
    )
    command_timeout_s: float = option(
        0.5, "s", "longest wait for Redis to answer or to connect; a healthy one takes 0.001"
    )
    reconnect_max_s: float = option(1.0, "s", "longest pause between attempts to reconnect")
    forget_after_s: float = option(
        60.0, "s", "after which an id without a report is taken out of the set"
    )
    replicas_max: int = option(2_000, "replicas", "ids read from one fleet; more are ignored")
    kv_block_s: float = option(0.1, "s", "longest wait inside Redis for KV events, at most 0.1")
    kv_pause_s: float = option(
        0.01, "s", "rest between two reads of KV events, so that a busy fleet sends them in batches"
    )
    kv_batches_max: int = option(256, "batches", "KV event batches of one replica in one read")
    kv_batches_per_read_max: int = option(
        4096, "batches", "KV event batches of all replicas in one read, at least one of each"
    )
    kv_resync_s: float = option(
        1.0, "s", "between two attempts to bring one replica's KV events up to date"
    )

    def kv_batches_of_each(self, num_replicas: int) -> int:
        """Return how many batches one of so many replicas has at most in one read."""
        share = max(1, self.kv_batches_per_read_max // max(1, num_replicas))
        return min(self.kv_batches_max, share)

    def __post_init__(self) -> None:
        check_numbers(self)
        if self.kv_block_s > 0.1:
            raise ValueError(f"kv_block_s is {self.kv_block_s}, must be at most 0.1")
        schemes = ("redis://", "rediss://", "unix://")
        if self.redis_url and not self.redis_url.startswith(schemes):
            scheme = self.redis_url.partition("://")[0] if "://" in self.redis_url else "no scheme"
            raise ValueError(f"redis_url has {scheme!r}, expected one of {', '.join(schemes)}")
        check_fleet(self.fleet)
