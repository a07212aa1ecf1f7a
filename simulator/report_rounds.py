"""When replicas report next: every interval, as in production, less what nobody would look at.

A report matters to the decisions made before the next one is read, and the peak of a gateway's own
ledger is kept for two reports more. Where it is known when requests will come, rounds are left out
that are followed by three others before the first of them. Every decision is the same.
"""

from bisect import bisect_left

from simulator.fleet_spec import FleetSpec
from simulator.workload.stages import Stage

ROUNDS_KEPT = 3


class ReportRounds:
    """The times of one run's rounds of reports."""

    def __init__(self, spec: FleetSpec, stages: tuple[Stage, ...]) -> None:
        self._interval_us = spec.timing.report_interval_us
        self._arrivals_us = _known_arrivals(spec, stages)
        self._lead_us = ROUNDS_KEPT * (self._interval_us or 0) + spec.timing.report_delay_us

    def next_us(self, now_us: int) -> int | None:
        """Return when the round after the one at ``now_us`` is due; None: there is none."""
        interval_us, arrivals_us = self._interval_us, self._arrivals_us
        if interval_us is None:
            return None
        due_us = now_us + interval_us
        if arrivals_us is None:
            return due_us
        index = bisect_left(arrivals_us, due_us)
        if index == len(arrivals_us):
            return None
        spare_us = arrivals_us[index] - self._lead_us - due_us
        return due_us + max(0, spare_us // interval_us * interval_us)


def _known_arrivals(spec: FleetSpec, stages: tuple[Stage, ...]) -> list[int] | None:
    """Return when requests will be decided on, in order; None where that depends on the run."""
    if len(stages) != 1 or spec.faults or spec.timing.report_loss or spec.autoscale is not None:
        return None  # a retry, or a replica that joins, may need a report at any time
    if spec.routing.in_flight_max or stages[0].in_flight_max is not None:
        return None  # who waits is sent when somebody ends
    if any(request.after is not None for request in stages[0].requests):
        return None
    return sorted(request.arrival_us for request in stages[0].requests)
