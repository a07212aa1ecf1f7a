"""A request whose body another process reads; it stands where its exchange will, until then."""

import asyncio
import logging
from collections.abc import Callable

from contract.failures import Failure
from router.core.decision import Decision
from router.core.exchange import Event
from router.core.reason import Outcome
from router.core.record import ExchangeRecord
from router.core.request import BadRequestError
from router.core.view import RouteRequest
from router.gateway.body_worker import Question
from router.gateway.context import Client, Context
from router.gateway.exchange import Exchange
from router.gateway.http_head import RequestHead
from router.gateway.local_answer import CONTINUE, error_answer, request_id_line
from router.gateway.verdict import Refusal

Replace = Callable[[Exchange], None]

log = logging.getLogger(__name__)


class LongRequest:
    """Ends by becoming an exchange, or with its client or its gateway before."""

    def __init__(
        self,
        context: Context,
        client: Client,
        head: RequestHead,
        body: bytes,
        path: str,
        replace: Replace,
    ) -> None:
        self._context = context
        self._client = client
        self._head = head
        self._body = body
        self._path = path
        self._replace = replace
        self.received_us = context.clock_us()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to read the body."""
        self._context.exchanges.add(self)
        self._task = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        context, head = self._context, self._head
        config, encoding = context.config, head.encoding.decode("latin-1")
        question = Question(
            head.path, head.session_key, head.tenant, encoding, config.max_body_bytes
        )
        needs_model = context.fleet.has_several_models
        try:
            found: RouteRequest | BadRequestError = await context.bodies.read(
                question, self._body, config.body_reading_timeout_s, needs_model
            )
        except BadRequestError as error:
            found = error
        except Exception:
            log.exception("the body of a request to %s met a fault of the gateway", self._path)
            found = BadRequestError(Failure.INTERNAL, "the gateway failed on this request")
        context.exchanges.discard(self)
        exchange = Exchange(
            *(context, self._client, head, self._body, self._path, found, self.received_us)
        )
        self._replace(exchange)
        exchange.start()

    def on(self, event: Event) -> None:
        """Something has happened to the client; all but its loss can wait."""
        if event in (Event.CLIENT_LOST, Event.CLIENT_WRITE_TIMEOUT):
            self._end(Outcome.CLIENT_LEFT, self._head.request_id or self._context.new_request_id())

    def on_drain_over(self) -> None:
        """The gateway stops."""
        head = self._head
        refusal = Refusal(Failure.DRAINING, "the gateway is stopping")
        request_id = head.request_id or self._context.new_request_id()
        self._client.write(
            error_answer(
                refusal,
                request_id_line(request_id) + head.answer_lines,
                close=True,
                bodiless=head.method == "HEAD",
                path=head.path,
            )
        )
        self._end(Outcome.REFUSED, request_id, refusal.failure)

    def probe(self) -> bytes | None:
        """Return bytes that mean nothing to a client, None where there are none."""
        return None if self._head.is_http_1_0 else CONTINUE

    def on_sweep(self, now_us: int) -> None:
        """Time has passed; the reading has a limit of its own."""

    def on_placed(self, decision: Decision) -> None:
        """Never: it is not in the queue."""

    def on_queue_timeout(self) -> None:
        """Never, likewise."""

    def on_fault(self) -> None:
        """Never: what fails in the reading is the answer to it."""

    def _end(self, outcome: Outcome, request_id: str, failure: Failure | None = None) -> None:
        context = self._context
        assert self._task is not None
        self._task.cancel()
        context.exchanges.discard(self)
        context.buffered_bytes -= len(self._body)
        record = ExchangeRecord(
            *(request_id, self._path, outcome, failure.kind.status if failure else 0),
            *(self.received_us, context.clock_us()),
            policy=context.policy,
            failure=failure,
            body_bytes=len(self._body),
        )
        context.metrics.exchange_started()
        context.report(record)
        self._client.on_exchange_end(closes=True)
