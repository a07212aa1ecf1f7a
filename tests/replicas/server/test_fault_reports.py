"""What Redis is told instead of the truth, by fault; without one, the truth itself."""

import math
from typing import Any

import pytest
from msgspec.structs import replace

from contract.kv_events import AllBlocksCleared, KvEventBatch
from contract.load_report import LoadReport, ReportSchemaError, decode_report, encode_report
from replicas.server.fault_injector import FaultInjector
from replicas.server.fault_reports import ReportFaults
from replicas.server.faults import (
    AbsurdLoad,
    DropLoadReports,
    Figures,
    LoseKvEvents,
    Numbers,
    ReorderKvEvents,
    StaleLoad,
)
from replicas.server.metrics import ReplicaMetrics


@pytest.fixture
def faults() -> FaultInjector:
    return FaultInjector(ReplicaMetrics(), 0, "r1")


@pytest.fixture
def reports(faults: FaultInjector) -> ReportFaults:
    return ReportFaults(faults)


def report(sequence: int, **more: Any) -> LoadReport:
    """Return a report whose load is its number."""
    fields: dict[str, Any] = {
        "replica_id": "r1",
        "url": "http://r1:8000",
        "model": "m",
        "incarnation": "i",
        "sequence": sequence,
        "waiting_requests": sequence,
        "running_requests": sequence,
        "kv_blocks_total": 100,
        "kv_blocks_used": sequence,
    }
    return LoadReport(**(fields | more))


def batch(sequence: int, incarnation: str = "i") -> KvEventBatch:
    return KvEventBatch(incarnation, sequence, [AllBlocksCleared()])


def test_without_a_fault_all_is_published_as_it_is(reports: ReportFaults) -> None:
    true, sent = report(3), batch(3)

    assert reports.load_report(true) is true
    assert reports.kv_batches(sent) == [sent]


def test_a_share_of_reports_is_dropped(faults: FaultInjector, reports: ReportFaults) -> None:
    faults.set([DropLoadReports(share=0.5)])

    published = [reports.load_report(report(number)) for number in range(1_000)]

    dropped = published.count(None)
    assert dropped == faults.num_struck(DropLoadReports)
    assert 400 < dropped < 600


def test_stale_figures_come_under_new_numbers_or_as_the_same_report(
    faults: FaultInjector, reports: ReportFaults
) -> None:
    faults.set([StaleLoad(numbers=Numbers.NEW)])
    new = [reports.load_report(report(number)) for number in (1, 2, 3)]
    faults.set([StaleLoad(numbers=Numbers.OLD)])
    old = [reports.load_report(report(number)) for number in (4, 5)]
    faults.clear()
    true = reports.load_report(report(6))

    assert new == [replace(report(1), sequence=number) for number in (1, 2, 3)]
    assert old == [report(4), report(4)]
    assert true == report(6)


def test_a_stale_report_is_of_the_incarnation_that_sends_it(
    faults: FaultInjector, reports: ReportFaults
) -> None:
    faults.set([StaleLoad(numbers=Numbers.NEW)])
    reports.load_report(report(7))

    published = reports.load_report(report(0, incarnation="next"))

    assert published == replace(report(7), sequence=0, incarnation="next")


@pytest.mark.parametrize("figures", Figures)
def test_absurd_figures_pass_the_wire(
    figures: Figures, faults: FaultInjector, reports: ReportFaults
) -> None:
    faults.set([AbsurdLoad(figures=figures)])

    published = reports.load_report(report(5))
    assert published is not None
    data = encode_report(published)

    if figures is Figures.OTHER_SCHEMA:
        with pytest.raises(ReportSchemaError):
            decode_report(data)
        return
    read = decode_report(data)
    speed = read.prefill_tokens_per_s
    load = (read.waiting_requests, read.running_requests, read.kv_blocks_used)
    assert (read.replica_id, read.sequence) == ("r1", 5)
    if figures is Figures.NOT_A_NUMBER:
        assert speed is not None
        assert math.isnan(speed)
    else:
        assert load == {
            Figures.HUGE: (2**62,) * 3,
            Figures.NEGATIVE: (-1,) * 3,
            Figures.OVERFULL: (5, 5, 1_000),
            Figures.IDLE: (0,) * 3,
        }.get(figures)


def test_lost_batches_leave_a_gap_or_their_number(
    faults: FaultInjector, reports: ReportFaults
) -> None:
    faults.set([LoseKvEvents(noticed=True)])
    gone = reports.kv_batches(batch(0))
    faults.set([LoseKvEvents(noticed=False)])
    empty = reports.kv_batches(batch(1))

    assert gone == []
    assert empty == [KvEventBatch("i", 1, [])]
    assert faults.num_struck(LoseKvEvents) == 2


def test_reordered_batches_go_after_the_next_one(
    faults: FaultInjector, reports: ReportFaults
) -> None:
    faults.set([ReorderKvEvents()])

    published = [sent.sequence for number in range(5) for sent in reports.kv_batches(batch(number))]
    faults.clear()
    published += [sent.sequence for sent in reports.kv_batches(batch(5))]

    assert published == [1, 0, 3, 2, 5, 4]


def test_a_batch_of_an_ended_incarnation_is_not_kept(
    faults: FaultInjector, reports: ReportFaults
) -> None:
    faults.set([ReorderKvEvents()])
    reports.kv_batches(batch(8))
    faults.clear()

    assert reports.kv_batches(batch(0, "next")) == [batch(0, "next")]
