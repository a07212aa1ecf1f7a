"""Replays a recorded run of a real engine: same arrivals, lengths and prefixes, in virtual time.

The scheduler, the block pool and the step time are those of `replicas.core`; only the requests
come from the recording. Two habits of vLLM 0.19 are part of the replay:

1. Asynchronous scheduling: the members of a step are chosen while the step before it runs, so a
   request that arrives in between waits for one step more.
2. Replicas that share experts step together, and the busiest sets the pace.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, fields
from operator import add, attrgetter, sub

import msgspec

from contract.blocks import root_hash
from contract.hardware import find_gpu, find_model
from replicas.core.engine import Engine
from replicas.core.hardware_timing import expert_parallel_spec, step_time_spec
from replicas.core.scheduler_config import SchedulerConfig
from replicas.core.sequence import Sequence
from replicas.core.step_time import EngineSpeed, StepLoad, StepTerms, StepTimeModel, StepTimeSpec
from simulator.measured.fit import Free, Observation, fit_engine
from simulator.quantiles import quantile

BLOCK_SIZE = 16
load_parts = attrgetter(*(field.name for field in fields(StepLoad)))
term_parts = attrgetter(*(field.name for field in fields(StepTerms)))

CALIBRATION_ROUNDS = 4
"""Fit, replay with what was fitted, fit again: the figures settle to a part in a thousand."""


@dataclass(frozen=True, kw_only=True)
class RunSetup:
    """The engine of a run, as its own log describes it."""

    run: str
    model: str
    gpu: str
    tensor_parallel: int
    expert_ranks: int  # replicas that share the experts; 1: none does
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_blocks: int  # of each replica


@dataclass(frozen=True, kw_only=True)
class RecordedRequest:
    """One request of a run; times are from the first arrival on."""

    arrival_us: int
    prompt_tokens: int
    output_tokens: int
    first_token_us: int
    last_token_us: int
    shares_with: int | None = None  # an earlier request, by its place in the run
    shared_blocks: int = 0  # first blocks of the prompt that are equal to the other's


@dataclass(frozen=True)
class RecordedRun:
    """A run, in the order of arrival."""

    setup: RunSetup
    requests: tuple[RecordedRequest, ...]


@dataclass(frozen=True, kw_only=True)
class RunFigures:
    """What is compared. TPOT is each request's time per token after its first one."""

    tpot_mean_us: float
    makespan_us: float
    ttft_mean_us: float
    ttft_p50_us: float
    ttft_p90_us: float


@dataclass(frozen=True)
class Replay:
    """What a replay predicts, and what each request's tokens took in parts, as in a fit's rows."""

    figures: RunFigures
    observations: tuple[Observation, ...]


def read_run(lines: Iterable[str | bytes]) -> RecordedRun:
    """Return a run from JSON lines: its setup, then its requests.

    Raises msgspec.DecodeError for a line that is none of these.
    """
    rows = iter(lines)
    setup = msgspec.json.decode(next(rows, b""), type=RunSetup)
    requests = tuple(msgspec.json.decode(row, type=RecordedRequest) for row in rows)
    return RecordedRun(setup, requests)


def measured_figures(run: RecordedRun) -> RunFigures:
    """Return what was measured."""
    return _figures(run, [(each.first_token_us, each.last_token_us) for each in run.requests])


def replay(run: RecordedRun, speed: EngineSpeed) -> Replay:
    """Step the run's requests through the engine core in virtual time."""
    lockstep = _Lockstep(run, speed)
    lockstep.run_to_end()
    times = []
    observations = []
    for sequence, request in zip(lockstep.sequences, run.requests, strict=True):
        assert sequence.first_token_us is not None
        assert sequence.finished_us is not None
        times.append((sequence.first_token_us, sequence.finished_us))
        if request.output_tokens > 1:
            observations.append(_observe(lockstep, sequence, request))
    return Replay(_figures(run, times), tuple(observations))


def calibrate(run: RecordedRun, start: EngineSpeed) -> EngineSpeed:
    """Return ``start`` with the two efficiencies that predict the TPOT of this run best.

    What a layer costs is kept: one run of one model cannot tell it from the read of the weights.
    """
    speed = start
    for _ in range(CALIBRATION_ROUNDS):
        speed = fit_engine(replay(run, speed).observations, speed, Free(layers=False))
    return speed


