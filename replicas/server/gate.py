"""Who may come in: draining, queue limits, and which requests have not their whole answer yet."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from aiohttp import web

from contract.failures import Failure
from replicas.core.scheduler import NeverFitsError
from replicas.server.config import ReplicaConfig
from replicas.server.generation import Generation
from replicas.server.metrics import MAX_QUEUED_REQUESTS, MAX_QUEUED_TOKENS, ReplicaMetrics
from replicas.server.ranks import Ranks
from replicas.server.refusal import RefusedError

RANK_HEADER = "X-data-parallel-rank"


class Gate:
    """Lets requests in and knows which of them are inside."""

    def __init__(self, config: ReplicaConfig, ranks: Ranks, metrics: ReplicaMetrics) -> None:
        self.draining = False
        self.on_drain: Callable[[], None] = lambda: None
        self._config = config
        self._ranks = ranks
        self._metrics = metrics
        self._unfinished: set[asyncio.Transport] = set()  # each carries one request at a time
        self._finished = asyncio.Event()
        self._finished.set()

    @property
    def num_unfinished(self) -> int:
        """Requests that are read, generated for, or being sent their answer."""
        return len(self._unfinished)

    def drain(self) -> None:
        """Refuse new requests; running ones go on."""
        if not self.draining:
            self.draining = True
            self.on_drain()

    async def wait_until_finished(self) -> None:
        """Return when every request that was accepted has its whole answer."""
        await self._finished.wait()

    def cut_off(self) -> None:
        """Abort the connections of unfinished requests: none may look like a whole answer."""
        for transport in self._unfinished:
            transport.abort()

    @contextmanager
    def unfinished(self, request: web.Request) -> Iterator[None]:
        """Count ``request`` as unfinished inside the block."""
        transport = request.transport
        if transport is None:
            raise ConnectionResetError("the client left before its request was read")
        self._unfinished.add(transport)
        self._finished.clear()
        try:
            yield
        finally:
            self._unfinished.remove(transport)
            if not self._unfinished:
                self._finished.set()

    async def read_body(self, request: web.Request) -> bytes:
        """Return the body. Raises RefusedError if it takes too long, or while draining."""
        try:
            async with asyncio.timeout(self._config.body_timeout_s):
                body = await request.read()
        except TimeoutError as error:
            limit = self._config.body_timeout_s
            message = f"the body did not arrive within {limit:g} s"
            raise RefusedError(Failure.REQUEST_TIMEOUT, message) from error
        # After the body, so that a request which began before the drain is refused as well.
        if self.draining:
            raise RefusedError(Failure.DRAINING, "this replica drains; ask another one")
        return body

    @contextmanager
    def serving(self, request: web.Request, generations: Sequence[Generation]) -> Iterator[None]:
        """Have all of these live inside the block. Raises RefusedError with none of them live."""
        rank = self._rank_asked_for(request)
        self._check_queue(len(generations))
        try:
            with self._ranks.serving(generations, rank):
                yield
        except NeverFitsError as error:
            raise RefusedError(Failure.NEVER_FITS, str(error)) from error

    def _check_queue(self, num_new: int) -> None:
        """Refuse what vLLM refuses: a sequence too many, or any while a backlog is too long."""
        config, ranks = self._config, self._ranks
        most = config.max_queued_requests
        if ranks.num_live + num_new > most:
            self._reject(
                MAX_QUEUED_REQUESTS,
                f"{ranks.num_live} sequences wait or run, {num_new} more would exceed "
                f"max_queued_requests {most}; ask another replica",
            )
        most_tokens = config.max_queued_tokens
        if most_tokens is not None and ranks.prefilling_tokens >= most_tokens:
            self._reject(
                MAX_QUEUED_TOKENS,
                f"{ranks.prefilling_tokens} prompt tokens have no first token yet, as many as "
                f"max_queued_tokens {most_tokens} or more; ask another replica",
            )

    def _reject(self, reason: str, message: str) -> None:
        self._metrics.admission_rejections[reason] += 1
        raise RefusedError(Failure.REPLICA_OVERLOADED, message)

    def _rank_asked_for(self, request: web.Request) -> int | None:
        given = request.headers.get(RANK_HEADER)
        if given is None:
            return None
        num_ranks = len(self._ranks.drivers)
        if given not in map(str, range(num_ranks)):
            raise RefusedError(
                Failure.INVALID_REQUEST,
                f"{RANK_HEADER} is {given!r}, this replica has the ranks 0 to {num_ranks - 1}",
                RANK_HEADER,
            )
        return int(given)
