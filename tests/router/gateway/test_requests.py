"""The client's side of HTTP: what is served, what is refused and how, what follows a refusal."""

import asyncio
import json

import pytest

from contract.failures import Failure
from router.core.reason import Outcome
from tests.router.gateway.running import RunningGateway, gateway_of
from tests.router.gateway.scripted_replica import ScriptedReplica, Turn, answering
from tests.router.gateway.wire import chat, chunk, completion, get, ok, post
from tests.waiting import until

CHUNKED = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"


async def echo(turn: Turn) -> None:
    await turn.send(ok(turn.request.body))


async def serve_raw(gateway: RunningGateway, data: bytes) -> bytes:
    client = await gateway.connect()
    await client.send(data)
    return await client.rest()


async def test_requests_on_one_connection_are_answered_in_order() -> None:
    async with ScriptedReplica(echo) as replica, gateway_of(replica) as gateway:
        client = await gateway.connect()
        bodies = [chat(f"number {index}") for index in range(5)]
        answers = [await client.ask(post(body)) for body in bodies]

    assert [answer.body for answer in answers] == bodies
    assert replica.num_connections == 1


async def test_pipelined_requests_are_answered_in_order_one_at_a_time() -> None:
    most = 0

    async def script(turn: Turn) -> None:
        nonlocal most
        most = max(most, replica.num_open)
        await asyncio.sleep(0)
        await turn.send(ok(turn.request.body))

    async with ScriptedReplica(script) as replica, gateway_of(replica) as gateway:
        client = await gateway.connect()
        bodies = [chat(f"number {index}") for index in range(40)]
        await client.send(b"".join(map(post, bodies)))
        answers = [await client.answer() for _ in bodies]

    assert [answer.body for answer in answers] == bodies
    assert most == 1


async def test_pipelined_requests_beyond_the_limit_wait_unread() -> None:
    async with ScriptedReplica(echo) as replica, gateway_of(replica, pipelined_max=2) as gateway:
        client = await gateway.connect()
        bodies = [chat(f"{index} " + "x" * 50_000) for index in range(30)]
        sending = asyncio.create_task(client.send(b"".join(map(post, bodies))))
        answers = [await client.answer() for _ in bodies]
        await sending

    assert [answer.body for answer in answers] == bodies


async def test_a_chunked_request_is_forwarded_with_its_length() -> None:
    body = chat("in chunks")
    framed = b"".join(chunk(body[i : i + 7]) for i in range(0, len(body), 7)) + b"0\r\nX: 1\r\n\r\n"

    async with ScriptedReplica(echo) as replica, gateway_of(replica) as gateway:
        client = await gateway.connect()
        await client.send(CHUNKED + b"\r\n" + framed + post(chat("next")))
        answers = [await client.answer() for _ in range(2)]

    assert [answer.body for answer in answers] == [body, chat("next")]
    assert replica.requests[0].values("content-length") == [str(len(body))]
    assert not replica.requests[0].values("transfer-encoding")


async def test_a_client_of_http_1_0_gets_a_closed_connection_and_no_chunks() -> None:
    async def script(turn: Turn) -> None:
        await turn.send(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(b"ab") + chunk(b"cd")
        )
        await turn.send(b"0\r\n\r\n")

    async with ScriptedReplica(script) as replica, gateway_of(replica) as gateway:
        data = await serve_raw(gateway, post(chat(), "Connection: keep-alive", version="1.0"))

    head, _, body = data.partition(b"\r\n\r\n")
    assert body == b"abcd"
    assert b"Connection: close" in head
    assert b"Transfer-Encoding" not in head


async def test_a_client_of_http_1_0_may_keep_its_connection() -> None:
    async with ScriptedReplica(echo) as replica, gateway_of(replica) as gateway:
        client = await gateway.connect()
        request = post(chat(), "Connection: keep-alive", version="1.0")
        answers = [await client.ask(request) for _ in range(2)]

    assert [answer.value("connection") for answer in answers] == ["keep-alive"] * 2


