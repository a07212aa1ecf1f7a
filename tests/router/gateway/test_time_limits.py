"""Limits on silence: each ends what it is for, and none cuts an answer that makes progress."""

import asyncio
import json
from typing import Any

import pytest

from contract.failures import Failure
from router.core.health import BreakerState
from router.core.reason import Outcome
from router.gateway.config import GatewayConfig
from tests.router.gateway.running import gateway_of
from tests.router.gateway.scripted_replica import (
    Script,
    ScriptedReplica,
    Turn,
    answering,
    deaf_port,
    never_answering,
)
from tests.router.gateway.wire import (
    DONE,
    LAST_CHUNK,
    STREAM_HEAD,
    chat,
    chunk,
    completion,
    event,
    ok,
    post,
)
from tests.waiting import until

SHORT = 0.1
FAIR = 1.0
"""A limit that something else in the test must keep, on a busy machine too."""

GOOD = answering(ok(completion()))


async def open_and_stall(turn: Turn) -> None:
    await turn.send(STREAM_HEAD)
    await turn.until_closed()


async def begin_and_stall(turn: Turn) -> None:
    await turn.send(STREAM_HEAD + chunk(event("t")))
    await turn.until_closed()


@pytest.mark.parametrize("script", [never_answering, open_and_stall])
async def test_a_stream_without_a_first_byte_is_served_by_another_replica(
    script: Script,
) -> None:
    async with (
        ScriptedReplica(script) as silent,
        ScriptedReplica(GOOD, "b") as good,
        gateway_of(silent, good, first_byte_timeout_s=FAIR) as gateway,
    ):
        answers = [await gateway.chat(f"{index}", stream=True) for index in range(2)]
        await until(lambda: silent.num_open == 0)

    assert [answer.status for answer in answers] == [200, 200]
    assert silent.requests
    assert len(good.requests) == 2


async def test_a_replica_that_never_answers_becomes_a_504() -> None:
    async with (
        ScriptedReplica(never_answering) as replica,
        gateway_of(replica, answer_timeout_s=SHORT) as gateway,
    ):
        answer = await gateway.chat()
        record = await gateway.record()

    assert (answer.status, answer.code) == (504, "replica_first_byte_timeout")
    assert (record.outcome, record.failure) == (Outcome.REFUSED, Failure.FIRST_BYTE_TIMEOUT)


async def test_the_first_byte_of_a_stream_and_a_whole_answer_have_limits_of_their_own() -> None:
    async with (
        ScriptedReplica(never_answering) as replica,
        gateway_of(replica, first_byte_timeout_s=60.0, answer_timeout_s=SHORT) as gateway,
    ):
        client = await gateway.connect()
        await client.send(post(chat(stream=True)))
        answer = await gateway.chat()
        still_running = gateway.plane.stats().exchanges
        client.close()

    assert answer.status == 504
    assert still_running == 1


async def test_a_stream_that_stalls_ends_with_an_error_event() -> None:
    async def script(turn: Turn) -> None:
        await turn.send(STREAM_HEAD + chunk(event("t")))
        await turn.until_closed()

    async with (
        ScriptedReplica(script) as replica,
        gateway_of(replica, between_bytes_timeout_s=SHORT) as gateway,
    ):
        answer = await gateway.chat(stream=True)
        record = await gateway.record()
        await until(lambda: replica.num_open == 0)

    error = json.loads(answer.body.split(b"\n\n")[1].removeprefix(b"data: "))["error"]
    assert error["code"] == "replica_stalled"
    assert not answer.is_whole
    assert (record.outcome, record.failure) == (Outcome.BROKEN, Failure.BETWEEN_BYTES_TIMEOUT)


async def test_a_stream_that_goes_on_is_not_cut_however_long_it_is() -> None:
    async def script(turn: Turn) -> None:
        await turn.send(STREAM_HEAD)
        for _ in range(20):
            await turn.send(chunk(event("t")))
            await asyncio.sleep(FAIR / 16)
        await turn.send(chunk(DONE) + LAST_CHUNK)

    limits: dict[str, Any] = {
        "between_bytes_timeout_s": FAIR,
        "first_byte_timeout_s": FAIR,
    }
    async with ScriptedReplica(script) as replica, gateway_of(replica, **limits) as gateway:
        answer = await gateway.chat(stream=True)

    assert answer.is_whole


