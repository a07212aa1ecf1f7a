"""Models: an unknown one is the client's mistake, a known one without replicas is the fleet's."""

import json
from contextlib import AsyncExitStack

import pytest

from tests.field.harness import Fake, FieldGateway, gateway_of
from tests.field.redis_side import reporting
from tests.redis_server import RedisServer
from tests.router.gateway.wire import get
from tests.waiting import until


async def listed(gateway: FieldGateway) -> list[str]:
    """Return the gateway's list of models."""
    answer = await gateway.ask(get("/v1/models"))
    return [model["id"] for model in json.loads(answer.body)["data"]]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", ["nope", "m2", "", "m/x", "m\u00e9", "m ", "a" * 500])
async def test_mdl_01_an_unknown_model_is_a_404_that_names_it(model: str, stream: bool) -> None:
    async with Fake() as a, gateway_of(a) as gateway:
        answer = await gateway.chat(model=model, stream=stream)

    error = json.loads(answer.body)["error"]
    assert (answer.status, error["type"]) in (
        (404, "invalid_request_error"),
        (400, "invalid_request_error"),
    )
    assert answer.status == 400 or error["code"] == "model_not_found"
    assert model[:50] in error["message"]
    assert a.asked == []


async def test_mdl_01_a_known_model_without_a_live_replica_is_a_503(
    redis_server: RedisServer,
) -> None:
    async with (
        Fake() as a,
        reporting(redis_server, a) as say,
        gateway_of(redis_url=redis_server.url) as gateway,
    ):
        await gateway.knows("a")
        say.say(a, draining=True)
        await until(lambda: gateway.status_of().is_draining)
        answer = await gateway.chat()
        unknown = await gateway.chat(model="nope")

    assert (answer.status, unknown.status) == (503, 404)
    assert answer.value("retry-after")


@pytest.mark.parametrize("reports", [False, True])
async def test_mdl_01_a_known_model_whose_replicas_were_killed_becomes_a_503(
    reports: bool, redis_server: RedisServer
) -> None:
    listed = [] if reports else ["http://127.0.0.1:1"]
    settings = {"breaker_failures": 10 if reports else 2}
    async with (
        reporting(redis_server) as say,
        gateway_of(*listed, redis_url=redis_server.url, retry_max=0, **settings) as gateway,
    ):
        if reports:
            say.say("r0", url="http://127.0.0.1:1")
        await gateway.knows("r0")
        at_first = await gateway.chat()
        await gateway.chat()
        if reports:
            await say.hush("r0")
        await until(lambda: gateway.status_of("r0").standing is not None, "it is known to be out")
        later = await gateway.chat()

    assert (at_first.status, at_first.code) == (502, "replica_connect_failed")
    assert (later.status, later.code) == (503, "no_replica_available")
    assert later.value("retry-after")
    assert b"r0" in later.body


@pytest.mark.parametrize("model", [" m ", "M", "m ", "\tm"])
async def test_mdl_03_a_name_is_taken_as_it_is_written(model: str) -> None:
    async with Fake() as a, gateway_of(a) as gateway:
        answer = await gateway.chat(model=model)
        await gateway.rests()
        labels = {
            label
            for label in ("m", "other")
            if gateway.count("warmroute_requests_total", model=label)
        }

    assert (answer.status, answer.code) == (404, "model_not_found")
    assert labels == {"other"}


async def test_mdl_05_the_list_is_of_all_live_replicas(redis_server: RedisServer) -> None:
    async with (
        Fake() as a,
        Fake(replica_id="b") as b,
        Fake(replica_id="c") as c,
        reporting(redis_server, a, b, c) as say,
    ):
        say.say(a, model="m1", aliases=["m2"])
        say.say(b, model="m2", aliases=["m3"])
        say.say(c, model="m4")
        limits = {"report_stale_s": 1.0, "report_dead_s": 2.0}
        async with gateway_of(redis_url=redis_server.url, **limits) as gateway:
            await gateway.knows("a", "b", "c")
            await until(lambda: "m4" in gateway.fleet.models())
            await say.hush("c")
            await until(lambda: gateway.fleet.models() == ["m1", "m2", "m3"])
            names = await listed(gateway)
            statuses = {(await gateway.chat(model="m1")).status for _ in range(10)}
            m3 = (await gateway.chat(model="m3")).status

    assert names == ["m1", "m2", "m3"]
    assert (statuses, m3) == ({200}, 200)
    assert (len(a.asked), len(b.asked)) == (10, 1)


@pytest.mark.parametrize("reports", [False, True])
async def test_mdl_05_a_replica_may_serve_hundreds_of_adapters(
    reports: bool, redis_server: RedisServer
) -> None:
    names = [f"adapter-{number}" for number in range(300)]
    async with Fake(models=["m", *names]) as a, AsyncExitStack() as stack:
        if reports:
            told = reporting(redis_server, a, aliases=names, adapters=names)
            await stack.enter_async_context(told)
        listed_by_hand = () if reports else (a,)
        gateway = await stack.enter_async_context(
            gateway_of(*listed_by_hand, redis_url=redis_server.url)
        )
        await gateway.knows("a")
        await until(lambda: gateway.fleet.knows_model(names[-1]), "they are known")
        answer = await gateway.chat(model=names[-1])
        await gateway.rests()

        assert answer.status == 200
        assert len(await listed(gateway)) == 301
        assert gateway.count("warmroute_requests_total", model=names[-1]) == 1


async def test_mdl_06_a_model_that_moves_takes_its_requests_along(
    redis_server: RedisServer,
) -> None:
    async with Fake() as a, Fake(replica_id="b") as b, reporting(redis_server, a, b) as say:
        say.say(a, model="m1")
        say.say(b, model="m2")
        async with gateway_of(redis_url=redis_server.url) as gateway:
            await until(lambda: gateway.fleet.models() == ["m1", "m2"])
            assert (await gateway.chat(model="m1")).status == 200
            say.say(a, model="m2")
            say.say(b, model="m1")
            await until(
                lambda: [s.view.model for s in gateway.fleet.views()] == ["m2", "m1"],
                "the swap is known",
            )
            a.asked.clear()
            for name in ("m1", "m2") * 20:
                assert (await gateway.chat(model=name)).status == 200

    assert {json.loads(request.body)["model"] for request in a.asked} == {"m2"}
    assert {json.loads(request.body)["model"] for request in b.asked} == {"m1"}
