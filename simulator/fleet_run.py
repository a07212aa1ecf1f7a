"""Runs a workload through a fleet in virtual time, with the code that serves traffic."""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from contract.kv_events import KvEventBatch
from contract.load_report import LoadReport
from router.core.policy import draw
from simulator.autoscaler import Autoscaler, ScaleStep
from simulator.event_inbox import EventInbox
from simulator.event_loop import EventLoop, Phase
from simulator.fleet_spec import Fault, FaultKind, FleetSpec
from simulator.outcome import Outcome
from simulator.report_rounds import ReportRounds
from simulator.request import SimRequest, Workload
from simulator.sim_gateway import SimGateway
from simulator.sim_replica import SimReplica
from simulator.timeline import Timeline
from simulator.workload.stages import Stage, StagedWorkload

_DRAW_MAX = 2**64


@dataclass(frozen=True, slots=True)
class EngineTotals:
    """What the engines did in one stage."""

    prefill_tokens: dict[str, int]  # computed, by replica
    preemptions: int
    token_gaps: Counter[int]  # us between two tokens of an answer, of all whole answers


class FleetRun:
    """One run. ``outcomes`` are in the order of their ends, those of one moment by request id.

    A stage begins when all requests of the one before have ended; the fleet stays as it is.
    ``timeline`` is given samples of all replicas; ``on_end`` is called after each outcome.
    """

    def __init__(
        self,
        spec: FleetSpec,
        workload: Workload | StagedWorkload,
        timeline: Timeline | None = None,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self.spec = spec
        self.timeline = timeline
        self.stage_totals: list[EngineTotals] = []
        self.scale_steps: list[ScaleStep] = []
        self.stages = _stages_of(workload)
        self._rounds = ReportRounds(spec, self.stages)
        self.loop = EventLoop()
        self.outcomes: list[Outcome] = []
        self._inbox: EventInbox[SimReplica] | None = (
            EventInbox(spec.timing.event_delay_us) if _can_wait(spec) else None
        )
        self.replicas = {
            each.replica_id: SimReplica(each, self.loop, self._publish, self._inbox)
            for each in spec.replicas
        }
        self.gateways = [
            SimGateway(spec, self.loop, self.replicas, self._end, self._read_events)
            for _ in range(spec.num_gateways)
        ]
        self._on_end = on_end
        self._scaler = (
            Autoscaler(spec.autoscale, len(spec.replicas)) if spec.autoscale is not None else None
        )
        self._stage_index = -1
        self._num_open = 0  # requests of the stage that have not ended
        self._num_under_way = 0
        self._held: deque[SimRequest] = deque()  # in the client, for lack of room
        self._waiting_for: dict[str, list[SimRequest]] = {}
        self._next_gateway = 0
        self._num_rounds = 0

    def run(self) -> list[Outcome]:
        """Run until every request has ended; return what became of them."""
        for fault in self.spec.faults:
            self.loop.at(fault.at_us, Phase.END, self._strike, fault)
        for each in self.spec.replicas:
            if each.joins_us:
                replica = self.replicas[each.replica_id]
                self.loop.at(each.joins_us, Phase.END, self._welcome, replica)
        self._report()
        self._sample()
        self._autoscale()
        self._begin_next_stage()
        if self._stage_index < len(self.stages):
            self.loop.run()
        assert self._stage_index == len(self.stages), f"{self._num_open} requests never ended"
        self._settle()
        self.outcomes.sort(key=lambda each: (each.ended_us, each.request.request_id))
        return self.outcomes

    def _begin_next_stage(self) -> None:
        """Begin the next stage that has requests, or be done."""
        if self._stage_index >= 0:
            self.stage_totals.append(self._totals())
        self._stage_index += 1
        if self._stage_index == len(self.stages):
            self.loop.stop()
            return
        requests, now_us = self.stages[self._stage_index].requests, self.loop.now_us
        self._num_open = len(requests)
        for request in requests:
            if request.after is None:
                self.loop.at(now_us + request.arrival_us, Phase.ARRIVE, self._arrive, request)
            else:
                self._waiting_for.setdefault(request.after, []).append(request)
        if not requests:
            self._begin_next_stage()

    def _settle(self) -> None:
        """Let what is still on its way to a gateway arrive."""
        timing = self.spec.timing
        settled_us = self.loop.now_us + timing.event_delay_us + timing.snapshot_delay_us + 1
        self.loop.at(settled_us, Phase.END, self.loop.stop)
        self.loop.run()
        self._read_events()

    def _arrive(self, request: SimRequest) -> None:
        self._held.append(request)
        self._send_held()

    def _send_held(self) -> None:
        """Send what the client has held back, in order, as far as its limit allows."""
        most = self.stages[self._stage_index].in_flight_max
        while self._held and (most is None or self._num_under_way < most):
            self._send(self._held.popleft())

    def _send(self, request: SimRequest) -> None:
        self._num_under_way += 1
        gateway = self.gateways[self._next_gateway]
        self._next_gateway = (self._next_gateway + 1) % len(self.gateways)
        gateway.receive(request)

    def _end(self, outcome: Outcome) -> None:
        outcome.stage_index, outcome.ended_us = self._stage_index, self.loop.now_us
        self.outcomes.append(outcome)
        self._num_open -= 1
        self._num_under_way -= 1
        self._on_end()
        now_us = self.loop.now_us
        for request in self._waiting_for.pop(outcome.request.request_id, ()):
            self.loop.at(now_us + request.think_us, Phase.ARRIVE, self._arrive, request)
        if self._held:
            self.loop.at(now_us, Phase.ARRIVE, self._send_held)
        if not self._num_open:
            self.loop.at(now_us, Phase.BEGIN, self._begin_next_stage)

    def _report(self) -> None:
        """Publish all reports, which gateways read after the delay; then again and again."""
        timing, now_us = self.spec.timing, self.loop.now_us
        delay_us = timing.report_delay_us if now_us else 0  # the fleet is known at the start
        self._num_rounds += 1
        reports = [
            replica.report()
            for replica in self.replicas.values()
            if replica.is_up
            and replica.spec.joins_us <= now_us
            and not self._loses(timing.report_loss, f"report {replica.spec.replica_id}")
        ]
        self.loop.at(now_us + delay_us, Phase.END, self._read, reports, delay_us)
        next_us = self._rounds.next_us(now_us)
        if next_us is not None:
            self.loop.at(next_us, Phase.END, self._report)

    def _tell(self, replica: SimReplica) -> None:
        """Let a replica report out of turn, when it joins and when it begins to leave."""
        delay_us = self.spec.timing.report_delay_us
        due_us = self.loop.now_us + delay_us
        self.loop.at(due_us, Phase.END, self._read, [replica.report()], delay_us)

    def _welcome(self, replica: SimReplica) -> None:
        if replica.is_up:
            self._tell(replica)

    def _read(self, reports: list[LoadReport], age_us: int) -> None:
        now_us = self.loop.now_us
        is_live = self.spec.timing.report_interval_us is not None
        self._read_events()
        for gateway in self.gateways:
            for report in reports:
                gateway.fleet.on_report(report, age_us, now_us)
            if is_live:
                gateway.fleet.tick(now_us)
                gateway.place_queued()
                gateway.expire_queued()
        if is_live and len(self.gateways) > 1:
            self._exchange_ledgers()

    def _exchange_ledgers(self) -> None:
        now_us = self.loop.now_us
        own = [
            gateway.fleet.own_report(f"gateway-{index}", "0", self._num_rounds)
            for index, gateway in enumerate(self.gateways)
        ]
        for gateway in self.gateways:
            gateway.fleet.on_gateway_reports(own, now_us)

    def _read_events(self) -> None:
        """Let the gateways take in what has reached them by now, where they have not yet."""
        if self._inbox is None:
            return
        for replica, batch in self._inbox.read(self.loop.now_us):
            for gateway in self.gateways:
                gateway.take_events(replica, batch)

    def _publish(self, replica: SimReplica, batch: KvEventBatch) -> None:
        timing = self.spec.timing
        if self._loses(timing.event_loss, f"events {batch.incarnation} {batch.sequence}"):
            return
        due_us = self.loop.now_us + timing.event_delay_us
        for gateway in self.gateways:
            if timing.event_delay_us:
                self.loop.at(due_us, Phase.END, gateway.take_events, replica, batch)
            else:
                gateway.take_events(replica, batch)

    def _sample(self) -> None:
        if self.timeline is None:
            return
        now_us = self.loop.now_us
        samples = {
            replica_id: replica.sample()
            for replica_id, replica in self.replicas.items()
            if replica.is_up and replica.spec.joins_us <= now_us
        }
        self.loop.at(self.timeline.take(now_us, samples), Phase.END, self._sample)

    def _autoscale(self) -> None:
        if self._scaler is None:
            return
        rule, now_us = self._scaler.rule, self.loop.now_us
        staying = [replica for replica in self.replicas.values() if not replica.is_leaving]
        desired = self._scaler.desired(now_us, self._num_under_way)
        joining = [self._join() for _ in range(desired - len(staying))]
        leaving = staying[desired:]  # who came last goes first
        for replica in leaving:
            is_known = replica.is_up and replica.spec.joins_us <= now_us
            replica.leave()
            if is_known:
                self._tell(replica)
        if joining or leaving:
            names = tuple(replica.spec.replica_id for replica in leaving)
            step = ScaleStep(now_us, self._num_under_way, tuple(joining), names)
            self.scale_steps.append(step)
        self.loop.at(now_us + round(rule.interval_s * 1e6), Phase.END, self._autoscale)

    def _join(self) -> str:
        """Ask for one more replica; return its id."""
        assert self._scaler is not None
        number, patterns = len(self.replicas), self.spec.replicas
        joins_us = self.loop.now_us + round(self._scaler.rule.cold_start_s * 1e6)
        pattern = patterns[number % len(patterns)]
        spec = replace(pattern, replica_id=f"replica-{number}", joins_us=joins_us)
        assert spec.replica_id not in self.replicas
        replica = SimReplica(spec, self.loop, self._publish)
        self.replicas[spec.replica_id] = replica
        self.loop.at(joins_us, Phase.END, self._welcome, replica)
        return spec.replica_id

    def _totals(self) -> EngineTotals:
        """Return what the engines have done since the stage before."""
        prefill = {
            replica_id: sum(stats.computed_prefill_tokens_total for stats in replica.lives)
            for replica_id, replica in self.replicas.items()
        }
        preemptions = sum(
            stats.preemptions_total for each in self.replicas.values() for stats in each.lives
        )
        gaps: Counter[int] = Counter()
        for replica in self.replicas.values():
            gaps += replica.take_token_gaps()
        for before in self.stage_totals:
            preemptions -= before.preemptions
            for replica_id, tokens in before.prefill_tokens.items():
                prefill[replica_id] -= tokens
        return EngineTotals(prefill, preemptions, gaps)

    def _strike(self, fault: Fault) -> None:
        replica = self.replicas[fault.replica_id]
        ends_us = self.loop.now_us + fault.duration_us
        match fault.kind:
            case FaultKind.CRASH:
                if replica.is_up:
                    replica.crash()
                    self.loop.at(ends_us, Phase.END, replica.recover)
            case FaultKind.STALL:
                replica.stall_until(ends_us)
            case FaultKind.SLOW:
                replica.slow_down(fault.factor)
                self.loop.at(ends_us, Phase.END, replica.slow_down, 1.0)
            case FaultKind.DRAIN:
                replica.is_draining = True
                self.loop.at(ends_us, Phase.END, setattr, replica, "is_draining", False)

    def _loses(self, share: float, what: str) -> bool:
        return share > 0 and draw(f"{self.spec.seed} {self._num_rounds}", what) < share * _DRAW_MAX


def _can_wait(spec: FleetSpec) -> bool:
    """Say whether no gateway can miss a batch of events, so that it may read them late."""
    timing = spec.timing
    is_whole = not (spec.faults or timing.event_loss or timing.report_loss)
    return is_whole and spec.autoscale is None and not any(r.joins_us for r in spec.replicas)


def _stages_of(workload: Workload | StagedWorkload) -> tuple[Stage, ...]:
    if isinstance(workload, StagedWorkload):
        return workload.stages
    return (Stage(name=workload.name, requests=workload.requests),)
