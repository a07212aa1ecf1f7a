"""The header in which an answer says why it came from where it came from.

Replicas are named as strangers may see them. It is ASCII and bounded: the dearest candidates are
left out first, and how many is said.
"""

import json
from itertools import islice
from math import isfinite
from typing import Any

from router.core.explanation import Candidate, Explanation
from router.gateway.config import GatewayConfig
from router.gateway.verdict import public_name

_SIGNIFICANT_DIGITS = 6


def explanation_line(explanation: Explanation, config: GatewayConfig) -> bytes:
    """Return the header's whole line; empty if not even the choice fits. Seconds become ms."""
    explanation = explanation.in_milliseconds()
    most = config.explain_candidates_max
    shown = [_shown(candidate) for candidate in explanation.best_first()[:most]]
    excluded = [
        {"replica": public_name(replica_id), "why": why.value}
        for replica_id, why in islice(explanation.ineligible.items(), most)
    ]
    while True:
        line = _line(explanation, shown, excluded)
        if len(line) <= config.explanation_bytes_max:
            return line
        if excluded:
            excluded.pop()
        elif len(shown) > 1:
            shown.pop()
        else:
            return b""


def _line(
    explanation: Explanation, shown: list[dict[str, Any]], excluded: list[dict[str, str]]
) -> bytes:
    value = {
        "policy": explanation.policy,
        "unit": explanation.cost_unit,
        "reason": explanation.reason.value,
        "prompt_tokens": explanation.prompt_tokens,
        "candidates": shown,
        "candidates_left_out": len(explanation.candidates) - len(shown),
        "ineligible": excluded,
        "ineligible_left_out": len(explanation.ineligible) - len(excluded),
    }
    # By default this module escapes every control byte, and all that is not ASCII.
    text = json.dumps(value, separators=(",", ":"))
    return b"x-warmroute-explanation: %b\r\n" % text.encode("ascii")


def _shown(candidate: Candidate) -> dict[str, Any]:
    """Return one candidate; the first of them is the chosen one."""
    return {
        "replica": public_name(candidate.replica_id),
        "cost": None if candidate.cost is None else _rounded(candidate.cost),
        "terms": {name: _rounded(value) for name, value in candidate.terms.items()},
        "matched_tokens": candidate.matched_tokens,
        "uncached_tokens": candidate.uncached_tokens,
        "ahead_tokens": candidate.ahead_tokens,
        "requests": candidate.requests,
    }


def _rounded(value: float) -> float | None:
    return float(f"{value:.{_SIGNIFICANT_DIGITS}g}") if isfinite(value) else None
