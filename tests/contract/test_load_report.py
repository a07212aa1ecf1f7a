"""What a replica says of itself: unknown is not zero, and another schema is refused loudly."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.load_report import (
    LOAD_REPORT_SCHEMA,
    GatewayReport,
    InFlight,
    LoadReport,
    ReportSchemaError,
    decode_gateway_report,
    decode_report,
    encode_gateway_report,
    encode_report,
)

NUMBERS = st.none() | st.integers(0, 2**40)


def make(**fields: Any) -> LoadReport:
    named: dict[str, Any] = {"replica_id": "a", "url": "http://a", "model": "m"}
    return LoadReport(**named, incarnation="i", sequence=1, **fields)


@given(waiting=NUMBERS, tokens=NUMBERS, speed=st.none() | st.floats(0, 1e9), drains=st.booleans())
def test_report_survives_the_wire_with_its_unknowns(
    waiting: int | None, tokens: int | None, speed: float | None, drains: bool
) -> None:
    report = make(
        waiting_requests=waiting,
        waiting_prefill_tokens=tokens,
        prefill_tokens_per_s=speed,
        draining=drains,
    )

    assert decode_report(encode_report(report)) == report


def test_fields_that_are_not_given_are_unknown() -> None:
    report = decode_report(encode_report(make()))

    assert report.waiting_requests is None
    assert report.kv_usage is None


@pytest.mark.parametrize(
    ("total", "used", "usage"),
    [(None, 5, None), (10, None, None), (10, 5, 0.5), (0, 0, 0.0), (10, 0, 0.0)],
)
def test_kv_usage_is_the_share_held(
    total: int | None, used: int | None, usage: float | None
) -> None:
    assert make(kv_blocks_total=total, kv_blocks_used=used).kv_usage == usage


def test_field_of_a_later_version_is_skipped() -> None:
    fields = msgspec.to_builtins(make()) | {"power_w": 300}

    assert decode_report(msgspec.msgpack.encode(fields)) == make()


def test_another_schema_is_refused_with_both_numbers_and_the_sender() -> None:
    data = encode_report(make(schema=LOAD_REPORT_SCHEMA + 1))

    with pytest.raises(ReportSchemaError, match=f"'a'.*{LOAD_REPORT_SCHEMA + 1}.*reads 1"):
        decode_report(data)


def test_schema_that_does_not_even_decode_is_refused_with_its_number() -> None:
    data = msgspec.msgpack.encode({"replica_id": "a", "schema": 7, "load": "high"})

    with pytest.raises(ReportSchemaError, match=r"'a'.*schema 7"):
        decode_report(data)


@given(data=st.binary(max_size=50))
def test_any_bytes_are_a_report_or_one_kind_of_error(data: bytes) -> None:
    try:
        decode_report(data)
    except ReportSchemaError:
        pass


def test_a_report_without_end_is_an_error_of_that_kind_too() -> None:
    fields = msgspec.to_builtins(make()) | {"more": None}
    data = msgspec.msgpack.encode(fields)[:-1] + b"\x91" * 100_000

    with pytest.raises(ReportSchemaError, match="recursion"):
        decode_report(data)


def test_gateway_report_survives_the_wire() -> None:
    report = GatewayReport("g", "i", 3, {"a": InFlight(2, 900)})

    assert decode_gateway_report(encode_gateway_report(report)) == report
