"""Replicas that are dead, mute, wedged or flapping: others do not feel it, and it is noticed."""

import asyncio
import json
from itertools import pairwise

import pytest

from tests.field.harness import Fake, gateway_of, refusing, resetting, saying, silent
from tests.field.redis_side import reporting
from tests.redis_server import RedisServer
from tests.router.gateway.running import clock_us
from tests.router.gateway.scripted_replica import Turn
from tests.router.gateway.wire import Answer, chat, get, post
from tests.waiting import until
from warmroute.demo.processes import free_port

IN_TURN = {"policy": "round_robin"}
NOWHERE = "http://127.0.0.1:9"
"""The discard port: nobody listens there."""


async def test_ded_01_a_mute_replica_holds_up_only_its_own_requests() -> None:
    async with (
        Fake(silent) as a,
        Fake(replica_id="b") as b,
        Fake(replica_id="c") as c,
        gateway_of(a, b, c, **IN_TURN) as gateway,
    ):
        clients = [await gateway.connect() for _ in range(30)]
        for client in clients:
            await client.send(post(chat()))
        await until(lambda: len(gateway.records) == 20, "the others are answered")
        await a.is_asked(10)
        assert gateway.load_of("a") == gateway.plane.stats().exchanges == 10
        for client in clients:
            client.close()
        await gateway.rests()

    assert gateway.outcomes() == ["complete"] * 20 + ["client_left"] * 10


async def test_ded_01_a_mute_replica_gives_up_its_share_at_the_deadline() -> None:
    limits = {"answer_timeout_s": 1.5, "breaker_failures": 2, "breaker_cooldown_s": 20.0}
    async with (
        Fake(silent) as a,
        Fake(replica_id="b") as b,
        gateway_of(a, b, **limits, **IN_TURN) as gateway,
    ):
        clients = [await gateway.connect() for _ in range(8)]
        answers = await asyncio.gather(*(client.ask(post(chat())) for client in clients))
        asked = len(a.asked)
        later = [(await gateway.chat()).status for _ in range(10)]

        assert gateway.status_of("a").breaker.value == "open"

    assert {answer.status for answer in answers} == {200}
    assert later == [200] * 10
    assert len(a.asked) == asked == 4


async def test_ded_02_a_fleet_that_was_gone_serves_again_by_itself() -> None:
    a, b = Fake(), Fake(replica_id="b")
    settings = {"breaker_failures": 2, "breaker_cooldown_s": 0.1, "breaker_cooldown_max_s": 0.2}
    a.port, b.port = free_port(), free_port()  # where nobody listens yet
    async with gateway_of(a, b, **settings, **IN_TURN) as gateway:
        meanwhile = [await gateway.chat() for _ in range(20)]
        async with a, b:
            await until(lambda: gateway.status_of("a").breaker.value != "open")
            await until(lambda: gateway.status_of("b").breaker.value != "open")
            after = [(await gateway.chat()).status for _ in range(20)]

    assert {answer.status for answer in meanwhile} <= {502, 503}
    assert all(json.loads(answer.body)["error"]["code"] for answer in meanwhile)
    assert after == [200] * 20


async def test_ded_02_while_all_are_ejected_they_are_used_rather_than_nobody() -> None:
    settings = {"breaker_failures": 1, "breaker_cooldown_s": 20.0, "retry_max": 0}
    async with (
        Fake(resetting) as a,
        Fake(resetting, "b") as b,
        gateway_of(a, b, **settings, **IN_TURN) as gateway,
    ):
        for _ in range(4):
            await gateway.chat()
        assert {gateway.status_of(one).breaker.value for one in "ab"} == {"open"}
        a.play, b.play = saying("a"), saying("b")

        assert [(await gateway.chat()).status for _ in range(10)] == [200] * 10


