"""Replicas that come and go: no new request for one that leaves, no cut stream, no slow start."""

import asyncio
import json

import pytest

from replicas.server.replica import Replica
from tests.field.harness import FIN, Fake, FieldGateway, gateway_of, silent, tok
from tests.field.redis_side import reporting
from tests.field.simulated import simulated
from tests.field.test_streaming import Pieces, received
from tests.redis_server import RedisServer
from tests.router.gateway.running import RawClient
from tests.router.gateway.scripted_replica import ScriptedReplica
from tests.router.gateway.wire import DONE, LAST_CHUNK, Answer, chat, chunk, get, post
from tests.waiting import until

REPORTING = {"report_interval_ms": 20, "drain_notice_ms": 300}


async def begin_streams(gateway: FieldGateway, count: int, max_tokens: int) -> list[RawClient]:
    """Begin so many streams."""
    clients = [await gateway.connect() for _ in range(count)]
    for client in clients:
        await client.send(post(chat(stream=True, max_tokens=max_tokens, ignore_eos=True)))
    return clients


async def test_drn_01_a_replica_that_drains_gets_nothing_new_and_ends_what_it_has(
    redis_server: RedisServer,
) -> None:
    settings = {**REPORTING, "redis_url": redis_server.url, "fixed_decode_ms": 50.0}
    async with (
        simulated(**settings, replica_id="s") as s,
        simulated(**settings, replica_id="t") as t,
        gateway_of(redis_url=redis_server.url, policy="round_robin") as gateway,
    ):
        await gateway.knows("s", "t")
        clients = await begin_streams(gateway, 6, 40)
        await until(lambda: s.driver.num_live == t.driver.num_live == 3)
        draining = asyncio.create_task(s.drain())
        await until(lambda: gateway.status_of("s").is_draining, "the drain is known")
        for _ in range(10):
            assert (await gateway.chat(max_tokens=1)).status == 200
        assert s.driver.num_live <= 3
        answers = [await client.answer() for client in clients]
        await draining
        last = [record.replica_id for record in gateway.records if not record.stream]

    assert all(answer.is_whole and answer.body.endswith(DONE) for answer in answers)
    assert set(last) == {"t"}


@pytest.mark.parametrize("how", ["admin", "report"])
async def test_drn_01_a_drain_however_told_lets_open_streams_end(
    redis_server: RedisServer, how: str
) -> None:
    pieces = Pieces()
    async with (
        Fake(pieces.play) as a,
        Fake(replica_id="b") as b,
        reporting(redis_server, a) as say,
        gateway_of(redis_url=redis_server.url) as gateway,
    ):
        await gateway.knows("a")
        client = await gateway.connect()
        await client.send(post(chat(stream=True)))
        await pieces.send(chunk(tok(1)))
        await received(client, tok(1))
        say.say(b)
        await gateway.knows("a", "b")
        if how == "admin":
            await gateway.admin("POST", "/admin/replicas/a/drain")
        else:
            say.say(a, draining=True)
        await until(lambda: gateway.status_of("a").is_draining)
        statuses = {(await gateway.chat()).status for _ in range(5)}
        await pieces.send(chunk(FIN + DONE) + LAST_CHUNK)
        pieces.end()
        end = await received(client, LAST_CHUNK)

    assert statuses == {200}
    assert (len(a.asked), len(b.asked)) == (1, 5)
    assert DONE in end


async def test_drn_02_a_rolling_restart_costs_no_request(redis_server: RedisServer) -> None:
    settings = {**REPORTING, "redis_url": redis_server.url, "fixed_decode_ms": 5.0}
    answers: list[Answer] = []

    async def keep_asking(gateway: FieldGateway) -> None:
        while True:
            (client,) = await begin_streams(gateway, 1, 20)
            answers.append(await client.answer())
            client.close()

    async with (
        simulated(**settings, replica_id="t") as t,
        gateway_of(redis_url=redis_server.url, policy="round_robin") as gateway,
    ):
        await gateway.knows("t")
        asking = [asyncio.create_task(keep_asking(gateway)) for _ in range(4)]
        for generation in range(3):
            async with simulated(**settings, replica_id=f"s{generation}") as s:
                await is_used(s)
                await s.drain()
            seen = len(answers)
            await until(lambda: len(answers) >= seen + 4)  # noqa: B023  # awaited in this turn
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        for client in gateway.clients:
            client.close()
        await until(lambda: t.driver.num_live == 0)
        await gateway.rests()

        assert set(gateway.outcomes()) <= {"complete", "client_left"}

    assert len(answers) > 10
    assert all(answer.is_whole and answer.body.endswith(DONE) for answer in answers)


