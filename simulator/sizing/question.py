"""The question of `plan size` with all its names looked up: model, GPU, prices, requests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from contract.hardware import GpuSpec, ModelSpec
from contract.options import SettingError
from simulator.request import SimRequest
from simulator.sizing.bracket import MeanLoad
from simulator.sizing.memory_fit import MemoryFit, fit_memory
from simulator.sizing.prices import HOURS_PER_MONTH
from simulator.sizing.settings import SizeSettings
from simulator.sizing.trial import Candidate, Limits
from simulator.sizing.window import Cut, find_cut, is_closed, take


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked, with everything that settings name looked up.

    ``requests`` are the workload of seed 0, by arrival. A drawn one is judged from its beginning;
    of a trace, the busiest window.
    """

    settings: SizeSettings
    model: ModelSpec
    gpu: GpuSpec
    prices: Mapping[str, float]
    requests: Sequence[SimRequest]
    is_drawn: bool

    @property
    def limits(self) -> Limits:
        """The SLO."""
        return Limits(self.settings.ttft_p99_ms * 1_000, self.settings.itl_p99_ms * 1_000)

    def cut(self, requests_max: int, rate_scale: float = 1.0) -> Cut:
        """Return what is run, of the workload ``rate_scale`` times as fast."""
        settings = self.settings
        warm_up_us, window_us = round(settings.warm_up_s * 1e6), round(settings.window_s * 1e6)
        if self.is_drawn and not is_closed(self.requests):
            share = min(1.0, requests_max / (settings.rate * (warm_up_us + window_us) / 1e6))
            return Cut(0, int(warm_up_us * share), int(window_us * share), rate_scale)
        base = find_cut(self.requests, warm_up_us, window_us, requests_max)
        if rate_scale == 1:
            return base
        # As long as at its own rate, so with more requests.
        return find_cut(
            self.requests, base.warm_up_us, base.window_us, len(self.requests), rate_scale
        )

    def load(self, cut: Cut, requests_max: int) -> MeanLoad:
        """Return the means of what ``cut`` takes."""
        return MeanLoad.of(take(self.requests, cut, requests_max), cut.window_us)

    def candidate(self, gpu: GpuSpec, gpus: int) -> tuple[Candidate, MemoryFit]:
        """Return one kind of replica. Raises DoesNotFitError."""
        settings = self.settings
        fit = fit_memory(
            self.model,
            gpu,
            gpus,
            precision=settings.precision,
            kv_precision=settings.kv_precision,
            memory_share=settings.memory_share,
        )
        candidate = Candidate(
            model=self.model,
            gpu=gpu,
            gpus=gpus,
            precision=settings.precision,
            kv_precision=settings.kv_precision,
            kv_tokens=fit.kv_tokens,
        )
        return candidate, fit

    def price(self, gpu: str) -> float:
        """Return USD per hour of one GPU. Raises SettingError where it has none."""
        if gpu not in self.prices:
            raise SettingError(f"{gpu} has no price; give --prices '{gpu}=USD' (per GPU and hour)")
        return self.prices[gpu]

    def monthly(self, candidate: Candidate, replicas: int) -> float:
        """Return USD per month of a fleet."""
        return replicas * candidate.gpus * self.price(candidate.gpu.name) * HOURS_PER_MONTH
