"""What a replica that does not tell all of its state is believed to be like: its peers.

Peers are the replicas of the same model. Unknown is neither idle, nor slow, nor empty.
"""

from collections.abc import Collection

from contract.load_report import InFlight
from router.core.belief import Belief
from router.core.view import pressure_of


def lend_speeds(beliefs: Collection[Belief], prior_tokens_per_s: float) -> None:
    """Take a replica that tells no prefill speed for as fast as its fastest peer.

    One that looked slower would get no prompts, and so could never find out how fast it is.
    """
    fastest: dict[str | None, float] = {}
    for belief in beliefs:
        if belief.tells_prefill_speed:
            model, prior = belief.view.model, belief.prior_tokens_per_s
            fastest[model] = max(fastest.get(model, 0.0), prior)
    for belief in beliefs:
        if not belief.tells_prefill_speed:
            belief.set_prior(fastest.get(belief.view.model, prior_tokens_per_s))


def lend_loads(beliefs: Collection[Belief]) -> None:
    """Take a replica whose report leaves out its load for as busy as the mean of its peers.

    One that looked idle would get what the others are spared.
    """
    lacking = [belief for belief in beliefs if belief.leaves_out_load]
    if not lacking:
        return
    requests: dict[str | None, list[int]] = {}
    ahead_tokens: dict[str | None, list[int]] = {}
    for belief in beliefs:
        for told, known in zip(belief.told_load, (requests, ahead_tokens), strict=True):
            if told is not None:
                known.setdefault(belief.view.model, []).append(told)
    for belief in lacking:
        model = belief.view.model
        belief.lend_load(InFlight(_mean(requests, model), _mean(ahead_tokens, model)))


def lend_pressures(beliefs: Collection[Belief]) -> None:
    """Take a KV cache whose usage is not told for as full as the mean of its peers."""
    if all(belief.view.kv_usage is not None for belief in beliefs):
        return
    usages: dict[str | None, list[float]] = {}
    for belief in beliefs:
        if belief.view.kv_usage is not None:
            usages.setdefault(belief.view.model, []).append(belief.view.kv_usage)
    for belief in beliefs:
        view = belief.view
        if view.kv_usage is None:
            known = usages.get(view.model)
            view.kv_pressure = pressure_of(sum(known) / len(known) if known else None)


def _mean(known: dict[str | None, list[int]], model: str | None) -> int:
    values = known.get(model, ())
    return sum(values) // len(values) if values else 0
