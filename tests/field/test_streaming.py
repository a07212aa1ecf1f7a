"""Streams: bytes out equal bytes in, as they come, and an end that is not one never looks like one.

A replica that has to wait for its client does so event by event: no test here measures time.
"""

import asyncio
import json
from typing import Any

import pytest

from tests.field.harness import FIN, Fake, gateway_of, streaming, tok
from tests.field.simulated import simulated
from tests.router.gateway.running import RawClient, clock_us
from tests.router.gateway.scripted_replica import Script, Turn
from tests.router.gateway.wire import (
    DONE,
    LAST_CHUNK,
    STREAM_HEAD,
    USAGE,
    Answer,
    chat,
    chunk,
    completion,
    event,
    ok,
    post,
)

SPLIT_TEXT = event("北京🙂é", finish="stop")
STREAM_TYPE = "text/event-stream; charset=utf-8"


class Pieces:
    """A replica's stream that a test writes piece by piece."""

    def __init__(self, head: bytes = STREAM_HEAD) -> None:
        self._head = head
        self._turn: asyncio.Future[Turn] = asyncio.get_running_loop().create_future()
        self._ended = asyncio.Event()

    async def play(self, turn: Turn) -> None:
        """Send the head, and let the test go on."""
        await turn.send(self._head)
        self._turn.set_result(turn)
        await self._ended.wait()

    async def send(self, data: bytes) -> None:
        """Write one piece."""
        await (await self._turn).send(data)

    async def close(self) -> None:
        """Close the connection in order."""
        (await self._turn).close()
        self._ended.set()

    def end(self) -> None:
        """Let the replica take its next request."""
        self._ended.set()


async def received(client: RawClient, expected: bytes) -> bytes:
    """Read until ``expected`` has come; return all that was read."""
    data = b""
    async with asyncio.timeout(20):
        while expected not in data:
            piece = await client.reader.read(65_536)
            assert piece, data
            data += piece
    return data


async def test_sse_01_a_character_cut_anywhere_arrives_whole() -> None:
    whole = chunk(SPLIT_TEXT) + LAST_CHUNK
    cut = 0

    async def cut_once(turn: Turn) -> None:
        await turn.send_pieces(STREAM_HEAD + whole[:cut], whole[cut:])

    async def byte_by_byte(turn: Turn) -> None:
        await turn.send_pieces(STREAM_HEAD, *(whole[at : at + 1] for at in range(len(whole))))

    async with Fake() as a, gateway_of(a) as gateway:
        client = await gateway.connect()
        a.play = byte_by_byte
        bodies = {(await client.ask(post(chat(stream=True)))).body}
        a.play = cut_once
        for at in range(len(whole)):
            cut = at
            bodies.add((await client.ask(post(chat(stream=True)))).body)

    assert bodies == {SPLIT_TEXT}


async def test_sse_01_bytes_that_are_no_text_at_all_go_through() -> None:
    odd = b"data: \xff\xfe\x00\xed\xa0\x80\r\n\r\n" + FIN

    async with Fake(streaming(odd)) as a, gateway_of(a) as gateway:
        answer = await gateway.chat(stream=True)

    assert answer.body == odd


@pytest.mark.parametrize(
    ("media", "stream", "status"),
    [
        (STREAM_TYPE, True, "200 OK"),
        ("text/event-stream", True, "200 OK"),
        ("application/json", False, "200 OK"),
        ("application/json; charset=utf-8", True, "400 Bad Request"),
        ("application/problem+json", True, "422 Unprocessable Entity"),
        ("text/plain", False, "500 Internal Server Error"),
    ],
)
async def test_sse_03_the_media_type_is_the_replicas(media: str, stream: bool, status: str) -> None:
    body = FIN + DONE if "event" in media else b'{"error": {"message": "no"}}'
    head = f"HTTP/1.1 {status}\r\nContent-Type: {media}\r\nContent-Length: {len(body)}\r\n\r\n"

    async def play(turn: Turn) -> None:
        await turn.send(head.encode() + body)

    async with Fake(play) as a, gateway_of(a) as gateway:
        answer = await gateway.chat(stream=stream)

    assert answer.value("content-type") == media
    assert answer.body == body


async def test_sse_05_usage_comes_once_behind_the_finish_and_only_if_asked_for() -> None:
    async with simulated() as s, gateway_of(s.url) as gateway:
        plain = json.loads((await gateway.chat(max_tokens=8)).body)["usage"]
        asked: dict[str, Any] = {"stream_options": {"include_usage": True}}
        with_usage = _events(await gateway.chat(stream=True, max_tokens=8, **asked))
        without = _events(await gateway.chat(stream=True, max_tokens=8))

    usages = [one["usage"] for one in with_usage if one.get("usage")]
    assert with_usage[-1]["choices"] == []
    assert with_usage[-2]["choices"][0]["finish_reason"]
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert [[usage[name] for name in counts] for usage in usages] == [
        [plain[name] for name in counts]
    ]
    assert not any(one.get("usage") for one in without)


