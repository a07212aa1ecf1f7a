"""What is agreed on before a request: a body that waits to be asked for, a page that may ask."""

import json

import pytest

from tests.field.harness import Fake, gateway_of, listening, refusing, resetting, saying
from tests.router.gateway.scripted_replica import Script, answering
from tests.router.gateway.wire import chat, get, ok, post
from tests.waiting import until

PATH = "/v1/chat/completions"


@pytest.mark.parametrize("size", [10, 2_000, 70_000])
async def test_http_07_a_body_that_waits_to_be_asked_for_is_asked_for(size: int) -> None:
    body = chat("x" * size)
    head, _, _ = post(body, "Expect: 100-continue").partition(b"\r\n\r\n")
    async with Fake() as a, gateway_of(a) as gateway:
        client = await gateway.connect()
        await client.send(head + b"\r\n\r\n")
        assert await client.line() == b"HTTP/1.1 100 Continue\r\n"
        assert await client.line() == b"\r\n"
        answer = await client.ask(body)

    assert answer.status == 200
    assert a.asked[0].body == body
    assert a.asked[0].values("expect") == []


@pytest.mark.parametrize(
    ("path", "lines", "status"),
    [
        ("/nothing/here", [], 404),
        (PATH, ["Content-Length: 999999999"], 413),
    ],
)
async def test_http_07_a_body_that_is_not_wanted_is_refused_before_it_is_sent(
    path: str, lines: list[str], status: int
) -> None:
    lines = lines or ["Content-Length: 10"]
    head = "\r\n".join([f"POST {path} HTTP/1.1", "Host: x", "Expect: 100-continue", *lines])
    async with gateway_of() as gateway:
        client = await gateway.connect()
        await client.send(head.encode() + b"\r\n\r\n")

        assert (await client.line()).startswith(b"HTTP/1.1 %d" % status)
        assert b"100 Continue" not in await client.rest()


async def test_http_07_another_expectation_is_no_fault_of_the_gateway() -> None:
    async with Fake() as a, gateway_of(a) as gateway:
        answer = await gateway.chat("hi", "Expect: foo")

    assert answer.status in (200, 417)
    assert not any(request.values("expect") for request in a.asked)


@pytest.mark.parametrize("path", [PATH, "/v1/models", "/v1/embeddings"])
async def test_http_08_without_cors_a_preflight_is_answered_and_allows_nothing(path: str) -> None:
    lines = ["Origin: http://page.example", "Access-Control-Request-Method: POST"]
    async with Fake() as a, gateway_of(a) as gateway:
        answer = await gateway.ask(get(path, *lines, method="OPTIONS"))
        posted = await gateway.chat("hi", "Origin: http://page.example")

    assert answer.status in (200, 204, 404, 405)
    assert answer.values("access-control-allow-origin") == []
    assert posted.values("access-control-allow-origin") == []


CORS = {"cors_origins": ("http://page.example",), "api_keys": ("0" * 64,)}


@pytest.mark.parametrize("path", [PATH, "/v1/models", "/v1/embeddings"])
async def test_http_08_a_preflight_needs_no_key(path: str) -> None:
    lines = [
        "Origin: http://page.example",
        "Access-Control-Request-Method: POST",
        "Access-Control-Request-Headers: authorization, content-type",
    ]
    async with gateway_of(**CORS) as gateway:
        answer = await gateway.ask(get(path, *lines, method="OPTIONS"))

    allowed = answer.value("access-control-allow-headers").replace(" ", "").split(",")
    assert answer.status in (200, 204)
    assert answer.value("access-control-allow-origin") == "http://page.example"
    assert "POST" in answer.value("access-control-allow-methods")
    assert {"authorization", "content-type"} <= set(allowed)


@pytest.mark.parametrize("origin", ["http://page.example", "http://evil.example", "null"])
async def test_http_08_a_page_may_read_errors_only_if_it_is_allowed(origin: str) -> None:
    async with Fake(refusing("400 No")) as a, gateway_of(a, **CORS) as gateway:
        answer = await gateway.chat("hi", f"Origin: {origin}", "Authorization: Bearer bad")

    expected = ["http://page.example"] if "page" in origin else []
    assert answer.status == 401
    assert answer.values("access-control-allow-origin") == expected


@pytest.mark.parametrize("play", [refusing("400 No"), saying("a"), resetting])
@pytest.mark.parametrize("stream", [False, True])
async def test_http_08_a_page_may_read_every_answer(play: Script, stream: bool) -> None:
    async with Fake(play) as a, gateway_of(a, cors_origins=("*",)) as gateway:
        answer = await gateway.chat("hi", "Origin: http://page.example", stream=stream)

    assert answer.value("access-control-allow-origin") in ("*", "http://page.example")


async def test_http_07_a_body_without_a_key_is_refused_before_it_is_sent() -> None:
    head, _, _ = post(chat(), "Expect: 100-continue").partition(b"\r\n\r\n")
    async with gateway_of(api_keys=("0" * 64,)) as gateway:
        client = await gateway.connect()
        await client.send(head + b"\r\n\r\n")

        assert (await client.line()).startswith(b"HTTP/1.1 401")
        assert b"100 Continue" not in await client.rest()