async def test_a_replica_that_is_not_reached_in_time_is_left_for_another() -> None:
    with deaf_port() as port:
        async with (
            ScriptedReplica(GOOD) as replica,
            gateway_of(f"http://127.0.0.1:{port}", replica, connect_timeout_s=FAIR) as gateway,
        ):
            answers = [await gateway.chat(f"{index}") for index in range(2)]
            failures = [record.attempts for record in gateway.records]

    assert [answer.status for answer in answers] == [200, 200]
    assert max(failures) == 2


async def test_a_refusal_that_stalls_ends_its_attempt() -> None:
    async def script(turn: Turn) -> None:
        await turn.send(ok(b"x" * 100, status="503 Busy")[:-50])
        await turn.until_closed()

    async with (
        ScriptedReplica(script) as replica,
        gateway_of(replica, between_bytes_timeout_s=SHORT) as gateway,
    ):
        answer = await gateway.chat()

    assert answer.status == 504


async def test_time_outs_eject_a_replica() -> None:
    async with (
        ScriptedReplica(never_answering) as replica,
        gateway_of(replica, answer_timeout_s=SHORT, routing={"breaker_failures": 1}) as gateway,
    ):
        await gateway.chat()
        (status,) = gateway.fleet.views()

    assert status.breaker is BreakerState.OPEN


@pytest.mark.parametrize(
    "beginning", [b"P", b"POST /v1/x HTTP/1.1\r\nHost: a\r\n", post(b"x" * 100)[:-1]], ids=repr
)
async def test_a_request_that_is_late_is_told_so(beginning: bytes) -> None:
    limits: dict[str, Any] = {"client_header_timeout_s": SHORT, "client_body_timeout_s": SHORT}
    async with gateway_of(**limits) as gateway:
        client = await gateway.connect()
        await client.send(beginning)
        data = await client.rest()

    assert data.startswith(b"HTTP/1.1 408 ")
    assert b'"code":"request_timeout"' in data
    assert gateway.records[0].failure is Failure.REQUEST_TIMEOUT


async def test_a_head_that_trickles_is_late_all_the_same() -> None:
    async with gateway_of(client_header_timeout_s=SHORT) as gateway:
        client = await gateway.connect()
        data = asyncio.create_task(client.rest())
        while not data.done():
            await client.send(b"X")
            await asyncio.sleep(SHORT / 10)

    assert (await data).startswith(b"HTTP/1.1 408 ")


async def test_a_body_that_trickles_goes_through() -> None:
    body = chat("slow")
    async with (
        ScriptedReplica(GOOD) as replica,
        gateway_of(replica, client_body_timeout_s=FAIR) as gateway,
    ):
        client = await gateway.connect()
        request = post(body)
        await client.send(request[:-10])
        for index in range(-10, 0):
            await asyncio.sleep(FAIR / 8)
            await client.send(request[index:][:1])
        answer = await client.answer()

    assert answer.status == 200


async def test_an_idle_connection_is_closed_without_a_word() -> None:
    async with (
        ScriptedReplica(GOOD) as replica,
        gateway_of(replica, client_idle_timeout_s=FAIR) as gateway,
    ):
        client = await gateway.connect()
        await client.ask(post(chat()))
        rest = await client.rest()

    assert rest == b""


async def test_empty_lines_keep_no_connection_open() -> None:
    async with gateway_of(client_idle_timeout_s=SHORT) as gateway:
        client = await gateway.connect()

        async def send_them() -> None:
            while True:
                await client.send(b"\r\n")
                await asyncio.sleep(SHORT / 5)

        sending = asyncio.create_task(send_them())
        assert await client.rest() == b""
        sending.cancel()
        await asyncio.wait({sending})


async def test_a_connection_is_not_idle_while_its_request_runs() -> None:
    async def script(turn: Turn) -> None:
        await asyncio.sleep(1.5 * FAIR)
        await turn.send(ok(completion()))

    limits: dict[str, Any] = {"client_idle_timeout_s": FAIR, "client_header_timeout_s": FAIR}
    async with ScriptedReplica(script) as replica, gateway_of(replica, **limits) as gateway:
        answer = await gateway.chat()

    assert answer.status == 200


