"""Neighbours of the listed cases: the same kinds of fault, in shapes that nobody has reported yet.

Each failed once against the running gateway.
"""

import asyncio
import gzip
import json

import msgspec
import pytest

from contract.blocks import HASH_SCHEME
from contract.kv_events import KvEventBatch, encode_batch
from contract.load_report import GatewayReport, LoadReport, encode_gateway_report, encode_report
from contract.redis_layout import BATCH_FIELD
from tests.field.harness import FIN, Fake, gateway_of, listening, saying, streaming, tok
from tests.field.redis_side import KEYS, reporting
from tests.field.test_auth import KEY
from tests.field.test_auth import KEYS as KEY_SETTINGS
from tests.redis_server import RedisServer
from tests.router.gateway.scripted_replica import Turn
from tests.router.gateway.wire import DONE, chat, get, post
from tests.waiting import DEADLINE_S, until

DEEP = b"\x91" * 100_000 + b"\xc0"
"""In MessagePack: a list in a list in a list, deeper than any decoder goes."""


@pytest.mark.parametrize(
    "error",
    [
        b'data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"error"}],'
        b'"error":{"code":502,"message":"gone"}}\n\n',
        b'event: error\ndata: {"object":"error","message":"gone","code":500}\n\n',
        b'event: error\r\ndata: {"message":"gone"}\r\n\r\n',
    ],
)
async def test_sse_16_an_error_in_another_shape_is_counted_as_one(error: bytes) -> None:
    async with Fake(streaming(tok(1), error, DONE)) as a, gateway_of(a) as gateway:
        answer = await gateway.chat(stream=True)
        await gateway.rests()

        assert gateway.outcomes() == ["replica_error"]

    assert (answer.is_whole, answer.body) == (True, tok(1) + error + DONE)


async def test_sse_16_a_text_about_errors_is_none() -> None:
    text = 'event: error\ndata: {"error": {"code": 500}} "finish_reason": "error"'
    async with Fake(saying(text)) as a, gateway_of(a) as gateway:
        await gateway.chat(stream=True)
        await gateway.rests()

        assert gateway.outcomes() == ["complete"]


@pytest.mark.parametrize(("end", "is_whole"), [((), False), ((DONE,), True)])
async def test_sse_01_the_finish_of_one_choice_is_not_that_of_all(
    end: tuple[bytes, ...], is_whole: bool
) -> None:
    async with Fake(streaming(tok(1), FIN, *end)) as a, gateway_of(a) as gateway:
        answer = await gateway.chat(stream=True, n=2)
        await gateway.rests()

    assert answer.is_whole is is_whole


async def test_sse_06_usage_is_counted_however_deep_its_details_go() -> None:
    details = {"cached_tokens": 8, "by_source": {"device": {"gpu0": 8}, "host": 0}}
    usage = {"prompt_tokens": 10, "completion_tokens": 3, "prompt_tokens_details": details}
    last = b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n"

    async with Fake(streaming(tok(1), FIN, last, DONE)) as a, gateway_of(a) as gateway:
        await gateway.chat(stream=True)
        await gateway.rests()

        assert gateway.count("warmroute_completion_tokens_total") == 3


async def test_http_13_a_byte_order_mark_is_no_fault() -> None:
    body = b"\xef\xbb\xbf" + chat()
    async with Fake() as a, gateway_of(a) as gateway:
        answer = await gateway.ask(post(body))

    assert answer.status == 200
    assert a.asked[0].body == body


async def test_http_01_a_request_in_several_gzip_members_is_one_request() -> None:
    plain = chat()
    body = gzip.compress(plain[:20]) + gzip.compress(plain[20:])
    async with Fake() as a, gateway_of(a) as gateway:
        answer = await gateway.ask(post(body, "Content-Encoding: gzip"))
        await gateway.rests()

        assert gateway.records[0].model == "m"

    assert answer.status == 200
    assert a.asked[0].body == body


