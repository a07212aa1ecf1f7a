"""All that one gateway believes of its fleet, and the decision that rests on it.

The shell puts reports, events and the ends of attempts in; `decide()` reads a consistent state
and books its lease before it returns, so the next request of the same burst sees it.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

from contract.kv_events import KvEventBatch, KvSnapshot
from contract.load_report import GatewayReport, InFlight, LoadReport
from contract.openai_api import Usage
from router.core.answers import LearnedAnswers
from router.core.belief import Belief, Freshness
from router.core.choice import Chooser, blocks_on, look_up
from router.core.config import RoutingConfig, micros
from router.core.decision import Decision
from router.core.explanation import Explanation, explain_choice
from router.core.health import AttemptOutcome, BreakerState
from router.core.kv_mirror import apply_batch, load_snapshot
from router.core.learning import PredictionErrors, keep_running, learn_from_end
from router.core.ledger import Lease, Ledger
from router.core.policy import Policy
from router.core.prefix_index import PrefixIndex
from router.core.probing import ProbeResult
from router.core.reason import Ineligible, Reason
from router.core.roster import Pool, Roster
from router.core.slow_start import spared
from router.core.status import ReplicaStatus, status_of
from router.core.view import ReplicaView, RouteRequest

COMPUTED_US = 10_000_000
"""A prompt sent so long ago has been computed, so that the engine's word on it counts."""

_DEAD = (Ineligible.EJECTED, Ineligible.NOT_REPORTING, Ineligible.CONTRACT_MISMATCH)


