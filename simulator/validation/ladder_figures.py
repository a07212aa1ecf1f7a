"""What is measured on a ladder: each stage by its rate, all stages past a rate, and the knee."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, log

from simulator.fleet_run import FleetRun
from simulator.outcome import Outcome
from simulator.validation.case import Figures


@dataclass(frozen=True)
class _Stage:
    qps: float
    outcomes: Sequence[Outcome]

    @property
    def ttft_s(self) -> list[float]:
        return sorted((each.ttft_us or 0) / 1e6 for each in self.outcomes)

    @property
    def ttft_s_p90(self) -> float:
        ordered = self.ttft_s
        return ordered[-(-len(ordered) * 90 // 100) - 1]

    @property
    def itl_ms(self) -> float:
        return _mean((each.itl_us or 0) / 1e3 for each in self.outcomes)

    @property
    def tokens_per_s(self) -> float:
        """Tokens generated from the stage's first request to its last end: the drain counts."""
        start_us = min(each.arrival_us for each in self.outcomes)
        end_us = max(each.arrival_us + (each.e2e_us or 0) for each in self.outcomes)
        return sum(each.output_tokens for each in self.outcomes) / (end_us - start_us) * 1e6


def measure_stages(past_qps: float, ttft_s_max: float, run: FleetRun) -> Figures:
    """Return the means over the stages from ``past_qps`` on, and figures of each stage.

    ``knee_qps`` is the rate at which the p90 of TTFT first passes ``ttft_s_max``. The warm-up is
    left out.
    """
    outcomes: list[list[Outcome]] = [[] for _ in run.stages]
    for outcome in run.outcomes:
        outcomes[outcome.stage_index].append(outcome)
    stages = [
        _Stage(float(stage.name.partition("x")[0]), outcomes[index])
        for index, stage in enumerate(run.stages)
        if not stage.warm_up
    ]
    past = [stage for stage in stages if stage.qps >= past_qps]
    figures = {
        "ttft_s": _mean(_mean(stage.ttft_s) for stage in past),
        "itl_ms": _mean(stage.itl_ms for stage in past),
        "tokens_per_s": _mean(stage.tokens_per_s for stage in past),
        "knee_qps": knee_qps([(stage.qps, stage.ttft_s_p90) for stage in stages], ttft_s_max),
    }
    for stage in stages:
        figures[f"ttft_s_p90_at_{stage.qps:g}"] = stage.ttft_s_p90
        figures[f"itl_ms_at_{stage.qps:g}"] = stage.itl_ms
    return figures


def knee_qps(ladder: Sequence[tuple[float, float]], limit: float) -> float:
    """Return the rate at which a latency first passes ``limit``; infinite if it never does.

    ``ladder`` is of rates and latencies; between two of them the logarithm of the latency is taken
    to be linear in the rate.
    """
    before: tuple[float, float] | None = None
    for qps, latency in ladder:
        if latency > limit:
            if before is None:
                return qps
            share = log(limit / before[1]) / log(latency / before[1])
            return before[0] + share * (qps - before[0])
        before = (qps, latency)
    return inf


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)
