"""Puts one replica together: engine, driver, routes and reporter, and takes it apart in order."""

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web
from redis.asyncio import Redis

from contract.blocks import HASH_SCHEME, TOKEN_BYTES
from contract.load_report import LoadReport
from replicas.core.reporting import step_share, with_figures
from replicas.core.step_time import StepTime
from replicas.server.app import Api
from replicas.server.config import ReplicaConfig
from replicas.server.driver import Driver
from replicas.server.engine_setup import engine_settings, prefill_tokens_per_s, step_time_of
from replicas.server.fault_injector import FaultInjector
from replicas.server.fault_reports import ReportFaults
from replicas.server.faults import read_fault
from replicas.server.metrics import EngineMetrics, ReplicaMetrics
from replicas.server.ranks import Ranks
from replicas.server.reporter import Reporter, ReportSource, connect_redis
from replicas.server.zmq_events import publishing_as_vllm

WILDCARD_HOSTS = frozenset({"", "0.0.0.0", "::"})
LISTEN_BACKLOG = 1_024
LAST_ANSWERS_S = 1.0
"""What is generated has ended or been cut off when the server stops; a scrape may take this."""


@dataclass
class Replica:
    """A running replica."""

    config: ReplicaConfig
    replica_id: str
    incarnation: str  # another one after a restart
    url: str  # where this machine reaches it
    api: Api
    ranks: Ranks
    metrics: ReplicaMetrics
    faults: FaultInjector
    on_restart: Callable[[str], None] = lambda _incarnation: None

    @property
    def driver(self) -> Driver:
        """The first engine's; the only one's, unless there are data-parallel ranks."""
        return self.ranks.drivers[0]

    def restart(self) -> None:
        """Begin anew in this process: what runs is cut off, caches and counters are empty."""
        self.api.gate.cut_off()
        self.ranks.restart()
        self.incarnation = secrets.token_hex(8)
        self.on_restart(self.incarnation)

    async def drain(self) -> None:
        """Refuse new requests and let running ones end, for at most ``drain_s``."""
        self.api.gate.drain()
        try:
            async with asyncio.timeout(self.config.drain_s):
                await self.api.gate.wait_until_finished()
        except TimeoutError:
            pass  # what still runs is cut off with its connection
        if self.config.redis_url is not None:
            # A gateway that has not read it yet would run into a closed port.
            await asyncio.sleep(self.config.drain_notice_ms / 1e3)


class ReportMaker:
    """Makes load reports out of all engines."""

    def __init__(self, config: ReplicaConfig, step_time: StepTime, ranks: Ranks, api: Api) -> None:
        self._config = config
        self._ranks = ranks
        self._api = api
        of_one = prefill_tokens_per_s(config, step_time)
        self._prefill_tokens_per_s = of_one * config.data_parallel_size
        self._step_share = step_share(step_time, config.max_num_batched_tokens)

    def make(self, replica_id: str, incarnation: str, url: str, sequence: int) -> LoadReport:
        """Return the report of this moment."""
        config = self._config
        report = LoadReport(
            replica_id=replica_id,
            url=url,
            model=config.model,
            incarnation=incarnation,
            sequence=sequence,
            aliases=self._api.models.other_names(),
            adapters=self._api.models.adapters(),
            # Without prefix caching there is nothing to publish, and nothing to match.
            hash_scheme=HASH_SCHEME if config.enable_prefix_caching else None,
            block_size=config.block_size,
            block_bytes=config.block_size * TOKEN_BYTES,
            prefill_tokens_per_s=self._prefill_tokens_per_s,
            draining=self._api.gate.draining,
            step_tokens=config.max_num_batched_tokens,
            step_share=self._step_share,
        )
        return with_figures(report, self._ranks.stats())