async def test_a_connection_is_closed_when_its_client_says_so() -> None:
    async with ScriptedReplica(echo) as replica, gateway_of(replica) as gateway:
        client = await gateway.connect()
        await client.send(post(chat("one"), "Connection: close") + post(chat("two")))
        answer = await client.answer()
        rest = await client.rest()

    assert (answer.body, answer.value("connection")) == (chat("one"), "close")
    assert rest == b""
    assert len(replica.requests) == 1


async def test_a_request_for_an_upgrade_is_served_without_it() -> None:
    async with ScriptedReplica(echo) as replica, gateway_of(replica) as gateway:
        client = await gateway.connect()
        headers = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAM")
        answers = [await client.ask(post(chat(), *headers)) for _ in range(2)]

    assert [answer.status for answer in answers] == [200, 200]
    assert not replica.requests[0].values("upgrade")


async def test_a_websocket_is_refused_with_what_to_do_instead() -> None:
    headers = ("Connection: keep-alive, Upgrade", "Upgrade: WebSocket", "Sec-WebSocket-Key: x")
    async with ScriptedReplica(echo) as replica, gateway_of(replica) as gateway:
        client = await gateway.connect()
        refused = await client.ask(get("/v1/realtime", *headers))
        served = await client.ask(post(chat()))

    assert (refused.status, refused.code) == (400, "upgrade_refused")
    assert b"POST" in refused.body
    assert served.status == 200
    assert len(replica.requests) == 1


@pytest.mark.parametrize("version", ["1.1", "1.0"])
async def test_an_expectation_that_cannot_be_met_is_refused(version: str) -> None:
    async with ScriptedReplica(echo) as replica, gateway_of(replica) as gateway:
        answer = await gateway.ask(post(chat(), "Expect: 200-ok", version=version))

    if version == "1.0":  # which knows no expectations
        assert answer.status == 200
        assert not replica.requests[0].values("expect")
    else:
        assert (answer.status, answer.code) == (417, "expectation_failed")
        assert not replica.requests


@pytest.mark.parametrize(
    ("body", "headers", "status", "kind", "code"),
    [
        (b"x" * 3000, [], 413, "request_too_large", "body_too_large"),
        (b"{}", ["Expect: x"], 417, "invalid_request_error", "expectation_failed"),
        (chat(model="none"), [], 404, "not_found_error", "model_not_found"),
        (chat(model="m"), [], 502, "api_error", "replica_connect_failed"),
    ],
)
async def test_below_messages_an_error_has_the_shape_of_anthropic(
    body: bytes, headers: list[str], status: int, kind: str, code: str
) -> None:
    async with gateway_of("http://127.0.0.1:1", max_body_bytes=2000) as gateway:
        answer = await gateway.ask(post(body, *headers, path="/v1/messages?beta=true"))

    error = json.loads(answer.body)
    assert answer.status == status
    assert error.keys() == {"type", "error"}
    assert error["type"] == "error"
    assert error["error"].keys() == {"type", "message", "code"}
    assert (error["error"]["type"], error["error"]["code"]) == (kind, code)


async def test_the_body_is_asked_for_where_the_client_waits_for_that() -> None:
    async with ScriptedReplica(echo) as replica, gateway_of(replica) as gateway:
        client = await gateway.connect()
        request = post(chat(), "Expect: 100-continue")
        head, _, body = request.partition(b"\r\n\r\n")
        await client.send(head + b"\r\n\r\n")
        interim = await client.line() + await client.line()
        answer = await client.ask(body)

    assert interim == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert (answer.status, answer.body) == (200, chat())
    assert not replica.requests[0].values("expect")


