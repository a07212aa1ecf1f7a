"""What a run was like, in numbers that say what they are."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from simulator.figures import figure
from simulator.fleet_run import FleetRun
from simulator.outcome import End, Outcome


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution in five numbers."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Summarise ``values``; all zero where there are none. Percentiles by nearest rank."""
        if not values:
            return cls(0.0, 0.0, 0.0, 0.0, 0.0)
        ordered = sorted(values)
        p50, p90, p99 = (ordered[-(-len(ordered) * q // 100) - 1] for q in (50, 90, 99))
        return cls(sum(ordered) / len(ordered), p50, p90, p99, ordered[-1])

    @classmethod
    def of_counts(cls, counts: Mapping[float, int]) -> "Spread":
        """Summarise values that are each there so many times, as ``of`` does."""
        total = sum(counts.values())
        if not total:
            return cls(0.0, 0.0, 0.0, 0.0, 0.0)
        ordered = sorted(counts)
        up_to = list(accumulate(counts[value] for value in ordered))
        p50, p90, p99 = (ordered[bisect_left(up_to, -(-total * q // 100))] for q in (50, 90, 99))
        mean = sum(value * counts[value] for value in ordered) / total
        return cls(mean, p50, p90, p99, ordered[-1])


@dataclass(frozen=True)
class Slo:
    """What a good answer is. Milliseconds; None: no such limit."""

    ttft_ms: float | None = None
    itl_ms: float | None = None  # mean over the answer's tokens

    def holds(self, outcome: Outcome) -> bool:
        """Say whether a request was answered whole and in time."""
        if outcome.end is not End.COMPLETE or outcome.ttft_us is None:
            return False
        if self.ttft_ms is not None and outcome.ttft_us > self.ttft_ms * 1_000:
            return False
        itl_us = outcome.itl_us
        return self.itl_ms is None or itl_us is None or itl_us <= self.itl_ms * 1_000


@dataclass(frozen=True)
class Summary:
    """One run. Times in milliseconds of virtual time."""

    requests: int = figure("requests", "requests", "in the workload")
    ends: dict[str, int] = figure("ends", "requests", "each request ends in one way")
    makespan_s: float = figure(
        "makespan", "s", "from the first arrival to the last end, summed over stages"
    )
    prompt_tokens: int = figure("prompt tokens", "tokens", "of requests that were answered")
    output_tokens: int = figure("output tokens", "tokens", "generated, broken answers included")
    hit_actual: float = figure("hit rate, actual", "share", "tokens from cache / prompt tokens")
    hit_predicted: float = figure(
        "hit rate, predicted", "share", "what the gateways expected / prompt tokens"
    )
    computed_prefill_tokens: int = figure(
        "prefill computed", "tokens", "by the engines, recomputed ones included"
    )
    recomputed_tokens: int = figure(
        "prefill recomputed", "tokens", "computed again, after a preemption or a lost replica"
    )
    wasted_tokens: int = figure(
        "tokens wasted", "tokens", "of prompt and output, for requests that were not completed"
    )
    ttft_ms: Spread = figure("TTFT", "ms", "arrival to first token")
    itl_ms: Spread = figure("ITL", "ms", "mean time between tokens, of each request")
    token_gap_ms: Spread = figure(
        "token gap", "ms", "every time between two tokens of a whole answer"
    )
    e2e_ms: Spread = figure("E2E", "ms", "arrival to last token")
    queue_ms: Spread = figure("queue", "ms", "arrival to admission by the engine")
    goodput: float = figure("goodput", "share", "requests answered within the SLO")
    output_tokens_per_s: float = figure("throughput", "tokens/s", "output tokens / makespan")
    requests_by_replica: dict[str, int] = figure("requests", "requests", "by the last replica")
    imbalance: float = figure(
        "imbalance", "ratio", "prefill tokens computed on the busiest replica / on the mean one"
    )
    fairness: float = figure(
        "fairness", "ratio", "worst / best mean TTFT over tenants; 1 where there is one"
    )
    preemptions: int = figure("preemptions", "times", "by the engines")


def summarise(run: FleetRun, slo: Slo | None = None) -> Summary:
    """Return the figures of a run that has ended; those of its warm-up stages do not count."""
    counted = [index for index, stage in enumerate(run.stages) if not stage.warm_up]
    return summarise_stages(run, counted, slo)


def summarise_stages(run: FleetRun, stages: Collection[int], slo: Slo | None = None) -> Summary:
    """Return the figures of some stages of a run that has ended."""
    outcomes = [each for each in run.outcomes if each.stage_index in stages]
    answered = [each for each in outcomes if each.ttft_us is not None]
    prompt_tokens = sum(each.request.prompt_tokens for each in answered)
    output_tokens = sum(each.output_tokens for each in outcomes)
    totals = [run.stage_totals[index] for index in stages]
    prefill = [sum(each.prefill_tokens.get(name, 0) for each in totals) for name in run.replicas]
    needed = sum(map(_uncached, outcomes))
    makespan_s = sum(_makespan_s(outcomes, index) for index in stages)
    judged = slo or Slo()
    return Summary(
        requests=len(outcomes),
        ends=dict(Counter(each.end.value for each in outcomes if each.end is not None)),
        makespan_s=makespan_s,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        hit_actual=_share(sum(each.cached_tokens for each in answered), prompt_tokens),
        hit_predicted=_share(sum(each.predicted_tokens for each in answered), prompt_tokens),
        computed_prefill_tokens=sum(prefill),
        recomputed_tokens=max(0, sum(prefill) - needed),
        wasted_tokens=sum(_spent(each) for each in outcomes if each.end is not End.COMPLETE),
        ttft_ms=_spread(each.ttft_us for each in outcomes),
        itl_ms=_spread(each.itl_us for each in outcomes),
        token_gap_ms=_counted(each.token_gaps for each in totals),
        e2e_ms=_spread(each.e2e_us for each in outcomes if each.end is End.COMPLETE),
        queue_ms=_spread(each.queue_us for each in outcomes),
        goodput=_share(sum(map(judged.holds, outcomes)), len(outcomes)),
        output_tokens_per_s=_share(output_tokens, makespan_s),
        requests_by_replica=_by_replica(run, outcomes),
        imbalance=_share(max(prefill) * len(prefill), sum(prefill)) if prefill else 0.0,
        fairness=_fairness(answered),
        preemptions=sum(each.preemptions for each in totals),
    )


def _makespan_s(outcomes: Iterable[Outcome], stage_index: int) -> float:
    own = [each for each in outcomes if each.stage_index == stage_index]
    first_us = min((each.arrival_us for each in own), default=0)
    last_us = max((each.arrival_us + (each.e2e_us or 0) for each in own), default=0)
    return (last_us - first_us) / 1e6


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _spread(values_us: Iterable[float | None]) -> Spread:
    return Spread.of([value / 1_000 for value in values_us if value is not None])


def _counted(parts: Iterable[Counter[int]]) -> Spread:
    counts: Counter[int] = Counter()
    for part in parts:
        counts.update(part)
    return Spread.of_counts({gap_us / 1_000: count for gap_us, count in counts.items()})


def _spent(outcome: Outcome) -> int:
    return _uncached(outcome) + outcome.output_tokens


def _uncached(outcome: Outcome) -> int:
    if outcome.queue_us is None:  # no engine has admitted it
        return 0
    return outcome.request.prompt_tokens - outcome.cached_tokens


def _by_replica(run: FleetRun, outcomes: Iterable[Outcome]) -> dict[str, int]:
    counts = dict.fromkeys(run.replicas, 0)
    for outcome in outcomes:
        if outcome.replica_id is not None:
            counts[outcome.replica_id] += 1
    return counts


def _fairness(answered: Sequence[Outcome]) -> float:
    ttft: dict[str, list[int]] = {}
    for outcome in answered:
        if outcome.request.tenant is not None and outcome.ttft_us is not None:
            ttft.setdefault(outcome.request.tenant, []).append(outcome.ttft_us)
    means = [sum(values) / len(values) for values in ttft.values()]
    return max(means) / min(means) if means and min(means) > 0 else 1.0