@asynccontextmanager
async def running_replica(config: ReplicaConfig) -> AsyncIterator[Replica]:
    """Run a replica inside the block; leaving it cuts off what still runs.

    Raises SettingError for what cannot run and OSError for an address that cannot be bound. A
    failure of the step loop ends the block: a replica that does not step must not look alive.
    """
    engine_config, step_time = engine_settings(config), step_time_of(config)
    metrics = ReplicaMetrics()
    catch_up_us = round(config.catch_up_ms_max * 1_000)
    ranks = Ranks(
        [
            Driver(
                engine_config, step_time, config.speedup, catch_up_us, EngineMetrics(engine_config)
            )
            for _ in range(config.data_parallel_size)
        ]
    )
    faults = FaultInjector(metrics, config.fault_seed, config.replica_id or "")
    for driver in ranks.drivers:
        driver.disturbance = faults.disturbance
    api = Api(config, ranks, metrics, faults)
    maker = ReportMaker(config, step_time, ranks, api)
    faults.set(map(read_fault, config.faults))
    async with _redis_client(config) as redis, _listening(config, api.app()) as port:
        replica_id = config.replica_id or f"{socket.gethostname()}-{port}"
        incarnation = secrets.token_hex(8)
        url = f"http://{_bracketed(_reachable_host(config.host, '127.0.0.1'))}:{port}"
        replica = Replica(config, replica_id, incarnation, url, api, ranks, metrics, faults)
        faults.on_restart = replica.restart
        async with _publishing(replica, port), asyncio.TaskGroup() as tasks:
            stepping = tasks.create_task(ranks.run())
            try:
                async with _reporting(replica, port, maker, redis):
                    yield replica
            finally:
                api.gate.cut_off()
                stepping.cancel()
                faults.clear()


@asynccontextmanager
async def _listening(config: ReplicaConfig, app: web.Application) -> AsyncIterator[int]:
    runner = web.AppRunner(
        app,
        handler_cancellation=True,
        keepalive_timeout=config.keepalive_timeout_s,
        access_log=None,
        shutdown_timeout=LAST_ANSWERS_S,
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, config.host, config.port, backlog=LISTEN_BACKLOG)
        await site.start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@asynccontextmanager
async def _redis_client(config: ReplicaConfig) -> AsyncIterator["Redis | None"]:
    redis = connect_redis(config)
    try:
        yield redis
    finally:
        if redis is not None:
            await redis.aclose()


@asynccontextmanager
async def _publishing(replica: Replica, port: int) -> AsyncIterator[None]:
    config, ranks, metrics = replica.config, replica.ranks, replica.metrics
    host = _advertised_host(config)
    async with publishing_as_vllm(config, host, port, ranks, metrics) as sources:
        replica.api.status.kv_event_sources = lambda: sources
        yield


@asynccontextmanager
async def _reporting(
    replica: Replica, port: int, maker: ReportMaker, redis: "Redis | None"
) -> AsyncIterator[None]:
    config, ranks = replica.config, replica.ranks
    if redis is None:
        yield
        return
    url = config.advertise_url or f"http://{_advertised_host(config)}:{port}"
    faults = ReportFaults(replica.faults)
    source = ReportSource(
        lambda sequence: faults.load_report(
            maker.make(replica.replica_id, replica.incarnation, url, sequence)
        ),
        ranks.take_events,
        ranks.cached_runs,
        faults.kv_batches,
    )
    reporter = Reporter(
        config, redis, replica.replica_id, replica.incarnation, source, replica.metrics
    )
    ranks.publish = reporter.add_events
    replica.api.gate.on_drain = reporter.report_now
    replica.on_restart = reporter.begin_again
    replica.api.adapters.on_change = reporter.report_now
    async with asyncio.TaskGroup() as tasks:
        publishing = tasks.create_task(reporter.run())
        try:
            yield
        finally:
            reporter.stop()
            await asyncio.wait([publishing])
            await reporter.remove()


def _advertised_host(config: ReplicaConfig) -> str:
    return _bracketed(_reachable_host(config.host, socket.gethostname()))


def _reachable_host(host: str, if_wildcard: str) -> str:
    return if_wildcard if host in WILDCARD_HOSTS else host


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