@pytest.mark.parametrize(
    ("path", "length", "failure"),
    [
        ("/nowhere", 10, Failure.NOT_FOUND),
        ("/v1/chat/completions", 3_000, Failure.BODY_TOO_LARGE),
        ("/v1/models", 10, Failure.METHOD_NOT_ALLOWED),
    ],
)
async def test_a_body_that_is_not_wanted_is_refused_and_not_asked_for(
    path: str, length: int, failure: Failure
) -> None:
    lines = (f"POST {path} HTTP/1.1", "Host: a", "Expect: 100-continue", "Content-Length: ")
    head = "\r\n".join(lines) + f"{length}\r\n\r\n"
    async with gateway_of(max_body_bytes=2_000) as gateway:
        data = await serve_raw(gateway, head.encode())

    assert data.startswith(f"HTTP/1.1 {failure.kind.status} ".encode())
    assert b"Connection: close" in data
    assert b"100 Continue" not in data


@pytest.mark.parametrize(
    ("request_bytes", "failure"),
    [
        (get("/"), Failure.NOT_FOUND),
        (get("/metrics"), Failure.NOT_FOUND),
        (get("/v1/../metrics"), Failure.NOT_FOUND),
        (get("/v1/%2E%2e/metrics"), Failure.NOT_FOUND),
        (get("/v1/chat/completions"), Failure.METHOD_NOT_ALLOWED),
        (get("/v1/files", method="DELETE"), Failure.METHOD_NOT_ALLOWED),
        (get("/health", method="POST"), Failure.METHOD_NOT_ALLOWED),
        (post(b"{"), Failure.INVALID_JSON),
        (post(b'{"model": 7, "messages": []}'), Failure.INVALID_REQUEST),
        (post(chat(model="nope")), Failure.MODEL_NOT_FOUND),
        (get("/v1/models/nope"), Failure.MODEL_NOT_FOUND),
    ],
    ids=lambda value: value.name if isinstance(value, Failure) else value[:30].decode(),
)
async def test_a_refusal_is_an_openai_error_and_the_connection_goes_on(
    request_bytes: bytes, failure: Failure
) -> None:
    async with ScriptedReplica(echo) as replica, gateway_of(replica) as gateway:
        client = await gateway.connect()
        refused = await client.ask(request_bytes)
        served = await client.ask(post(chat()))

    assert refused.status == failure.kind.status
    assert refused.code == failure.kind.code
    assert served.status == 200
    assert len(replica.requests) == 1
    if not request_bytes.startswith(b"GET /v1/models"):
        assert refused.value("x-request-id")
        assert gateway.records[0].failure is failure
        assert gateway.records[0].outcome is Outcome.REFUSED


async def test_a_wrong_method_is_told_the_right_ones() -> None:
    async with gateway_of() as gateway:
        refused = await gateway.ask(get("/v1/completions"))
        options = await gateway.ask(get("/v1/completions", method="OPTIONS"))

    assert refused.value("allow") == "POST, OPTIONS"
    assert (options.status, options.value("allow")) == (204, "POST, OPTIONS")


@pytest.mark.parametrize("path", ["/health", "/ready", "/v1/models", "/v1/models/m", "/nowhere"])
async def test_an_answer_of_the_gateway_to_a_head_has_no_body(path: str) -> None:
    async with ScriptedReplica(echo) as replica, gateway_of(replica) as gateway:
        client = await gateway.connect()
        asked = await client.ask(get(path))
        head = await client.ask(get(path, method="HEAD"), bodiless=True)
        again = await client.ask(get(path))

    assert head.status == asked.status
    assert head.value("content-length") == asked.value("content-length")
    assert again.body == asked.body


@pytest.mark.parametrize("is_chunked", [False, True])
async def test_a_body_over_the_limit_is_refused_before_it_is_all_here(is_chunked: bool) -> None:
    head = CHUNKED + b"\r\n" if is_chunked else post(b"")[:-5] + b"2001\r\n\r\n"
    body = chunk(b"x" * 1000) * 3 if is_chunked else b"x" * 100

    async with (
        ScriptedReplica(echo) as replica,
        gateway_of(replica, max_body_bytes=2000) as gateway,
    ):
        data = await serve_raw(gateway, head + body)

    assert data.startswith(b"HTTP/1.1 413 ")
    assert b'"code":"body_too_large"' in data
    assert b"Connection: close" in data
    assert not replica.requests
    assert gateway.records[0].failure is Failure.BODY_TOO_LARGE


