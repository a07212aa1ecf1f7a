"""The HTTP routes of one replica: OpenAI's, those that probes and scrapers use, and drain."""

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version

import msgspec
from aiohttp import hdrs, web
from aiohttp.http import HttpVersion11
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from contract.failures import Failure, error_body
from replicas.core.scheduler import NeverFitsError
from replicas.server.config import ReplicaConfig
from replicas.server.driver import Driver, now_us
from replicas.server.generation import Generation
from replicas.server.metrics import ReplicaCollector, ReplicaMetrics
from replicas.server.openai_answers import (
    Envelope,
    end_of_stream,
    model_list,
    usage_of,
    whole_answer,
)
from replicas.server.openai_requests import Job, RefusedError, Route, read_job
from replicas.server.receivers import Collector, EventStream

log = logging.getLogger(__name__)

REQUEST_ID_CHARS_MAX = 128
"""Of a client's x-request-id, which becomes part of every chunk."""

# aiohttp keeps the response's head back until the first write; a first write of this size is
# never large enough to wait for the client.
FIRST_WRITE_BYTES = 1_024

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Api:
    """Answers requests with the driver's engine. ``drain()`` refuses new ones from then on."""

    def __init__(self, config: ReplicaConfig, driver: Driver, metrics: ReplicaMetrics) -> None:
        self.draining = False
        self.on_drain: Callable[[], None] = lambda: None
        self._config = config
        self._driver = driver
        self._metrics = metrics
        self._engine_config = driver.engine.scheduler.config
        self._created = int(time.time())
        self._num_sequences = 0
        self._unfinished: set[asyncio.Transport] = set()  # each carries one request at a time
        self._finished = asyncio.Event()
        self._finished.set()
        self._registry = CollectorRegistry()
        collector = ReplicaCollector(
            metrics,
            driver.engine.stats,
            now_us,
            lambda: self.draining,
            config.model,
            config.block_size,
        )
        self._registry.register(collector)

    def app(self) -> web.Application:
        """Return the application; it must run with handler cancellation on."""
        app = web.Application(
            middlewares=[self._errors], client_max_size=self._config.max_body_bytes
        )
        app.add_routes(
            [
                web.post("/v1/chat/completions", self._chat),
                web.post("/v1/completions", self._completion),
                web.get("/v1/models", self._models),
                web.get("/health", self._health),
                web.get("/version", self._version),
                web.get("/metrics", self._metrics_page),
                web.post("/reset_prefix_cache", self._reset_prefix_cache),
                web.post("/admin/drain", self._drain),
            ]
        )
        return app

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

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        with self._as_unfinished(request):
            return await self._generate(request, Route.CHAT)

    async def _completion(self, request: web.Request) -> web.StreamResponse:
        with self._as_unfinished(request):
            return await self._generate(request, Route.COMPLETION)

    @contextmanager
    def _as_unfinished(self, request: web.Request) -> Iterator[None]:
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

    async def _generate(self, request: web.Request, route: Route) -> web.StreamResponse:
        body = await self._read_body(request)
        # After the body, so that a request which began before the drain is refused as well.
        self._check_open()
        job = read_job(route, body, self._config, self._engine_config)
        envelope = Envelope.of(route, _request_id(request), int(time.time()), self._config.model)
        if job.stream:
            return await self._stream(request, job, envelope)
        return await self._answer(request, job, envelope)

    async def _answer(
        self, request: web.Request, job: Job, envelope: Envelope
    ) -> web.StreamResponse:
        collector = Collector(_echoes(job))
        generations = self._generations(job, collector)
        with self._serving(generations):
            await collector.ended.wait()
        reasons = [generation.finish_reason for generation in generations]
        usage = usage_of(generations, job.num_choices)
        body = whole_answer(envelope, collector.texts(), reasons, usage)
        response = web.Response(body=body, content_type="application/json")
        await self._finish(request, response)
        return response

    async def _stream(
        self, request: web.Request, job: Job, envelope: Envelope
    ) -> web.StreamResponse:
        stream = EventStream(
            envelope, _echoes(job), self._config.stream_buffer_max_bytes, self._metrics
        )
        generations = self._generations(job, stream)
        with self._serving(generations):
            # The head goes out with the first token, as in vLLM: what fails before is a status.
            await stream.begun.wait()
            response = await self._begin_stream(request, stream)
            await stream.ended.wait()
        usage = usage_of(generations, job.num_choices) if job.include_usage else None
        await self._finish(request, response, stream.tail + end_of_stream(envelope, usage))
        return response

    async def _begin_stream(self, request: web.Request, stream: EventStream) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={
                hdrs.CONTENT_TYPE: "text/event-stream; charset=utf-8",
                hdrs.CACHE_CONTROL: "no-cache",
            }
        )
        await response.prepare(request)
        await response.write(stream.take_early(FIRST_WRITE_BYTES))
        transport = request.transport
        if transport is None:
            raise ConnectionResetError("the client left before its answer began")
        stream.attach(transport, chunked=request.version >= HttpVersion11)
        return response

    async def _finish(
        self, request: web.Request, response: web.StreamResponse, tail: bytes = b""
    ) -> None:
        """Send what is left of a response; cut off a client that does not read it in time."""
        try:
            async with asyncio.timeout(self._config.last_write_timeout_s):
                await response.prepare(request)
                await response.write_eof(tail)
        except TimeoutError:
            self._metrics.slow_clients += 1
            if request.transport is not None:
                request.transport.abort()

    def _generations(self, job: Job, receiver: Collector | EventStream) -> list[Generation]:
        generations: list[Generation] = []
        for prompt in job.prompts:
            for choice in range(job.num_choices):
                self._num_sequences += 1
                sequence_id = str(self._num_sequences)
                index = len(generations)
                generations.append(
                    Generation(sequence_id, index, prompt, choice, job.rules, receiver)
                )
        return generations

    @contextmanager
    def _serving(self, generations: list[Generation]) -> Iterator[None]:
        try:
            with self._driver.serving(generations):
                yield
        except NeverFitsError as error:
            raise RefusedError(Failure.NEVER_FITS, str(error)) from error

    async def _read_body(self, request: web.Request) -> bytes:
        try:
            async with asyncio.timeout(self._config.body_timeout_s):
                return await request.read()
        except TimeoutError as error:
            limit = self._config.body_timeout_s
            message = f"the body did not arrive within {limit:g} s"
            raise RefusedError(Failure.REQUEST_TIMEOUT, message) from error

    def _check_open(self) -> None:
        if self.draining:
            raise RefusedError(Failure.DRAINING, "this replica drains; ask another one")
        most = self._config.max_waiting_requests
        if len(self._driver.engine.scheduler.waiting) >= most:
            message = f"{most} sequences are waiting, the most that are queued; ask another replica"
            raise RefusedError(Failure.REPLICA_OVERLOADED, message)

    async def _models(self, _request: web.Request) -> web.Response:
        names = [self._config.model, *self._config.aliases]
        return _json(model_list(names, self._created, self._engine_config.max_model_len))

    async def _health(self, _request: web.Request) -> web.Response:
        if self.draining:
            # An answer to a probe, not a refused request: it is not counted.
            return _error_response(RefusedError(Failure.DRAINING, "this replica drains"))
        return _json(b"{}")

    async def _version(self, _request: web.Request) -> web.Response:
        return _json(msgspec.json.encode({"version": version("warmroute")}))

    async def _metrics_page(self, _request: web.Request) -> web.Response:
        page = generate_latest(self._registry)
        return web.Response(body=page, headers={hdrs.CONTENT_TYPE: CONTENT_TYPE_LATEST})

    async def _reset_prefix_cache(self, _request: web.Request) -> web.Response:
        done = self._driver.reset_prefix_cache()
        return _json(msgspec.json.encode({"success": done}))

    async def _drain(self, _request: web.Request) -> web.Response:
        self.drain()
        answer = {"draining": True, "live_sequences": self._driver.num_live}
        return _json(msgspec.json.encode(answer))

    @web.middleware
    async def _errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Give every refusal OpenAI's shape."""
        try:
            return await handler(request)
        except RefusedError as error:
            return self._refusal(error)
        except web.HTTPNotFound:
            message = f"no route {request.method} {request.path}"
            return self._refusal(RefusedError(Failure.NOT_FOUND, message))
        except web.HTTPMethodNotAllowed as error:
            message = f"{request.path} takes {', '.join(sorted(error.allowed_methods))}"
            return self._refusal(RefusedError(Failure.METHOD_NOT_ALLOWED, message))
        except web.HTTPRequestEntityTooLarge:
            message = f"the body has more than {self._config.max_body_bytes} bytes"
            return self._refusal(RefusedError(Failure.BODY_TOO_LARGE, message))
        except ConnectionResetError:
            raise  # the client left: there is nobody to answer
        except Exception:
            # Once an answer has begun, only cutting the connection shows that it is not whole.
            if request.transport is None or request.writer.output_size > 0:
                raise
            log.exception("%s %s failed", request.method, request.path)
            return self._refusal(RefusedError(Failure.INTERNAL, "the replica failed; see its log"))

    def _refusal(self, error: RefusedError) -> web.Response:
        self._metrics.count_refused(error.failure.kind.code)
        return _error_response(error)


def _json(body: bytes, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json")


def _error_response(error: RefusedError) -> web.Response:
    kind = error.failure.kind
    response = _json(error_body(error.failure, error.message, error.param), kind.status)
    if kind.retry_after_s is not None:
        response.headers[hdrs.RETRY_AFTER] = str(kind.retry_after_s)
    return response


def _echoes(job: Job) -> list[str]:
    return [echo for echo in job.echoes for _ in range(job.num_choices)]


def _request_id(request: web.Request) -> str:
    given = request.headers.get("x-request-id", "")[:REQUEST_ID_CHARS_MAX]
    return given or secrets.token_hex(12)
