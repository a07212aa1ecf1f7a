"""Who has a key is served, and no key goes further than the gateway."""

import logging
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from contract.failures import Failure
from contract.options import SettingError
from router.core.reason import Outcome
from router.gateway.api_keys import ApiKeys, read_api_keys
from tests.router.gateway.running import gateway_of
from tests.router.gateway.scripted_replica import ScriptedReplica, Turn, answering
from tests.router.gateway.wire import chat, get, ok, post

KEY = "wk-LEAKED-0123456789abcdef"
HASH = sha256(KEY.encode()).hexdigest()
BEARER = f"Authorization: Bearer {KEY}"


async def echo(turn: Turn) -> None:
    await turn.send(ok(turn.request.body))


@pytest.mark.parametrize(
    "header",
    [
        *(BEARER, f"authorization: bearer  {KEY} ", f"x-api-key: {KEY}"),
        f"Authorization: Bearer other\r\nx-api-key: {KEY}",
    ],
)
async def test_who_has_a_key_is_served_and_the_replica_does_not_see_it(header: str) -> None:
    async with ScriptedReplica(echo) as replica, gateway_of(replica, api_keys=(HASH,)) as gateway:
        answer = await gateway.chat("hi", header)

    assert answer.status == 200
    assert KEY.encode() not in replica.requests[0].head


@pytest.mark.parametrize(
    "headers",
    [
        *([], ["Authorization: Bearer "], ["Authorization: Bearer x"], [f"Authorization: {KEY}"]),
        *([f"Authorization: Basic {KEY}"], ["x-api-key: x"], [f"X-Other: {KEY}"]),
        *([f"Authorization: Bearer {HASH}"], [f"Authorization: Bearer {KEY[:-1]}"]),
    ],
    ids=str,
)
async def test_who_has_none_is_refused_before_a_replica_is_asked(headers: list[str]) -> None:
    async with ScriptedReplica(echo) as replica, gateway_of(replica, api_keys=(HASH,)) as gateway:
        answer = await gateway.chat("hi", *headers)
        models = await gateway.ask(get("/v1/models", *headers))
        nowhere = await gateway.ask(get("/nowhere", *headers))
        record = await gateway.record()

    assert [answer.status, models.status, nowhere.status] == [401] * 3
    assert answer.code == "invalid_api_key"
    assert answer.value("www-authenticate") == "Bearer"
    assert not replica.requests
    assert (record.outcome, record.failure) == (Outcome.REFUSED, Failure.INVALID_API_KEY)


async def test_probes_of_health_need_no_key() -> None:
    async with ScriptedReplica(echo) as replica, gateway_of(replica, api_keys=(HASH,)) as gateway:
        answers = [await gateway.ask(get(path)) for path in ("/health", "/ready")]

    assert [answer.status for answer in answers] == [200, 200]


async def test_a_connection_goes_on_after_a_refusal() -> None:
    async with ScriptedReplica(echo) as replica, gateway_of(replica, api_keys=(HASH,)) as gateway:
        client = await gateway.connect()
        answers = [await client.ask(post(chat(), *headers)) for headers in ([], [BEARER], [])]

    assert [answer.status for answer in answers] == [401, 200, 401]


async def test_the_body_of_who_has_no_key_takes_no_room() -> None:
    async with gateway_of(api_keys=(HASH,)) as gateway:
        client = await gateway.connect()
        await client.send(post(b"x" * 100_000)[:-50_000])
        answer = await client.answer()
        rest = await client.rest()
        held = gateway.plane.stats().buffered_bytes

    assert (answer.status, answer.value("connection")) == (401, "close")
    assert rest == b""
    assert held == 0


async def test_a_body_is_not_asked_for_from_who_has_no_key() -> None:
    async with gateway_of(api_keys=(HASH,)) as gateway:
        client = await gateway.connect()
        await client.send(post(b"x" * 100, "Expect: 100-continue")[:-100])
        data = await client.rest()

    assert data.startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [f"Bearer {KEY}"]),
        ({"forward_authorization": False}, []),
        ({"api_keys": (HASH,)}, []),
        ({"api_keys": (HASH,), "forward_authorization": True}, [f"Bearer {KEY}"]),
        ({"upstream_authorization": "Bearer engine"}, ["Bearer engine"]),
        ({"upstream_authorization": "Bearer engine", "api_keys": (HASH,)}, ["Bearer engine"]),
    ],
)
async def test_the_replica_gets_the_authorization_that_the_settings_say(
    settings: dict[str, Any], expected: list[str]
) -> None:
    async with ScriptedReplica(echo) as replica, gateway_of(replica, **settings) as gateway:
        await gateway.chat("hi", BEARER, f"x-api-key: {KEY}")
        request = replica.requests[0]

    assert request.values("authorization") == expected
    assert request.values("x-api-key") == ([KEY] if f"Bearer {KEY}" in expected else [])


async def test_a_key_is_in_no_log_and_no_metric(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with (
        ScriptedReplica(answering(b"nonsense\r\n\r\n")) as replica,
        gateway_of(replica, api_keys=(HASH,)) as gateway,
    ):
        broken = await gateway.chat("hi", BEARER)
        refused = await gateway.chat("hi", f"Authorization: Bearer {KEY}x")
        metrics = gateway.metrics.render().decode()

    said = f"{broken.body!r}{refused.body!r}{metrics}{gateway.records}{caplog.text}"
    assert (broken.status, refused.status) == (502, 401)
    assert "LEAKED" not in said
    assert HASH not in said


def test_a_file_has_one_hash_a_line(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    other = sha256(b"other").hexdigest()
    path.write_text(f"# keys\n\n{HASH.upper()} alice\n  {other}  # bob\n")

    keys = read_api_keys((), str(path), "api_keys")

    assert keys is not None
    assert len(keys) == 2
    assert keys.allow([KEY.encode()])
    assert keys.allow([b"wrong", b"other"])
    assert not keys.allow([b"wrong"])


def test_an_empty_file_lets_nobody_in(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# none yet\n")

    keys = read_api_keys((), str(path), "api_keys")

    assert keys is not None
    assert not keys.allow([b"", b"x"])


def test_without_a_setting_nobody_needs_a_key() -> None:
    assert read_api_keys((), "", "api_keys") is None


@pytest.mark.parametrize("text", [KEY, HASH[:-1], HASH + "0", "g" * 64, "é" * 64, "²" * 64])
def test_what_is_no_hash_is_refused_and_not_repeated(text: str, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"{HASH}\n{text}\n", encoding="utf-8")

    for hashes, file in (((HASH, text), ""), ((), str(path))):
        with pytest.raises(SettingError, match=r"entry 2|line 2") as caught:
            read_api_keys(hashes, file, "api_keys")
        assert text not in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="nowhere: No such file"):
        read_api_keys((), str(tmp_path / "nowhere"), "api_keys")


def test_an_empty_set_of_keys_is_no_open_door() -> None:
    assert not ApiKeys([]).allow([])