@pytest.mark.parametrize("size", [1024 * 1024 - 1, 1024 * 1024 + 1, 8 * 1024 * 1024])
async def test_bodies_as_large_as_images_go_through(size: int) -> None:
    body = chat("x" * size)

    async with ScriptedReplica(answering(ok(b"{}"))) as replica, gateway_of(replica) as gateway:
        answer = await gateway.ask(post(body))

    assert answer.status == 200
    assert replica.requests[0].body == body


async def test_a_client_may_go_on_sending_a_while_after_an_early_refusal() -> None:
    async with gateway_of(max_body_bytes=1000, linger_s=5.0) as gateway:
        client = await gateway.connect()
        await client.send(post(b"")[:-5] + b"9000000\r\n\r\n")
        answer = await client.answer()
        for _ in range(20):
            await client.send(b"x" * 100_000)  # raises if the gateway has closed both halves
            await asyncio.sleep(0)
        rest = await client.rest()
        client.close()

    assert (answer.status, rest) == (413, b"")


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 40_000 + b"\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 40_000,
        b"GET /" + b"y" * 40_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: a\r\n" + b"X: 1\r\n" * 200 + b"\r\n",
    ],
    ids=["one header", "unfinished", "target", "many"],
)
async def test_a_head_over_the_limits_is_refused(head: bytes) -> None:
    async with gateway_of() as gateway:
        data = await serve_raw(gateway, head)

    assert data.startswith(b"HTTP/1.1 431 ")
    assert b'"code":"headers_too_large"' in data


SMUGGLED = b"GET /v1/smuggled HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize(
    "attack",
    [
        b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
        b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n" + SMUGGLED,
        b"Content-Length: 0\r\nContent-Length: 44\r\n\r\n" + SMUGGLED,
        b"Content-Length: +5\r\n\r\n" + SMUGGLED,
        b"Content-Length: 0, 0\r\n\r\n" + SMUGGLED,
        b"Content-Length : 0\r\n\r\n" + SMUGGLED,
        b"Transfer-Encoding: xchunked\r\n\r\n" + SMUGGLED,
        b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
        b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + SMUGGLED,
        b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
        b"X: 1\r\n Content-Length: 44\r\n\r\n" + SMUGGLED,
        b"X: 1\nContent-Length: 44\r\n\r\n" + SMUGGLED,
        b"X: 1\rContent-Length: 44\r\n\r\n" + SMUGGLED,
        b"X: \0\r\n\r\n" + SMUGGLED,
        b"Host: b\r\n\r\n" + SMUGGLED,
        b"Transfer-Encoding: chunked\r\n\r\n0x0\r\n\r\n" + SMUGGLED,
        b"Transfer-Encoding: chunked\r\n\r\n0\n\n" + SMUGGLED,
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n" + SMUGGLED,
        b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
        b'Transfer-Encoding: "chunked"\r\n\r\n0\r\n\r\n' + SMUGGLED,
        b"Transfer-Encoding: chunked;a=b\r\n\r\n0\r\n\r\n" + SMUGGLED,
        b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
        b"Transfer-Encoding: chunked\r\n\r\n1;\n\r\nx\r\n0\r\n\r\n" + SMUGGLED,
        b"Transfer-Encoding: chunked\r\n\r\n2\r\nx\r\n0\r\n\r\n" + SMUGGLED,
        b"Transfer-Encoding: chunked\r\n\r\n-1\r\n" + SMUGGLED,
        b"Transfer-Encoding: chunked\r\n\r\n10000000000000000\r\n" + SMUGGLED,
        b"Content-Length: 5\r\nContent-Length: 5\r\n\r\n" + SMUGGLED,
        b"Content-Length: 1_0\r\n\r\n" + SMUGGLED,
        b"Content-Length: 0x10\r\n\r\n" + SMUGGLED,
        b"Content-Length: \r\n\r\n" + SMUGGLED,
        b"\r\n: 0\r\n\r\n"[2:] + SMUGGLED,
        b"X\x00Y: 0\r\n\r\n" + SMUGGLED,
        b"X: a\r\r\n\r\n" + SMUGGLED,
    ],
    ids=lambda attack: repr(attack.removesuffix(SMUGGLED)),
)
async def test_a_request_that_could_be_smuggled_is_refused_and_nothing_after_it_is_read(
    attack: bytes,
) -> None:
    async with ScriptedReplica(echo) as replica, gateway_of(replica) as gateway:
        data = await serve_raw(gateway, b"POST /v1/files HTTP/1.1\r\nHost: a\r\n" + attack)

    assert data.startswith(b"HTTP/1.1 400 ")
    assert data.count(b"\r\n\r\n") == 1
    assert b"Connection: close" in data
    assert not replica.requests


