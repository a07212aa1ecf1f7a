"""What must hold of every run, whatever the workload, the policy and the accidents.

A broken law is a bug in the router, the engine or the simulator, never a property of a workload.
"""

from simulator.fleet_run import FleetRun
from simulator.outcome import End, Outcome


def check_laws(run: FleetRun) -> None:
    """Assert the laws on a run that has ended."""
    _check_requests(run)
    for outcome in run.outcomes:
        _check_causality(outcome)
    _check_engines(run)
    _check_gateways(run)


def _check_requests(run: FleetRun) -> None:
    """Every request of the workload ends once."""
    asked = sorted(request.request_id for stage in run.stages for request in stage.requests)
    ended = sorted(outcome.request.request_id for outcome in run.outcomes)
    assert asked == ended, "requests were lost or doubled"
    assert all(outcome.end is not None for outcome in run.outcomes)


def _check_causality(outcome: Outcome) -> None:
    """Nothing comes before what it follows from, and an answer has what was asked for."""
    request = outcome.request
    assert 0 <= outcome.cached_tokens < request.prompt_tokens
    if outcome.end is End.COMPLETE:
        assert outcome.output_tokens == request.output_tokens, "tokens were lost or doubled"
        assert outcome.queue_us is not None
        assert outcome.ttft_us is not None
        assert outcome.e2e_us is not None
        assert 0 <= outcome.queue_us < outcome.ttft_us <= outcome.e2e_us
    if outcome.end in (End.FAILED, End.REFUSED):
        assert outcome.ttft_us is None, "an answer that had begun ended as if it had not"
    if outcome.end is End.BROKEN:
        assert outcome.ttft_us is not None


def _check_engines(run: FleetRun) -> None:
    """No sequence, block or token is left or lost; the engines computed what they counted."""
    for replica in run.replicas.values():
        scheduler = replica.engine.scheduler
        scheduler.check()
        assert not replica.num_live
        assert not scheduler.waiting
        assert not scheduler.running
        assert not scheduler.pool.num_held, "blocks are held by nobody"
    if not run.spec.faults:
        finished = sum(o.output_tokens for o in run.outcomes if o.end is End.COMPLETE)
        left = sum(o.output_tokens for o in run.outcomes if o.end is End.LEFT)
        made = sum(replica.engine.stats().output_tokens_total for replica in run.replicas.values())
        assert finished + left == made, f"{made} tokens were made, {finished + left} arrived"


def _check_gateways(run: FleetRun) -> None:
    """No lease is open, and what events told is what the caches hold."""
    loses = run.spec.timing.event_loss > 0
    for gateway in run.gateways:
        assert not len(gateway.fleet.ledger), "leases are open though every request has ended"
        assert not gateway.queued
        gateway.fleet.check()
        for status in gateway.fleet.views():
            replica = run.replicas[status.view.replica_id]
            report = status.report
            if loses or report is None or report.hash_scheme is None:
                continue
            if report.incarnation != replica.incarnation:
                continue  # that it has restarted is on its way
            confirmed = gateway.fleet.index.confirmed(status.view.slot)
            held = set(replica.engine.cached_hashes())
            # Fewer than held: the index has a bound.
            assert confirmed <= held, f"{len(confirmed - held)} blocks are believed, not held"
