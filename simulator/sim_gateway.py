"""One gateway in virtual time: fleet state, policy, retry rule and queue of the live one."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import cache

from contract.blocks import TOKEN_BYTES, BlockHash, chain_blocks, chain_bytes, root_hash
from contract.failures import Failure
from contract.kv_events import KvEventBatch, KvSnapshot
from contract.openai_api import PromptTokensDetails, Usage
from replicas.core.sequence import CountedSequence
from router.core.admission import AdmissionQueue, Ticket
from router.core.decision import Decision
from router.core.explanation import Explanation
from router.core.fleet import FleetState
from router.core.health import AttemptOutcome
from router.core.ledger import Lease
from router.core.reason import Reason
from router.core.request import prefix_key
from router.core.retry import LOST, RetryBudget, backoff_us, may_retry
from router.core.view import ChainKey, RouteRequest
from simulator.event_loop import EventLoop, Phase
from simulator.fleet_spec import FleetSpec, ReplicaSpec
from simulator.outcome import End, Outcome
from simulator.request import SimRequest, whole_blocks
from simulator.sim_replica import Refusal, Service, SimReplica

_REFUSALS = {
    Refusal.DOWN: (Failure.CONNECT_FAILED, AttemptOutcome.TRANSPORT_ERROR),
    Refusal.DRAINING: (Failure.REPLICA_OVERLOADED, AttemptOutcome.BACK_PRESSURE),
    Refusal.OVERLOADED: (Failure.REPLICA_OVERLOADED, AttemptOutcome.BACK_PRESSURE),
    Refusal.NEVER_FITS: (Failure.NEVER_FITS, AttemptOutcome.CLIENT_ERROR),
}


_root_of = cache(root_hash)


class SimGateway:
    """Decides, sends, and learns from what comes back."""

    def __init__(
        self,
        spec: FleetSpec,
        loop: EventLoop,
        replicas: dict[str, SimReplica],
        on_end: Callable[[Outcome], None],
        read_events: Callable[[], None] = lambda: None,
    ) -> None:
        self.fleet = FleetState(spec.routing, spec.policy)
        self.config = spec.routing
        self.timing = spec.timing
        self.loop = loop
        self.replicas = replicas
        self.budget = RetryBudget(spec.routing, loop.now_us)
        self.queue = AdmissionQueue(spec.routing, self.fleet.line_of)
        self.queued: dict[Ticket, Exchange] = {}
        self.on_end = on_end
        self.read_events = read_events  # to be called before the fleet is asked or told
        self.explained_id: str | None = None  # the request whose decisions are kept
        self.explanations: list[Explanation] = []

    def receive(self, request: SimRequest) -> None:
        """Take a request in; ``on_end`` is called once with what became of it."""
        self.budget.on_request(self.loop.now_us)
        Exchange(self, request).decide()

    def take_events(self, replica: SimReplica, batch: KvEventBatch) -> None:
        """Apply a batch of events; after a gap read the snapshot."""
        now_us = self.loop.now_us
        if not self.fleet.on_kv_batch(replica.spec.replica_id, batch, now_us):
            self.loop.at(now_us + self.timing.snapshot_delay_us, Phase.END, self._resync, replica)

    def _resync(self, replica: SimReplica) -> None:
        # Read as it is now, and applied with all that happened up to now: nothing is between.
        snapshot: KvSnapshot = replica.snapshot()
        self.fleet.on_kv_snapshot(replica.spec.replica_id, snapshot, self.loop.now_us)

    def place_queued(self) -> None:
        """Send those that wait for a slot and can have one."""
        while self.queued:
            placed = self.queue.next_ready(lambda ticket: self.decide(ticket.request, ticket.tried))
            if placed is None:
                return
            self.queued.pop(placed.ticket).follow(placed.decision)

    def decide(self, request: RouteRequest, tried: Collection[str]) -> Decision:
        """Choose a replica and book its lease, see FleetState."""
        self.read_events()
        return self.fleet.decide(request, self.loop.now_us, tried)

    def expire_queued(self) -> None:
        """Fail those that have waited for the longest wait."""
        for ticket in self.queue.expired(self.loop.now_us):
            self.queued.pop(ticket).end(End.FAILED)


@dataclass(slots=True)
class SimRoute(RouteRequest):
    """A request whose chains are cut from its segments, which costs less than from a prompt."""

    pieces: list[bytes] = field(kw_only=True)

    def chain(self, key: ChainKey) -> list[BlockHash]:
        """See RouteRequest."""
        chain = self.chains.get(key)
        if chain is None:
            block_bytes, name = key
            if block_bytes % TOKEN_BYTES:
                return RouteRequest.chain(self, key)  # blocks that cut tokens are no repetitions
            root = self.root if name is None else _root_of(name)
            chain = chain_blocks(whole_blocks(self.pieces, block_bytes), root)
            self.chains[key] = chain
        return chain


class Exchange(Service):
    """The life of one request at its gateway. It ends once, and then holds no lease."""

    __slots__ = (
        *("sequence", "_gateway", "_is_served", "_lease"),
        *("_loop", "_outcome", "_route", "_ticket", "_tried"),
    )

    def __init__(self, gateway: SimGateway, request: SimRequest) -> None:
        self._gateway = gateway
        self._loop = gateway.loop
        self._outcome = Outcome(request, self._loop.now_us)
        self._tried: list[str] = []
        self._lease: Lease | None = None
        self._decision: Decision | None = None
        self._is_served = False  # ``sequence`` is on a replica
        self._ticket: Ticket | None = None
        root = _root_of(request.model or "")
        pieces = request.pieces()
        prompt = b"".join(pieces)
        self._route = SimRoute(
            request.request_id,
            request.model,
            len(prompt) // TOKEN_BYTES,
            root,
            prompt,
            prefix_key=prefix_key(prompt, root, gateway.config),
            answer_at=len(prompt),
            session_key=request.session,
            stream=True,
            is_explained=request.request_id == gateway.explained_id,
            pieces=pieces,
        )
        if request.patience_us is not None:
            leaves_us = self._loop.now_us + request.patience_us
            self._loop.at(leaves_us, Phase.ARRIVE, self._leave)

    def decide(self) -> None:
        """Choose a replica and send the request there, or queue it, or fail."""
        if self._outcome.end is not None:
            return
        gateway = self._gateway
        if gateway.queue.waits(self._route.model):
            self._wait()
        else:
            self.follow(gateway.decide(self._route, self._tried))

    def follow(self, decision: Decision) -> None:
        """Do what was decided."""
        self._outcome.reason = decision.reason
        if decision.explanation is not None:
            self._gateway.explanations.append(decision.explanation)
        if decision.replica is None:
            if decision.reason is Reason.QUEUED:
                self._wait()
            else:
                self.end(End.FAILED)
            return
        self._lease = decision.lease
        self._decision = decision
        self._outcome.replica_id = decision.replica.replica_id
        self._outcome.predicted_tokens = decision.matched_tokens
        self._outcome.attempts += 1
        due_us = self._loop.now_us + self._gateway.timing.send_delay_us
        if due_us == self._loop.now_us:
            self._send()
        else:
            self._loop.at(due_us, Phase.ARRIVE, self._send)

    def end(self, end: End) -> None:
        """End, whatever it was doing."""
        outcome = self._outcome
        assert outcome.end is None
        outcome.end = end
        assert self._lease is None or not self._lease.is_open
        self._gateway.on_end(outcome)
        self._gateway.place_queued()

    def _wait(self) -> None:
        gateway = self._gateway
        ticket = gateway.queue.offer(self._route, self._loop.now_us, self._tried)
        if ticket is None:
            self.end(End.FAILED)
            return
        self._ticket = ticket
        gateway.queued[ticket] = self

    def _send(self) -> None:
        if self._outcome.end is not None:
            return
        request = self._outcome.request
        assert self._outcome.replica_id is not None
        replica = self._gateway.replicas[self._outcome.replica_id]
        self.sequence = CountedSequence(
            f"{request.request_id}/{self._outcome.attempts}",
            range(self._route.prompt_tokens),
            request.output_tokens,
            _root_of(replica.spec.model),
            request.priority,
            hashes=self._hashes(replica.spec),
        )
        self._is_served = True
        refusal = replica.submit(self)
        if refusal is not None:
            self._is_served = False
            failure, attempt_outcome = _REFUSALS[refusal]
            self._release(attempt_outcome)
            self._retry_or(failure, End.REFUSED if refusal is Refusal.NEVER_FITS else End.FAILED)

    def _hashes(self, replica: ReplicaSpec) -> list[BlockHash]:
        """Return those of prompt and answer on that replica, whose prompt the gateway has cut."""
        if not replica.engine.enable_prefix_caching:
            return []
        route, block_bytes = self._route, replica.engine.block_size * TOKEN_BYTES
        prompt = route.chain((block_bytes, replica.model))
        rest = route.prompt[len(prompt) * block_bytes :] + self._outcome.request.answer_bytes()
        parent = prompt[-1] if prompt else _root_of(replica.model)
        return prompt + chain_bytes(rest, block_bytes, parent)

    def first_token(self) -> None:
        """See Service."""
        now_us = self._loop.now_us + self._gateway.timing.send_delay_us
        assert self._lease is not None
        self._lease.first_byte(now_us)
        if self._lease.is_probe:
            self._lease.pass_probe(now_us)
        self._outcome.ttft_us = now_us - self._outcome.arrival_us

    def finished(self) -> None:
        """See Service."""
        sequence = self.sequence
        self._is_served = False
        self._outcome.take(sequence, self._loop.now_us + self._gateway.timing.send_delay_us)
        cached = sequence.num_cached_tokens or 0
        usage = Usage(sequence.num_prompt_tokens, sequence.num_output_tokens)
        assert self._lease is not None
        # Of one that tells, a live gateway's rates would count it, too; here they do not yet.
        if not self._lease.replica.tells_of_cache:
            usage.prompt_tokens_details = PromptTokensDetails(cached)
        place = self._lease.answer_place
        self._release(AttemptOutcome.OK, usage)
        if place is not None:
            place.learn(self._outcome.request.answer_bytes(), self._loop.now_us)
        self.end(End.COMPLETE)

    def lost(self) -> None:
        """See Service."""
        self._is_served = False
        self._outcome.take(self.sequence, self._loop.now_us)
        self._release(AttemptOutcome.TRANSPORT_ERROR)
        if self._outcome.ttft_us is None:
            self._retry_or(Failure.UPSTREAM_LOST, End.FAILED)
        else:
            self.end(End.BROKEN)

    def _leave(self) -> None:
        if self._outcome.end is not None:
            return
        gateway = self._gateway
        if self._ticket is not None and gateway.queue.cancel(self._ticket):
            del gateway.queued[self._ticket]
        if self._is_served:
            assert self._outcome.replica_id is not None
            gateway.replicas[self._outcome.replica_id].abort(self)
            self._outcome.take(self.sequence, self._loop.now_us)
        self._release(AttemptOutcome.CANCELLED)
        self.end(End.LEFT)

    def _release(self, outcome: AttemptOutcome, usage: Usage | None = None) -> None:
        if self._lease is not None:
            if outcome is not AttemptOutcome.OK:  # a whole answer is no news of what was told
                self._gateway.read_events()
            self._lease.end(outcome, self._loop.now_us, usage)

    def _retry_or(self, failure: Failure, otherwise: End) -> None:
        gateway, attempts = self._gateway, self._outcome.attempts
        assert self._outcome.replica_id is not None
        self._tried.append(self._outcome.replica_id)
        now_us = self._loop.now_us
        if may_retry(failure, attempts, gateway.config) and self._may_spend(failure):
            wait_us = backoff_us(attempts, self._outcome.request.request_id, gateway.config)
            self._loop.at(now_us + wait_us, Phase.ARRIVE, self.decide)
        else:
            self.end(otherwise)

    def _may_spend(self, failure: Failure) -> bool:
        gateway = self._gateway
        assert self._decision is not None
        is_moved = gateway.fleet.is_moved(self._decision, is_lost=failure in LOST)
        return gateway.budget.take(self._loop.now_us, is_moved=is_moved)
