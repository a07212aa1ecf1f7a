"""What a replica says of itself every report interval, and what a gateway says of its own load.

Unknown is None, never zero: a replica that cannot tell how many requests wait must not look idle.
Counters ending in ``_total`` only grow within one incarnation.
"""

import msgspec

LOAD_REPORT_SCHEMA = 1


class LoadReport(msgspec.Struct, frozen=True, kw_only=True):
    """One replica's state at the moment ``sequence`` was counted.

    ``incarnation`` is new at every start of the process: a restart under the same id is a new
    replica with a cold cache. ``hash_scheme`` is None for a replica that publishes no KV events;
    else its blocks are chains under that scheme over ``block_bytes`` bytes of rendered prompt
    (or ``block_size`` token ids). A chain's root names the model, or the adapter that is asked for
    in its place: ``adapters`` are those of the ``aliases`` that are not names of the model.
    """

    replica_id: str
    url: str
    model: str
    incarnation: str
    sequence: int
    schema: int = LOAD_REPORT_SCHEMA
    aliases: list[str] = []
    adapters: list[str] = []
    hash_scheme: str | None = None
    block_size: int | None = None  # tokens
    block_bytes: int | None = None  # bytes of rendered prompt that make one block
    waiting_requests: int | None = None
    running_requests: int | None = None
    waiting_prefill_tokens: int | None = None  # prompt tokens accepted but not yet computed
    kv_blocks_total: int | None = None
    kv_blocks_used: int | None = None  # held by sequences; cached and unheld blocks do not count
    cached_tokens_total: int | None = None
    prompt_tokens_total: int | None = None
    step_time_us: int | None = None  # the last step, on the wall clock
    prefill_tokens_per_s: float | None = None  # what full prefill steps reach, on the wall clock
    draining: bool = False
    step_tokens: int | None = None  # that one step computes at most
    step_share: float | None = None  # 0..1 of a full step's time, taken whatever it computes

    @property
    def kv_usage(self) -> float | None:
        """Share of KV blocks held by sequences, 0..1."""
        if self.kv_blocks_total is None or self.kv_blocks_used is None:
            return None
        return self.kv_blocks_used / self.kv_blocks_total if self.kv_blocks_total else 0.0


class InFlight(msgspec.Struct, frozen=True, array_like=True):
    """What one gateway has under way on one replica."""

    requests: int
    ahead_tokens: int  # uncached prompt tokens whose first byte has not come back


class GatewayReport(msgspec.Struct, frozen=True):
    """One gateway's own load by replica id; its key expires with the gateway."""

    gateway_id: str
    incarnation: str
    sequence: int
    in_flight: dict[str, InFlight]


class ReportSchemaError(ValueError):
    """A report of another schema: found, expected, and who sent it are in the message."""


class _Header(msgspec.Struct):
    replica_id: str = "?"
    schema: int = 0


UNREADABLE = (msgspec.MsgspecError, RecursionError)
"""What bytes of a stranger may be answered with: one value can hold another a thousand deep."""

encode_report = msgspec.msgpack.Encoder().encode
_decode_header = msgspec.msgpack.Decoder(_Header).decode
_decode_report = msgspec.msgpack.Decoder(LoadReport).decode
encode_gateway_report = msgspec.msgpack.Encoder().encode
decode_gateway_report = msgspec.msgpack.Decoder(GatewayReport).decode


def decode_report(data: bytes) -> LoadReport:
    """Decode one report. Raises ReportSchemaError, naming both schemas, for any other."""
    try:
        report = _decode_report(data)
    except UNREADABLE as error:
        header = _peek(data)
        if header is None:
            raise ReportSchemaError(f"not a load report: {error}") from error
        raise ReportSchemaError(
            f"replica {header.replica_id!r} sent a load report of schema {header.schema} that "
            f"does not decode as schema {LOAD_REPORT_SCHEMA}: {error}"
        ) from error
    if report.schema != LOAD_REPORT_SCHEMA:
        raise ReportSchemaError(
            f"replica {report.replica_id!r} sends load reports of schema {report.schema}, "
            f"this gateway reads {LOAD_REPORT_SCHEMA}; run the same version on both sides"
        )
    return report


def _peek(data: bytes) -> _Header | None:
    try:
        return _decode_header(data)
    except UNREADABLE:
        return None
