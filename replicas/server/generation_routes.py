"""The two routes that generate: chat and completions, whole or streamed."""

import asyncio
import time
from collections.abc import Sequence

from aiohttp import hdrs, web
from aiohttp.http import HttpVersion11

from replicas.core.scheduler_config import SchedulerConfig
from replicas.server.config import ReplicaConfig
from replicas.server.fault_routes import FaultRoutes
from replicas.server.gate import Gate
from replicas.server.generation import Generation, Prompt, Receiver, SamplingRules
from replicas.server.metrics import ReplicaMetrics, Siblings
from replicas.server.openai_answers import Envelope, end_of_stream, usage_of, whole_answer
from replicas.server.openai_requests import Job, Route, read_job
from replicas.server.receivers import Collector, EventStream
from replicas.server.refusal import request_id
from replicas.server.served_models import ServedModels

# aiohttp keeps the response's head back until the first write; a first write of this size is
# never large enough to wait for the client.
FIRST_WRITE_BYTES = 1_024


class SequenceIds:
    """Numbers the sequences of one replica."""

    def __init__(self) -> None:
        self._last = 0

    def generations(
        self, prompts: Sequence[Prompt], num_choices: int, rules: SamplingRules, receiver: Receiver
    ) -> list[Generation]:
        """Return a new generation for each choice of each prompt."""
        generations: list[Generation] = []
        for prompt in prompts:
            siblings = Siblings(num_choices, num_open=num_choices)
            for choice in range(num_choices):
                self._last += 1
                sequence_id, index = str(self._last), len(generations)
                generations.append(
                    Generation(sequence_id, index, prompt, choice, rules, receiver, siblings)
                )
        return generations


class GenerationRoutes:
    """Answers chat and completion requests."""

    def __init__(
        self,
        config: ReplicaConfig,
        engine: SchedulerConfig,
        models: ServedModels,
        gate: Gate,
        sequences: SequenceIds,
        metrics: ReplicaMetrics,
        faults: FaultRoutes,
    ) -> None:
        self._config = config
        self._engine = engine
        self._models = models
        self._gate = gate
        self._sequences = sequences
        self._metrics = metrics
        self._faults = faults

    def routes(self) -> list[web.RouteDef]:
        """Return what this class answers."""
        return [
            web.post("/v1/chat/completions", self._chat),
            web.post("/v1/completions", self._completion),
        ]

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        with self._gate.unfinished(request):
            return await self._generate(request, Route.CHAT)

    async def _completion(self, request: web.Request) -> web.StreamResponse:
        with self._gate.unfinished(request):
            return await self._generate(request, Route.COMPLETION)

    async def _generate(self, request: web.Request, route: Route) -> web.StreamResponse:
        body = await self._gate.read_body(request)
        job = read_job(route, body, self._models, self._config, self._engine)
        envelope = Envelope.of(route, request_id(request), int(time.time()), job.model)
        if job.stream:
            return await self._stream(request, job, envelope)
        return await self._answer(request, job, envelope)

    async def _answer(
        self, request: web.Request, job: Job, envelope: Envelope
    ) -> web.StreamResponse:
        collector = Collector(_echoes(job))
        generations = self._generations(job, self._faults.receiver(request, collector))
        with self._gate.serving(request, generations):
            await collector.ended.wait()
        usage = usage_of(generations, job.num_choices)
        body = whole_answer(envelope, collector.texts(), generations, usage)
        response = web.Response(body=body, content_type="application/json")
        await self._finish(request, response)
        return response

    async def _stream(
        self, request: web.Request, job: Job, envelope: Envelope
    ) -> web.StreamResponse:
        stream = EventStream(
            envelope, _echoes(job), self._config.stream_buffer_max_bytes, self._metrics
        )
        generations = self._generations(job, self._faults.receiver(request, stream))
        with self._gate.serving(request, generations):
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

    def _generations(self, job: Job, receiver: Receiver) -> list[Generation]:
        return self._sequences.generations(job.prompts, job.num_choices, job.rules, receiver)


def _echoes(job: Job) -> list[str]:
    return [echo for echo in job.echoes for _ in range(job.num_choices)]
