"""Secrets: no key is in a log, an error, a metric or another replica's request."""

import json
from hashlib import sha256
from pathlib import Path

import pytest

from tests.field.harness import Fake, FieldGateway, gateway_of, resetting, saying
from tests.router.gateway.scripted_replica import Turn
from tests.router.gateway.wire import Answer, chat, post
from tests.waiting import until

SECRET = "LEAK-123456789"
HEADERS = [
    f"Authorization: Bearer sk-{SECRET}",
    f"x-api-key: {SECRET}",
    f"api-key: {SECRET}",
    f"Cookie: session={SECRET}",
    f"Authorization: Basic {SECRET}",
]


async def check_silence(gateway: FieldGateway, *answers: Answer) -> None:
    """Assert that nobody but the replica has seen the secret or its beginning."""
    await gateway.rests()
    await until(lambda: "request ended" in gateway.log.getvalue())
    places = [
        gateway.log.getvalue().encode(),
        (await gateway.admin("GET", "/metrics")).body,
        (await gateway.admin("GET", "/admin/config")).body,
        (await gateway.admin("GET", "/admin/replicas")).body,
        *(answer.body + repr(answer.headers).encode() for answer in answers),
    ]
    for place in places:
        assert SECRET[:8].encode() not in place


@pytest.mark.parametrize("header", HEADERS)
@pytest.mark.parametrize("broken", [False, True])
async def test_sec_01_a_key_is_nowhere_but_in_the_request(header: str, broken: bool) -> None:
    async with Fake(resetting if broken else saying("a")) as a, gateway_of(a) as gateway:
        answer = await gateway.chat("hi", header)
        bad = await gateway.ask(post(b"{", header))
        odd = await gateway.ask(post(chat(), header, path="/nothing"))

        await check_silence(gateway, answer, bad, odd)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/nothing", "/nothing", "/v1/models"])
async def test_sec_01_a_key_in_a_query_is_nowhere_but_in_the_request(path: str) -> None:
    async with Fake(resetting) as a, gateway_of(a) as gateway:
        answer = await gateway.ask(post(chat(), path=f"{path}?api_key={SECRET}"))

        await check_silence(gateway, answer)


KEY = "a-long-and-random-key"
KEYS = {"api_keys": (sha256(KEY.encode()).hexdigest(),)}


@pytest.mark.parametrize("header", HEADERS)
async def test_sec_01_a_wrong_key_is_refused_and_repeated_nowhere(header: str) -> None:
    async with Fake() as a, gateway_of(a, **KEYS) as gateway:
        answer = await gateway.chat("hi", header)

        await check_silence(gateway, answer)

    assert (answer.status, a.asked) == (401, [])


@pytest.mark.parametrize(
    "line", [f"Authorization: Bearer {KEY}", f"authorization: bearer {KEY}", f"x-api-key: {KEY}"]
)
async def test_sec_01_a_right_key_lets_in_and_ends_at_the_gateway(line: str) -> None:
    async with Fake() as a, gateway_of(a, **KEYS) as gateway:
        answer = await gateway.chat("hi", line)
        await gateway.rests()
        shown = gateway.log.getvalue() + (await gateway.admin("GET", "/admin/config")).body.decode()

    assert answer.status == 200
    assert a.asked[0].values("authorization") == a.asked[0].values("x-api-key") == []
    assert KEY not in shown
    assert KEYS["api_keys"][0] not in shown


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/v1/embeddings"])
@pytest.mark.parametrize("key", ["", KEY[:-1], f"{KEY}x", KEY.upper(), "a" * 10_000])
async def test_sec_01_no_path_of_the_api_is_open_to_a_key_that_is_not_it(
    path: str, key: str
) -> None:
    async with Fake() as a, gateway_of(a, **KEYS) as gateway:
        answer = await gateway.ask(post(chat(), f"Authorization: Bearer {key}", path=path))

    assert (answer.status, a.asked) == (401, [])


async def test_sec_01_a_prompt_is_not_logged() -> None:
    async with Fake(resetting) as a, gateway_of(a) as gateway:
        answer = await gateway.chat(SECRET, user=SECRET)

        await check_silence(gateway, answer)


