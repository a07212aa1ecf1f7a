"""What all exchanges of one data plane share, and the seams to what surrounds it."""

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from contract.failures import Failure
from router.core.admission import AdmissionQueue, Ticket
from router.core.config import RoutingConfig
from router.core.decision import Decision
from router.core.exchange import Event, State
from router.core.ledger import Lease
from router.core.reason import NotResumed, Outcome
from router.core.record import ExchangeRecord
from router.core.retry import RetryBudget
from router.core.status import ReplicaStatus
from router.core.view import RouteRequest
from router.gateway.answer_text import AnswerText, AnswerTexts, TextWatch
from router.gateway.answer_watch import AnswerWatch
from router.gateway.api_keys import ApiKeys
from router.gateway.body_reader import BodyReader
from router.gateway.config import Failover, GatewayConfig
from router.gateway.credentials import Credentials
from router.gateway.http_head import Media, RequestHeads
from router.gateway.limits import Limits
from router.gateway.replica_pool import ReplicaPools


class Fleet(Protocol):
    """What the data plane asks of the fleet."""

    def decide(
        self, request: RouteRequest, now_us: int, tried: Collection[str] = ()
    ) -> Decision: ...

    def models(self) -> list[str]: ...

    def has_several_models(self) -> bool: ...

    def knows_model(self, model: str | None) -> bool: ...

    def line_of(self, model: str | None) -> int: ...

    def is_moved(self, decision: Decision, *, is_lost: bool) -> bool: ...

    def views(self) -> Sequence[ReplicaStatus]: ...


class Metrics(Protocol):
    """What the data plane tells of itself."""

    def exchange_started(self) -> None: ...

    def exchange_ended(self, record: ExchangeRecord) -> None: ...

    def chunk_gap_us(self, gap_us: int) -> None: ...

    def retry(self, reason: str) -> None: ...

    def resume(self, reason: str) -> None: ...

    def resume_refused(self, why: NotResumed) -> None: ...

    def went_stale(self) -> None: ...


class Running(Protocol):
    """One exchange, as those see it who look after all of them."""

    def on_placed(self, decision: Decision) -> None:
        """It has left the queue with this decision."""

    def on_queue_timeout(self) -> None:
        """It has left the queue because it waited too long."""

    def on_sweep(self, now_us: int) -> None:
        """Time has passed."""

    def on_drain_over(self) -> None:
        """The gateway stops."""

    def on_fault(self) -> None:
        """The gateway itself has failed on it, as the exception under way says."""


class Owner(Protocol):
    """One exchange, as its attempts see it."""

    state: State

    @property
    def path(self) -> str:
        """The request's path, of a closed list."""

    @property
    def num_choices(self) -> int:
        """How many texts the answer consists of; each of them has a finish."""

    def on(self, event: Event) -> None:
        """Something has happened."""

    def on_failure(self, event: Event, failure: Failure, detail: str) -> None:
        """Likewise, and this is how it is called if nothing can be saved."""

    def can_retry(self, status: int) -> bool:
        """Say whether an answer of this status may be kept back in favour of another replica's."""


class Client(Protocol):
    """The client's connection, as its exchange sees it."""

    is_paused: bool

    @property
    def closes(self) -> bool:
        """Whether the connection ends with this answer."""

    def writer(self) -> Callable[[bytes], None]:
        """Return what sends the bytes of one answer, until its exchange ends."""

    def write(self, data: bytes) -> None:
        """Send bytes."""

    def cut(self, *, reset: bool) -> None:
        """Close after what has been written; with a reset, if nothing else shows the break."""

    def on_exchange_end(self, *, closes: bool) -> None:
        """The exchange is over; the next request may begin."""


Log = Callable[[ExchangeRecord], None]


class Context:
    """One per data plane; exchanges and connections reach everything through it."""

    def __init__(
        self,
        config: GatewayConfig,
        fleet: Fleet,
        routing: RoutingConfig,
        metrics: Metrics,
        clock_us: Callable[[], int],
        *,
        policy: str,
        id_prefix: str,
        log: Log | None,
        keys: ApiKeys | None = None,
    ) -> None:
        self.config = config
        self.fleet = fleet
        self.routing = routing
        self.metrics = metrics
        self.clock_us = clock_us
        self.policy = policy
        self.log = log
        self.pools = ReplicaPools(config, clock_us)
        self.bodies = BodyReader(routing)
        self.texts = AnswerTexts(config, clock_us)
        self.queue = AdmissionQueue(routing, fleet.line_of)
        self.queued: dict[Ticket, Running] = {}
        self.budget = RetryBudget(routing, clock_us())
        self.exchanges: set[Running] = set()
        self.is_draining = False
        self.swept_us = clock_us()  # the time as of the last sweep: enough for long limits
        self.buffered_bytes = 0  # bodies of requests, on their way in or held
        self.limits = Limits(config)
        self.resumes = config.failover is Failover.RESUME
        self.heads = RequestHeads(config, keys, own_name=id_prefix)
        self._placed_last: Ticket
        self._id_prefix = id_prefix
        self._num_ids = 0

    def reconfigure(
        self, config: GatewayConfig, credentials: Credentials, *, policy: str, log: Log | None
    ) -> None:
        """Hold to other settings from here on; what runs keeps the limits that it has met."""
        self.config = config
        self.limits = Limits(config)
        self.resumes = config.failover is Failover.RESUME
        self.policy = policy
        self.log = log
        self.heads.reconfigure(config, credentials.keys)
        self.pools.reconfigure(config, credentials)
        self.texts.reconfigure(config)

    def watch(self, media: Media, lease: Lease) -> AnswerWatch:
        """Return what looks at an answer, and has its text learned if nobody tells of it."""
        place, tail_bytes = lease.answer_place, self.config.answer_tail_bytes
        if place is None:
            return AnswerWatch(media, tail_bytes)
        return TextWatch(media, tail_bytes, AnswerText(self.texts, place))

    def new_request_id(self) -> str:
        """Return an id that no other request of any gateway has."""
        self._num_ids += 1
        return f"{self._id_prefix}-{self._num_ids:x}"

    def reserve(self, num_bytes: int) -> bool:
        """Make room for so many bytes of a body. False, and nothing is done, if there is not."""
        if self.buffered_bytes + num_bytes > self.config.buffered_bytes_max:
            return False
        self.buffered_bytes += num_bytes
        return True

    def report(self, record: ExchangeRecord) -> None:
        """Count and log one end; also of what never became an exchange."""
        self.metrics.exchange_ended(record)
        if self.log is not None:
            self.log(record)

    def report_refused(self, request_id: str, label: str, failure: Failure) -> None:
        """Count and log what was refused before it became an exchange."""
        now_us, status = self.clock_us(), failure.kind.status
        record = ExchangeRecord(request_id, label, Outcome.REFUSED, status, now_us, now_us)
        record.failure = failure
        record.policy = self.policy
        self.metrics.exchange_started()
        self.report(record)

    def pump(self) -> None:
        """Let queued requests go on: called when a lease has ended or a report has come."""
        while self.queued:
            try:
                placed = self.queue.next_ready(self._place)
            except Exception:  # concerns whoever was to be placed, not whoever made room
                self.queue.cancel(self._placed_last)
                self.queued.pop(self._placed_last).on_fault()
                continue
            if placed is None:
                return
            self.queued.pop(placed.ticket).on_placed(placed.decision)

    def _place(self, ticket: Ticket) -> Decision:
        self._placed_last = ticket
        return self.fleet.decide(ticket.request, self.clock_us(), ticket.tried)
