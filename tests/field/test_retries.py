"""Retries: only before the first byte, only where another replica may help, and never for ever."""

import asyncio

import pytest

from tests.field.harness import (
    FIN,
    Fake,
    FieldGateway,
    closing,
    gateway_of,
    refusing,
    resetting,
    saying,
    streaming,
    tok,
)
from tests.router.gateway.scripted_replica import Script, Turn
from tests.router.gateway.wire import DONE, STREAM_HEAD, chat, post
from tests.waiting import until

IN_TURN = {"policy": "round_robin"}
UNTIRING = {"breaker_failures": 1000, "breaker_window_requests": 1000}
SHARED = "a long shared prompt " * 200


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 415, 422])
@pytest.mark.parametrize("stream", [False, True])
async def test_rty_01_an_answer_to_the_client_is_not_asked_for_twice(
    status: int, stream: bool
) -> None:
    body = b'{"error": {"message": "of the engine", "n": %d}}' % status
    play = refusing(f"{status} No", body)
    async with (
        Fake(play) as a,
        Fake(play, "b") as b,
        gateway_of(a, b, **IN_TURN) as gateway,
    ):
        answer = await gateway.chat(stream=stream)

    assert len(a.asked) + len(b.asked) == 1
    assert (answer.status, answer.body) == (status, body)


async def test_rty_02_a_connection_that_was_closed_at_that_moment_costs_nothing() -> None:
    executed = 0

    async def close_on_reuse(turn: Turn) -> None:
        nonlocal executed
        if turn.index:
            turn.close()
            return
        executed += 1
        await saying("a")(turn)

    async with Fake(close_on_reuse) as a, gateway_of(a, reuse_race_s=20.0, **UNTIRING) as gateway:
        statuses = {(await gateway.chat()).status for _ in range(50)}

        assert gateway.status_of().breaker.value == "closed"

    assert statuses == {200}
    assert executed == 50


async def test_rty_02_a_fresh_connection_that_is_closed_is_not_tried_again_there() -> None:
    async with Fake(closing) as a, gateway_of(a) as gateway:
        answer = await gateway.chat()

    assert (answer.status, len(a.asked)) == (502, 1)


@pytest.mark.parametrize("sent", [[tok(1), tok(2)], [tok(1)[:10]]])
async def test_rty_03_nothing_is_sent_again_once_the_client_has_a_byte(sent: list[bytes]) -> None:
    async def break_off(turn: Turn) -> None:
        await streaming(*sent, ends=False)(turn)
        await asyncio.sleep(0.02)  # a reset overtakes what the kernel has not yet delivered
        turn.reset()

    async with (
        Fake(break_off) as a,
        Fake(replica_id="b") as b,
        gateway_of(a, b, **IN_TURN) as gateway,
    ):
        b.play = break_off
        answer = await gateway.chat(stream=True)
        await gateway.rests()

        assert gateway.outcomes() == ["broken"]

    assert len(a.asked) + len(b.asked) == 1
    assert answer.body.startswith(b"".join(sent))
    assert not answer.is_whole


async def test_rty_03_a_stream_that_breaks_before_its_first_byte_is_asked_for_elsewhere() -> None:
    async def head_then_fin(turn: Turn) -> None:
        await turn.send(STREAM_HEAD.replace(b"Transfer-Encoding: chunked", b"Connection: close"))
        turn.close()

    async with (
        Fake(head_then_fin) as a,
        Fake(head_then_fin, "b") as b,
        gateway_of(a, b, **IN_TURN) as gateway,
    ):
        b.play = streaming(tok(1), FIN, DONE)
        answers = [await gateway.chat(stream=True) for _ in range(2)]

    assert a.asked
    assert {answer.body for answer in answers} == {tok(1) + FIN + DONE}


@pytest.mark.parametrize("retry_max", [0, 1, 2])
async def test_rty_05_a_request_that_kills_is_given_to_few(retry_max: int) -> None:
    async def die_of_poison(turn: Turn) -> None:
        await (resetting if b"POISON" in turn.request.body else saying("x"))(turn)

    fakes = [Fake(die_of_poison, name) for name in "abcd"]
    async with (
        fakes[0],
        fakes[1],
        fakes[2],
        fakes[3],
        gateway_of(*fakes, retry_max=retry_max, **IN_TURN) as gateway,
    ):
        answer = await gateway.chat("POISON")
        hit = [fake.replica_id for fake in fakes if fake.asked]
        healthy = {(await gateway.chat()).status for _ in range(8)}

    assert answer.status == 502
    assert len(hit) == retry_max + 1
    assert healthy == {200}