class FleetState:
    """One gateway's beliefs, leases and prefix index. All methods return at once."""

    def __init__(self, config: RoutingConfig, policy: Policy) -> None:
        self.policy = policy
        self.index = PrefixIndex(
            config.index_entries_max, micros(config.prediction_ttl_s), config.index_bytes_max
        )
        self.prediction_errors = PredictionErrors()
        self._answers = LearnedAnswers(self.index)
        self.ledger = Ledger(micros(config.lease_ttl_s), self._lease_ended, self._probe_passed)
        self._config = config
        self._roster = Roster(config, self.index)
        self._chooser = Chooser(self._roster, self.ledger.touched)
        self.policy_failures = self._chooser.failures
        self._arrivals: dict[str | None, int] = {}  # decisions per known model
        self._gateway_id: str | None = None
        self._now_us = 0

    def decide(self, request: RouteRequest, now_us: int, tried: Collection[str] = ()) -> Decision:
        """Choose a replica for ``request`` and book its lease, or say why there is none.

        ``tried`` names replicas that have failed this request. Fills in ``request``'s match.
        """
        self._now_us = now_us
        model = request.model
        pool = self._roster.pool_without(model, tried) if tried else self._roster.pool(model)
        eligible, excluded = pool.views, pool.excluded
        if pool.recovering:
            eligible = spared(request, pool, now_us, self._config)
        if self._config.in_flight_max:
            excluded = self._narrow(pool)
            free = [view for view in eligible if view.replica_id not in excluded]
            # A replica that recovers is spared only where there are others.
            eligible = free or [v for v in pool.views if v.replica_id not in excluded]
        if not eligible:
            reason = _refusal(excluded)
            explanation = self._explained(request, reason, None, [], excluded)
            return Decision(reason, None, None, 0, excluded, explanation)
        found = look_up(self.index, request, pool, self._config.bytes_per_token)
        if self.policy.counts_arrivals:
            self._number(request)
        choice = self._chooser.choose(self.policy, request, pool, eligible, found)
        replica, reason = choice.replica, choice.reason
        explanation = None
        if request.is_explained:
            explanation = self._explained(request, reason, replica, eligible, excluded)
        lease = self._book(request, replica, blocks_on(found, replica), now_us)
        return Decision(
            *(reason, replica, lease, lease.matched_tokens, excluded, explanation),
            pool.is_last_resort,
        )

    def explain(self, request: RouteRequest) -> Explanation:
        """Say how ``request`` would be decided now, and book nothing. Fills in its match."""
        pool = self._roster.pool(request.model)
        excluded = self._narrow(pool)
        eligible = [view for view in pool.views if view.replica_id not in excluded]
        if not eligible:
            reason = _refusal(excluded)
            return explain_choice(self.policy, request, reason, None, [], excluded)
        found = look_up(self.index, request, pool, self._config.bytes_per_token)
        key = self._roster.key_of(request.model)
        request.arrival_index = self._arrivals.get(key, 0)
        choice = self._chooser.choose(self.policy, request, pool, eligible, found)
        reason, replica = choice.reason, choice.replica
        return explain_choice(self.policy, request, reason, replica, eligible, excluded)

    def add_static(
        self, url: str, replica_id: str | None = None, model: str | None = None, *, now_us: int
    ) -> ReplicaView:
        """Add a replica by hand; without an id its url is its id until it reports another."""
        self._now_us = now_us
        return self._roster.add_static(url, replica_id or url, model)

    def drop_static(self, url: str, replica_id: str | None = None) -> None:
        """Forget that a replica was added by hand; it stays only as long as it reports."""
        self._roster.drop_static(url, replica_id or url)

    def remove(self, replica_id: str) -> bool:
        """Take a replica out at once; one that still reports comes back, so drain it instead."""
        return self._roster.remove(replica_id)

    def drain(self, replica_id: str, draining: bool) -> bool:
        """Let a replica finish and give it nothing new, or take it back. False if unknown."""
        belief = self._roster.get(replica_id)
        if belief is None:
            return False
        belief.is_drained_by_admin = draining
        self._roster.changed()
        return True

    def on_probe(self, replica_id: str, url: str, result: ProbeResult, now_us: int) -> bool:
        """Take in how a probe of the replica at ``url`` ended; return whether it is news."""
        self._now_us = now_us
        belief = self._roster.get(replica_id)
        if belief is None or belief.view.url != url:
            return False
        view = belief.view
        is_idle = not view.requests and belief.freshness is not Freshness.FRESH
        silent_us = now_us - max(view.heard_us, view.asked_us, belief.reported_us)
        result = belief.probes.beside_bytes(result, view, now_us)
        if not belief.probes.take(result, is_idle=is_idle, silent_us=silent_us):
            return False
        if not belief.probes.is_out:
            belief.recover(now_us)
            if not belief.publishes_events:  # what came back is most likely another process
                self.index.clear(view.slot)
        self._roster.changed()
        return True

    def line_of(self, model: str | None) -> int:
        """Return in which line of a queue a request for ``model`` waits, with its competitors."""
        return self._roster.line_of(model)

    def is_moved(self, decision: Decision, *, is_lost: bool) -> bool:
        """Say whether the next attempt only moves load from a lost replica to one that is well.

        It is lost if it is out by now, or if the last attempt ``is_lost`` and had begun before any
        other that failed there since its last answer.
        """
        lease = decision.lease
        assert lease is not None
        belief = self._roster.of(lease.replica)
        if self._roster.pool(lease.model).is_last_resort_for(decision.tried):
            return False
        if belief is None or belief.standing() in _DEAD:
            return True
        since_us = belief.breaker.failing_since_us
        return is_lost and since_us is not None and lease.booked_us <= since_us

    def knows_model(self, model: str | None) -> bool:
        """Say whether some replica has said that it serves ``model``."""
        return model in self._roster.names()

    def has_several_models(self) -> bool:
        """Say whether a request that names no model may reach a replica that lacks its own."""
        return len({(b.view.model, *sorted(b.aliases)) for b in self._roster if b.view.model}) > 1

    def set_models(self, replica_id: str, names: Sequence[str]) -> None:
        """Take in what a replica that does not report says it serves: its model, then others."""
        belief = self._roster.get(replica_id)
        if belief is None or belief.report is not None or not names:
            return
        belief.view.model = belief.view.model or names[0]
        belief.listed_models = tuple(names)
        self._roster.changed()

    def on_report(self, report: LoadReport, age_us: int, now_us: int) -> None:
        """Take in a report that was ``age_us`` old when it was read, at ``now_us``."""
        self._now_us = now_us
        self._roster.take_report(report, now_us - age_us, now_us)

    def on_mismatch(self, replica_id: str, message: str) -> None:
        """Take in that a replica's report cannot be decoded; while it is so it gets no traffic."""
        belief = self._roster.get(replica_id)
        if belief is not None:
            belief.refuse(message, self._now_us)
            belief.age(self._now_us)
            self._roster.changed()

    def on_reports_read(self, present: Collection[str], now_us: int) -> None:
        """Take in that the store was read and held reports of ``present`` only."""
        self._now_us = now_us
        self._roster.mark_absent(present, now_us)
        self._forget_arrivals()

    def on_gateway_reports(self, reports: Sequence[GatewayReport], now_us: int) -> None:
        """Take in all gateways' reports; this gateway's own is left out of the sum."""
        self._now_us = now_us
        others = [report for report in reports if report.gateway_id != self._gateway_id]
        self._roster.take_gateway_reports(others, now_us)

    def on_kv_batch(self, replica_id: str, batch: KvEventBatch, now_us: int) -> bool:
        """Apply a batch of KV events. False: there is a gap, read the replica's snapshot.

        After the snapshot, offer the batches since again: those it includes are skipped.
        """
        self._now_us = now_us
        belief = self._of_events(replica_id, batch)
        return belief is None or apply_batch(self.index, belief.view.slot, belief.kv, batch)

    def on_kv_snapshot(self, replica_id: str, snapshot: KvSnapshot, now_us: int) -> bool:
        """Apply a snapshot. False: it is of another process, so the gap is still there."""
        *_, is_in_sync = self.load_kv_snapshot(replica_id, snapshot, now_us)
        return is_in_sync

    def load_kv_snapshot(
        self, replica_id: str, snapshot: KvSnapshot, now_us: int
    ) -> Iterator[bool]:
        """Apply a snapshot in slices, as in ``on_kv_snapshot``; only the last result counts."""
        self._now_us = now_us
        belief = self._of_events(replica_id, snapshot)
        if belief is None:
            return iter((True,))
        return load_snapshot(self.index, belief.view.slot, belief.kv, snapshot)

    def own_report(self, gateway_id: str, incarnation: str, sequence: int) -> GatewayReport:
        """Return what this gateway has under way, for the others."""
        self._gateway_id = gateway_id
        in_flight = {
            belief.view.replica_id: InFlight(belief.view.own_requests, belief.view.own_ahead_tokens)
            for belief in self._roster
            if belief.view.own_requests
        }
        return GatewayReport(gateway_id, incarnation, sequence, in_flight)

    def tick(self, now_us: int) -> None:
        """Let time pass: predictions, leases, reports and cooldowns. Every 100 ms or so."""
        for _ in self.ticking(now_us):
            pass

    def ticking(self, now_us: int) -> Iterator[None]:
        """Do as ``tick`` in slices, so that the caller can do other things between."""
        self._now_us = now_us
        self.index.expire(now_us)
        self.ledger.expire(now_us)
        yield
        yield from self._roster.tick(now_us)

    def models(self) -> list[str]:
        """Return the names and aliases that live replicas serve, sorted; of all if none lives."""
        live = [belief for belief in self._roster if belief.standing() not in _DEAD]
        names = {
            name for belief in live or self._roster for name in (belief.view.model, *belief.aliases)
        }
        return sorted(name for name in names if name is not None)

    def silent(self) -> dict[str, str]:
        """Return the urls of the replicas that have never reported, by replica id."""
        return {b.view.replica_id: b.view.url for b in self._roster if b.report is None}

    def views(self) -> list[ReplicaStatus]:
        """Return every replica's status, by replica id, as of the last input."""
        num_blocks, now_us = self.index.num_blocks, self._now_us
        statuses = [status_of(b, num_blocks(b.view.slot), now_us) for b in self._roster]
        return sorted(statuses, key=lambda status: status.view.replica_id)

    def check(self) -> None:
        """Assert the invariants of the index and the ledger."""
        self.index.check()
        self.ledger.check(belief.view for belief in self._roster)

    def _explained(
        self,
        request: RouteRequest,
        reason: Reason,
        replica: ReplicaView | None,
        eligible: Sequence[ReplicaView],
        excluded: Mapping[str, Ineligible],
    ) -> Explanation | None:
        """Explain what was chosen, if the request asks for it; no lease must be booked yet."""
        if not request.is_explained:
            return None
        try:
            return explain_choice(self.policy, request, reason, replica, eligible, excluded)
        except Exception as error:
            self.policy_failures.add(self.policy, error)
            return None

    def _narrow(self, pool: Pool) -> dict[str, Ineligible]:
        """Return who is out, those that are full included."""
        limit = self._config.in_flight_max
        full = [view for view in pool.views if limit and view.requests >= limit]
        return pool.excluded | {view.replica_id: Ineligible.AT_LIMIT for view in full}

    def _number(self, request: RouteRequest) -> None:
        key = self._roster.key_of(request.model)
        request.arrival_index = self._arrivals.get(key, 0)
        self._arrivals[key] = request.arrival_index + 1

    def _forget_arrivals(self) -> None:
        known = {self._roster.key_of(key) for key in self._arrivals}
        self._arrivals = {key: n for key, n in self._arrivals.items() if key in known}

    def _book(
        self, request: RouteRequest, replica: ReplicaView, matched_blocks: int, now_us: int
    ) -> Lease:
        belief = self._roster.of(replica)
        assert belief is not None
        was_computing = replica.own_ahead_tokens > 0
        matched_tokens = request.matched_tokens.get(replica.slot, 0)
        uncached_tokens = request.prompt_tokens - matched_tokens
        ahead_tokens = replica.ahead_tokens
        lease = self.ledger.book(replica, matched_tokens, uncached_tokens, now_us)
        lease.ahead_tokens = ahead_tokens
        lease.is_stream = request.stream
        belief.note_own_load()
        lease.model = request.model
        lease.is_probe = belief.breaker.begin_attempt()
        if lease.is_probe:
            self._roster.changed()  # the others wait for what the probe says
        if request.prompt:
            key = belief.chain_key(request.model)
            lease.chain = request.chain(key)
            lease.matched_blocks = matched_blocks
            slot, chain = replica.slot, lease.chain
            used_us = self.index.expect(slot, chain, matched_blocks, now_us)
            replica.room_blocks = self.index.room(slot)
            if used_us is not None and (not was_computing or now_us - used_us >= COMPUTED_US):
                lease.matched_last_used_us = used_us
            if not replica.tells_of_cache:
                if belief.finds_answers:
                    lease.answer_place = self._answers.place_after(request, slot, key, chain)
                keep_running(self.index, self._answers, belief, lease, now_us)
        return lease

    def _lease_ended(
        self, lease: Lease, outcome: AttemptOutcome, now_us: int, usage: Usage | None
    ) -> None:
        belief = self._roster.of(lease.replica)
        if belief is None:
            return  # that process has gone, and what it did says nothing of its successor
        self._observe(belief, lease, outcome, now_us)
        if outcome is AttemptOutcome.NOT_FOUND and lease.model in self._roster.names():
            belief.missing_models[lease.model] = now_us + micros(self._config.model_missing_s)
            self._roster.changed()
        rates = self._roster.rates
        if lease.is_stream and rates is not None and outcome is AttemptOutcome.OK:
            rates.learn(belief.rates, belief.prior_tokens_per_s, lease, now_us, usage)
        if lease.chain:
            belief.running.pop(lease, None)
            errors = self.prediction_errors
            learn_from_end(self.index, self._answers, errors, belief, lease, outcome, usage)

    def _probe_passed(self, lease: Lease, now_us: int) -> None:
        belief = self._roster.of(lease.replica)
        if belief is not None:
            self._observe(belief, lease, AttemptOutcome.OK, now_us)

    def _observe(self, belief: Belief, lease: Lease, outcome: AttemptOutcome, now_us: int) -> None:
        breaker = belief.breaker
        was_out = breaker.state is not BreakerState.CLOSED
        booked_us, is_probe = lease.booked_us, lease.is_probe
        if breaker.observe(outcome, now_us, began_us=booked_us, is_probe=is_probe):
            self._roster.changed()
        if was_out and breaker.state is BreakerState.CLOSED:
            belief.recover(now_us)
            self._roster.changed()

    def _of_events(self, replica_id: str, message: KvEventBatch | KvSnapshot) -> Belief | None:
        """Return whose events these are, None if they are of no use: unknown, late, foreign."""
        belief = self._roster.get(replica_id)
        if belief is None or not belief.publishes_events or belief.mismatch is not None:
            return None
        return None if message.incarnation in belief.retired else belief


def _refusal(excluded: Mapping[str, Ineligible]) -> Reason:
    why = set(excluded.values())
    if not why:
        return Reason.NO_REPLICA
    if why == {Ineligible.OTHER_MODEL}:
        return Reason.MODEL_NOT_FOUND
    return Reason.QUEUED if Ineligible.AT_LIMIT in why else Reason.ALL_EXCLUDED
