"""An agent between an HTTP server and a real Redis: what is written there, and when nothing is.

Reports are read back with the contract's own decoder.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from contract.load_report import LoadReport, decode_report
from contract.options import SettingError
from contract.redis_layout import REPORT_TTL_MS, RedisLayout
from replicas.agents.agent import running_agent
from replicas.agents.config import AgentConfig
from replicas.agents.engines.engine import EngineKind
from tests.redis_server import RedisServer
from tests.replicas.agents.conftest import PAGE, FakeEngine, fake_engine
from tests.waiting import DEADLINE_S, until

pytestmark = pytest.mark.live

KEYS = RedisLayout("tests")


def make_config(redis: RedisServer, *urls: str, **settings: Any) -> AgentConfig:
    usual: dict[str, Any] = {
        "engine": EngineKind.LLAMACPP,
        "replica_id": "r1" if len(urls) == 1 else None,
        "redis_url": redis.url,
        "fleet": "tests",
        "scrape_interval_ms": 10,
        "scrape_timeout_ms": 5_000,
        "redis_timeout_ms": 10_000,
    }
    return AgentConfig(urls=urls, **(usual | settings))


async def report_in(redis: Any, replica_id: str = "r1") -> LoadReport | None:
    data = await redis.get(KEYS.replica(replica_id))
    return decode_report(data) if data else None


async def report_that(
    redis: RedisServer, holds: Callable[[LoadReport], bool], replica_id: str = "r1"
) -> LoadReport:
    """Wait for a report of which ``holds`` is true."""
    seen: LoadReport | None = None
    async with redis.client() as client:
        try:
            async with asyncio.timeout(DEADLINE_S):
                while seen is None or not holds(seen):
                    seen = await report_in(client, replica_id)
                    await asyncio.sleep(0.005)
        except TimeoutError:
            pytest.fail(f"not reported; the last report is {seen}")
    return seen


def anything(_: LoadReport) -> bool:
    return True


async def next_report(redis: RedisServer, after: LoadReport | None = None) -> LoadReport:
    return await report_that(redis, lambda r: after is None or r.sequence > after.sequence)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


async def test_an_engine_is_found_in_redis_by_its_names(
    engine: FakeEngine, redis_server: RedisServer
) -> None:
    engine.metrics = PAGE.format(running=3, tokens=10)

    async with running_agent(make_config(redis_server, engine.url)):
        report = await next_report(redis_server)
        async with redis_server.client() as redis:
            members = await redis.smembers(KEYS.replicas)
            ttl_ms = await redis.pttl(KEYS.replica("r1"))

    assert (report.replica_id, report.url, report.running_requests) == ("r1", engine.url, 3)
    assert (report.model, report.aliases) == ("tiny", ["small", "adapter"])
    assert (report.hash_scheme, report.waiting_prefill_tokens) == (None, None)
    assert members == {b"r1"}
    assert 0 < ttl_ms <= REPORT_TTL_MS


async def test_several_engines_are_reported_each_by_its_port(redis_server: RedisServer) -> None:
    async with fake_engine() as one, fake_engine() as other:
        config = make_config(redis_server, one.url, other.url)

        async with running_agent(config) as replica_ids:
            reports = [await report_that(redis_server, anything, i) for i in replica_ids]

        assert [report.url for report in reports] == [one.url, other.url]
        assert [i.rpartition("-")[2] for i in replica_ids] == [str(one.port), str(other.port)]
        assert "127.0.0.1" not in "".join(replica_ids)


async def test_gateways_are_told_the_advertised_url(
    engine: FakeEngine, redis_server: RedisServer
) -> None:
    config = make_config(redis_server, engine.url, advertise_url="http://e7:80/", replica_id=None)

    async with running_agent(config) as replica_ids:
        report = await report_that(redis_server, anything, "e7-80")

    assert replica_ids == ["e7-80"]
    assert report.url == "http://e7:80"


async def test_a_given_model_is_not_asked_for(
    engine: FakeEngine, redis_server: RedisServer
) -> None:
    engine.statuses["/v1/models"] = 401
    config = make_config(redis_server, engine.url, model="llama", aliases=("l",), api_key="sk-1")

    async with running_agent(config):
        report = await next_report(redis_server)

    assert (report.model, report.aliases) == ("llama", ["l"])
    assert {request.path for request in engine.requests} == {"/health", "/metrics"}
    assert {r.headers["authorization"] for r in engine.requests} == {"Bearer sk-1"}


async def test_a_model_that_is_loaded_later_is_noticed(
    engine: FakeEngine, redis_server: RedisServer
) -> None:
    config = make_config(redis_server, engine.url, identify_interval_ms=1)

    async with running_agent(config):
        await next_report(redis_server)
        engine.models = '{"data": [{"id": "tiny"}, {"id": "fresh"}]}'

        report = await report_that(redis_server, lambda r: r.aliases == ["fresh"])

    assert report.model == "tiny"


@pytest.mark.parametrize(
    ("break_it", "told"),
    [
        (lambda e: setattr(e, "metrics", "vllm:num_requests_running 1"), "give --engine vllm"),
        (lambda e: setattr(e, "metrics", "llamacpp:requests_processing x"), "text format"),
        (lambda e: setattr(e, "metrics", "<html>"), "start llama-server with --metrics"),
        (lambda e: setattr(e, "metrics", PAGE + "# " + "x" * 10_000), "longer than 10000 bytes"),
        (lambda e: e.statuses.update({"/metrics": 501}), "status 501, expected 200"),
        (lambda e: e.statuses.update({"/metrics": 302}), "status 302, expected 200"),
        (lambda e: e.statuses.update({"/health": 503}), "still loading"),
        (lambda e: e.answering.clear(), "no whole answer within 0.5 s"),
    ],
    ids=["other", "garbage", "html", "long", "501", "redirect", "unhealthy", "hung"],
)
async def test_an_engine_that_does_not_tell_expires_and_is_complained_of_once(
    break_it: Callable[[FakeEngine], object],
    told: str,
    engine: FakeEngine,
    redis_server: RedisServer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    limits = {"page_bytes_max": 10_000, "identify_interval_ms": 1}
    if "0.5 s" in told:
        limits["scrape_timeout_ms"] = 500
    async with running_agent(make_config(redis_server, engine.url, **limits)):
        first = await next_report(redis_server)
        healthy = dict(vars(engine))
        caplog.clear()
        break_it(engine)
        await until(lambda: any(told in warning for warning in warnings(caplog)), told)
        async with redis_server.client() as redis:
            last = await report_in(redis)
            asked = len(engine.requests)
            await until(lambda: len(engine.requests) > asked + 3, "more scrapes")
            same = await report_in(redis)
        complaints = warnings(caplog)

        vars(engine).update(healthy | {"statuses": {}})
        engine.answering.set()
        back = await next_report(redis_server, after=last)

    assert same in (last, None)  # nothing new was said, and what was said may have expired
    assert len(complaints) == 1
    assert back.incarnation == first.incarnation


async def test_an_engine_that_is_killed_and_started_again_is_another_one_at_once(
    engine: FakeEngine, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_agent(make_config(redis_server, engine.url)):
        first = await next_report(redis_server)
        await engine.stop()
        await until(lambda: any("cannot connect" in w for w in warnings(caplog)), "a complaint")

        await engine.start()
        second = await next_report(redis_server, after=first)
        while second.incarnation == first.incarnation:
            second = await next_report(redis_server, after=second)

    assert second.url == first.url


async def test_a_restart_that_no_scrape_saw_shows_in_the_counters(
    engine: FakeEngine, redis_server: RedisServer
) -> None:
    async with running_agent(make_config(redis_server, engine.url)):
        first = await next_report(redis_server)
        engine.metrics = (
            PAGE.format(running=0, tokens=3) + "llamacpp:prompt_tokens_cached_total 0\n"
        )

        second = await report_that(redis_server, lambda r: r.prompt_tokens_total == 3)

    assert second.incarnation != first.incarnation


async def test_engine_and_redis_may_be_away_at_the_start(
    redis_stopped: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with fake_engine() as engine:
        await engine.stop()
        async with running_agent(make_config(redis_stopped, engine.url)):
            await until(lambda: any("cannot connect" in w for w in warnings(caplog)), "the engine")
            await engine.start()
            await until(lambda: any("Redis is away" in w for w in warnings(caplog)), "Redis")
            await redis_stopped.start()

            report = await next_report(redis_stopped)

    assert report.running_requests == 0
    assert warnings(caplog).count("Redis is back") == 1


async def test_a_frozen_redis_holds_nothing_up_and_is_complained_of_once(
    engine: FakeEngine, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_agent(make_config(redis_server, engine.url, redis_timeout_ms=1_000)):
        first = await next_report(redis_server)
        redis_server.freeze()
        try:
            await until(lambda: len(warnings(caplog)) > 0, "a complaint")
            asked = len(engine.requests)
            await until(lambda: len(engine.requests) > asked + 2, "more scrapes")
        finally:
            redis_server.thaw()

        await next_report(redis_server, after=first)
        await until(lambda: "Redis is back" in warnings(caplog), "its return")

    assert sum("Redis is away" in warning for warning in warnings(caplog)) == 1


async def test_an_agent_that_leaves_leaves_the_last_report_to_expire(
    engine: FakeEngine, redis_server: RedisServer
) -> None:
    async with running_agent(make_config(redis_server, engine.url)):
        await next_report(redis_server)

    async with redis_server.client() as redis:
        ttl_ms = await redis.pttl(KEYS.replica("r1"))
    asked = len(engine.requests)
    async with running_agent(make_config(redis_server, engine.url, replica_id="r2")):
        await report_that(redis_server, anything, "r2")

    assert 0 < ttl_ms <= REPORT_TTL_MS
    assert len(engine.requests) > asked


async def test_a_redis_url_that_cannot_be_one_is_refused_without_repeating_it() -> None:
    config = AgentConfig(urls=("http://e:1",), redis_url="hunter2@nowhere")

    with pytest.raises(SettingError, match="redis_url cannot be read") as error:
        async with running_agent(config):
            pass

    assert "hunter2" not in str(error.value)