async def test_http_05_a_path_is_read_as_its_replica_reads_it() -> None:
    async with Fake() as a, gateway_of(a) as gateway:
        with_fragment = await gateway.ask(post(chat(), path="/v1/chat/completions#x"))
        in_query = await gateway.ask(get("http://host?x=/v1/models"))

    assert (with_fragment.status, with_fragment.code) == (400, "bad_http")
    assert (in_query.status, in_query.code) == (404, "not_found")
    assert a.asked == []


async def test_sec_05_a_key_in_the_header_of_azure_is_a_key_and_ends_at_the_gateway() -> None:
    async with Fake() as a, gateway_of(a, **KEY_SETTINGS) as gateway:
        right = await gateway.chat("hi", f"api-key: {KEY}")
        wrong = await gateway.chat("hi", "api-key: wrong")
        both = await gateway.chat("hi", f"Authorization: Bearer {KEY}", f"api-key: {KEY}")

    assert (right.status, wrong.status, both.status) == (200, 401, 200)
    assert [request.values("api-key") for request in a.asked] == [[], []]


async def test_err_02_a_long_name_is_not_repeated_whole() -> None:
    async with Fake() as a, gateway_of(a) as gateway:
        answer = await gateway.chat(model="m" * 100_000)

    assert answer.code == "model_not_found"
    assert len(answer.body) < 1000


def deep_report(replica_id: str) -> bytes:
    """Return a report that no decoder gets to the end of."""
    report = LoadReport(
        replica_id=replica_id, url="http://127.0.0.1:9", model="m", incarnation="i", sequence=1
    )
    return too_deep(encode_report(report))


def too_deep(value: bytes) -> bytes:
    """Return an object with one field more, of which there is no end."""
    fields = msgspec.msgpack.decode(value) | {"more": None}
    return msgspec.msgpack.encode(fields)[:-1] + DEEP


async def test_red_04_what_one_writes_too_deep_hides_nobody_elses_report(
    redis_server: RedisServer,
) -> None:
    fakes = [Fake(replica_id=name) for name in "ab"]
    other = too_deep(encode_gateway_report(GatewayReport("other", "i", 1, {})))
    async with (
        listening(fakes),
        reporting(redis_server, *fakes) as say,
        gateway_of(redis_url=redis_server.url) as gateway,
    ):
        await say.redis.set(KEYS.replica("deep"), deep_report("deep"))
        await say.redis.set(KEYS.gateway("other"), other)
        await say.redis.sadd(KEYS.gateways, "other")
        await say.redis.sadd(KEYS.replicas, "deep")
        counts = gateway.parts.sync.counts
        await until(lambda: counts.undecodable >= 2, "both have been read")
        say.say("a", running_requests=7)
        await until(lambda: gateway.status_of("a").view.foreign_requests == 7, "a is read again")

        assert gateway.count("warmroute_background_restarts_total") == 0


async def test_red_04_an_event_that_is_too_deep_is_passed_over(redis_server: RedisServer) -> None:
    batch = too_deep(encode_batch(KvEventBatch("first", 0, [])))
    tells = {"hash_scheme": HASH_SCHEME, "block_bytes": 256}
    async with (
        Fake() as a,
        reporting(redis_server, a, **tells) as say,
        gateway_of(redis_url=redis_server.url) as gateway,
    ):
        await gateway.knows("a")
        await say.redis.set(KEYS.kv_snapshot("a"), DEEP)
        await say.redis.xadd(KEYS.kv_events("a"), {BATCH_FIELD: batch})
        counts = gateway.parts.sync.counts
        await until(lambda: counts.undecodable >= 1, "it has been read")

        assert (await gateway.chat()).status == 200
        assert gateway.count("warmroute_background_restarts_total") == 0


async def test_err_02_a_status_without_words_keeps_its_space() -> None:
    async def play(turn: Turn) -> None:
        await turn.send(b"HTTP/1.1 418\r\nContent-Length: 0\r\n\r\n")

    async with Fake(play) as a, gateway_of(a) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(post(chat(), "Connection: close"))
        answer = await asyncio.wait_for(reader.read(), DEADLINE_S)
        writer.close()

    assert answer.startswith(b"HTTP/1.1 418 \r\n")