@pytest.mark.parametrize("path", ["/v1/models", "/v1/some/other/route"])
async def test_ded_04_every_route_goes_past_a_dead_replica(path: str) -> None:
    settings = {"breaker_failures": 2, "breaker_cooldown_s": 20.0}
    async with (
        Fake(replica_id="b") as b,
        gateway_of(NOWHERE, b, **settings, **IN_TURN) as gateway,
    ):
        answers = [await gateway.ask(get(path)) for _ in range(20)]

    assert {answer.status for answer in answers} == {200}


async def test_ded_05_a_wedged_engine_with_good_reports_loses_its_traffic(
    redis_server: RedisServer,
) -> None:
    limits = {"first_byte_timeout_s": 1.0, "answer_timeout_s": 1.0, "breaker_failures": 2}
    redis = {"redis_url": redis_server.url, "breaker_cooldown_s": 20.0}
    async with Fake(silent) as a, Fake(replica_id="b") as b, reporting(redis_server, a, b) as say:
        say.say(a, running_requests=0, waiting_requests=6)
        async with gateway_of(**limits, **redis, **IN_TURN) as gateway:
            await gateway.knows("a", "b")
            statuses = [(await gateway.chat(stream=True)).status for _ in range(10)]
            asked = len(a.asked)
            later = [(await gateway.chat()).status for _ in range(10)]

    assert statuses == later == [200] * 10
    assert 2 <= asked == len(a.asked) <= 3


@pytest.mark.parametrize("status", [400, 401, 404, 413, 422])
async def test_ded_06_a_clients_mistakes_open_no_breaker(status: int) -> None:
    bad = refusing(f"{status} No")
    async with (
        Fake(bad) as a,
        Fake(bad, "b") as b,
        gateway_of(a, b, **IN_TURN) as gateway,
    ):
        for _ in range(100):
            assert (await gateway.chat()).status == status
        a.play, b.play = saying("a"), saying("b")

        assert {gateway.status_of(one).breaker.value for one in "ab"} == {"closed"}
        assert {(await gateway.chat()).status for _ in range(10)} == {200}


@pytest.mark.parametrize("policy", ["session", "prefix_hash", "prefix_load"])
async def test_ded_08_a_session_goes_on_elsewhere_when_its_replica_dies(policy: str) -> None:
    settings = {"breaker_failures": 1, "breaker_cooldown_s": 20.0, "policy": policy}
    a, b = Fake(), Fake(replica_id="b")
    async with a, b, gateway_of(a, b, **settings) as gateway:

        async def turn() -> Answer:
            return await gateway.chat("the same prompt " * 100, "x-session-id: s")

        for _ in range(10):
            await turn()
        home, other = (a, b) if len(a.asked) > len(b.asked) else (b, a)
        home.play = resetting
        statuses = [(await turn()).status for _ in range(10)]

    assert statuses == [200] * 10
    assert len(other.asked) >= 10


async def test_ded_10_a_replica_that_always_fails_gets_probes_only() -> None:
    settings = {"breaker_failures": 3, "breaker_cooldown_s": 0.1, "breaker_cooldown_max_s": 20.0}
    asked_us: list[int] = []

    async def fail(turn: Turn) -> None:
        asked_us.append(clock_us())
        await refusing("500 No")(turn)

    async with (
        Fake(fail) as a,
        Fake(replica_id="b") as b,
        gateway_of(a, b, **settings, **IN_TURN) as gateway,
    ):
        while len(asked_us) < 6:
            await gateway.chat()

    gaps_us = [later - sooner for sooner, later in pairwise(asked_us[2:])]
    cooldowns_us = (100_000, 200_000, 400_000)
    assert all(gap >= least for gap, least in zip(gaps_us, cooldowns_us, strict=True))


async def test_ded_10_each_gateway_keeps_a_replica_out_by_what_it_saw_itself() -> None:
    settings = {"breaker_failures": 2, "breaker_cooldown_s": 20.0}
    async with (
        Fake(refusing("500 No")) as a,
        Fake(replica_id="b") as b,
        gateway_of(a, b, **settings, **IN_TURN) as first,
        gateway_of(a, b, **settings, **IN_TURN) as second,
    ):
        for _ in range(20):
            await first.chat()
            await second.chat()

    assert len(a.asked) == 4