async def test_rty_05_each_attempt_has_an_id_of_its_own_and_the_client_its_own() -> None:
    async with (
        Fake(resetting) as a,
        Fake(resetting, "b") as b,
        gateway_of(a, b, **IN_TURN) as gateway,
    ):
        a.play = b.play = _once(resetting, saying("x"))
        answer = await gateway.chat("hi", "x-request-id: mine")

    ids = [request.values("x-request-id") for request in a.asked + b.asked]
    assert (answer.status, answer.value("x-request-id")) == (200, "mine")
    assert all(len(values) == 1 for values in ids)
    assert len({values[0] for values in ids}) == 2


def _once(first: Script, then: Script) -> Script:
    scripts = [then, first]

    async def play(turn: Turn) -> None:
        await scripts.pop()(turn)

    return play


async def test_rty_05_a_quiet_budget_ends_the_retries_of_a_whole_fleet() -> None:
    async with Fake(resetting) as a, Fake(resetting, "b") as b:
        settings = {"retry_floor_per_s": 0.0, "retry_budget": 0.2, **UNTIRING}
        async with gateway_of(a, b, **IN_TURN, **settings) as gateway:
            for _ in range(50):
                assert (await gateway.chat()).status == 502
            retries = gateway.count("warmroute_retries_total")

    assert len(a.asked) + len(b.asked) == 50 + retries
    assert retries <= 0.2 * 50 + 1


@pytest.mark.parametrize("status", ["429 Too Many Requests", "503 Service Unavailable"])
async def test_rty_07_a_full_replica_is_passed_over_and_not_blamed(status: str) -> None:
    async with (
        Fake(refusing(status, b"{}", "Retry-After: 5")) as a,
        Fake(replica_id="b") as b,
        gateway_of(a, b, back_pressure_s=8.0, **IN_TURN) as gateway,
    ):
        statuses = [(await gateway.chat()).status for _ in range(50)]

        assert gateway.status_of("a").breaker.value == "closed"

    assert statuses == [200] * 50
    assert len(a.asked) <= 2


@pytest.mark.parametrize("status", [429, 502, 503, 504])
@pytest.mark.parametrize("stream", [False, True])
async def test_rty_09_the_last_refusal_is_the_answer(status: int, stream: bool) -> None:
    body = b'{"error":{"code":"rl"}}'
    play = refusing(f"{status} No", body, "Retry-After: 7")
    async with (
        Fake(play) as a,
        Fake(play, "b") as b,
        gateway_of(a, b, **IN_TURN) as gateway,
    ):
        answer = await gateway.chat(stream=stream)

    assert (answer.status, answer.body, answer.value("retry-after")) == (status, body, "7")
    assert len(a.asked) == len(b.asked) == 1


async def test_rty_10_a_warm_replica_that_fails_loses_its_traffic_and_regains_it() -> None:
    settings = {"breaker_failures": 3, "breaker_cooldown_s": 0.2}
    async with (
        Fake() as a,
        Fake(replica_id="b") as b,
        gateway_of(a, b, **settings) as gateway,
    ):
        warm = await owner_of_prefix(gateway, a, b)
        other = b if warm is a else a
        healthy, warm.play = warm.play, refusing("500 No")
        asked = len(warm.asked)
        statuses = [(await gateway.chat(SHARED)).status for _ in range(30)]
        hits = len(warm.asked) - asked
        warm.play = healthy
        other.play = resetting
        await until(lambda: gateway.status_of(warm.replica_id).breaker.value == "half_open")

        assert (await gateway.chat(SHARED)).status == 200
        assert gateway.status_of(warm.replica_id).breaker.value == "closed"

    assert hits <= 3 + 30 * 0.1
    assert statuses.count(500) == hits


async def owner_of_prefix(gateway: FieldGateway, *fakes: Fake) -> Fake:
    """Send a prompt often enough that its replica is known, and return which it is."""
    for _ in range(4):
        client = await gateway.connect()
        await client.send(post(chat(SHARED, stream=True)))
        assert (await client.answer()).status == 200
    return max(fakes, key=lambda fake: len(fake.asked))


async def test_rty_10_the_first_byte_may_come_late_and_is_asked_for_once() -> None:
    go_on = asyncio.Event()

    async def slow(turn: Turn) -> None:
        await go_on.wait()
        await streaming(tok(1), FIN, DONE)(turn)

    async with (
        Fake(slow) as a,
        Fake(slow, "b") as b,
        gateway_of(a, b, **IN_TURN) as gateway,
    ):
        client = await gateway.connect()
        await client.send(post(chat(stream=True)))
        await until(lambda: bool(a.asked or b.asked))
        go_on.set()

        assert (await client.answer()).is_whole

    assert len(a.asked) + len(b.asked) == 1
