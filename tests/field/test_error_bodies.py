"""Errors: the engine's own go through unchanged, the gateway's own say what happened."""

import asyncio
import json

import pytest

from tests.field.harness import FIN, Fake, closing, gateway_of, refusing, resetting, silent, tok
from tests.field.simulated import simulated
from tests.field.test_streaming import Pieces, received
from tests.router.gateway.scripted_replica import Script, Turn, deaf_port
from tests.router.gateway.wire import DONE, LAST_CHUNK, chat, chunk, event, ok, post
from tests.waiting import until

ALONE = {"retry_max": 0}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("play", "status"),
    [
        (refusing("400 Bad Request"), 400),
        (refusing("500 Internal Server Error"), 500),
        (refusing("503 Service Unavailable"), 503),
        (closing, 502),
        (resetting, 502),
    ],
)
async def test_err_01_the_status_is_the_replicas_and_never_200(
    play: Script, status: int, stream: bool
) -> None:
    async with Fake(play) as a, gateway_of(a) as gateway:
        answer = await gateway.chat(stream=stream)

    assert answer.status == status
    assert json.loads(answer.body)["error"]["code"]
    assert answer.value("content-type") == "application/json"


async def test_err_01_a_replica_that_refuses_connections_is_a_502() -> None:
    async with gateway_of("http://127.0.0.1:9") as gateway:
        answer = await gateway.chat(stream=True)

    assert (answer.status, answer.code) == (502, "replica_connect_failed")


@pytest.mark.parametrize(
    "status", [400, 401, 402, 403, 404, 405, 409, 410, 418, 422, 429, 451, 500]
)
@pytest.mark.parametrize("stream", [False, True])
async def test_err_02_an_engines_error_goes_through_to_the_byte(status: int, stream: bool) -> None:
    body = b'{ "object":"error",\n "message" : "caf\xc3\xa9 %d" }' % status
    play = refusing(f"{status} A Reason", body, f"X-Err: {status}", "X-Err: again")
    async with Fake(play) as a, gateway_of(a, **ALONE) as gateway:
        answer = await gateway.chat(stream=stream)

    assert (answer.status, answer.body) == (status, body)
    assert answer.values("x-err") == [str(status), "again"]
    assert answer.value("content-type") == "application/json"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [429, 503, 500, 400])
async def test_err_03_what_a_client_backs_off_by_is_kept(status: int, stream: bool) -> None:
    hints = {
        "Retry-After": "30",
        "retry-after-ms": "1500",
        "x-ratelimit-remaining-requests": "0",
        "x-should-retry": "false",
    }
    lines = [f"{name}: {value}" for name, value in hints.items()]
    play = refusing(f"{status} No", b"{}", *lines)
    async with Fake(play) as a, Fake(play, "b") as b, gateway_of(a, b) as gateway:
        answer = await gateway.chat(stream=stream)

    assert answer.status == status
    assert {name: answer.value(name) for name in hints} == hints


LIMIT = 64  # tokens of context; a chat template adds some to a prompt


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("prompt", "output"), [(63, 2), (64, 1), (65, 1), (640, 1), (1, 64)])
async def test_err_05_a_context_that_is_too_long_is_always_a_400(
    prompt: int, output: int, stream: bool
) -> None:
    body = {"model": "m", "prompt": list(range(prompt)), "max_tokens": output, "stream": stream}
    request = post(json.dumps(body).encode(), path="/v1/completions")
    async with simulated(max_model_len=LIMIT) as s, gateway_of(s.url) as gateway:
        answers = [await gateway.ask(request) for _ in range(5)]
        fitting = await gateway.chat(max_tokens=4)

        assert gateway.status_of("r0").breaker.value == "closed"

    assert {answer.status for answer in answers} == {400}
    assert {answer.code for answer in answers} == {"context_length_exceeded"}
    assert {json.loads(answer.body)["error"]["type"] for answer in answers} == {
        "invalid_request_error"
    }
    assert fitting.status == 200


