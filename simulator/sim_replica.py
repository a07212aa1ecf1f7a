"""One replica in virtual time: the engine, reports and events of a live worker, and its accidents.

An epoch is one life of the process. What was asked for in an earlier epoch no longer happens.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol

from contract.blocks import HASH_SCHEME, TOKEN_BYTES
from contract.kv_events import KvEvent, KvEventBatch, KvSnapshot, merged
from contract.load_report import LoadReport
from replicas.core.engine import Engine
from replicas.core.engine_stats import EngineStats
from replicas.core.reporting import full_step_tokens_per_s, step_share, with_figures
from replicas.core.scheduler import NeverFitsError
from replicas.core.sequence import CountedSequence, Sequence
from replicas.core.step_time import StepLoad, StepTime
from simulator.event_inbox import EventInbox
from simulator.event_loop import EventLoop, Phase
from simulator.fleet_spec import ReplicaSpec
from simulator.timeline import ReplicaSample


class Refusal(Enum):
    """Why a replica did not take a request in."""

    DOWN = "down"
    DRAINING = "draining"
    OVERLOADED = "overloaded"
    NEVER_FITS = "never_fits"


class Service(Protocol):
    """One request on one replica: its sequence, and who is told what becomes of it."""

    sequence: CountedSequence

    def first_token(self) -> None:
        """Take in that the prompt has been computed."""

    def finished(self) -> None:
        """Take in that the answer is whole."""

    def lost(self) -> None:
        """Take in that the replica has lost it."""


@dataclass(slots=True)
class PacedStepTime(StepTime):
    """Another step time, stretched by a factor that may change."""

    step_time: StepTime
    factor: float = 1.0

    def step_time_us(self, load: StepLoad) -> int:
        """See StepTime."""
        step_us = self.step_time.step_time_us(load)
        return step_us if self.factor == 1.0 else max(1, round(step_us * self.factor))

    def decode_run_us(self, load: StepLoad, num_steps: int) -> list[int]:
        """See StepTime."""
        if self.factor == 1.0:
            return self.step_time.decode_run_us(load, num_steps)
        return StepTime.decode_run_us(self, load, num_steps)

    def decode_ends_us(self, load: StepLoad, num_steps: int, begins_us: int) -> list[int] | range:
        """See StepTime."""
        if self.factor == 1.0:
            return self.step_time.decode_ends_us(load, num_steps, begins_us)
        return StepTime.decode_ends_us(self, load, num_steps, begins_us)


class SimReplica:
    """Advances an engine from one of its events to the next: it is told of nothing in between."""

    def __init__(
        self,
        spec: ReplicaSpec,
        loop: EventLoop,
        publish_events: Callable[["SimReplica", KvEventBatch], None],
        inbox: "EventInbox[SimReplica] | None" = None,
    ) -> None:
        self.spec = spec
        self.is_up = True
        self.is_draining = False
        self.is_leaving = False
        self.started_us = loop.now_us
        self.left_us: int | None = None
        self._loop = loop
        self._publish_events = publish_events
        self._inbox = inbox if spec.publishes_events else None
        self.asked_us: int | None = None
        self._step_time = PacedStepTime(spec.step_time)
        self.engine = self._new_engine()
        self._live: dict[Sequence, Service] = {}
        self._past: list[EngineStats] = []
        self._past_gaps: Counter[int] = Counter()
        self._epoch = 0
        self._wake = 0  # number of the last one asked for: the only one that counts
        self._batch_sequence = -1
        self._report_sequence = -1
        step_tokens = spec.engine.max_num_batched_tokens
        self._prefill_tokens_per_s = full_step_tokens_per_s(spec.step_time, step_tokens)
        self._step_share = step_share(spec.step_time, step_tokens)

    @property
    def incarnation(self) -> str:
        """Names this life of the process."""
        return f"{self.spec.replica_id}/{self._epoch}"

    @property
    def lives(self) -> list[EngineStats]:
        """What the engine of each life of the process has counted, the present one last."""
        return [*self._past, self.engine.stats()]

    def take_token_gaps(self) -> Counter[int]:
        """Return the times between tokens, in us, of whole answers since the last call."""
        gaps, self._past_gaps = self._past_gaps, Counter()
        return gaps + self.engine.take_token_gaps()

    @property
    def num_live(self) -> int:
        """Requests that are here and have not ended."""
        return len(self._live)

    def submit(self, service: Service) -> Refusal | None:
        """Take a request in, or say why not."""
        if not self.is_up:
            return Refusal.DOWN
        if self.is_draining or self.is_leaving:
            return Refusal.DRAINING
        self._catch_up()
        if len(self.engine.scheduler.waiting) >= self.spec.waiting_max:
            return Refusal.OVERLOADED
        try:
            self.engine.add(service.sequence, self._loop.now_us)
        except NeverFitsError:
            return Refusal.NEVER_FITS
        self._live[service.sequence] = service
        self._ask_to_wake()
        return None

    def abort(self, service: Service) -> None:
        """Give up a request whose client has left; nothing if it has ended."""
        self._catch_up()
        if self._live.pop(service.sequence, None) is not None:
            self.engine.abort(service.sequence.sequence_id, self._loop.now_us)
            self._ask_to_wake()
            self._leave_if_done()

    def crash(self) -> None:
        """Lose everything. ``recover()`` starts the next process, cold."""
        self._catch_up()
        self.engine.settle()
        self.is_up = False
        self._past.append(self.engine.stats())
        self._past_gaps += self.engine.take_token_gaps()
        self._epoch += 1
        self._wake += 1
        self._batch_sequence = self._report_sequence = -1
        lost = list(self._live.values())
        self._live.clear()
        self.engine = self._new_engine()
        for service in lost:
            service.lost()
        self._leave_if_done()

    def recover(self) -> None:
        """Be there again, unless it has left the fleet meanwhile."""
        self.is_up = self.left_us is None

    def leave(self) -> None:
        """Finish what is here, take nothing new, and be gone for good."""
        self.is_leaving = True
        self._leave_if_done()

    def stall_until(self, until_us: int) -> None:
        """Begin no step before ``until_us``; the one under way ends."""
        self._catch_up()
        self.engine.hold(until_us)
        self._ask_to_wake()

    def slow_down(self, factor: float) -> None:
        """Let steps take ``factor`` times as long; the one under way ends as it began."""
        self._catch_up()
        self._step_time.factor = factor
        self.engine.hold(self._loop.now_us)
        self._ask_to_wake()

    def report(self) -> LoadReport:
        """Return the report of this moment, as the live worker makes it."""
        self._catch_up()
        spec = self.spec
        self._report_sequence += 1
        report = LoadReport(
            replica_id=spec.replica_id,
            url=f"http://{spec.replica_id}",
            model=spec.model,
            incarnation=self.incarnation,
            sequence=self._report_sequence,
            hash_scheme=HASH_SCHEME if spec.publishes_events else None,
            block_size=spec.engine.block_size,
            block_bytes=spec.engine.block_size * TOKEN_BYTES,
            prefill_tokens_per_s=self._prefill_tokens_per_s,
            draining=self.is_draining or self.is_leaving,
            step_tokens=spec.engine.max_num_batched_tokens,
            step_share=self._step_share,
        )
        return with_figures(report, self.engine.stats())

    def sample(self) -> ReplicaSample:
        """Return how full it is at this moment."""
        self._catch_up()
        scheduler = self.engine.scheduler
        pool = scheduler.pool
        return ReplicaSample(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            kv_usage=pool.num_held / pool.num_usable,
        )

    def snapshot(self) -> KvSnapshot:
        """Return all cached blocks, for a gateway that has missed something."""
        runs = self.engine.cached_runs()
        return KvSnapshot.of_runs(self.incarnation, self._batch_sequence, runs)

    def _new_engine(self) -> Engine:
        config = self.spec.engine
        if not self.spec.publishes_events:
            config = replace(config, enable_kv_events=False)
        is_asked = self._inbox is not None
        return Engine(
            config, self._step_time, _no_token, count_token_gaps=True, time_events=is_asked
        )

    def _catch_up(self) -> None:
        """Let the engine do what it has done by now, and tell of it."""
        progress = self.engine.advance(self._loop.now_us)
        for sequence in progress.first_tokens:
            self._live[sequence].first_token()
        for sequence in progress.finished:
            self._live.pop(sequence).finished()
        self._tell_events()
        if self.is_leaving:
            self._leave_if_done()

    def _leave_if_done(self) -> None:
        if self.is_leaving and not self._live and self.left_us is None:
            self.is_up = False
            self.left_us = self._loop.now_us

    def _ask_to_wake(self) -> None:
        """Be called when there is something to tell, unless something comes before."""
        self._wake += 1
        if self._inbox is not None:
            self._inbox.expect(self, self._loop.now_us)
        news = self.engine.next_news()
        if news is None:
            return
        at_us, at_end = news
        if at_end:
            self._loop.at(at_us, Phase.END, self._end_step, self._wake)
        else:
            self._loop.at(at_us, Phase.BEGIN, self._begin_step, self._wake)

    def _begin_step(self, wake: int) -> None:
        if wake != self._wake:
            return
        self._catch_up()
        self.engine.next_end_us()
        self._tell_events()
        self._ask_to_wake()

    def _end_step(self, wake: int) -> None:
        if wake != self._wake:
            return
        self._catch_up()
        self._ask_to_wake()

    def events_until(self, us: int) -> KvEventBatch | None:
        """Return what was not told yet of steps that began up to ``us``, in as few events."""
        return self._batch(merged(self.engine.events_until(us)))

    def next_event_us(self) -> int | None:
        """Return a time before which events_until() has nothing new to tell."""
        return self.engine.next_event_us()

    def _tell_events(self) -> None:
        if self._inbox is None:
            batch = self._batch(self.engine.drain_events())
            if batch is not None:
                self._publish_events(self, batch)

    def _batch(self, events: list[KvEvent]) -> KvEventBatch | None:
        if not events:
            return None
        self._batch_sequence += 1
        return KvEventBatch(self.incarnation, self._batch_sequence, events)


def _no_token(_: Sequence) -> int:
    """Nobody looks at the tokens of a CountedSequence."""
    return 0
