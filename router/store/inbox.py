"""Decodes what others left in the store, and remembers when each report was first seen.

Rule: nothing that a replica or another gateway writes may reach the cores unless every number in
it is finite and 0 or more, a share is at most 1 and every text is short; the cores compute with
these.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from contract.load_report import (
    UNREADABLE,
    GatewayReport,
    LoadReport,
    ReportSchemaError,
    decode_gateway_report,
    decode_report,
)
from router.replica_entry import TEXT_LENGTH_MAX, url_complaint
from router.store.seam import SeenReport

NAMES_MAX = 1_024
"""Of one kind: an engine may serve hundreds of adapters."""


@dataclass(slots=True)
class _Seen:
    data: bytes
    report: LoadReport | ReportSchemaError
    first_us: int


class ReportInbox:
    """Reports by replica id. A report that has not changed is not decoded again."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def take(self, values: Mapping[str, bytes], now_us: int) -> list[SeenReport]:
        """Return every value as a report with its age, and forget the ids that are not there."""
        seen = self._seen
        for replica_id, data in values.items():
            last = seen.get(replica_id)
            if last is None or last.data != data:
                before = None if last is None else last.report
                seen[replica_id] = _Seen(data, _decode(replica_id, data, before), now_us)
        for replica_id in seen.keys() - values.keys():
            del seen[replica_id]
        return [
            SeenReport(replica_id, entry.report, now_us - entry.first_us)
            for replica_id, entry in seen.items()
        ]


def gateway_reports(values: Mapping[str, bytes]) -> list[GatewayReport]:
    """Return those of ``values`` (by gateway id) that are sound."""
    reports = []
    for gateway_id, data in values.items():
        try:
            report = decode_gateway_report(data)
        except UNREADABLE:
            continue
        loads = report.in_flight.values()
        if report.gateway_id == gateway_id and all(
            load.requests >= 0 and load.ahead_tokens >= 0 for load in loads
        ):
            reports.append(report)
    return reports


Decoded = LoadReport | ReportSchemaError


def _decode(replica_id: str, data: bytes, before: Decoded | None) -> Decoded:
    try:
        report = decode_report(data)
    except ReportSchemaError as error:
        return error
    complaint = _number_complaint(report)
    if complaint is None and not (isinstance(before, LoadReport) and _same_texts(report, before)):
        complaint = _text_complaint(replica_id, report)
    if complaint is None:
        return _without_overuse(report)
    return ReportSchemaError(f"the load report of replica {replica_id!r} {complaint}")


def _without_overuse(report: LoadReport) -> LoadReport:
    """Return ``report`` with a cache that is at most full: no reason to lose the replica."""
    used, total = report.kv_blocks_used, report.kv_blocks_total
    if used is None or total is None or used <= total:
        return report
    return msgspec.structs.replace(report, kv_blocks_used=total)


def _number_complaint(report: LoadReport) -> str | None:
    for name in _NUMBERS:
        value = getattr(report, name)
        if value is not None and not 0 <= value < math.inf:  # NaN is not
            return f"has {name} = {value}, expected a finite number, 0 or more"
    return None


def _same_texts(report: LoadReport, before: LoadReport) -> bool:
    """Say whether the texts were looked at with the report before, as they are at most times."""
    return all(getattr(report, name) == getattr(before, name) for name in _TEXTS)


def _text_complaint(replica_id: str, report: LoadReport) -> str | None:
    if report.replica_id != replica_id:
        return f"is of {report.replica_id[:TEXT_LENGTH_MAX]!r}"
    names = [*report.aliases, *report.adapters]
    if max(len(report.aliases), len(report.adapters)) > NAMES_MAX:
        kinds = f"{len(report.aliases)} aliases and {len(report.adapters)} adapters"
        return f"has {kinds}, expected at most {NAMES_MAX} of each"
    for text in (report.replica_id, report.model, report.incarnation, *names):
        if len(text) > TEXT_LENGTH_MAX:
            return f"has a text of more than {TEXT_LENGTH_MAX} characters"
        if not text.isprintable():
            return "has a text that is not printable"
    return url_complaint(report.url)


_TEXTS = ("replica_id", "url", "model", "incarnation", "aliases", "adapters")
_NUMBERS = (
    *("block_bytes", "block_size", "cached_tokens_total", "kv_blocks_total", "kv_blocks_used"),
    *("prefill_tokens_per_s", "prompt_tokens_total", "running_requests", "sequence"),
    *("step_share", "step_time_us", "step_tokens", "waiting_prefill_tokens", "waiting_requests"),
)