def _events(answer: Answer) -> list[dict[str, Any]]:
    *lines, done, _ = answer.body.split(b"\n\n")
    assert done == b"data: [DONE]"
    return [json.loads(line.removeprefix(b"data: ")) for line in lines]


@pytest.mark.parametrize(
    "events",
    [
        [tok(1), event("", finish="stop", usage=USAGE), DONE],
        [event("t", usage=USAGE | {"completion_tokens": n}) for n in (1, 2)]
        + [event("", finish="stop", usage=USAGE), DONE],
        [tok(1), event("", finish="stop", usage=USAGE)],
        [event("", finish="stop", usage=USAGE), event("", usage=None), DONE],
    ],
    ids=["beside_the_finish", "on_every_chunk", "without_done", "then_null"],
)
async def test_sse_06_usage_is_counted_once_wherever_it_stands(events: list[bytes]) -> None:
    async with Fake(streaming(*events)) as a, gateway_of(a) as gateway:
        answer = await gateway.chat(stream=True)
        await gateway.rests()
        counts = [
            gateway.count(f"warmroute_{name}_tokens_total")
            for name in ("answered_prompt", "completion", "cached")
        ]

    assert answer.body == b"".join(events)
    assert counts == [10, 3, 8]


@pytest.mark.parametrize("encoding", ["gzip, deflate, br", "identity"])
async def test_sse_07_each_event_arrives_before_the_next_is_sent(encoding: str) -> None:
    pieces = Pieces()
    options: dict[str, Any] = {"stream_options": {"include_usage": True}}

    async with Fake(pieces.play) as a, gateway_of(a) as gateway:
        client = await gateway.connect()
        request = post(chat(stream=True, **options), f"Accept-Encoding: {encoding}")
        await client.send(request)
        seen = b""
        for index in range(10):
            await pieces.send(chunk(tok(index)))
            seen += await received(client, tok(index))
        await pieces.send(chunk(FIN) + LAST_CHUNK)
        pieces.end()
        seen += await received(client, LAST_CHUNK)

    assert b"content-encoding" not in seen.lower()
    assert a.asked[0].values("accept-encoding") == [encoding]


@pytest.mark.parametrize("comment", [b": ping\n\n", b":\n\n", b": PROCESSING\r\n\r\n", b"\n"])
async def test_sse_08_a_comment_is_no_token_and_no_error(comment: bytes) -> None:
    pieces = Pieces()

    async with Fake(pieces.play) as a, gateway_of(a) as gateway:
        client = await gateway.connect()
        await client.send(post(chat(stream=True)))
        for _ in range(3):
            await pieces.send(chunk(comment))
            await received(client, comment)
        first_token_us = clock_us()
        await pieces.send(chunk(tok(1) + FIN + DONE) + LAST_CHUNK)
        pieces.end()
        await received(client, LAST_CHUNK)
        record = await gateway.record()

    assert record.first_byte_us is not None
    assert record.first_byte_us >= first_token_us
    assert record.outcome.value == "complete"
    assert not record.usage_unreadable


@pytest.mark.parametrize("size", [200 * 1024, 1024 * 1024])
async def test_sse_10_an_event_may_be_longer_than_any_line_buffer(size: int) -> None:
    long = event("x" * size)

    async with Fake(streaming(long, FIN, DONE)) as a, gateway_of(a) as gateway:
        answer = await gateway.chat(stream=True)
        await gateway.rests()

    assert answer.body == long + FIN + DONE
    assert gateway.outcomes() == ["complete"]
    assert not [line for line in gateway.logged() if line["level"] in ("warning", "error")]


async def break_with_reset(turn: Turn) -> None:
    """Three tokens, then a reset."""
    await streaming(tok(1), tok(2), tok(3), ends=False)(turn)
    await asyncio.sleep(0.02)  # a reset overtakes what the kernel has not yet delivered
    turn.reset()


async def break_with_fin(turn: Turn) -> None:
    """Three tokens, then an end without the last chunk."""
    await streaming(tok(1), tok(2), tok(3), ends=False)(turn)
    turn.close()


async def break_within_an_event(turn: Turn) -> None:
    """Three tokens and half a fourth."""
    await streaming(tok(1), tok(2), tok(3), tok(4)[:20], ends=False)(turn)
    turn.close()


async def break_short_of_the_length(turn: Turn) -> None:
    """Three tokens, and more were promised."""
    head = STREAM_HEAD.replace(b"Transfer-Encoding: chunked", b"Content-Length: 5000")
    await turn.send(head + tok(1) + tok(2) + tok(3))
    turn.close()