class _Lockstep:
    """The ranks of one run, from its first arrival to its last token."""

    def __init__(self, run: RecordedRun, speed: EngineSpeed) -> None:
        setup = run.setup
        self._model = StepTimeModel(_spec(setup, speed))
        limits = SchedulerConfig(
            num_blocks=setup.kv_blocks,
            block_size=BLOCK_SIZE,
            max_num_batched_tokens=setup.max_num_batched_tokens,
            max_num_seqs=setup.max_num_seqs,
        )
        self._ranks = [
            Engine(limits, self._model, _sample_nothing) for _ in range(setup.expert_ranks)
        ]
        self._live = [0] * setup.expert_ranks
        self.sequences = _sequences(run)
        self._arrivals = deque(
            (request.arrival_us, sequence)
            for request, sequence in zip(run.requests, self.sequences, strict=True)
        )
        self._terms = StepTerms(0, 0, 0, 0, 0)  # of all steps until now
        self.terms_at_first_token: dict[Sequence, StepTerms] = {}
        self.terms_at_end: dict[Sequence, StepTerms] = {}

    def run_to_end(self) -> None:
        """Step until every request is answered."""
        now_us = step_began_us = 0
        while self._arrivals or any(self._live):
            if any(self._live):
                self._admit(step_began_us)
            else:
                now_us = max(now_us, self._arrivals[0][0])
                self._admit(now_us)
            step_began_us = now_us
            now_us = self._step(now_us)

    def _admit(self, known_us: int) -> None:
        """Give what arrived until ``known_us`` to the ranks with the fewest requests."""
        while self._arrivals and self._arrivals[0][0] <= known_us:
            arrival_us, sequence = self._arrivals.popleft()
            rank = self._live.index(min(self._live))
            self._ranks[rank].add(sequence, arrival_us)
            self._live[rank] += 1

    def _step(self, now_us: int) -> int:
        """Run one step of all ranks; return when it ends."""
        plans = [engine.plan_step(now_us) for engine in self._ranks]
        load = _busiest(plan.load for plan in plans if plan is not None)
        terms = self._model.terms(load)
        self._terms = StepTerms(*map(add, term_parts(self._terms), term_parts(terms)))
        now_us += self._model.step_time_us(load)
        for rank, (engine, plan) in enumerate(zip(self._ranks, plans, strict=True)):
            if plan is None:
                continue
            output = engine.complete_step(plan, now_us)
            for sequence in output.new_tokens:
                self.terms_at_first_token.setdefault(sequence, self._terms)
            for sequence in output.finished:
                self.terms_at_end[sequence] = self._terms
            self._live[rank] -= len(output.finished)
        return now_us


def _spec(setup: RunSetup, speed: EngineSpeed) -> StepTimeSpec:
    model, gpu = find_model(setup.model), find_gpu(setup.gpu)
    if setup.expert_ranks > 1:
        return expert_parallel_spec(model, gpu, setup.expert_ranks, engine=speed)
    return step_time_spec(model, gpu, setup.tensor_parallel, engine=speed)


def _sequences(run: RecordedRun) -> list[Sequence]:
    """Return the requests with token ids that are equal where the recorded prompts are."""
    root = root_hash(run.setup.model)
    prompts: list[list[int]] = []
    fresh = 0
    for request in run.requests:
        shared: list[int] = []
        if request.shares_with is not None:
            shared = prompts[request.shares_with][: request.shared_blocks * BLOCK_SIZE]
        own = request.prompt_tokens - len(shared)
        prompts.append([*shared, *range(fresh, fresh + own)])
        fresh += own
    return [
        Sequence(str(index), prompt, request.output_tokens, root)
        for index, (prompt, request) in enumerate(zip(prompts, run.requests, strict=True))
    ]


def _sample_nothing(_sequence: Sequence) -> int:
    """No token ends a recorded answer: its length does."""
    return 0


def _busiest(loads: Iterable[StepLoad]) -> StepLoad:
    """Return a load that is in each of its parts that of the rank which has most of it."""
    return StepLoad(*map(max, zip(*map(load_parts, loads), strict=True)))


def _observe(lockstep: _Lockstep, sequence: Sequence, request: RecordedRequest) -> Observation:
    """Return the mean step between the first and the last token, with the measured TPOT."""
    steps = request.output_tokens - 1
    first, last = lockstep.terms_at_first_token[sequence], lockstep.terms_at_end[sequence]
    mean = StepTerms(*(part / steps for part in map(sub, term_parts(last), term_parts(first))))
    return Observation(mean, (request.last_token_us - request.first_token_us) / steps)


def _figures(run: RecordedRun, times: list[tuple[int, int]]) -> RunFigures:
    pairs = list(zip(run.requests, times, strict=True))
    tpots = [
        (last_us - first_us) / (request.output_tokens - 1)
        for request, (first_us, last_us) in pairs
        if request.output_tokens > 1
    ]
    ttfts = sorted(first_us - request.arrival_us for request, (first_us, _) in pairs)
    return RunFigures(
        tpot_mean_us=sum(tpots) / len(tpots),
        makespan_us=max(last_us for _, last_us in times),
        ttft_mean_us=sum(ttfts) / len(ttfts),
        ttft_p50_us=quantile(ttfts, 0.5),
        ttft_p90_us=quantile(ttfts, 0.9),
    )
