"""Puts one replica together: engine, driver, routes and reporter, and takes it apart in order."""

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web
from redis.asyncio import Redis

from contract.blocks import HASH_SCHEME, TOKEN_BYTES
from contract.load_report import LoadReport
from replicas.core.step_time import StepTime
from replicas.server.app import Api
from replicas.server.config import ReplicaConfig
from replicas.server.driver import Driver
from replicas.server.engine_setup import engine_settings, prefill_tokens_per_s, step_time_of
from replicas.server.metrics import ReplicaMetrics
from replicas.server.reporter import Reporter, ReportSource, connect_redis

WILDCARD_HOSTS = frozenset({"", "0.0.0.0", "::"})
LISTEN_BACKLOG = 1_024
LAST_ANSWERS_S = 1.0
"""What is generated has ended or been cut off when the server stops; a scrape may take this."""


@dataclass(frozen=True)
class Replica:
    """A running replica."""

    config: ReplicaConfig
    replica_id: str
    incarnation: str
    url: str  # where this machine reaches it
    api: Api
    driver: Driver
    metrics: ReplicaMetrics

    async def drain(self) -> None:
        """Refuse new requests and let running ones end, for at most ``drain_s``."""
        self.api.drain()
        try:
            async with asyncio.timeout(self.config.drain_s):
                await self.api.wait_until_finished()
        except TimeoutError:
            pass  # what still runs is cut off with its connection
        if self.config.redis_url is not None:
            # A gateway that has not read it yet would run into a closed port.
            await asyncio.sleep(self.config.drain_notice_ms / 1e3)


class ReportMaker:
    """Makes load reports out of the driver's engine."""

    def __init__(
        self, config: ReplicaConfig, step_time: StepTime, driver: Driver, api: Api
    ) -> None:
        self._config = config
        self._driver = driver
        self._api = api
        self._prefill_tokens_per_s = prefill_tokens_per_s(config, step_time)

    def make(self, replica_id: str, incarnation: str, url: str, sequence: int) -> LoadReport:
        """Return the report of this moment."""
        config, stats = self._config, self._driver.engine.stats()
        return LoadReport(
            replica_id=replica_id,
            url=url,
            model=config.model,
            incarnation=incarnation,
            sequence=sequence,
            aliases=list(config.aliases),
            # Without prefix caching there is nothing to publish, and nothing to match.
            hash_scheme=HASH_SCHEME if config.enable_prefix_caching else None,
            block_size=config.block_size,
            block_bytes=config.block_size * TOKEN_BYTES,
            waiting_requests=stats.waiting_requests,
            running_requests=stats.running_requests,
            waiting_prefill_tokens=stats.waiting_prefill_tokens,
            kv_blocks_total=stats.kv_blocks_total,
            kv_blocks_used=stats.kv_blocks_used,
            cached_tokens_total=stats.cached_tokens_total,
            prompt_tokens_total=stats.prompt_tokens_total,
            step_time_us=stats.step_time_us,
            prefill_tokens_per_s=self._prefill_tokens_per_s,
            draining=self._api.draining,
        )


@asynccontextmanager
async def running_replica(config: ReplicaConfig) -> AsyncIterator[Replica]:
    """Run a replica inside the block; leaving it cuts off what still runs.

    Raises SettingError for what cannot run and OSError for an address that cannot be bound. A
    failure of the step loop ends the block: a replica that does not step must not look alive.
    """
    engine_config, step_time = engine_settings(config), step_time_of(config)
    metrics = ReplicaMetrics()
    catch_up_us = round(config.catch_up_ms_max * 1_000)
    driver = Driver(engine_config, step_time, config.speedup, catch_up_us, metrics)
    api = Api(config, driver, metrics)
    maker = ReportMaker(config, step_time, driver, api)
    async with _redis_client(config) as redis, _listening(config, api.app()) as port:
        replica_id = config.replica_id or f"{socket.gethostname()}-{port}"
        incarnation = secrets.token_hex(8)
        url = f"http://{_bracketed(_reachable_host(config.host, '127.0.0.1'))}:{port}"
        replica = Replica(config, replica_id, incarnation, url, api, driver, metrics)
        async with asyncio.TaskGroup() as tasks:
            stepping = tasks.create_task(driver.run())
            try:
                async with _reporting(replica, port, maker, redis):
                    yield replica
            finally:
                api.cut_off()
                stepping.cancel()


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
async def _reporting(
    replica: Replica, port: int, maker: ReportMaker, redis: "Redis | None"
) -> AsyncIterator[None]:
    config, driver = replica.config, replica.driver
    if redis is None:
        yield
        return
    host = _bracketed(_reachable_host(config.host, socket.gethostname()))
    url = config.advertise_url or f"http://{host}:{port}"
    source = ReportSource(
        lambda sequence: maker.make(replica.replica_id, replica.incarnation, url, sequence),
        driver.engine.drain_events,
        driver.engine.cached_hashes,
    )
    reporter = Reporter(
        config, redis, replica.replica_id, replica.incarnation, source, replica.metrics
    )
    driver.publish = reporter.add_events
    replica.api.on_drain = reporter.report_now
    async with asyncio.TaskGroup() as tasks:
        publishing = tasks.create_task(reporter.run())
        try:
            yield
        finally:
            reporter.stop()
            await asyncio.wait([publishing])
            await reporter.remove()


def _reachable_host(host: str, if_wildcard: str) -> str:
    return if_wildcard if host in WILDCARD_HOSTS else host


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
