"""Faults in what a replica says of itself: load reports and batches of KV events."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from contract.kv_events import KvEventBatch
from contract.load_report import LOAD_REPORT_SCHEMA, LoadReport
from replicas.server.fault_injector import FaultInjector
from replicas.server.faults import (
    AbsurdLoad,
    DropLoadReports,
    Figures,
    LoseKvEvents,
    Numbers,
    ReorderKvEvents,
    StaleLoad,
)

_COUNTS = (
    *("waiting_requests", "running_requests", "waiting_prefill_tokens", "kv_blocks_total"),
    *("kv_blocks_used", "cached_tokens_total", "prompt_tokens_total", "step_time_us"),
)
_OF_LOAD = ("waiting_requests", "running_requests", "waiting_prefill_tokens", "kv_blocks_used")

OVERFULL_TIMES = 10


class ReportFaults:
    """What becomes of reports and batches on their way to Redis."""

    def __init__(self, faults: FaultInjector) -> None:
        self._faults = faults
        self._repeated: tuple[StaleLoad, LoadReport] | None = None
        self._held: KvEventBatch | None = None  # goes after the next one

    def load_report(self, report: LoadReport) -> LoadReport | None:
        """Return what is published instead of ``report``, None for nothing."""
        key = str(report.sequence)
        if self._faults.strike(DropLoadReports, key):
            return None
        absurd = self._faults.strike(AbsurdLoad, key)
        if absurd is not None:
            return replace(report, **absurd_figures(report)[absurd.figures])
        return self._made_stale(report)

    def kv_batches(self, batch: KvEventBatch) -> list[KvEventBatch]:
        """Return what is published, in this order, when it is ``batch``'s turn."""
        key = str(batch.sequence)
        lost = self._faults.strike(LoseKvEvents, key)
        if lost is not None:
            return [] if lost.noticed else [replace(batch, events=[])]
        held, self._held = self._held, None
        if held is not None and held.incarnation == batch.incarnation:
            return [batch, held]
        if self._faults.strike(ReorderKvEvents, key):
            self._held = batch
            return []
        return [batch]

    def _made_stale(self, report: LoadReport) -> LoadReport:
        stale = self._faults.strike(StaleLoad, str(report.sequence))
        if stale is None:
            return report
        if self._repeated is None or self._repeated[0] is not stale:  # set anew
            self._repeated = (stale, report)
        _, old = self._repeated
        if stale.numbers is Numbers.OLD:
            return old
        return replace(old, sequence=report.sequence, incarnation=report.incarnation)


def absurd_figures(report: LoadReport) -> Mapping[Figures, Mapping[str, Any]]:
    """Return, for each absurdity, the fields of ``report`` that it replaces."""
    num_blocks = (report.kv_blocks_total or 1) * OVERFULL_TIMES
    return {
        Figures.HUGE: dict.fromkeys(_COUNTS, 2**62) | {"prefill_tokens_per_s": 2.0**62},
        Figures.NEGATIVE: dict.fromkeys(_COUNTS, -1) | {"prefill_tokens_per_s": -1.0},
        Figures.NOT_A_NUMBER: {"prefill_tokens_per_s": float("nan")},
        Figures.OVERFULL: {"kv_blocks_used": num_blocks},
        Figures.IDLE: dict.fromkeys(_OF_LOAD, 0),
        Figures.OTHER_SCHEMA: {"schema": LOAD_REPORT_SCHEMA + 1},
    }
