"""Watches engines and tells Redis of them, each in a loop of its own, until it is told to stop.

A report that fails to be written is not kept: the next one says more. On leaving nothing is
removed, as the engines go on serving; their last reports expire, unless another agent takes over.
"""

import asyncio
import logging
import secrets
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address
from urllib.parse import urlsplit

import aiohttp
from redis.asyncio import Redis

from contract.load_report import LoadReport, encode_report
from contract.redis_layout import REPORT_TTL_MS, RedisLayout
from replicas.agents.config import AgentConfig
from replicas.agents.engines.watch import EngineIdentity, EngineWatch
from replicas.agents.scrape import EngineGoneError, ScrapeError, Scraper
from replicas.redis_client import drop_connections, redis_client

log = logging.getLogger(__name__)


class Publisher:
    """Writes load reports to Redis; says once that it is away, and once that it is back."""

    def __init__(self, redis: "Redis", config: AgentConfig) -> None:
        self._redis = redis
        self._layout = RedisLayout(config.fleet)
        self._timeout_ms = config.redis_timeout_ms
        self._is_away = False

    async def publish(self, report: LoadReport) -> None:
        """Write ``report`` in bounded time, or lose it."""
        try:
            async with asyncio.timeout(self._timeout_ms / 1e3):
                pipe = self._redis.pipeline(transaction=False)
                key = self._layout.replica(report.replica_id)
                pipe.set(key, encode_report(report), px=REPORT_TTL_MS)
                pipe.sadd(self._layout.replicas, report.replica_id)
                await pipe.execute()
        except Exception as error:  # redis-py answers to garbage with many types
            if not self._is_away:
                log.warning("Redis is away, engines are not reported: %r", error)
            self._is_away = True
            await drop_connections(self._redis, self._timeout_ms)
        else:
            if self._is_away:
                log.warning("Redis is back")
            self._is_away = False


class EngineLoop:
    """One engine: looked at every interval, reported whenever it answers."""

    def __init__(
        self, config: AgentConfig, scraper: Scraper, watch: EngineWatch, publisher: Publisher
    ) -> None:
        self.models: list[str] = []  # the name, then its aliases; empty until it has told
        self._config = config
        self._scraper = scraper
        self._watch = watch
        self._publisher = publisher
        self._models_due_s = 0.0  # on the monotonic clock; 0 is now
        self._complaint: str | None = "not looked at yet"  # None while it answers
        self._id, self._url = watch.identity.replica_id, scraper.url

    async def run(self, stopping: asyncio.Event) -> None:
        """Watch until ``stopping`` is set."""
        while not stopping.is_set():
            due_s = time.monotonic() + self._config.scrape_interval_ms / 1e3
            await self._look()
            try:
                async with asyncio.timeout(max(0.0, due_s - time.monotonic())):
                    await stopping.wait()
            except TimeoutError:
                pass  # the next look is due

    async def _look(self) -> None:
        try:
            report = await self._report()
        except ScrapeError as error:
            if isinstance(error, EngineGoneError):
                self._watch.gone()
            self._models_due_s = 0.0
            self._complain(str(error))
        else:
            await self._publisher.publish(report)

    async def _report(self) -> LoadReport:
        if time.monotonic() >= self._models_due_s:
            self.models = await self._scraper.models()
            self._models_due_s = time.monotonic() + self._config.identify_interval_ms / 1e3
        report = self._watch.answered(await self._scraper.figures(), self.models)
        if self._complaint is not None:
            log.info("%s answers, reported as %s, model %s", self._url, self._id, report.model)
        self._complaint = None
        return report

    def _complain(self, what: str) -> None:
        if what != self._complaint:
            log.warning("%s is not reported: %s", self._url, what)
        self._complaint = what


@asynccontextmanager
async def running_agent(config: AgentConfig) -> AsyncIterator[list[str]]:
    """Watch ``config.urls`` until the end of the context; yields the replica ids.

    Raises SettingError for a Redis URL that cannot be one.
    """
    assert config.redis_url is not None
    redis = redis_client(config.redis_url, config.redis_timeout_ms, "agent")
    headers = {"accept": "text/plain, application/json", "accept-encoding": "identity"}
    if config.api_key is not None:
        headers["authorization"] = f"Bearer {config.api_key}"
    stopping = asyncio.Event()
    agent_id, first_sequence = secrets.token_hex(8), time.time_ns() // 1_000_000
    try:
        async with aiohttp.ClientSession(headers=headers) as session, asyncio.TaskGroup() as tasks:
            publisher = Publisher(redis, config)
            identities = [_identity(config, url) for url in config.urls]
            for url, identity in zip(config.urls, identities, strict=True):
                scraper = Scraper(config, url.rstrip("/"), session)
                watch = EngineWatch(identity, agent_id, first_sequence)
                loop = EngineLoop(config, scraper, watch, publisher)
                tasks.create_task(loop.run(stopping), name=identity.replica_id)
            try:
                yield [identity.replica_id for identity in identities]
            finally:
                # Not by cancelling: redis-py loses a cancellation now and then.
                stopping.set()
    finally:
        await redis.aclose()


def _identity(config: AgentConfig, url: str) -> EngineIdentity:
    advertised = (config.advertise_url or url).rstrip("/")
    return EngineIdentity(config.replica_id or _id_of(advertised), advertised, config.kv_tokens)


def _id_of(url: str) -> str:
    """Name the replica by host and port; by this host where the URL says no more than that."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return f"{socket.gethostname() if _is_loopback(host) else host}-{parts.port}"


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
