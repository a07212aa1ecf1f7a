"""What can be changed in any workload: fewer requests, another rate, other lengths, no sharing."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from contract.options import option
from simulator.draws import Draws
from simulator.request import Segment, SimRequest
from simulator.workload.arrivals import COUNT_MAX, TOKENS_MAX, check_range
from simulator.workload.order import delayed, from_zero
from simulator.workload.segments import SegmentIds, clipped
from simulator.workload.stages import Stage, StagedWorkload

SCALE_MIN = 1e-6
SCALE_MAX = 1e6
JITTER_MS_MAX = 86_400_000


@dataclass(frozen=True)
class ShapeSettings:
    """Settings that every workload has."""

    seed: str = option("0", "", "of all that is drawn; equal seed, equal workload")
    first: int | None = option(None, "requests", "only so many from the beginning; none: all")
    rate_scale: float = option(1.0, "", "arrivals come so many times as fast; thinking does not")
    time_scale: float = option(1.0, "", "arrivals and thinking take so many times as long")
    jitter_ms: float = option(
        0.0,
        "ms",
        "each arrival is moved by up to so much, either way; Mooncake's come in 3 s batches",
    )
    prompt_tokens_max: int | None = option(None, "tokens", "longer prompts lose their end")
    output_tokens_max: int | None = option(
        None, "tokens", "longer answers lose their end, also where a later prompt repeats them"
    )
    share_prefixes: bool = option(True, "", "false: all prompts become unique, of equal lengths")

    def __post_init__(self) -> None:
        for name in ("rate_scale", "time_scale"):
            check_range(self, name, SCALE_MIN, SCALE_MAX)
        check_range(self, "jitter_ms", 0, JITTER_MS_MAX)
        if self.first is not None:
            check_range(self, "first", 1, COUNT_MAX)
        for name in ("prompt_tokens_max", "output_tokens_max"):
            if getattr(self, name) is not None:
                check_range(self, name, 1, TOKENS_MAX)


def shaped(workload: StagedWorkload, settings: ShapeSettings) -> StagedWorkload:
    """Return the workload as ``settings`` change it; its provenance says how."""
    changes = _Changes(settings)
    notes = changes.notes()
    stages = workload.stages
    if settings.first is not None:
        stages = tuple(_first(stages, settings.first))
    if notes:
        stages = tuple(map(changes.stage, stages))
    if settings.first is not None:
        notes = (f"first {settings.first} requests", *notes)
    return replace(workload, provenance="; ".join((workload.provenance, *notes)), stages=stages)


class _Changes:
    """The changes of one workload; what it has drawn and cut holds over all stages."""

    def __init__(self, settings: ShapeSettings) -> None:
        self._settings = settings
        self._arrival_scale = settings.time_scale / settings.rate_scale
        self._jitter = Draws(settings.seed, "jitter")
        self._ids = SegmentIds()
        self._answers: dict[int, int] = {}  # segment id -> tokens, of answers that were cut

    def notes(self) -> tuple[str, ...]:
        """Say what is changed, a phrase for each setting that is not as it comes."""
        settings = self._settings
        notes = []
        if settings.rate_scale != 1:
            notes.append(f"rate x {settings.rate_scale:g}")
        if settings.time_scale != 1:
            notes.append(f"time x {settings.time_scale:g}")
        if settings.jitter_ms:
            notes.append(
                f"arrivals moved by up to {settings.jitter_ms:g} ms either way, "
                f"seed {settings.seed!r}"
            )
        if settings.prompt_tokens_max is not None:
            notes.append(f"prompts cut to {settings.prompt_tokens_max} tokens")
        if settings.output_tokens_max is not None:
            notes.append(f"answers cut to {settings.output_tokens_max} tokens")
        if not settings.share_prefixes:
            notes.append("all prompts made unique")
        return tuple(notes)

    def stage(self, stage: Stage) -> Stage:
        requests: Iterable[SimRequest] = map(self._request, stage.requests)
        if self._settings.jitter_ms:
            requests = from_zero(self._jittered(requests))
        duration_us = stage.duration_us
        if duration_us is not None:
            duration_us = round(duration_us * self._arrival_scale)
        return replace(stage, requests=tuple(requests), duration_us=duration_us)

    def _request(self, request: SimRequest) -> SimRequest:
        settings = self._settings
        segments, output_tokens = request.segments, request.output_tokens
        output_id = request.output_id
        if settings.output_tokens_max is not None:
            if output_tokens > settings.output_tokens_max:
                output_tokens = settings.output_tokens_max
                self._answers[output_id] = output_tokens
            segments = tuple(map(self._cut_answer, segments))
        if settings.prompt_tokens_max is not None:
            segments = clipped(segments, settings.prompt_tokens_max)
        if not settings.share_prefixes:
            num_tokens = sum(segment.num_tokens for segment in segments)
            segments, output_id = (self._ids.fresh(num_tokens),), self._ids.new()
        return replace(
            request,
            segments=segments,
            output_tokens=output_tokens,
            output_id=output_id,
            arrival_us=round(request.arrival_us * self._arrival_scale),
            think_us=round(request.think_us * settings.time_scale),
        )

    def _cut_answer(self, segment: Segment) -> Segment:
        num_tokens = self._answers.get(segment.segment_id)
        return segment if num_tokens is None else Segment(segment.segment_id, num_tokens)

    def _jittered(self, requests: Iterable[SimRequest]) -> Iterator[SimRequest]:
        jitter_us = self._settings.jitter_ms * 1_000
        for request in requests:
            yield delayed(request, round((2 * self._jitter.uniform() - 1) * jitter_us))


def _first(stages: Iterable[Stage], count: int) -> Iterator[Stage]:
    """Yield the stages up to the request of that number. Who is awaited stands before who waits."""
    for stage in stages:
        if not count:
            return
        requests = stage.requests[:count]
        count -= len(requests)
        yield replace(stage, requests=requests)
