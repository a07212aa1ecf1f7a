"""Load that is old, other gateways', or of requests that failed, as replicas and clients see it."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.load_report import encode_report
from router.core.health import AttemptOutcome
from router.core.ledger import Lease
from tests.field.harness import (
    FIN,
    Fake,
    FieldGateway,
    closing,
    gateway_of,
    refusing,
    resetting,
    tok,
)
from tests.field.redis_side import KEYS, reporting
from tests.field.simulated import simulated
from tests.redis_server import RedisServer
from tests.router.core.making import (
    SECOND,
    chosen,
    lease_of,
    make_fleet,
    make_report,
    make_request,
)
from tests.router.gateway.running import RawClient
from tests.router.gateway.scripted_replica import Turn
from tests.router.gateway.wire import DONE, LAST_CHUNK, STREAM_HEAD, chat, chunk, ok, post
from tests.waiting import until

BY_LOAD = ["prefix_load", "min_ttft", "least_loaded", "prefix_capped"]
"""Policies to which requests under way are load; others bound it otherwise, or not at all."""

UNSPARING = {"breaker_failures": 10_000, "breaker_window_requests": 10_000, "retry_max": 0}
"""Settings under which a replica that always fails is asked again and again."""


class Held:
    """Streams that begin at once and end when they are let go."""

    def __init__(self) -> None:
        self._go = asyncio.Event()

    async def play(self, turn: Turn) -> None:
        """Send the first token, and the others later."""
        await turn.send(STREAM_HEAD + chunk(tok(0)))
        await self._go.wait()
        await turn.send(chunk(FIN + DONE) + LAST_CHUNK)

    def let_go(self) -> None:
        """Let all end, and those that come no longer wait."""
        self._go.set()


async def open_streams(
    gateway: FieldGateway, *texts: str, of: Sequence[Fake], stream: bool = True
) -> list[RawClient]:
    """Send all these at once, each on its own connection, and wait until ``of`` have them all."""
    before = sum(len(fake.asked) for fake in of)
    clients = [await gateway.connect() for _ in texts]
    for client, text in zip(clients, texts, strict=True):
        await client.send(post(chat(text, stream=stream)))
    await until(lambda: sum(len(fake.asked) for fake in of) == before + len(texts), "all are sent")
    return clients


async def end_all(held: Held, clients: Sequence[RawClient]) -> None:
    """Let the streams end, and read them whole."""
    held.let_go()
    answers = [await client.answer() for client in clients]
    assert all(answer.is_whole and answer.body.endswith(DONE) for answer in answers)


async def add(gateway: FieldGateway, fake: Fake) -> None:
    """Add a replica to a running gateway."""
    entry = {"url": fake.url, "id": fake.replica_id, "model": "m"}
    assert (await gateway.admin("POST", "/admin/replicas", entry)).status in (200, 201)


@pytest.mark.parametrize("policy", BY_LOAD)
async def test_stl_01_a_burst_on_idle_replicas_is_spread_evenly(policy: str) -> None:
    held = Held()
    fakes = [Fake(held.play, name) for name in "abcd"]
    async with (
        fakes[0],
        fakes[1],
        fakes[2],
        fakes[3],
        gateway_of(*fakes, policy=policy) as gateway,
    ):
        clients = await open_streams(gateway, *["hi"] * 32, of=fakes)
        shares = [len(fake.asked) for fake in fakes]
        await end_all(held, clients)

    assert max(shares) <= 1.5 * min(shares)


@pytest.mark.parametrize("policy", BY_LOAD)
def test_stl_01_gateways_that_see_the_same_reports_do_not_choose_alike(policy: str) -> None:
    """Each sees four idle replicas and knows of no other gateway."""
    choices = [
        chosen(make_fleet("abcd", policy).decide(make_request(f"q{number}", "PP"), 0))
        for number in range(200)
    ]

    shares = [choices.count(name) for name in "abcd"]
    assert max(shares) <= 1.5 * min(shares)


@pytest.mark.parametrize("key", ["gone", "renewed"])
async def test_stl_02_a_replica_that_no_longer_reports_is_not_taken_for_idle(
    redis_server: RedisServer, key: str
) -> None:
    limits = {"report_stale_s": 0.2, "report_dead_s": 0.4, "breaker_failures": 1}
    settings = {"redis_url": redis_server.url, "policy": "least_loaded", **limits}
    async with Fake() as a, Fake(replica_id="b") as b, reporting(redis_server, a, b) as say:
        say.say(b, running_requests=3)
        async with gateway_of(**settings) as gateway:
            await gateway.knows("a", "b")
            await until(lambda: gateway.status_of("b").view.requests == 3)
            last = encode_report(say.reports["a"])
            await say.hush("a", forget=key == "gone")
            if key == "renewed":
                await say.redis.set(KEYS.replica("a"), last, px=60_000)
            await until(lambda: gateway.status_of("a").freshness.value == "dead")
            statuses = {(await gateway.chat()).status for _ in range(60)}
            shares = len(a.asked), len(b.asked)
            b.play = resetting
            after = [(await gateway.chat()).status for _ in range(10)]

    assert statuses == {200}
    assert shares == (0, 60)
    assert after == [200] * 10
    assert len(a.asked) == 10


@pytest.mark.parametrize("policy", BY_LOAD)
def test_stl_02_what_a_stale_replica_was_sent_since_its_report_counts(policy: str) -> None:
    fleet = make_fleet(policy=policy)
    fleet.on_report(make_report("a"), 0, 0)
    fleet.on_report(make_report("b"), 0, 0)
    fleet.on_report(make_report("b", 2, running_requests=3), 0, 2 * SECOND)
    fleet.tick(2 * SECOND)
    assert [status.freshness.value for status in fleet.views()] == ["stale", "fresh"]

    choices = [chosen(fleet.decide(make_request(f"q{number}"), 2 * SECOND)) for number in range(60)]

    assert 31 <= choices.count("a") <= 32  # with the three of b: as many as there


@pytest.mark.parametrize("how", ["admin", "restart"])
async def test_stl_04_what_ends_after_a_flap_is_not_taken_from_the_new_entry(
    redis_server: RedisServer, how: str
) -> None:
    old, new = Held(), Held()
    async with Fake(old.play) as a, reporting(redis_server) as say:
        if how == "restart":
            say.say(a)
        known = [a] if how == "admin" else []
        async with gateway_of(*known, redis_url=redis_server.url) as gateway:
            await gateway.knows("a")
            five = await open_streams(gateway, *["hi"] * 5, of=[a])
            assert gateway.load_of() == 5
            if how == "admin":
                assert (await gateway.admin("DELETE", "/admin/replicas/a")).status == 200
                await add(gateway, a)
            else:
                say.say(a, incarnation="second", sequence=0)
            await until(lambda: gateway.load_of() == 0, "the new entry is empty")
            a.play = new.play
            two = await open_streams(gateway, *["hi"] * 2, of=[a])
            await end_all(old, five)
            await until(lambda: len(gateway.records) == 5)
            assert gateway.load_of() == 2
            assert gateway.samples("warmroute_replica_in_flight_requests", replica="a") == [2]
            await end_all(new, two)
            await until(lambda: gateway.load_of() == 0)


@given(st.lists(st.sampled_from(["open", "first byte", "end", "remove", "restart", "absent"])))
def test_stl_04_no_flap_makes_a_load_negative(happenings: list[str]) -> None:
    fleet = make_fleet()
    leases: list[Lease] = []
    incarnation = "first"
    for now_us, happening in enumerate(happenings):
        if happening == "remove":
            fleet.remove("a")
        if happening == "restart":
            incarnation = f"after {now_us}"
        if happening == "absent":
            fleet.on_reports_read((), now_us)
        else:
            fleet.on_report(make_report("a", now_us, incarnation=incarnation), 0, now_us)
        if happening == "open":
            leases.append(lease_of(fleet.decide(make_request(f"q{now_us}", "PP"), now_us)))
        elif happening == "first byte" and leases:
            leases[-1].first_byte(now_us)
        elif happening == "end" and leases:
            leases.pop(0).end(AttemptOutcome.OK, now_us)
        fleet.check()

    for lease in leases:
        lease.end(AttemptOutcome.OK, SECOND)
        lease.end(AttemptOutcome.OK, SECOND)
    assert len(fleet.ledger) == 0
    assert all(status.view.requests == 0 for status in fleet.views())


async def begun_and_reset(turn: Turn) -> None:
    """Break the stream after its first event."""
    await turn.send(STREAM_HEAD + chunk(tok(0)))
    turn.reset()


@pytest.mark.parametrize("policy", ["prefix_load", "least_loaded"])
async def test_stl_06_failed_requests_leave_no_load_of_either_phase(policy: str) -> None:
    held, a, b = Held(), Fake(), Fake(replica_id="b")
    async with a, b:
        pass  # their ports are known, and nobody listens there
    async with gateway_of(a, policy=policy, probe_interval_s=0.0, **UNSPARING) as gateway:
        await fail_often(gateway, "unheard")
        async with a:
            for play in (refusing("500 No"), resetting, closing, begun_and_reset):
                a.play = play
                await fail_often(gateway, repr(play))
        assert gateway.status_of().breaker.value == "closed"
        a.play = b.play = held.play
        async with a, b:
            await add(gateway, b)
            clients = await open_streams(gateway, *["hi"] * 20, of=[a, b])
            assert gateway.load_of("a") == gateway.load_of("b") == 10
            await end_all(held, clients)


async def fail_often(gateway: FieldGateway, kind: str) -> None:
    """Let 20 streams fail, and see that nothing is left of them."""
    before = len(gateway.records)
    for number in range(20):
        await gateway.chat(f"{kind} {number} " * 200, stream=True)
    await gateway.rests()
    view = gateway.status_of().view
    assert (view.requests, view.ahead_tokens) == (0, 0)
    assert not {"complete", "client_left"} & set(gateway.outcomes()[before:])


@pytest.mark.parametrize("policy", BY_LOAD)
@pytest.mark.parametrize("end", ["last byte", "client leaves"])
async def test_stl_07_a_stream_is_load_until_its_end(policy: str, end: str) -> None:
    held, later = Held(), Held()
    async with (
        Fake(held.play) as a,
        Fake(later.play, "b") as b,
        gateway_of(a, policy=policy) as gateway,
    ):
        open_ones = await open_streams(gateway, *["hi"] * 8, of=[a])
        for client in open_ones:
            await client.reader.readuntil(b"t0")  # the head and the first event have passed
        assert gateway.load_of("a") == 8
        assert gateway.samples("warmroute_replica_in_flight_requests", replica="a") == [8]
        await add(gateway, b)
        new = await open_streams(gateway, *["hi"] * 7, of=[a, b])
        assert (len(a.asked), len(b.asked)) == (8, 7)
        if end == "client leaves":
            for client in open_ones:
                client.close()
            await until(lambda: gateway.load_of("a") == 0, "those that were left are no load")
        held.let_go()
        await until(lambda: gateway.load_of("a") == 0, "those that ended are no load")
        await end_all(later, new)


async def test_stl_07_an_answer_of_known_length_is_load_until_its_last_byte() -> None:
    last = asyncio.Event()

    async def all_but_one(turn: Turn) -> None:
        await turn.send(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}")
        await last.wait()
        await turn.send(b" ")

    async with Fake(all_but_one) as a, gateway_of(a) as gateway:
        (client,) = await open_streams(gateway, "hi", of=[a], stream=False)
        async with asyncio.timeout(20):
            await client.reader.readuntil(b"{}")
        assert gateway.load_of() == 1
        last.set()
        await until(lambda: gateway.load_of() == 0)


@pytest.mark.parametrize("policy", BY_LOAD)
async def test_stl_08_load_is_what_is_open_and_not_what_came_lately(policy: str) -> None:
    long, short = Held(), Held()
    async with (
        Fake(long.play) as a,
        Fake(replica_id="b") as b,
        gateway_of(a, policy=policy) as gateway,
    ):
        on_a = await open_streams(gateway, *["hi"] * 10, of=[a])
        await add(gateway, b)
        for _ in range(40):  # b ends many, a none
            assert (await gateway.chat()).status == 200
        assert len(b.asked) == 40
        b.play = short.play
        on_b = await open_streams(gateway, *["hi"] * 2, of=[b])
        new = await open_streams(gateway, *["hi"] * 20, of=[a, b])
        assert len(b.asked) - 42 >= 13  # of 32 under way each has 16, or nearly so
        long.let_go()
        await end_all(short, [*on_a, *on_b, *new])


@pytest.mark.parametrize("policy", ["prefix_load", "least_loaded"])
async def test_stl_10_a_gateway_sees_what_another_has_under_way(
    redis_server: RedisServer, policy: str
) -> None:
    held = Held()
    fakes = [Fake(held.play, name) for name in "abcd"]
    settings = {"redis_url": redis_server.url, "policy": policy}
    async with (
        fakes[0],
        fakes[1],
        fakes[2],
        fakes[3],
        reporting(redis_server, *fakes),
        gateway_of(**settings, gateway_id="first") as first,
        gateway_of(**settings, gateway_id="second") as second,
    ):
        await first.knows(*"abcd")
        await second.knows(*"abcd")
        clients = await open_streams(first, *["hi"] * 21, of=fakes)
        await until(lambda: foreign_load(second) == 21, "the second sees the first's load")
        clients += await open_streams(second, *["hi"] * 19, of=fakes)
        shares = [len(fake.asked) for fake in fakes]
        await end_all(held, clients)

    assert max(shares) <= 1.5 * min(shares)


def foreign_load(gateway: FieldGateway) -> float:
    """Return how many requests of others it believes under way."""
    return gateway.count("warmroute_replica_foreign_requests")


@pytest.mark.parametrize(
    "policy",
    [
        "prefix_hash",
        "session",
        pytest.param(
            "prefix_load",
            marks=pytest.mark.xfail(
                strict=True, reason="what was learned without events stays in its gateway"
            ),
        ),
    ],
)
async def test_stl_10_a_conversation_stays_put_by_whichever_gateway_it_comes(policy: str) -> None:
    """Replicas without events: only a policy that needs no memory places alike everywhere."""
    fakes = [Fake(untold, name) for name in "abcd"]
    async with (
        fakes[0],
        fakes[1],
        fakes[2],
        fakes[3],
        gateway_of(*fakes, policy=policy) as first,
        gateway_of(*fakes, policy=policy) as second,
    ):
        for talk in range(10):
            for turn, gateway in enumerate((first, second, first, second), start=1):
                await gateway.chat(f"talk {talk} " * turn * 150, f"x-session-id: {talk}")
        homes = [[record.replica_id for record in each.records] for each in (first, second)]

    assert homes[0] == homes[1]
    assert len(set(homes[0])) > 1


async def untold(turn: Turn) -> None:
    """Answer without a word on what was cached."""
    await turn.send(ok(b"{}"))


async def test_stl_10_what_a_replica_caches_is_known_to_every_gateway(
    redis_server: RedisServer,
) -> None:
    redis = {"redis_url": redis_server.url}
    async with (
        simulated(replica_id="s", **redis),
        simulated(replica_id="t", **redis),
        gateway_of(**redis, gateway_id="first") as first,
        gateway_of(**redis, gateway_id="second") as second,
    ):
        await first.knows("s", "t")
        await second.knows("s", "t")
        for turn in range(1, 11):
            text = "one and the same beginning " * turn * 20
            num_blocks = len(text) // 64
            gateway, other = (first, second) if turn % 2 else (second, first)
            await gateway.chat(text, max_tokens=1)
            await until(partial(knows, other, num_blocks), "the other knows, too")
        homes = {record.replica_id for record in first.records + second.records}

    assert len(homes) == 1


def knows(gateway: FieldGateway, num_blocks: int) -> bool:
    """Say whether it believes so many blocks on one replica."""
    return most_known(gateway) >= num_blocks


def most_known(gateway: FieldGateway) -> int:
    """Return how many blocks it believes on the replica that has most."""
    return max(status.believed_blocks for status in gateway.fleet.views())


async def test_stl_12_no_gateway_asks_a_replica_for_its_load(redis_server: RedisServer) -> None:
    """What grows with the gateways is only the probes of health, which a setting turns off."""
    settings = {"redis_url": redis_server.url, "probe_interval_s": 0.0}
    async with (
        Fake() as a,
        reporting(redis_server, a),
        gateway_of(**settings, gateway_id="first") as first,
        gateway_of(**settings, gateway_id="second") as second,
        gateway_of(**settings, gateway_id="third") as third,
    ):
        gateways = (first, second, third)
        for gateway in gateways:
            await gateway.knows("a")
        await until(lambda: min(map(reads_of, gateways)) >= 5)

        assert a.num_connections == 0


def reads_of(gateway: FieldGateway) -> float:
    """Return how often it has read all reports."""
    return gateway.count("warmroute_store_reads_total")


async def test_stl_12_many_replicas_cost_redis_no_more_commands_than_one(
    redis_server: RedisServer,
) -> None:
    names = [f"r{number:02}" for number in range(20)]
    async with (
        reporting(redis_server) as say,
        gateway_of(redis_url=redis_server.url) as gateway,
    ):
        for name in names:
            say.say(name, url="http://127.0.0.1:9")
        await gateway.knows(*names)
        before, reads_before = await commands(say.redis), reads_of(gateway)
        await until(lambda: reads_of(gateway) >= reads_before + 5)
        after, reads = await commands(say.redis), reads_of(gateway) - reads_before

    asked = {name: calls - before.get(name, 0) for name, calls in after.items()}
    assert not [name for name in ("get", "scan", "keys") if asked.get(name)]
    assert asked["mget"] <= 2 * (reads + 2)  # of all replicas, and of all gateways


async def commands(redis: Any) -> dict[str, int]:
    """Return how often each command has been given to the server."""
    stats = await redis.info("commandstats")
    return {name.removeprefix("cmdstat_"): row["calls"] for name, row in stats.items()}