@pytest.mark.parametrize(
    "url",
    [
        f"http://user:{SECRET}@127.0.0.1:1",
        f"http://127.0.0.1:1/?key={SECRET}",
        f"ftp://{SECRET}@127.0.0.1:1",
        f"http://127.0.0.1:{SECRET}",
    ],
)
async def test_sec_03_a_secret_in_a_replicas_url_is_not_repeated(url: str) -> None:
    async with Fake() as a, gateway_of(a) as gateway:
        refused = await gateway.admin("POST", "/admin/replicas", {"url": url})
        answer = await gateway.chat()

        await check_silence(gateway, refused, answer)

    assert refused.status == 400


@pytest.mark.parametrize("answer", [b"garbage\r\n\r\n", b"HTTP/1.1 2x0 OK\r\n\r\n", b"\x00\xff"])
async def test_sec_03_an_odd_answer_repeats_no_header_of_the_request(answer: bytes) -> None:
    async def play(turn: Turn) -> None:
        await turn.send(answer)
        turn.close()

    async with Fake(play) as a, gateway_of(a) as gateway:
        told = await gateway.chat("hi", HEADERS[0])

        await check_silence(gateway, told)

    assert told.status == 502


async def test_sec_03_the_url_of_redis_is_shown_without_its_password() -> None:
    url = f"redis://user:{SECRET}@127.0.0.1:1/0"
    async with Fake() as a, gateway_of(a, redis_url=url) as gateway:
        await check_silence(gateway, await gateway.chat())


async def test_sec_05_a_request_for_nobody_is_sent_to_nobody() -> None:
    async with Fake() as a, Fake(replica_id="b") as b, gateway_of(a, b) as gateway:
        answer = await gateway.chat("hi", HEADERS[0], model="nope")

    assert (answer.status, answer.code) == (404, "model_not_found")
    assert json.loads(answer.body)["error"]["type"] == "invalid_request_error"
    assert a.asked == b.asked == []


async def test_sec_05_the_replicas_get_the_gateways_key_and_not_the_clients() -> None:
    settings = {"upstream_authorization": "Bearer of-the-fleet", "policy": "round_robin"}
    async with (
        Fake(resetting) as a,
        Fake(resetting, "b") as b,
        gateway_of(a, b, **settings) as gateway,
    ):
        await gateway.chat("hi", HEADERS[0], HEADERS[1])
        shown = (await gateway.admin("GET", "/admin/config")).body

    for fake in (a, b):
        assert [request.values("authorization") for request in fake.asked] == [
            ["Bearer of-the-fleet"]
        ]
        assert SECRET.encode() not in fake.asked[0].head
    assert b"of-the-fleet" not in shown


async def test_sec_05_each_replica_is_sent_its_own_key_only(tmp_path: Path) -> None:
    toml = tmp_path / "gateway.toml"

    def members(*fakes: Fake, turn: str) -> str:
        return "".join(
            f'[[replicas]]\nurl = "{fake.url}"\nid = "{fake.replica_id}"\nmodel = "m"\n'
            f'authorization = "Bearer {turn}-of-{fake.replica_id}"\n'
            for fake in fakes
        )

    settings = {"policy": "round_robin", "models_interval_s": 0.02}
    async with Fake(resetting) as a, Fake(saying("b"), "b") as b:
        toml.write_text(members(a, b, turn="first"))
        async with gateway_of(toml=toml, upstream_authorization="Bearer f", **settings) as gateway:
            for _ in range(4):
                answer = await gateway.chat("hi", "Authorization: Bearer client", "x-api-key: c")
                assert answer.status == 200
            toml.write_text(members(a, b, turn="second"))
            reloaded = await gateway.admin("POST", "/admin/reload")
            for _ in range(2):
                await gateway.chat("hi")
            shown = (await gateway.admin("GET", "/admin/config")).body
            log = gateway.log.getvalue()

    assert a.asked
    for fake in (a, b):
        keys = [request.values("authorization") for request in fake.asked]
        turns = [f"Bearer {turn}-of-{fake.replica_id}" for turn in ("first", "second")]
        assert sorted({key for (key,) in keys}) == turns
        assert not any(request.values("x-api-key") for request in fake.asked)
        listed = [request for request in fake.probed if request.target == "/v1/models"]
        assert listed[0].values("authorization") == turns[:1]
    assert json.loads(reloaded.body)["changed"] == ["replicas"]
    assert b"-of-a" not in shown
    assert "-of-a" not in log


async def test_sec_05_the_clients_key_ends_at_the_gateway_if_it_is_told_so() -> None:
    async with Fake() as a, gateway_of(a, forward_authorization=False) as gateway:
        await gateway.chat("hi", HEADERS[0])

    assert a.asked[0].values("authorization") == []
