"""Load that is old, other gateways', or of requests that failed, as replicas and clients see it."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.load_report import encode_report
from router.core.health import AttemptOutcome
from router.core.ledger import Lease
from tests.field.asking import Held, add, end_all, open_streams
from tests.field.harness import (
    Fake,
    FieldGateway,
    closing,
    gateway_of,
    listening,
    refusing,
    resetting,
    tok,
)
from tests.field.redis_side import KEYS, reporting
from tests.redis_server import RedisServer
from tests.router.core.making import (
    SECOND,
    chosen,
    lease_of,
    make_fleet,
    make_report,
    make_request,
)
from tests.router.gateway.scripted_replica import Turn
from tests.router.gateway.wire import STREAM_HEAD, chunk
from tests.waiting import until
from warmroute.demo.processes import free_port

BY_LOAD = ["prefix_load", "min_ttft", "least_loaded", "prefix_capped"]
"""Policies to which requests under way are load; others bound it otherwise, or not at all."""

UNSPARING = {"breaker_failures": 10_000, "breaker_window_requests": 10_000, "retry_max": 0}
"""Settings under which a replica that always fails is asked again and again."""


@pytest.mark.parametrize("policy", BY_LOAD)
async def test_stl_01_a_burst_on_idle_replicas_is_spread_evenly(policy: str) -> None:
    held = Held()
    fakes = [Fake(held.play, name) for name in "abcd"]
    async with (
        listening(fakes),
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
    limits = {"report_stale_s": 1.0, "report_dead_s": 1.5, "breaker_failures": 1}
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

            def freshness() -> list[str]:
                return [gateway.status_of(name).freshness.value for name in "ab"]

            await until(lambda: freshness() == ["dead", "fresh"])
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
    a.port, b.port = free_port(), free_port()  # where nobody listens yet
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
        async with asyncio.timeout(20):
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
