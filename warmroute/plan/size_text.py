"""The answer of `plan size` as text: tables whose every row says where its number is from."""

from collections.abc import Iterator, Sequence

from simulator.figures import FigureRow, figure_rows
from simulator.sizing.memory_fit import SHOWN_GIB
from simulator.sizing.plan import SizePlan
from simulator.sizing.prices import PRICES_SOURCE
from simulator.sizing.settings import SizeSettings
from simulator.statistics import Estimate
from warmroute.plan.text import figures_text, value_text

Rows = Sequence[Sequence[str]]

JUDGED_MIN = 500
"""Below it the late requests that decide are fewer than five."""


def size_text(plan: SizePlan, settings: SizeSettings, workload: str) -> str:
    """Return the whole report."""
    parts = [
        "\n".join(head_lines(plan, settings, workload)),
        figures_text(f"Memory of one replica: {plan.tensor_parallel} x {plan.gpu}", plan.fit),
        f"Fleets that hold it\n{table(answer_rows(plan))}",
        "\n".join(f"  {line}" for line in saving_lines(plan)),
        f"Other rates, {plan.chosen.replicas} replicas, one seed\n{table(rate_rows(plan))}",
        f"GPU types, the cheapest first, one seed\n{table(sweep_rows(plan))}",
        f"What if, one seed\n{table(what_if_rows(plan))}",
        "\n".join(note_lines(plan, settings)),
    ]
    return "\n\n".join(parts)


def head_lines(plan: SizePlan, settings: SizeSettings, workload: str) -> Iterator[str]:
    """Yield the question, the rule and the answer."""
    load, cut = plan.load, plan.cut
    yield (
        f"Size: {settings.model} ({settings.precision.value}), TTFT p99 {settings.ttft_p99_ms:g} "
        f"ms, ITL p99 {settings.itl_p99_ms:g} ms"
    )
    yield f"  load    {workload}"
    yield (
        f"  judged  {cut.window_us / 1e6:.1f} s from {(cut.start_us + cut.warm_up_us) / 1e6:.1f} s"
        f" on, behind {cut.warm_up_us / 1e6:.1f} s of warm-up: "
        f"{load.requests_per_s:.2f} requests/s of {load.prompt_tokens:,.0f} + "
        f"{load.output_tokens:,.0f} tokens, {100 * load.hit_rate:.0f} % of the prompts repeated"
    )
    runs = "run" if settings.seeds == 1 else f"of {settings.seeds} runs"
    yield (f"  rule    in each {runs} at most 1 % of requests late or unanswered, for either limit")
    chosen, spare = plan.chosen, plan.spare
    verdict = "" if chosen.holds else " do not hold it; the search gave up there"
    yield (
        f"  answer  {chosen.replicas} replicas of {plan.tensor_parallel} x {plan.gpu}{verdict}; "
        f"{spare.replicas}{'' if spare.holds else ' not enough'} to lose one at the peak"
    )


def answer_rows(plan: SizePlan) -> Rows:
    """Return a column for each fleet, and a last one of origins."""
    fleets = (plan.chosen, plan.spare, plan.baseline)
    names = (plan.chosen.policy, "one lost", plan.baseline.policy)
    columns = [list(figure_rows(fleet)) for fleet in fleets]
    figures = ([row[0].label, *map(cell, row), row[0].how] for row in zip(*columns, strict=True))
    holds = ["holds", *("yes" if fleet.holds else "no" for fleet in fleets), "the rule"]
    return [["", *names, ""], *figures, holds]


def saving_lines(plan: SizePlan) -> Iterator[str]:
    """Yield what the policy saves, and what one replica less would be like."""
    chosen, baseline = plan.chosen, plan.baseline
    share = plan.saved_usd_per_month / baseline.usd_per_month
    at_least = "" if baseline.holds else "at least "
    yield (
        f"{chosen.policy} against {baseline.policy}: {at_least}{plan.saved_gpus} GPUs, "
        f"${plan.saved_usd_per_month:,.0f} per month ({100 * share:.0f} %), "
        f"${plan.saved_usd_per_million_tokens:.3f} per million tokens less"
    )
    if chosen.one_less is not None:
        run = chosen.one_less
        yield (
            f"{chosen.replicas - 1} replicas fail: {run.late_ttft} requests late for the TTFT "
            f"limit and {run.late_itl} for the ITL limit, of {run.requests}"
            f"{' by when the run was stopped' if run.stopped else ''}"
        )
    yield f"arithmetic alone (even arrivals, no queues) says {plan.bracket.replicas}"