async def break_without_framing(turn: Turn) -> None:
    """Three tokens, and the connection's end is the stream's."""
    head = STREAM_HEAD.replace(b"Transfer-Encoding: chunked", b"Connection: close")
    await turn.send(head + tok(1) + tok(2) + tok(3))
    turn.close()


BREAKS = [
    break_with_reset,
    break_with_fin,
    break_within_an_event,
    break_short_of_the_length,
    break_without_framing,
]


@pytest.mark.parametrize("play", BREAKS)
@pytest.mark.parametrize("version", ["1.1", "1.0"])
async def test_sse_11_a_stream_that_breaks_is_visibly_broken(play: Script, version: str) -> None:
    async with Fake(play) as a, gateway_of(a) as gateway:
        client = await gateway.connect()
        await client.send(post(chat(stream=True), version=version))
        answer, was_reset = await read_to_the_end(client)
        await gateway.rests()

        assert gateway.outcomes() == ["broken"]
        assert gateway.count("warmroute_broken_answers_total") == 1
        assert gateway.load_of() == 0

    assert b"t3" in answer
    assert b'"finish_reason": "stop"' not in answer
    assert not answer.endswith(LAST_CHUNK)
    framings = (b"\r\ncontent-length: 5000", b"\r\ntransfer-encoding: chunked")
    assert was_reset or any(framing in answer.lower() for framing in framings)


async def read_to_the_end(client: RawClient) -> tuple[bytes, bool]:
    """Read until the connection closes; say whether with a reset."""
    data = b""
    async with asyncio.timeout(20):
        while True:
            try:
                piece = await client.reader.read(65_536)
            except ConnectionError:
                return data, True
            if not piece:
                return data, False
            data += piece


@pytest.mark.parametrize(
    ("events", "outcome", "dones"),
    [
        ([tok(1), FIN, DONE], "complete", 1),
        ([tok(1), FIN], "complete", 0),
        ([tok(1)], "broken", 0),
        ([], "refused", 0),
        ([tok(1), event("[DONE] finish_reason")], "broken", 1),
    ],
)
async def test_sse_13_an_end_is_whole_only_if_it_says_so(
    events: list[bytes], outcome: str, dones: int
) -> None:
    async with Fake(streaming(*events)) as a, gateway_of(a) as gateway:
        answer = await gateway.chat(stream=True)
        await gateway.rests()

        assert gateway.outcomes() == [outcome]
        assert gateway.count("warmroute_requests_total", outcome="complete") == (
            outcome == "complete"
        )

    assert answer.body.count(b"[DONE]") == dones
    assert answer.body.startswith(b"".join(events))


@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
async def test_sse_14_a_stream_arrives_whole_in_any_framing(framing: str) -> None:
    body = [*(tok(index) for index in range(10)), FIN, DONE]
    line = {
        "length": f"Content-Length: {sum(map(len, body))}",
        "chunked": "Transfer-Encoding: chunked",
        "close": "Connection: close",
    }[framing]
    pieces = Pieces(STREAM_HEAD.replace(b"Transfer-Encoding: chunked", line.encode()))

    async with Fake(pieces.play) as a, gateway_of(a) as gateway:
        client = await gateway.connect()
        await client.send(post(chat(stream=True), "Connection: close"))
        seen = b""
        for piece in body:
            await pieces.send(chunk(piece) if framing == "chunked" else piece)
            seen += await received(client, piece)
        if framing == "chunked":
            await pieces.send(LAST_CHUNK)
        if framing == "close":
            await pieces.close()
        pieces.end()
        seen += await client.rest()

    head = seen.lower().partition(b"\r\n\r\n")[0]
    framings = head.count(b"\r\ncontent-length:") + head.count(b"\r\ntransfer-encoding:")
    assert framings == 1
    assert all(seen.count(piece) == 1 for piece in body)


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        (b'{"error":{"message":"boom","code":500}}', "replica_error"),
        (b' {"error": {"message": "boom"}}', "replica_error"),
        (completion("hi"), "complete"),
        (completion('an "error" in a text'), "complete"),
    ],
)
async def test_sse_16_json_in_the_place_of_a_stream_is_relayed(body: bytes, outcome: str) -> None:
    async def play(turn: Turn) -> None:
        await turn.send(ok(body))

    async with Fake(play) as a, gateway_of(a) as gateway:
        answer = await gateway.chat(stream=True)
        await gateway.rests()

        assert gateway.outcomes() == [outcome]

    assert (answer.status, answer.body) == (200, body)
    assert answer.value("content-type") == "application/json"


async def test_sse_16_an_error_inside_a_stream_is_counted_as_one() -> None:
    error = b'data: {"error": {"message": "boom", "code": 500}}\n\n'

    async with Fake(streaming(tok(1), error, DONE)) as a, gateway_of(a) as gateway:
        answer = await gateway.chat(stream=True)
        await gateway.rests()

        assert gateway.outcomes() == ["replica_error"]

    assert answer.body == tok(1) + error + DONE