@pytest.mark.parametrize(
    ("play", "settings", "status", "code"),
    [
        (resetting, {}, 502, "replica_connection_lost"),
        (closing, {}, 502, "replica_connection_lost"),
        (silent, {"answer_timeout_s": 0.1}, 504, "replica_first_byte_timeout"),
    ],
)
async def test_err_06_a_failure_has_its_status_and_a_cause_in_the_log(
    play: Script, settings: dict[str, float], status: int, code: str
) -> None:
    async with Fake(play) as a, gateway_of(a, **ALONE, **settings) as gateway:
        answer = await gateway.chat("hi", "x-request-id: my-id")
        await until(lambda: any("outcome" in line for line in gateway.logged()))
        (line,) = (line for line in gateway.logged() if "outcome" in line)

    assert (answer.status, answer.code) == (status, code)
    assert (line["request_id"], line["replica"], line["failure"]) == ("my-id", "a", code)
    assert line["detail"]


async def test_err_06_a_connection_that_is_not_taken_is_a_504() -> None:
    with deaf_port() as port:
        url = f"http://127.0.0.1:{port}"
        async with gateway_of(url, connect_timeout_s=0.1) as gateway:
            answer = await gateway.chat()
            await gateway.rests()

            assert gateway.records[0].detail

    assert (answer.status, answer.code) == (504, "replica_connect_timeout")


async def test_err_06_an_empty_fleet_is_a_503_with_a_time_to_come_back() -> None:
    async with gateway_of() as gateway:
        answer = await gateway.chat()

    assert (answer.status, answer.code) == (503, "no_replica_available")
    assert answer.value("retry-after")


async def test_err_08_a_stream_that_makes_progress_outlives_every_limit() -> None:
    names = ("first_byte_timeout_s", "answer_timeout_s", "between_bytes_timeout_s")
    limits = dict.fromkeys(names, 2.0)
    pieces = Pieces()
    async with Fake(pieces.play) as a, gateway_of(a, **limits) as gateway:
        client = await gateway.connect()
        await client.send(post(chat(stream=True)))
        for index in range(10):
            await pieces.send(chunk(tok(index)))
            await received(client, tok(index))
            await asyncio.sleep(0.25)
        await pieces.send(chunk(FIN + DONE) + LAST_CHUNK)
        pieces.end()
        await received(client, LAST_CHUNK)
        record = await gateway.record()

    assert record.outcome.value == "complete"
    assert record.ended_us - record.received_us > 2_000_000


async def test_err_08_the_limit_is_on_silence_and_shown_among_the_settings() -> None:
    async with gateway_of() as gateway:
        rows = json.loads((await gateway.admin("GET", "/admin/config")).body)["settings"]
    shown = {row["name"]: row for row in rows}

    for name in ("connect_timeout_s", "first_byte_timeout_s", "between_bytes_timeout_s"):
        assert shown[name]["unit"] == "s"
    assert float(shown["connect_timeout_s"]["value"]) < float(
        shown["between_bytes_timeout_s"]["value"]
    )


async def test_err_09_each_phase_has_a_limit_of_its_own() -> None:
    go_on = asyncio.Event()

    async def slow(turn: Turn) -> None:
        await go_on.wait()
        await turn.send(ok(b"{}"))

    async with Fake(slow) as a, gateway_of(a, between_bytes_timeout_s=0.05) as gateway:
        client = await gateway.connect()
        await client.send(post(chat()))
        await asyncio.sleep(0.2)  # four times the limit on silence within an answer
        go_on.set()

        assert (await client.answer()).status == 200


async def test_err_09_a_replica_that_takes_no_connection_is_left_for_another() -> None:
    with deaf_port() as port:
        async with Fake(replica_id="b") as b:
            settings = {"connect_timeout_s": 1.0, "policy": "round_robin"}
            async with gateway_of(f"http://127.0.0.1:{port}", b, **settings) as gateway:
                assert {(await gateway.chat()).status for _ in range(4)} == {200}


async def test_err_09_a_stall_within_an_answer_ends_with_an_error_event() -> None:
    async def stall(turn: Turn) -> None:
        await turn.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n")
        await turn.send(b"Transfer-Encoding: chunked\r\n\r\n" + chunk(event("t")))
        await turn.until_closed()

    async with Fake(stall) as a, gateway_of(a, between_bytes_timeout_s=0.1) as gateway:
        answer = await gateway.chat(stream=True)

    assert not answer.is_whole
    assert b'data: {"error":' in answer.chunks[-1]
    assert b"replica_stalled" in answer.chunks[-1]
