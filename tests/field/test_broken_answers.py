"""Answers that break before their first byte, and those that are not meant for the client."""

import pytest

from tests.field.harness import Fake, closing, gateway_of, resetting
from tests.router.gateway.scripted_replica import Script, Turn
from tests.router.gateway.wire import chat, completion, ok, post

JSON_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def beginning(data: bytes, then: Script) -> Script:
    """Return a script that sends this, and then goes on."""

    async def play(turn: Turn) -> None:
        await turn.send(data)
        await then(turn)

    return play


@pytest.mark.parametrize(
    "play",
    [
        beginning(JSON_HEAD + b"Content-Length: 50\r\n\r\n", resetting),
        beginning(JSON_HEAD + b"Transfer-Encoding: chunked\r\n\r\n", closing),
        beginning(JSON_HEAD + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n", closing),
    ],
)
async def test_rty_03_an_answer_without_a_byte_is_asked_for_elsewhere(play: Script) -> None:
    async with (
        Fake(play) as a,
        Fake(replica_id="b") as b,
        gateway_of(a, b, policy="round_robin") as gateway,
    ):
        answers = [await gateway.chat(str(number)) for number in range(4)]

    assert [(answer.status, answer.is_whole) for answer in answers] == [(200, True)] * 4
    assert a.asked
    assert len(b.asked) == 4


async def test_ded_01_a_head_that_never_ends_is_no_wait() -> None:
    async def play(turn: Turn) -> None:
        await turn.send(b"HTTP/1.1 200 OK\nContent-Length: 2\n\nhi")
        await turn.until_closed()

    async with Fake(play) as a, gateway_of(a) as gateway:
        answer = await gateway.chat()

    assert (answer.status, answer.code) == (502, "replica_protocol_error")


async def test_rty_02_a_408_about_the_silence_before_is_not_the_answer() -> None:
    async def play(turn: Turn) -> None:
        if turn.index == 0:
            await turn.send(ok(completion()))
        else:
            await turn.send(ok(b"{}", "Connection: close", status="408 Request Timeout"))
            turn.close()

    async with Fake(play) as a, gateway_of(a, reuse_race_s=20.0) as gateway:
        answers = [await gateway.chat() for _ in range(3)]

    assert [answer.status for answer in answers] == [200] * 3


async def test_err_01_an_answer_that_breaks_at_once_is_seen_to_have_begun() -> None:
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: audio/mpeg\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n"
    )

    async with Fake(beginning(head + b"ZZ\r\n", closing)) as a, gateway_of(a) as gateway:
        answer = await gateway.ask(post(chat(), path="/v1/audio/speech"))

    assert (answer.status, answer.is_whole) == (200, False)


async def test_http_03_a_redirect_to_the_replica_itself_is_one_to_the_gateway() -> None:
    async def play(turn: Turn) -> None:
        where = f"Location: {a.url}/v1/x?y=1"
        await turn.send(ok(b"", where, status="307 Temporary Redirect"))

    async with Fake(play) as a, gateway_of(a) as gateway:
        answer = await gateway.ask(post(chat(), path="/v1/x/?y=1"))

    assert answer.value("location") == "/v1/x?y=1"
