"""The settings of routing: the index, beliefs, leases, health, retries and the queue."""

from dataclasses import dataclass

from contract.options import check_numbers, check_shares, option

CENTURY_S = 100 * 365.25 * 86_400
"""The longest time that is counted: ``inf`` seconds have no microseconds."""


def micros(seconds: float) -> int:
    """Return ``seconds``, as settings have them, in the cores' whole microseconds."""
    return round(min(seconds, CENTURY_S) * 1_000_000)


@dataclass(frozen=True)
class RoutingConfig:
    """`[routing]`. Times in seconds; the cores turn them into microseconds once."""

    index_block_bytes: int = option(
        512, "bytes", "block of prompt in the index of replicas that publish no KV events"
    )
    bytes_per_token: float = option(
        4.0, "bytes", "prompt bytes that one token stands for; English text has about 4"
    )
    prefix_key_blocks: int = option(
        2, "blocks", "blocks of the prompt's beginning that a hash policy looks at"
    )
    prefill_tokens_per_s: float = option(
        8000.0, "tokens/s", "prefill speed of a replica that does not report its own"
    )
    learn_rates: bool = option(
        True, "", "learn from each replica's answers how slow it is beside its peers"
    )
    rate_window_s: float = option(
        120.0, "s", "age from which an answer says nothing of its replica's speed any more"
    )
    rate_dead_band: float = option(
        1.4, "x", "up to so many times as slow, or as fast, as its peers a replica counts as equal"
    )
    index_entries_max: int = option(
        10_000_000, "entries", "blocks known over all replicas; the oldest go first"
    )
    index_bytes_max: int = option(
        268_435_456,
        "bytes",
        "memory of the index: 16 bytes a block, and 600 for each part of a prompt that came apart",
    )
    learned_tokens_max: int = option(
        400_000, "tokens", "cache of a replica that does not report its KV capacity"
    )
    index_answers: bool = option(
        True,
        "",
        "count an answer as part of the next turn's prompt, on replicas that publish no KV events",
    )
    prediction_ttl_s: float = option(
        30.0, "s", "how long a dispatched prompt counts as cached before a KV event confirms it"
    )
    load_trust_s: float = option(
        0.2,
        "s",
        "age at which others' load, as last told, counts for a third beside its mean; a queue of "
        "prompts is worked off in about that time",
    )
    report_stale_s: float = option(
        1.0,
        "s",
        "age from which a load report earns no credit for a cache known by KV events; ten report "
        "intervals",
    )
    report_dead_s: float = option(
        3.0, "s", "age from which its replica gets no traffic while others report"
    )
    report_forget_s: float = option(
        60.0, "s", "how long a replica may be missing from the store before it is forgotten"
    )
    gateway_report_ttl_s: float = option(
        1.5, "s", "age from which the load of the other gateways is no longer believed"
    )
    lease_ttl_s: float = option(
        900.0, "s", "time after which a lease is taken back that its request does not renew"
    )
    in_flight_max: int = option(
        0, "requests", "requests on one replica from which others are queued; 0: no limit"
    )
    queue_max: int = option(1000, "requests", "requests that may wait for a replica's slot")
    queue_timeout_s: float = option(30.0, "s", "longest wait in the queue, then 503")
    retry_max: int = option(2, "attempts", "attempts beyond the first, each on another replica")
    retry_budget: float = option(
        0.2, "0..1", "share of requests that may be retried, over the whole fleet"
    )
    retry_floor_per_s: float = option(
        2.0, "retries/s", "retries always allowed, so that a quiet fleet can retry at all"
    )
    retry_backoff_s: float = option(
        0.01, "s", "longest wait before the first retry; doubles with each further one"
    )
    retry_backoff_max_s: float = option(0.25, "s", "longest wait before any retry")
    breaker_failures: int = option(
        5, "failures", "transport errors, time-outs or 5xx in a row that eject a replica"
    )
    breaker_window_s: float = option(10.0, "s", "time over which the share of failures is taken")
    breaker_window_share: float = option(
        0.5, "0..1", "share of failures in the window that ejects a replica"
    )
    breaker_window_requests: int = option(
        20, "requests", "answers in the window below which the share says nothing"
    )
    breaker_cooldown_s: float = option(
        5.0, "s", "first time out of the fleet; doubles with each ejection in a row"
    )
    breaker_cooldown_max_s: float = option(60.0, "s", "longest time out of the fleet")
    max_ejected: float = option(
        0.9,
        "0..1",
        "share of a model's replicas that may be ejected; where more are, something else is wrong "
        "and all are used. 0.9: up to 10 replicas all but one",
    )
    slow_start_s: float = option(
        5.0, "s", "time over which a replica that was ejected or restarted regains its traffic"
    )
    slow_start_share: float = option(
        0.1, "0..1", "share of the requests that it may have at the beginning of this time"
    )
    model_missing_s: float = option(
        10.0,
        "s",
        "how long a replica gets no request for a model that the fleet serves, and that it has "
        "answered 404 for",
    )
    probe_failures: int = option(3, "probes", "failed probes in a row that eject a replica")
    probe_answers: int = option(2, "probes", "answered probes in a row that take it back")
    probe_silence_s: float = option(
        30.0, "s", "time without a byte from a replica from which a late probe counts as failed"
    )
    back_pressure_s: float = option(
        0.5, "s", "how long a replica that answers 429 or 503 is avoided; doubles in a row"
    )
    back_pressure_max_s: float = option(8.0, "s", "longest time such a replica is avoided")

    def __post_init__(self) -> None:
        self._check_signs()
        if self.index_block_bytes % 4:
            # Prompts are padded to 4-byte words; a block that cuts a word would match by chance.
            raise ValueError(f"index_block_bytes is {self.index_block_bytes}, must be 4 n")
        if self.report_dead_s < self.report_stale_s:
            raise ValueError(
                f"report_dead_s is {self.report_dead_s}, must be at least report_stale_s, "
                f"which is {self.report_stale_s}"
            )
        if self.rate_dead_band < 1:
            raise ValueError(f"rate_dead_band is {self.rate_dead_band}, must be 1 or more")
        for longest, first in (
            ("breaker_cooldown_max_s", "breaker_cooldown_s"),
            ("back_pressure_max_s", "back_pressure_s"),
            ("retry_backoff_max_s", "retry_backoff_s"),
        ):
            if getattr(self, longest) < getattr(self, first):
                raise ValueError(f"{longest} must be at least {first}")
        check_shares(
            self, "retry_budget", "breaker_window_share", "max_ejected", "slow_start_share"
        )

    def _check_signs(self) -> None:
        may_be_zero = {"in_flight_max", "queue_max", "retry_max", "retry_budget"}
        may_be_zero |= {"max_ejected", "slow_start_s", "slow_start_share", "model_missing_s"}
        may_be_zero |= {"retry_floor_per_s", "retry_backoff_s", "retry_backoff_max_s"}
        check_numbers(self, may_be_zero=may_be_zero)
