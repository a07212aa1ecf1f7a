"""An explanation as a table for a terminal: the chosen replica first, then by cost."""

from collections import Counter

from router.core.explanation import Candidate, Explanation
from router.core.reason import Reason
from warmroute.simulate.text import table

BECAUSE = {
    Reason.WARM: "no other candidate holds more of the prompt",
    Reason.SPREAD: "a warmer one was left aside because of its load",
    Reason.COLD: "no candidate holds any of the prompt",
    Reason.NO_PROMPT: "there is no prompt to match",
    Reason.ONLY_ONE: "it is the only candidate",
    Reason.QUEUED: "every replica is at its limit, so the request waits",
    Reason.MODEL_NOT_FOUND: "no replica serves that model",
    Reason.NO_REPLICA: "the fleet is empty",
    Reason.ALL_EXCLUDED: "no replica may be chosen",
    Reason.QUEUE_FULL: "the queue is full",
}
FIGURES = ("matched", "uncached", "tokens ahead", "in flight", "KV", "tokens/s")


def explanation_text(explanation: Explanation) -> str:
    """Return what was chosen and why, the candidates in a table, and who was none."""
    explanation = explanation.in_milliseconds()
    because = f"{BECAUSE[explanation.reason]} ({explanation.reason.value})"
    lines = [f"{explanation.policy} chooses {explanation.chosen or 'none'}: {because}"]
    if explanation.candidates:
        lines += ["", _table(explanation)]
    lines += [f"not eligible: {line}" for line in _ineligible(explanation)]
    return "\n".join(lines)


def _table(explanation: Explanation) -> str:
    candidates = explanation.best_first()
    terms = list(candidates[0].terms)
    shows_terms = terms != ["cost"]  # else the cost once more
    headings = ["replica"]
    if explanation.cost_unit is not None:
        headings += [f"cost {explanation.cost_unit}", *(terms if shows_terms else ())]
    rows = [_cells(each, terms if shows_terms else []) for each in candidates]
    return table([*headings, *FIGURES], rows, (0,))


def _cells(candidate: Candidate, terms: list[str]) -> list[str]:
    cells = [candidate.replica_id]
    if candidate.cost is not None:
        cells += [f"{candidate.cost:,.1f}", *(f"{candidate.terms[name]:,.1f}" for name in terms)]
    kv_usage = "-" if candidate.kv_usage is None else f"{candidate.kv_usage:.0%}"
    figures = (candidate.matched_tokens, candidate.uncached_tokens, candidate.ahead_tokens)
    cells += [f"{figure:,}" for figure in (*figures, candidate.requests)]
    return [*cells, kv_usage, f"{candidate.prefill_tokens_per_s:,.0f}"]


def _ineligible(explanation: Explanation) -> list[str]:
    counts = Counter(explanation.ineligible.values())
    return [
        f"{why.value}: "
        + ", ".join(name for name, each in explanation.ineligible.items() if each is why)
        for why in counts
    ]
