"""What the demo prints and writes: one row per run, and one decision with its arithmetic."""

import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from router.core.policy import Policy
from router.policies.prefix_load import PrefixLoad
from warmroute.demo.replay import Answer, ReplayResult

PROGRESS_WIDTH = 40


@dataclass(frozen=True)
class RunRow:
    """The trace under one policy, or through one gateway. Rates 0..1, times in seconds."""

    name: str  # of the policy or of the gateway
    requests: int
    errors: int
    errors_by_kind: dict[str, int]
    prompt_tokens: int
    prefill_tokens_computed: int
    prefill_tokens_saved: int
    hit_rate_predicted: float
    hit_rate_actual: float
    ttft_p50_s: float
    ttft_p99_s: float
    e2e_p50_s: float
    requests_per_replica: dict[str, int]
    wall_s: float
    client_late_s_max: float


def summarise(name: str, result: ReplayResult) -> RunRow:
    """Reduce the answers of one run to its row."""
    good = [answer for answer in result.answers if answer.error is None]
    prompt_tokens = sum(answer.prompt_tokens for answer in good)
    cached_tokens = sum(answer.cached_tokens for answer in good)
    predicted_tokens = sum(answer.predicted_tokens for answer in good)
    by_replica = Counter(answer.replica_id for answer in good)
    return RunRow(
        name=name,
        requests=len(result.answers),
        errors=len(result.answers) - len(good),
        errors_by_kind=dict(result.errors),
        prompt_tokens=prompt_tokens,
        prefill_tokens_computed=prompt_tokens - cached_tokens,
        prefill_tokens_saved=cached_tokens,
        hit_rate_predicted=predicted_tokens / prompt_tokens if prompt_tokens else 0.0,
        hit_rate_actual=cached_tokens / prompt_tokens if prompt_tokens else 0.0,
        ttft_p50_s=_percentile(_ttfts(good), 0.50),
        ttft_p99_s=_percentile(_ttfts(good), 0.99),
        e2e_p50_s=_percentile([answer.e2e_s for answer in good if answer.e2e_s is not None], 0.50),
        requests_per_replica={name: by_replica[name] for name in sorted(by_replica)},
        wall_s=result.wall_s,
        client_late_s_max=result.late_s_max,
    )


def _ttfts(answers: Sequence[Answer]) -> list[float]:
    return [answer.ttft_s for answer in answers if answer.ttft_s is not None]


def _percentile(values: list[float], share: float) -> float:
    """Return the smallest value that is not below ``share`` of all (nearest rank); 0 for none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


_HEADINGS = (
    *("requests", "errors", "prefill computed", "prefill saved", "hit predicted"),
    *("hit actual", "TTFT p50", "TTFT p99", "E2E p50", "requests per replica"),
)


def table(rows: Sequence[RunRow], names: str = "policy") -> str:
    """Return the rows as aligned text; ``names`` says what their names are of.

    Tokens in thousands, times in wall-clock milliseconds.
    """
    cells = [(names, *_HEADINGS), *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    lines = [
        "  ".join(
            word.ljust(width) if column in (0, len(widths) - 1) else word.rjust(width)
            for column, (word, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def _cells(row: RunRow) -> tuple[str, ...]:
    return (
        row.name,
        f"{row.requests:,}",
        str(row.errors),
        f"{row.prefill_tokens_computed / 1000:,.0f} k",
        f"{row.prefill_tokens_saved / 1000:,.0f} k",
        f"{row.hit_rate_predicted:.1%}",
        f"{row.hit_rate_actual:.1%}",
        f"{row.ttft_p50_s * 1000:,.0f} ms",
        f"{row.ttft_p99_s * 1000:,.0f} ms",
        f"{row.e2e_p50_s * 1000:,.0f} ms",
        " / ".join(str(count) for count in row.requests_per_replica.values()),
    )


def verdict(rows: Sequence[RunRow]) -> str:
    """Return one sentence that compares the last policy with the first."""
    first, last = rows[0], rows[-1]
    if first is last or not first.hit_rate_actual or not first.ttft_p50_s:
        return ""
    computed = _signed(last.prefill_tokens_computed, first.prefill_tokens_computed)
    gain = last.hit_rate_actual / first.hit_rate_actual
    return (
        f"{last.name} against {first.name}: {computed} prefill tokens computed, {gain:.1f} x "
        f"the hit rate, TTFT p50 {_signed(last.ttft_p50_s, first.ttft_p50_s)}."
    )


def _signed(value: float, reference: float) -> str:
    return f"{(value - reference) / reference:+.0%}"


def worked_decision(explanation: dict[str, Any], policy: Policy) -> str:
    """Return one real decision with its arithmetic, from the gateway's own explanation."""
    lines = [
        f"One decision, as {explanation['policy']} made it "
        f"(request {explanation['request_id']}, {explanation['prompt_tokens']:,} prompt tokens):",
        "",
    ]
    if isinstance(policy, PrefixLoad):
        lines += [
            "  n = requests there; ahead, uncached in tokens; rate in tokens/s",
            f"  cost = (ahead + uncached x (1 + {policy.interference:g} x sqrt(n + 1)) "
            f"+ {policy.request_tokens:g} x n) / rate",
        ]
    for candidate in explanation["candidates"]:
        chosen = candidate["replica_id"] == explanation["chosen"]
        mark = f"   <- chosen: {explanation['reason']}" if chosen else ""
        lines.append(f"  {candidate['replica_id']:<10} {_arithmetic(candidate, policy)}{mark}")
    return "\n".join(lines)


def _arithmetic(candidate: dict[str, Any], policy: Policy) -> str:
    ahead, uncached = candidate["ahead_tokens"], candidate["uncached_tokens"]
    requests, rate = candidate["requests"], candidate["prefill_tokens_per_s"]
    terms = f"{candidate['matched_tokens']:,} cached, {ahead:,} ahead, {requests} requests"
    if not isinstance(policy, PrefixLoad):
        return terms
    delay = 1 + policy.interference * math.sqrt(requests + 1)
    return (
        f"({ahead:>6,} + {uncached:>5,} x {delay:.2f} + {policy.request_tokens * requests:>5,.0f}) "
        f"/ {rate:,.0f} = {candidate['cost'] * 1000:>5.1f} ms   "
        f"{candidate['matched_tokens']:>5,} cached{'' if requests else ', idle'}"
    )


def as_json(rows: Sequence[RunRow], setting: dict[str, Any], decision: Any) -> dict[str, Any]:
    """Return what ``--json`` writes."""
    policies = [{"policy": row.name} | asdict(row) for row in rows]
    for policy in policies:
        del policy["name"]
    return {"setting": setting, "policies": policies, "decision": decision}


def progress_bar(name: str, total: int) -> Callable[[int], None]:
    """Return what draws how many of ``total`` are done; where no one watches, only at the end."""

    def draw(done: int) -> None:
        if sys.stderr.isatty() or done == total:
            filled = PROGRESS_WIDTH * done // total
            bar = "#" * filled + "." * (PROGRESS_WIDTH - filled)
            end = "\n" if done == total else ""
            print(f"\r{name:<13} [{bar}] {done:,}/{total:,}", end=end, file=sys.stderr)

    return draw
