"""``/v1/embeddings``: the prompt is computed like any other, the vector is made of its hash.

Equal prompts have equal vectors of length 1 on any replica; nothing else is meant by them.
"""

import sys
import time
from array import array
from base64 import b64encode
from hashlib import shake_128
from math import sqrt

import msgspec
from aiohttp import web

from contract.openai_api import Usage
from replicas.core.scheduler_config import SchedulerConfig
from replicas.server.config import ReplicaConfig
from replicas.server.gate import Gate
from replicas.server.generation import Prompt
from replicas.server.generation_routes import SequenceIds
from replicas.server.openai_answers import usage_of
from replicas.server.openai_requests import EmbeddingJob, read_embedding_job
from replicas.server.receivers import Collector
from replicas.server.refusal import json_response, request_id
from replicas.server.served_models import ServedModels

_BYTES_PER_NUMBER = 2


def vector_of(prompt: Prompt, dimensions: int) -> "array[float]":
    """Return the vector of a prompt: single precision, of length 1, the same everywhere.

    A shorter one is the beginning of a longer one, scaled.
    """
    salt = prompt.root.to_bytes(8, "little")
    numbers = array("h", shake_128(salt + prompt.words).digest(dimensions * _BYTES_PER_NUMBER))
    if sys.byteorder == "big":
        numbers.byteswap()
    length = sqrt(sum(number * number for number in numbers)) or 1.0
    return array("f", [number / length for number in numbers])


class EmbeddingRoutes:
    """Answers requests for embeddings."""

    def __init__(
        self,
        config: ReplicaConfig,
        engine: SchedulerConfig,
        models: ServedModels,
        gate: Gate,
        sequences: SequenceIds,
    ) -> None:
        self._config = config
        self._engine = engine
        self._models = models
        self._gate = gate
        self._sequences = sequences

    def routes(self) -> list[web.RouteDef]:
        """Return what this class answers."""
        return [web.post("/v1/embeddings", self._embed)]

    async def _embed(self, request: web.Request) -> web.StreamResponse:
        with self._gate.unfinished(request):
            body = await self._gate.read_body(request)
            job = read_embedding_job(body, self._models, self._config, self._engine)
            collector = Collector([""] * len(job.prompts))
            generations = self._sequences.generations(job.prompts, 1, job.rules, collector)
            with self._gate.serving(request, generations):
                await collector.ended.wait()
            return json_response(_answer(job, request_id(request), usage_of(generations, 1)))


def _answer(job: EmbeddingJob, answer_id: str, usage: Usage) -> bytes:
    data = [
        {
            "index": index,
            "object": "embedding",
            "embedding": _encoded(vector_of(prompt, job.dimensions), job.base64),
        }
        for index, prompt in enumerate(job.prompts)
    ]
    return msgspec.json.encode(
        {
            "id": f"embd-{answer_id}",
            "object": "list",
            "created": int(time.time()),
            "model": job.model,
            "data": data,
            "usage": usage,
        }
    )


def _encoded(vector: "array[float]", base64: bool) -> str | list[float]:
    if not base64:
        return vector.tolist()
    if sys.byteorder == "big":
        vector.byteswap()
    return b64encode(vector.tobytes()).decode()
