"""Pages of other origins: which may call the API, and that a browser believes what it is told."""

from hashlib import sha256

import pytest

from tests.router.gateway.running import gateway_of
from tests.router.gateway.scripted_replica import ScriptedReplica, answering
from tests.router.gateway.wire import Answer, get, ok, post

PAGE = "https://page.example"
ASKING = (
    f"Origin: {PAGE}",
    "Access-Control-Request-Method: POST",
    "Access-Control-Request-Headers: authorization, content-type",
)
ENGINE = ok(b"{}", "Access-Control-Allow-Origin: *", "access-control-allow-credentials: true")


def cors_of(answer: Answer) -> dict[str, str]:
    pairs = [(k.lower(), v) for k, v in answer.headers if k.lower().startswith("access-control-")]
    assert len(dict(pairs)) == len(pairs), "a browser refuses a header that is there twice"
    return dict(pairs)


async def test_a_page_is_told_what_it_may_without_a_key() -> None:
    keys = (sha256(b"key").hexdigest(),)
    async with gateway_of(cors_origins=(PAGE,), api_keys=keys) as gateway:
        answer = await gateway.ask(get("/v1/chat/completions", *ASKING, method="OPTIONS"))

    told = cors_of(answer)
    assert answer.status == 204
    assert told["access-control-allow-origin"] == PAGE
    assert told["access-control-allow-methods"] == "GET, POST"
    assert "authorization" in told["access-control-allow-headers"]
    assert told["access-control-max-age"] == "600"
    assert answer.value("vary") == "Origin"


@pytest.mark.parametrize("origins", [(PAGE,), ("*",), ("https://other.example", PAGE)])
async def test_every_answer_to_a_page_says_that_it_may_read_it(origins: tuple[str, ...]) -> None:
    async with (
        ScriptedReplica(answering(ENGINE)) as replica,
        gateway_of(replica, cors_origins=origins) as gateway,
    ):
        answers = [
            await gateway.chat("hi", f"Origin: {PAGE}"),
            await gateway.ask(post(b"{", f"Origin: {PAGE}")),
            await gateway.ask(get("/nowhere", f"Origin: {PAGE}")),
            await gateway.ask(get("/v1/models", f"Origin: {PAGE}")),
            await gateway.ask(get("/v1/models/none", f"Origin: {PAGE}")),
            await gateway.ask(get("/ready", f"Origin: {PAGE}")),
        ]

    assert [answer.status for answer in answers] == [200, 400, 404, 200, 404, 200]
    for answer in answers:
        told = cors_of(answer)
        assert told["access-control-allow-origin"] == ("*" if origins == ("*",) else PAGE)
        assert "x-warmroute-replica" in told["access-control-expose-headers"]
        assert told.keys() == {"access-control-allow-origin", "access-control-expose-headers"}


async def test_an_error_before_the_body_can_be_read_by_the_page() -> None:
    async with gateway_of(cors_origins=(PAGE,), max_body_bytes=10) as gateway:
        answer = await gateway.chat("too long", f"Origin: {PAGE}")

    assert answer.status == 413
    assert cors_of(answer)["access-control-allow-origin"] == PAGE


async def test_a_page_of_another_origin_is_told_nothing() -> None:
    async with (
        ScriptedReplica(answering(ok(b"{}"))) as replica,
        gateway_of(replica, cors_origins=(PAGE,)) as gateway,
    ):
        answer = await gateway.chat("hi", "Origin: https://page.example.evil")
        asked = await gateway.ask(get("/v1/models", "Origin: null", *ASKING[1:], method="OPTIONS"))

    assert (answer.status, asked.status) == (200, 204)
    assert cors_of(answer) == cors_of(asked) == {}


async def test_without_the_setting_the_engines_own_headers_go_through() -> None:
    async with ScriptedReplica(answering(ENGINE)) as replica, gateway_of(replica) as gateway:
        answer = await gateway.chat("hi", f"Origin: {PAGE}")
        asked = await gateway.ask(get("/v1/models", *ASKING, method="OPTIONS"))

    assert cors_of(answer) == {
        "access-control-allow-origin": "*",
        "access-control-allow-credentials": "true",
    }
    assert cors_of(asked) == {}


@pytest.mark.parametrize(
    ("asked", "allowed"),
    [("x-a, Authorization", "x-a, Authorization"), ("x-a\xff", None), ("x" * 2000, None)],
)
async def test_any_header_is_allowed_by_its_name(asked: str, allowed: str | None) -> None:
    headers = (*ASKING[:2], f"Access-Control-Request-Headers: {asked}")
    async with gateway_of(cors_origins=("*",), cors_headers=("*",)) as gateway:
        answer = await gateway.ask(get("/v1/models", *headers, method="OPTIONS"))

    assert cors_of(answer).get("access-control-allow-headers") == allowed