TOTAL: dict[str, Any] = {"total_timeout_s": SHORT}


async def dripping(turn: Turn) -> None:
    await turn.send(STREAM_HEAD)
    while True:
        await turn.send(chunk(event("t")))
        await asyncio.sleep(SHORT / 5)


async def test_an_answer_that_flows_for_longer_than_the_whole_may_take_is_cut() -> None:
    async with ScriptedReplica(dripping) as replica, gateway_of(replica, **TOTAL) as gateway:
        answer = await gateway.chat(stream=True)
        record = await gateway.record()

    assert not answer.is_whole
    assert b'"request_timed_out"' in answer.body
    assert (record.outcome, record.failure) == (Outcome.BROKEN, Failure.TOTAL_TIMEOUT)


async def test_a_request_that_takes_longer_than_it_may_gets_a_504_wherever_it_waits() -> None:
    settings = TOTAL | {"routing": {"in_flight_max": 1}}
    async with ScriptedReplica(never_answering) as replica, gateway_of(replica, **settings) as gw:
        answers = await asyncio.gather(gw.chat(), gw.chat())  # one is sent, one is queued

    assert [(answer.status, answer.code) for answer in answers] == [(504, "request_timed_out")] * 2


async def test_a_client_may_ask_for_less_time_and_never_for_more() -> None:
    async with (
        ScriptedReplica(never_answering) as replica,
        gateway_of(replica, asked_timeout_max_s=SHORT) as gateway,
    ):
        shorter = await gateway.chat("hi", "X-Warmroute-Timeout-Ms: 50")
        longer = await gateway.chat("hi", "X-Warmroute-Timeout-Ms: 999999999")

    assert (shorter.code, longer.code) == ("request_timed_out", "request_timed_out")
    assert not any(request.values("x-warmroute-timeout-ms") for request in replica.requests)


@pytest.mark.parametrize("value", ["0", "-5", "1.5", "soon", "9" * 13, "", "5,", "idle=5"])
async def test_a_time_that_cannot_be_read_is_refused(value: str) -> None:
    async with ScriptedReplica(never_answering) as replica, gateway_of(replica) as gateway:
        answer = await gateway.chat("hi", f"X-Warmroute-Timeout-Ms: {value}")

    assert (answer.status, answer.code) == (400, "invalid_request")
    assert not replica.requests


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_may_ask_for_less_of_each_limit(stream: bool) -> None:
    def limit(part: str) -> str:
        return f"X-Warmroute-Timeout-Ms: connect=2000, {part}=50"

    async with (
        ScriptedReplica(never_answering) as silent,
        gateway_of(silent) as gateway,
    ):
        late = await gateway.chat("hi", limit("first_byte" if stream else "answer"), stream=stream)
    async with (
        ScriptedReplica(begin_and_stall) as stalled,
        gateway_of(stalled) as gateway,
    ):
        cut = await gateway.chat("hi", limit("between_bytes"), stream=stream)
    with deaf_port() as port:
        async with gateway_of(f"http://127.0.0.1:{port}") as gateway:
            lost = await gateway.chat("hi", "X-Warmroute-Timeout-Ms: connect=50")

    assert (late.status, late.code) == (504, "replica_first_byte_timeout")
    assert not cut.is_whole
    assert b"replica_stalled" in cut.body
    assert (lost.status, lost.code) == (504, "replica_connect_timeout")


async def test_a_model_may_have_limits_of_its_own() -> None:
    settings: dict[str, Any] = {"model_timeouts": (f"m answer_timeout_s={SHORT}",)}
    async with ScriptedReplica(never_answering) as replica, gateway_of(replica, **settings) as gw:
        answer = await gw.chat()

    assert answer.code == "replica_first_byte_timeout"


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ("m answer_s=3", "has no limit 'answer_s'; known: connect_timeout_s"),
        ("m answer_timeout_s=soon", "expected seconds"),
        ("m answer_timeout_s=-1", "must be 0 or more"),
    ],
)
def test_a_limit_of_a_model_that_cannot_be_read_stops_the_start(entry: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        GatewayConfig(model_timeouts=(entry,))
