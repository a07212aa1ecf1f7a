"""What probes, scrapers and operators ask: models, health, load, metrics, drain."""

import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import msgspec
from aiohttp import hdrs, web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from contract.failures import Failure
from replicas.core.scheduler_config import SchedulerConfig
from replicas.server.collector import ReplicaCollector
from replicas.server.driver import Driver, now_us
from replicas.server.gate import Gate
from replicas.server.metrics import ReplicaMetrics
from replicas.server.ranks import Ranks
from replicas.server.refusal import RefusedError, error_response, json_response
from replicas.server.served_models import ServedModels
from replicas.server.vllm_families import EngineView, ReplicaView

KvEventSources = Callable[[], Sequence[Mapping[str, Any]]]


class StatusRoutes:
    """Answers them from the state of the replica at that moment."""

    def __init__(
        self,
        engine: SchedulerConfig,
        models: ServedModels,
        gate: Gate,
        ranks: Ranks,
        metrics: ReplicaMetrics,
    ) -> None:
        self.kv_event_sources: KvEventSources = tuple
        self._engine = engine
        self._models = models
        self._gate = gate
        self._ranks = ranks
        self._created = int(time.time())
        self._registry = CollectorRegistry()
        self._registry.register(
            ReplicaCollector(metrics, self._view, now_us, lambda: gate.draining)
        )

    def routes(self) -> list[web.RouteDef]:
        """Return what this class answers."""
        return [
            web.get("/v1/models", self._list_models),
            web.get("/health", self._health),
            web.get("/ping", self._ping),
            web.post("/ping", self._ping),
            web.get("/load", self._load),
            web.get("/version", self._version),
            web.get("/metrics", self._metrics_page),
            web.get("/kv_event_sources", self._list_kv_event_sources),
            web.post("/reset_prefix_cache", self._reset_prefix_cache),
            web.post("/admin/drain", self._drain),
        ]

    async def _list_models(self, _request: web.Request) -> web.Response:
        return json_response(self._models.cards(self._created, self._engine.max_model_len))

    async def _health(self, _request: web.Request) -> web.Response:
        if self._gate.draining:
            # An answer to a probe, not a refused request: it is not counted.
            return error_response(RefusedError(Failure.DRAINING, "this replica drains"))
        return json_response(b"{}")

    async def _ping(self, request: web.Request) -> web.Response:
        """Answer SageMaker's probe like the other one, with no body where all is well."""
        health = await self._health(request)
        return web.Response() if health.status == web.HTTPOk.status_code else health

    async def _load(self, _request: web.Request) -> web.Response:
        return json_response(msgspec.json.encode({"server_load": self._gate.num_unfinished}))

    async def _version(self, _request: web.Request) -> web.Response:
        return json_response(msgspec.json.encode({"version": version("warmroute")}))

    async def _metrics_page(self, _request: web.Request) -> web.Response:
        page = generate_latest(self._registry)
        return web.Response(body=page, headers={hdrs.CONTENT_TYPE: CONTENT_TYPE_LATEST})

    async def _list_kv_event_sources(self, _request: web.Request) -> web.Response:
        return json_response(msgspec.json.encode(self.kv_event_sources()))

    async def _reset_prefix_cache(self, _request: web.Request) -> web.Response:
        done = self._ranks.reset_prefix_cache()
        return json_response(msgspec.json.encode({"success": done}))

    async def _drain(self, _request: web.Request) -> web.Response:
        self._gate.drain()
        answer = {"draining": True, "live_sequences": self._ranks.num_live}
        return json_response(msgspec.json.encode(answer))

    def _view(self) -> ReplicaView:
        engines = [_view_of(rank, driver) for rank, driver in enumerate(self._ranks.drivers)]
        return ReplicaView(self._models.model, self._engine, engines, self._models.has_adapters)


def _view_of(rank: int, driver: Driver) -> EngineView:
    scheduler = driver.engine.scheduler
    running, waiting = (
        frozenset(each.adapter for each in line if each.adapter is not None)
        for line in (scheduler.running, scheduler.waiting)
    )
    most = scheduler.config.max_loras
    deferred = waiting - running if most is not None and len(running) >= most else frozenset[str]()
    num_deferred = sum(1 for each in scheduler.waiting if each.adapter in deferred)
    return EngineView(rank, driver.engine.stats(), driver.metrics, running, waiting, num_deferred)
