"""HTTP's edges: one message is read as one message by everybody, and nothing gets lost or added."""

import gzip
import json

import pytest

from tests.field.harness import FIN, Fake, gateway_of, refusing, saying, tok
from tests.field.test_streaming import STREAM_TYPE
from tests.router.gateway.scripted_replica import Turn
from tests.router.gateway.wire import (
    DONE,
    LAST_CHUNK,
    STREAM_HEAD,
    chat,
    chunk,
    completion,
    get,
    ok,
    post,
)
from tests.waiting import until

PATH = "/v1/chat/completions"
SMUGGLED = b"GET /v1/smuggled HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("accepts", [True, False])
async def test_http_01_a_body_is_what_its_encoding_says(
    framing: str, stream: bool, accepts: bool
) -> None:
    plain = tok(1) + FIN + DONE if stream else completion("hi")
    packed = gzip.compress(plain)
    media = STREAM_TYPE if stream else "application/json"
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {media}\r\nContent-Encoding: gzip\r\n"

    async def play(turn: Turn) -> None:
        if framing == "length":
            await turn.send(head.encode() + b"Content-Length: %d\r\n\r\n" % len(packed) + packed)
        else:
            await turn.send(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n")
            await turn.send_pieces(chunk(packed[:7]), chunk(packed[7:]), LAST_CHUNK)

    async with Fake(play) as a, gateway_of(a) as gateway:
        wishes = ["Accept-Encoding: gzip"] if accepts else []
        answer = await gateway.chat("hi", *wishes, stream=stream)

    assert answer.value("content-encoding") == "gzip"
    assert answer.body == packed
    assert a.asked[0].values("accept-encoding") == (["gzip"] if accepts else [])


@pytest.mark.parametrize("host", ["public.example", "public.example:8443", "[::1]:80"])
async def test_http_03_the_replica_is_called_by_its_own_name(host: str) -> None:
    request = post(chat()).replace(b"Host: gateway.example", f"Host: {host}".encode())
    async with Fake() as a, gateway_of(a) as gateway:
        await gateway.ask(request)

    assert a.asked[0].values("host") == [f"127.0.0.1:{a.port}"]


async def test_http_04_headers_between_two_hops_end_at_the_gateway() -> None:
    hop = [
        *("Connection: close, X-Secret-Hop", "X-Secret-Hop: 1", "TE: trailers", "Upgrade: h2c"),
        *("Proxy-Authorization: Basic x", "Keep-Alive: timeout=1", "Proxy-Connection: close"),
    ]
    lines = ["Connection: X-B", "X-B: 1", "Keep-Alive: timeout=5", "Proxy-Authenticate: Basic"]

    async def play(turn: Turn) -> None:
        await turn.send(ok(completion(), *lines, "X-Custom: kept"))

    async with Fake(play) as a, gateway_of(a) as gateway:
        answer = await gateway.chat("hi", *hop, "X-Custom: kept", "traceparent: 00-1-2-01")

    names = {name.lower() for name, _ in a.asked[0].headers}
    ended = {line.partition(":")[0].lower() for line in hop}
    assert not names & (ended - {"connection"})
    assert a.asked[0].values("connection") == []
    assert {"x-custom", "traceparent"} <= names
    back = {name.lower() for name, _ in answer.headers}
    assert not back & {"x-b", "keep-alive", "proxy-authenticate"}
    assert answer.values("connection") in ([], ["close"])
    assert answer.value("x-custom") == "kept"


CHUNKED = "Transfer-Encoding: chunked"
TWICE_READABLE = {
    "length_and_chunked": (["Content-Length: 4", CHUNKED], b"0\r\n\r\n"),
    "chunked_and_length": ([CHUNKED, "Content-Length: 4"], b"0\r\n\r\n"),
    "two_lengths": (["Content-Length: 4", "Content-Length: 5"], b"abcd"),
    "two_equal_lengths": (["Content-Length: 4", "Content-Length: 4"], b"abcd"),
    "list_of_lengths": (["Content-Length: 4, 4"], b"abcd"),
    "unknown_encoding": (["Transfer-Encoding: xchunked"], b"0\r\n\r\n"),
    "encoding_list": (["Transfer-Encoding: gzip, chunked"], b"0\r\n\r\n"),
    "chunked_twice": ([CHUNKED, CHUNKED], b"0\r\n\r\n"),
    "space_before_colon": (["Transfer-Encoding : chunked"], b"0\r\n\r\n"),
    "tab_in_encoding": (["Transfer-Encoding:\x0bchunked"], b"0\r\n\r\n"),
    "plus": (["Content-Length: +5"], b"abcde"),
    "minus": (["Content-Length: -1"], b""),
    "hexadecimal": (["Content-Length: 0x4"], b"abcd"),
    "underscore": (["Content-Length: 1_0"], b"abcdefghij"),
    "underscore_in_name": (["Content_Length: 4", "Content-Length: 4"], b"abcd"),
    "underscore_in_encoding": (["Transfer_Encoding: chunked", "Content-Length: 4"], b"abcd"),
    "empty_length": (["Content-Length:"], b""),
    "fold": (["X-A: 1\r\n Content-Length: 4"], b""),
    "folded_encoding": (["Transfer-Encoding:\r\n chunked"], b"0\r\n\r\n"),
    "bare_line_feed": (["X-A: 1\nContent-Length: 4"], b"abcd"),
    "bare_carriage_return": (["X-A: 1\rContent-Length: 4"], b"abcd"),
    "nul": (["X-A: 1\x00"], b""),
    "no_name": ([": value"], b""),
    "no_colon": (["Transfer-Encoding chunked"], b"0\r\n\r\n"),
    "sign_in_chunk_size": ([CHUNKED], b"+5\r\nabcde\r\n0\r\n\r\n"),
    "bare_lf_in_chunk_size": ([CHUNKED], b"5\nabcde\r\n0\r\n\r\n"),
    "no_end_of_chunk": ([CHUNKED], b"5\r\nabcdeXX0\r\n\r\n"),
    "huge_chunk": ([CHUNKED], b"fffffffffffffffff\r\n"),
    "no_chunk_size": ([CHUNKED], b"\r\nabcde\r\n0\r\n\r\n"),
}


@pytest.mark.parametrize("name", TWICE_READABLE)
async def test_http_05_what_two_hops_could_read_apart_is_refused(name: str) -> None:
    lines, body = TWICE_READABLE[name]
    head = "\r\n".join([f"POST {PATH} HTTP/1.1", "Host: x", *lines, "", ""]).encode("latin-1")
    async with Fake() as a, gateway_of(a) as gateway:
        client = await gateway.connect()
        answer = await client.ask(head + body + SMUGGLED)
        rest = await client.rest()

        assert gateway.count("warmroute_requests_total", status="4xx") == 1

    assert (answer.status, answer.value("connection"), rest) == (400, "close", b"")
    assert answer.code == "bad_http"
    assert a.asked == []


@pytest.mark.parametrize("host", ["a b", "a, b", "a/b", "user@a", "a\\b", "a?b"])
async def test_http_15_a_host_that_is_none_is_refused(host: str) -> None:
    async with Fake() as a, gateway_of(a) as gateway:
        answer = await gateway.ask(post(chat()).replace(b"gateway.example", host.encode()))

    assert (answer.status, answer.code, a.asked) == (400, "bad_http", [])


@pytest.mark.parametrize("host", ["", "[::1]:80", "a_b.example:80", "%41", "127.0.0.1"])
async def test_http_15_a_host_may_be_whatever_a_url_may_have(host: str) -> None:
    async with Fake() as a, gateway_of(a) as gateway:
        answer = await gateway.ask(post(chat()).replace(b"gateway.example", host.encode()))

    assert answer.status == 200


async def test_rty_05_connection_cannot_list_the_request_id_away() -> None:
    async with Fake() as a, gateway_of(a) as gateway:
        await gateway.chat("hi", "x-request-id: mine", "Connection: x-request-id")

    assert a.asked[0].values("x-request-id") == ["mine"]


async def test_http_05_a_chunked_body_is_sent_on_under_one_framing() -> None:
    pieces = [b"4\r\n" + chat()[:4] + b"\r\n", chunk(chat()[4:]), b"0\r\nX-Trailer: 1\r\n\r\n"]
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\n{CHUNKED}\r\n\r\n".encode()
    async with Fake() as a, gateway_of(a) as gateway:
        client = await gateway.connect()
        answer = await client.ask(head + b"".join(pieces) + post(chat("next")))
        second = await client.answer()

    assert (answer.status, second.status) == (200, 200)
    assert [request.body for request in a.asked] == [chat(), chat("next")]
    assert all(len(request.values("content-length")) == 1 for request in a.asked)
    assert not any(request.values("transfer-encoding") for request in a.asked)


async def test_http_10_lengths_are_of_the_bytes_that_are_sent() -> None:
    body = b'{ "text" :  "caf\\u00e9 \xc3\xa9",\n\t"n": 1.0e-7 }'

    async def play(turn: Turn) -> None:
        await turn.send(ok(body))

    async with Fake(play) as a, gateway_of(a) as gateway:
        request = b'{"model":"m","messages":[{"role":"user","content":"\\u00e9 \xc3\xa9"}] }'
        answer = await gateway.ask(post(request))

    assert (answer.body, int(answer.value("content-length"))) == (body, len(body))
    assert a.asked[0].body == request
    assert a.asked[0].values("content-length") == [str(len(request))]


@pytest.mark.parametrize("missing", [1, 150, 160])
async def test_http_11_an_answer_shorter_than_it_says_is_named(missing: int) -> None:
    async def short(turn: Turn) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 160\r\n\r\n"
        await turn.send(head + b" " * (160 - missing))
        turn.close()

    async with Fake(short) as a, gateway_of(a, retry_max=0) as gateway:
        answer = await gateway.chat()
        record = await gateway.record()
        a.play = saying("a")
        following = await gateway.chat()

    assert answer.status == 502 or not answer.is_whole
    assert (record.replica_id, record.outcome.value) in (("a", "broken"), ("a", "refused"))
    assert "before its answer was whole" in record.detail
    assert following.status == 200


POSTED = [PATH, "/v1/completions", "/v1/embeddings", "/v1/audio/transcriptions", "/v1/rerank"]


@pytest.mark.parametrize("path", [*POSTED, "/v1/responses", "/v1/messages", "/tokenize", "/score"])
async def test_http_12_every_path_forwards_the_same_headers(path: str) -> None:
    lines = ["X-T: 1", "traceparent: 00-1-2-01", "Authorization: Bearer k", "openai-beta: x"]
    body = chat("hi", prompt="hi", input="hi")
    async with Fake() as a, gateway_of(a) as gateway:
        answer = await gateway.ask(post(body, *lines, path=path))

    names = ("x-t", "traceparent", "authorization", "openai-beta")
    assert answer.status == 200
    assert [a.asked[0].values(name) for name in names] == [
        ["1"],
        ["00-1-2-01"],
        ["Bearer k"],
        ["x"],
    ]
    assert a.asked[0].target == path


async def test_http_12_a_form_goes_through_with_its_boundary() -> None:
    form = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--b--\r\n'
    request = post(form, "Content-Type: multipart/form-data; boundary=b", path=POSTED[3])
    async with Fake() as a, gateway_of(a) as gateway:
        answer = await gateway.ask(request)

    assert answer.status == 200
    assert a.asked[0].body == form
    assert a.asked[0].values("content-type") == ["multipart/form-data; boundary=b"]


ODD_BODIES = [
    b'{"model":"m", "messages":[{"role":"user","content":"hi"}],  "chat_template_kwargs":{"a":[]}}',
    b'{"messages":[{"role":"user","content":"hi","x":1}],"model":"m","n_big":9007199254740993}',
    b'{"model":"m","messages":[],"f":0.10000000000000001,"g":1e-7,"h":-0,"i":1E+2}',
    '{"model":"m","messages":[{"role":"user","content":"é \\u00e9 🙂 \\ud83d\\ude42"}]}'.encode(),
    b'\n {"model" : "m",\t"messages":[{"role":"user","content":"hi"}],"a":1,"a":2}\r\n',
]


@pytest.mark.parametrize("body", ODD_BODIES)
async def test_http_13_a_body_is_forwarded_to_the_byte(body: bytes) -> None:
    async with Fake() as a, gateway_of(a) as gateway:
        answer = await gateway.ask(post(body))

    assert answer.status == 200
    assert a.asked[0].body == body


@pytest.mark.parametrize("lines", [["Host: y"], ["Content-Length: 2"], [CHUNKED]])
async def test_http_15_a_request_with_a_header_too_many_is_refused(lines: list[str]) -> None:
    async with Fake() as a, gateway_of(a) as gateway:
        answer = await gateway.ask(post(b"{}", *lines))

    assert (answer.status, a.asked) == (400, [])


async def test_http_15_an_answer_may_say_things_twice() -> None:
    twice = ["Server: a", "Server: b", "Set-Cookie: a=1", "Set-Cookie: b=2"]

    async def play(turn: Turn) -> None:
        await turn.send(ok(completion(), *twice, "Content-Type: application/json"))

    async with Fake(play) as a, gateway_of(a) as gateway:
        answer = await gateway.chat()

    assert answer.status == 200
    assert answer.values("set-cookie") == ["a=1", "b=2"]


@pytest.mark.parametrize("value", ["a\rX-Injected: 1", "a\nX-Injected: 1", "a\x00b"])
async def test_http_15_an_answer_can_inject_no_header(value: str) -> None:
    async def play(turn: Turn) -> None:
        await turn.send(ok(completion(), f"X-A: {value}"))

    async with Fake(play) as a, gateway_of(a) as gateway:
        answer = await gateway.chat()

    assert (answer.status, answer.code) == (502, "replica_protocol_error")
    assert answer.values("x-injected") == []


@pytest.mark.parametrize("value", ["x\r\nX-Injected: 1", "x\nX-Injected: 1"])
async def test_http_15_a_request_id_can_inject_no_header(value: str) -> None:
    async with Fake() as a, gateway_of(a) as gateway:
        client = await gateway.connect()
        answer = await client.ask(post(chat(), f"x-request-id: {value}"))

    assert answer.values("x-injected") == []


async def test_http_17_every_answer_is_read_or_closed() -> None:
    statuses = ["200 OK", "400 Bad Request", "500 Internal Server Error", "204 No Content"]

    async def play(turn: Turn) -> None:
        status = statuses[len(a.asked) % 4]
        empty = status.startswith("204")
        head = f"HTTP/1.1 {status}\r\n\r\n".encode()
        await turn.send(head if empty else ok(b'{"error":{}}', status=status))

    tolerant = {"breaker_failures": 1000, "breaker_window_requests": 10_000, "retry_max": 0}
    async with Fake(play) as a, gateway_of(a, **tolerant) as gateway:
        client = await gateway.connect()
        seen = {(await client.ask(post(chat()))).status for _ in range(200)}
        health = await client.ask(get("/health", method="HEAD"), bodiless=True)
        again = await client.ask(get("/health"))

        assert gateway.plane.stats().idle_replica_connections == 1

    assert seen == {200, 204, 400, 500}
    assert (health.status, again.status, again.body) == (200, 200, b'{"status":"ok"}')


async def test_http_17_a_kept_connection_serves_streams_and_answers_in_turn() -> None:
    async def play(turn: Turn) -> None:
        if b"stream" in turn.request.body:
            await turn.send(STREAM_HEAD + chunk(tok(1) + FIN + DONE) + LAST_CHUNK)
        else:
            await turn.send(ok(completion()))

    async with Fake(play) as a, gateway_of(a) as gateway:
        client = await gateway.connect()
        wishes = [bool(index % 2) for index in range(20)]
        await client.send(b"".join(post(chat(stream=wish)) for wish in wishes))
        answers = [await client.answer() for _ in wishes]

    assert [b"[DONE]" in answer.body for answer in answers] == wishes


async def test_http_17_a_client_that_asks_for_an_upgrade_gets_a_plain_answer() -> None:
    async with Fake() as a, gateway_of(a) as gateway:
        lines = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"]
        answer = await gateway.ask(get("/v1/realtime", *lines))
        await until(lambda: gateway.is_at_rest)

    assert answer.status != 101
    assert not any(request.values("upgrade") for request in a.asked)


async def test_http_17_error_answers_are_json_and_of_their_length() -> None:
    async with Fake(refusing("400 No")) as a, gateway_of(a) as gateway:
        for request in (get("/nothing"), get(PATH), post(b"{"), post(b"", path="/v1/models")):
            answer = await gateway.ask(request)
            assert 400 <= answer.status < 500
            assert json.loads(answer.body)["error"]["type"] == "invalid_request_error"
