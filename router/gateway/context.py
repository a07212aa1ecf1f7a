"""What all exchanges of one data plane share, and the seams to what surrounds it."""

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from router.core.admission import AdmissionQueue, Ticket
from router.core.config import RoutingConfig, micros
from router.core.decision import Decision
from router.core.fleet import ReplicaStatus
from router.core.record import ExchangeRecord
from router.core.retry import RetryBudget
from router.core.view import RouteRequest
from router.gateway.config import GatewayConfig
from router.gateway.http_head import RequestHeads
from router.gateway.replica_pool import ReplicaPools


class Fleet(Protocol):
    """What the data plane asks of the fleet."""

    def decide(
        self, request: RouteRequest, now_us: int, tried: Collection[str] = ()
    ) -> Decision: ...

    def models(self) -> list[str]: ...

    def views(self) -> Sequence[ReplicaStatus]: ...


class Metrics(Protocol):
    """What the data plane tells of itself."""

    def exchange_started(self) -> None: ...

    def exchange_ended(self, record: ExchangeRecord) -> None: ...

    def chunk_gap_us(self, gap_us: int) -> None: ...

    def retry(self, reason: str) -> None: ...


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


class Client(Protocol):
    """The client's connection, as its exchange sees it."""

    is_paused: bool

    @property
    def closes(self) -> bool:
        """Whether the connection ends with this answer."""

    def write(self, data: bytes) -> None:
        """Send bytes."""

    def cut(self, *, reset: bool) -> None:
        """Close after what has been written; with a reset, if nothing else shows the break."""

    def on_exchange_end(self, *, closes: bool) -> None:
        """The exchange is over; the next request may begin."""


Log = Callable[[ExchangeRecord], None]


class Limits:
    """The limits on time of the settings, in microseconds."""

    def __init__(self, config: GatewayConfig) -> None:
        self.idle_us = micros(config.client_idle_timeout_s)
        self.header_us = micros(config.client_header_timeout_s)
        self.body_us = micros(config.client_body_timeout_s)
        self.write_us = micros(config.client_write_timeout_s)
        self.linger_us = micros(config.linger_s)
        self.first_byte_us = micros(config.first_byte_timeout_s)
        self.answer_us = micros(config.answer_timeout_s)
        self.between_bytes_us = micros(config.between_bytes_timeout_s)
        self.reuse_race_us = micros(config.reuse_race_s)


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
    ) -> None:
        self.config = config
        self.fleet = fleet
        self.routing = routing
        self.metrics = metrics
        self.clock_us = clock_us
        self.policy = policy
        self.log = log
        self.pools = ReplicaPools(config, clock_us)
        self.queue = AdmissionQueue(routing)
        self.queued: dict[Ticket, Running] = {}
        self.budget = RetryBudget(routing, clock_us())
        self.exchanges: set[Running] = set()
        self.is_draining = False
        self.swept_us = clock_us()  # the time as of the last sweep: enough for long limits
        self.buffered_bytes = 0  # bodies of requests, on their way in or held
        self.limits = Limits(config)
        self.heads = RequestHeads(
            forward_authorization=config.forward_authorization,
            session_header=config.session_header,
        )
        self._id_prefix = id_prefix
        self._num_ids = 0

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

    def on_lease_end(self) -> None:
        """There may be room for a queued request."""
        if self.queued:
            self.pump()

    def report(self, record: ExchangeRecord) -> None:
        """Count and log one end; also of what never became an exchange."""
        self.metrics.exchange_ended(record)
        if self.log is not None:
            self.log(record)

    def pump(self) -> None:
        """Let queued requests go on: called when a lease has ended or a report has come."""
        while self.queued and (placed := self.queue.next_ready(self._place)) is not None:
            exchange = self.queued.pop(placed.ticket)
            exchange.on_placed(placed.decision)

    def _place(self, ticket: Ticket) -> Decision:
        return self.fleet.decide(ticket.request, self.clock_us(), ticket.tried)