@pytest.mark.parametrize(
    "garbage",
    [
        *(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET / HTTP/1.1\n\n", b"hello\r\n\r\n"),
        *(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n"),
    ],
    ids=repr,
)
async def test_what_is_not_http_1_1_is_refused_at_once(garbage: bytes) -> None:
    async with gateway_of() as gateway:
        data = await serve_raw(gateway, garbage)

    assert data.startswith(b"HTTP/1.1 400 ")
    assert b'"code":"bad_http"' in data


async def test_requests_before_a_bad_one_are_answered_first() -> None:
    async with ScriptedReplica(echo) as replica, gateway_of(replica) as gateway:
        client = await gateway.connect()
        await client.send(post(chat("good")) + b"bad\r\n\r\n" + post(chat("after")))
        answers = [await client.answer() for _ in range(2)]
        rest = await client.rest()

    assert [answer.status for answer in answers] == [200, 400]
    assert rest == b""
    assert len(replica.requests) == 1


async def test_more_bytes_of_bodies_than_the_gateway_may_hold_are_refused() -> None:
    async with (
        ScriptedReplica(echo) as replica,
        gateway_of(replica, buffered_bytes_max=10_000) as gateway,
    ):
        holding = await gateway.connect()
        await holding.send(post(b"x" * 9_000)[:-1])
        await until(lambda: gateway.plane.stats().buffered_bytes > 8_000)
        refused = await gateway.ask(post(chat("x" * 4_000)))
        holding.close()

    assert (refused.status, refused.code) == (503, "overloaded")
    assert refused.value("retry-after") == "1"


async def test_models_are_listed_and_found_without_a_replica() -> None:
    async with gateway_of("http://127.0.0.1:1") as gateway:
        listed = await gateway.ask(get("/v1/models"))
        found = await gateway.ask(get("/v1/models/m"))

    assert b'"data":[{"id":"m","object":"model"' in listed.body
    assert found.body.startswith(b'{"id":"m","object":"model"')


async def test_a_request_without_a_model_goes_to_the_only_one() -> None:
    async with (
        ScriptedReplica(answering(ok(completion()))) as replica,
        gateway_of(replica) as gateway,
    ):
        answer = await gateway.ask(post(b'{"messages":[{"role":"user","content":"hi"}]}'))

    assert answer.status == 200


async def test_a_gateway_without_replicas_lives_and_is_not_ready() -> None:
    async with gateway_of() as gateway:
        health = await gateway.ask(get("/health"))
        ready = await gateway.ask(get("/ready"))
        refused = await gateway.chat()

    assert (health.status, ready.status, ready.code) == (200, 503, "no_replica_available")
    assert (refused.status, refused.code) == (503, "no_replica_available")
    assert refused.value("retry-after") == "1"


async def test_a_client_beyond_the_limit_of_connections_is_told_so() -> None:
    async with ScriptedReplica(echo) as replica, gateway_of(replica, connections_max=2) as gateway:
        for _ in range(2):
            await (await gateway.connect()).ask(get("/health"))
        refused = await (await gateway.connect()).answer()

    assert (refused.status, refused.code) == (503, "overloaded")