async def test_http_10_a_request_that_has_been_here_is_not_sent_round_again() -> None:
    """A replica that is the gateway itself, or leads back to it."""
    async with Fake() as a, gateway_of(a) as gateway:
        await gateway.chat("hi", "Via: 1.1 cdn.example")
        before, own = a.asked[0].values("via")
        answer = await gateway.chat("hi", f"Via: {before}, {own}")

    assert before == "1.1 cdn.example"
    assert (answer.status, answer.code) == (508, "loop_detected")
    assert len(a.asked) == 1


@pytest.mark.parametrize("headers", [("Origin: http://evil.example",), ()])
async def test_http_08_an_engine_that_lets_all_pages_in_is_not_heard(
    headers: tuple[str, ...],
) -> None:
    engine = ok(b"{}", "Access-Control-Allow-Origin: *")
    origins = {"cors_origins": ("http://page.example",)}
    async with Fake(answering(engine)) as a, gateway_of(a, **origins) as gateway:
        answer = await gateway.chat("hi", *headers)

    assert answer.status == 200
    assert answer.values("access-control-allow-origin") == []
    assert answer.value("vary") == "Origin"  # or a cache would give it to pages that may


@pytest.mark.parametrize(
    "spoilt", ["x: " + "y" * 3000, "no colon", "Content-Length: x"], ids=["long", "odd", "length"]
)
async def test_http_08_a_page_may_read_why_its_head_was_refused(spoilt: str) -> None:
    lines = ("Origin: http://page.example", "x-request-id: mine", spoilt)
    settings = {"cors_origins": ("http://page.example",), "header_bytes_max": 1000}
    async with gateway_of(**settings) as gateway:
        answer = await gateway.ask(post(chat(), *lines, path="/v1/messages"))
        kept_short = await gateway.ask(get("/v1/models", spoilt, method="HEAD"), bodiless=True)

    assert answer.status == kept_short.status in (400, 431)
    assert answer.value("access-control-allow-origin") == "http://page.example"
    assert answer.value("x-request-id") == "mine"
    assert json.loads(answer.body)["type"] == "error"  # of Anthropic's shape, by the path


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/none", "/health", "/ready"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
async def test_http_12_what_the_gateway_answers_itself_names_its_request(
    path: str, method: str
) -> None:
    async with gateway_of() as gateway:
        answer = await gateway.ask(
            get(path, "x-request-id: mine", method=method), bodiless=method == "HEAD"
        )

    assert answer.value("x-request-id") == "mine"


async def test_big_02_a_model_that_is_not_found_is_counted() -> None:
    async with gateway_of() as gateway:
        answer = await gateway.ask(get("/v1/models/none"))

        assert gateway.count("warmroute_failures_total", code="model_not_found") == 1

    assert answer.status == 404


def form(*parts: tuple[str, bytes], mark: bytes = b"--mark") -> bytes:
    """Return a form; a name may carry more of its line."""
    lines = [
        b'%b\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n'
        % (mark, name.encode(), value)
        for name, value in parts
    ]
    return b"".join(lines) + mark + b"--\r\n"


SOUND = ('file"; filename="a.wav', b"RIFF\0\r\n\r\n--mar" * 50)


@pytest.mark.parametrize("path", ["/v1/audio/transcriptions", "/v1/images/edits"])
async def test_mdl_06_a_form_goes_only_where_its_model_is(path: str) -> None:
    a, b = Fake(saying("a"), "a", models=["talker"]), Fake(saying("b"), "b", models=["whisper"])
    header = "Content-Type: multipart/form-data; boundary=mark"
    async with listening([a, b]), gateway_of(a.url, b.url, policy="round_robin") as gateway:
        await until(lambda: {"talker", "whisper"} <= set(gateway.fleet.models()))
        for parts in ([("model", b"whisper"), SOUND], [SOUND, ("model", b"whisper")]) * 2:
            answer = await gateway.ask(post(form(*parts), header, path=path))
            assert answer.status == 200
        unknown = await gateway.ask(post(form(SOUND, ("model", b"none")), header, path=path))

    assert (len(a.asked), len(b.asked)) == (0, 4)
    assert (unknown.status, unknown.code) == (404, "model_not_found")
    assert b.asked[0].body == form(("model", b"whisper"), SOUND)


async def test_big_01_a_body_in_thousands_of_chunks_is_read_and_so_is_what_follows() -> None:
    """So many are read in several turns of the event loop: others must not wait for all."""
    body = chat("x") + b" " * 10_000
    head = post(b"", "Transfer-Encoding: chunked").replace(b"Content-Length: 0\r\n", b"")
    pieces = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    async with Fake() as a, gateway_of(a) as gateway:
        client = await gateway.connect()
        await client.send(head + pieces + b"0\r\n\r\n" + post(chat("next")))
        client.finish_sending()
        answers = [await client.answer() for _ in range(2)]

    assert [answer.status for answer in answers] == [200, 200]
    assert [request.body for request in a.asked] == [body, chat("next")]
