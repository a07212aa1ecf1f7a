"""A workload in stages, each of which begins when all requests of the one before have ended."""

from collections.abc import Iterable
from dataclasses import dataclass

from simulator.request import SimRequest, Workload
from simulator.workload.order import by_arrival, delayed


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Requests whose arrivals count from the stage's own beginning.

    The client of a benchmark may have at most ``in_flight_max`` requests under way; a request that
    finds no room waits in the client, and its time to first token counts from when it is sent.
    """

    name: str
    requests: tuple[SimRequest, ...]
    duration_us: int | None = None  # of its arrivals, as planned; none: up to the last one
    in_flight_max: int | None = None
    warm_up: bool = False  # not to be counted

    @property
    def planned_us(self) -> int:
        """How long the stage sends requests."""
        if self.duration_us is not None:
            return self.duration_us
        return max((request.arrival_us for request in self.requests), default=0)


@dataclass(frozen=True, slots=True)
class StagedWorkload:
    """Stages in order; a workload without a ladder has one."""

    name: str
    provenance: str
    stages: tuple[Stage, ...]

    def joined(self) -> Workload:
        """Return one workload whose stages follow by the clock, whether or not they have ended.

        That is another experiment: what an overloaded stage left behind is still there in the next.
        """
        if len(self.stages) == 1:
            return Workload(self.name, self.provenance, self.stages[0].requests)
        requests: list[SimRequest] = []
        start_us = 0
        for stage in self.stages:
            requests += (delayed(request, start_us) for request in stage.requests)
            start_us += stage.planned_us
        provenance = f"{self.provenance}; stages by the clock, not drained"
        return Workload(self.name, provenance, tuple(by_arrival(requests)))


def one_stage(name: str, provenance: str, requests: Iterable[SimRequest]) -> StagedWorkload:
    """Return a workload of a single stage."""
    return StagedWorkload(name, provenance, (Stage(name=name, requests=tuple(requests)),))