async def is_used(replica: Replica) -> None:
    """Wait until it has requests."""
    await until(lambda: replica.driver.num_live > 0, "it is used")


async def test_drn_02_what_outlasts_the_window_is_visibly_cut() -> None:
    async with (
        simulated(fixed_decode_ms=50.0, drain_s=0.1) as s,
        gateway_of(s.url) as gateway,
    ):
        (client,) = await begin_streams(gateway, 1, 1000)
        await received(client, b"data: ")
        await end(s)
        rest = await client.rest()
        await gateway.rests()

        assert gateway.outcomes() == ["broken"]

    assert not rest.endswith(LAST_CHUNK)
    assert b'"finish_reason": "stop"' not in rest


async def end(replica: Replica) -> None:
    """Drain, and cut off what still runs, as the end of its process does."""
    await replica.drain()
    replica.api.gate.cut_off()


async def test_drn_04_a_kept_connection_is_closed_in_order_while_the_gateway_drains() -> None:
    pieces = Pieces()
    async with Fake(pieces.play) as a, gateway_of(a, drain_s=20.0) as gateway:
        idle, busy = await gateway.connect(), await gateway.connect()
        assert (await idle.ask(get("/health"))).status == 200
        await busy.send(post(chat(stream=True)))
        await pieces.send(chunk(tok(1)))
        await received(busy, tok(1))
        gateway.signals.on_signal()
        await until(lambda: gateway.plane.stats().is_draining)
        refused = await idle.ask(post(chat()))
        ready = await gateway_ready(gateway)
        await pieces.send(chunk(FIN + DONE) + LAST_CHUNK)
        pieces.end()
        rest = await busy.rest()

        assert await asyncio.wait_for(asyncio.shield(gateway.task), 20) == 0

    assert (refused.status, refused.value("connection")) == (503, "close")
    assert refused.code == "draining"
    assert ready in (503, None)
    assert rest.endswith(LAST_CHUNK)


async def gateway_ready(gateway: FieldGateway) -> int | None:
    """Return the status of /ready, None if the port is closed."""
    try:
        return (await gateway.ask(get("/ready"))).status
    except OSError:
        return None


async def test_drn_05_a_replica_is_asked_at_the_address_it_gave() -> None:
    async with (
        Fake() as a,
        Fake(replica_id="b") as b,
        gateway_of(a, "http://127.0.0.1:9", models_interval_s=0.05) as gateway,
    ):
        await until(lambda: len(a.probed) >= 3 and "router.discovery" in gateway.log.getvalue())
        complaints = [one for one in gateway.logged() if one["logger"] == "router.discovery"]

    assert {request.values("host")[0] for request in a.probed} == {f"127.0.0.1:{a.port}"}
    assert b.probed == b.asked == []
    assert len(complaints) == 1


async def test_drn_07_a_hung_replica_hides_no_other() -> None:
    async with (
        Fake(models=("m", "n")) as a,
        ScriptedReplica(silent, "hung") as hung,
        Fake(replica_id="b") as b,
        gateway_of(a, hung, b) as gateway,
    ):
        await until(lambda: "n" in gateway.fleet.models())
        listed = json.loads((await gateway.ask(get("/v1/models"))).body)["data"]

        assert len(gateway.samples("warmroute_replica_eligible")) == 3

    assert {model["id"] for model in listed} == {"m", "n"}


async def test_drn_07_reported_replicas_are_known_though_one_never_answers(
    redis_server: RedisServer,
) -> None:
    fakes = [Fake(silent if index == 3 else None, f"r{index}") for index in range(10)]
    async with reporting(redis_server) as say:
        for index, fake in enumerate(fakes):
            await fake.__aenter__()
            say.say(fake, model=f"m{index}")
        async with gateway_of(redis_url=redis_server.url) as gateway:
            await gateway.knows(*(fake.replica_id for fake in fakes))
            listed = json.loads((await gateway.ask(get("/v1/models"))).body)["data"]
            usable = [(await gateway.chat(model=f"m{n}")).status for n in range(10) if n != 3]
        for fake in fakes:
            await fake.__aexit__(None, None, None)

    assert [model["id"] for model in listed] == [f"m{index}" for index in range(10)]
    assert usable == [200] * 9