def rate_rows(plan: SizePlan) -> Rows:
    """Return the rate sweep, its knee marked."""
    rows = [["requests/s", "TTFT p50", "TTFT p99", "ITL p99", "hit rate", "late", ""]]
    for row in plan.rates:
        run = row.run
        mark = "<- knee: the last that holds" if row.requests_per_s == plan.knee else ""
        rows.append(
            [
                f"{row.requests_per_s:.2f} (x {row.rate_scale:g})",
                f"{run.ttft_p50_ms:,.0f} ms",
                f"{run.ttft_p99_ms:,.0f} ms",
                f"{run.itl_p99_ms:.1f} ms",
                f"{100 * run.hit_rate:.0f} %",
                f"{max(run.late_ttft, run.late_itl)} of {run.requests}",
                mark,
            ]
        )
    return rows


def sweep_rows(plan: SizePlan) -> Rows:
    """Return the GPU types; a star marks the Pareto front of cost and TTFT p99."""
    rows = [["", "replica", "replicas", "GPUs", "USD/month", "TTFT p99", "ITL p99", "hit rate"]]
    for row in plan.sweep:
        kind = f"{row.gpus} x {row.gpu}"
        if row.run is None or row.replicas is None:
            rows.append(["", kind, row.why_not or ""])
            continue
        rows.append(
            [
                "*" if row.on_front else "",
                kind,
                f"{row.replicas}",
                f"{row.replicas * row.gpus}",
                f"{row.usd_per_month:,.0f}",
                f"{row.run.ttft_p99_ms:,.0f} ms",
                f"{row.run.itl_p99_ms:.1f} ms",
                f"{100 * row.run.hit_rate:.0f} %",
            ]
        )
    return rows


def what_if_rows(plan: SizePlan) -> Rows:
    """Return the changed questions."""
    rows = [["change", "replicas", "GPUs", "USD/month", "TTFT p99", "hit rate", ""]]
    for row in plan.what_if:
        if row.run is None:
            rows.append([row.change, "-", "-", "-", "-", "-", row.note])
            continue
        rows.append(
            [
                row.change,
                f"{row.replicas}",
                f"{row.gpus}",
                f"{row.usd_per_month:,.0f}",
                f"{row.run.ttft_p99_ms:,.0f} ms",
                f"{100 * row.run.hit_rate:.0f} %",
                row.note,
            ]
        )
    return rows


def note_lines(plan: SizePlan, settings: SizeSettings) -> Iterator[str]:
    """Yield where prices, memory and the intervals are from."""
    yield (
        f"USD {plan.usd_per_gpu_hour:.2f} for a {plan.gpu} and hour: {PRICES_SOURCE}, unless given "
        "with --prices."
    )
    if plan.gpu not in SHOWN_GIB:
        yield f"{plan.gpu}'s memory is the data sheet's; PyTorch may show a little less."
    judged = round(plan.load.requests_per_s * plan.cut.window_us / 1e6)
    if judged < JUDGED_MIN:
        yield (
            f"Only {judged} requests are judged, of which {judged // 100} may be late: too few for "
            "a p99 to be trusted. Raise --requests-max, and --window-s if need be."
        )
    if settings.trace is not None:
        yield (
            f"Caches begin empty {plan.cut.warm_up_us / 1e6:.1f} s before the window: what a trace "
            "repeats from further back counts as new, so the answer errs towards more GPUs. Raise "
            "--warm-up-s and --requests-max."
        )
    if settings.seeds > 1:
        yield f"+- is the 95 % interval of the mean over {settings.seeds} seeds (Student's t)."
    yield (
        f"{plan.trials} simulated fleets. Step times are modelled, 7.5 % off on average "
        "(docs/step-time.md); what is not modelled: docs/planner.md."
    )


def cell(row: FigureRow) -> str:
    """Return one figure of an answer."""
    value = row.value
    if isinstance(value, Estimate):
        return _estimate_text(value, row.unit)
    if row.unit.startswith("USD"):
        return f"{value:,.0f}" if row.unit == "USD/month" else f"{value:.3f}"
    return value_text(row).removesuffix(f" {row.unit}")


def table(rows: Rows) -> str:
    """Return ``rows`` in columns; a row may have fewer cells, its last is not cut."""
    count = max(map(len, rows))
    widths = [
        max((len(row[index]) for row in rows if index < len(row) - 1), default=0)
        for index in range(count)
    ]
    lines = []
    for row in rows:
        cells = [f"{text:<{width}}" for text, width in zip(row, widths, strict=False)]
        lines.append(f"  {'  '.join(cells)}".rstrip())
    return "\n".join(lines)


def _estimate_text(value: Estimate, unit: str) -> str:
    scale, digits = (100, 1) if unit == "share" else (1, 0 if value.mean >= 100 else 1)
    name = "%" if unit == "share" else unit
    spread = "" if value.half_width is None else f" +- {scale * value.half_width:,.{digits}f}"
    return f"{scale * value.mean:,.{digits}f}{spread} {name}"
