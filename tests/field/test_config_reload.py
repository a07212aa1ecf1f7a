"""Reload: all or nothing; what has gone is asked no more, and what runs is not touched."""

import json
from collections.abc import Awaitable, Callable
from hashlib import sha256
from pathlib import Path

import pytest

from tests.field.harness import FIN, Fake, FieldGateway, gateway_of, silent, tok
from tests.field.test_streaming import Pieces, received
from tests.router.gateway.wire import DONE, LAST_CHUNK, Answer, chat, chunk, post
from tests.waiting import until


def members(*fakes: Fake) -> str:
    """Return a file's list of replicas."""
    return "".join(
        f'[[replicas]]\nurl = "{fake.url}"\nid = "{fake.replica_id}"\nmodel = "m"\n'
        for fake in fakes
    )


async def reload(gateway: FieldGateway) -> Answer:
    """Ask the admin port for a reload."""
    return await gateway.admin("POST", "/admin/reload")


async def test_cfg_01_only_the_new_replicas_are_asked_and_open_streams_end(tmp_path: Path) -> None:
    toml = tmp_path / "gateway.toml"
    pieces = Pieces()
    async with Fake(pieces.play) as a, Fake(replica_id="b") as b, Fake(replica_id="c") as c:
        toml.write_text(members(a, b))
        settings = {"models_interval_s": 0.05, "policy": "round_robin"}
        async with gateway_of(toml=toml, **settings) as gateway:
            client = await gateway.connect()
            while not a.asked:
                await client.send(post(chat(stream=True)))
                await until(lambda: bool(a.asked or b.asked))
            await pieces.send(chunk(tok(1)))
            await received(client, tok(1))
            toml.write_text(members(c))
            assert (await reload(gateway)).status == 200
            await until(lambda: len(c.probed) >= 2, "the new one is probed")
            before = [len(a.probed), len(b.probed), len(a.asked), len(b.asked)]
            statuses = {(await gateway.chat()).status for _ in range(10)}
            await until(lambda: len(c.probed) >= 5)
            await pieces.send(chunk(FIN + DONE) + LAST_CHUNK)
            pieces.end()
            end = await received(client, LAST_CHUNK)

    assert statuses == {200}
    assert len(c.asked) == 10
    assert [len(a.probed), len(b.probed), len(a.asked), len(b.asked)] == before
    assert DONE in end


KEY = "a-long-and-random-key"
HASH = sha256(KEY.encode()).hexdigest()
Effect = Callable[[FieldGateway, Fake], Awaitable[bool]]


async def refuses_big_bodies(gateway: FieldGateway, _: Fake) -> bool:
    return (await gateway.chat("x" * 2000)).status == 413


async def gives_up(gateway: FieldGateway, replica: Fake) -> bool:
    replica.play = silent
    return (await gateway.chat()).status == 504


async def asks_for_a_key(gateway: FieldGateway, _: Fake) -> bool:
    refused = (await gateway.chat()).status
    return (refused, (await gateway.chat("hi", f"Authorization: Bearer {KEY}")).status) == (
        401,
        200,
    )


async def allows_an_origin(gateway: FieldGateway, _: Fake) -> bool:
    answer = await gateway.chat("hi", "Origin: http://page.example")
    return answer.values("access-control-allow-origin") == ["http://page.example"]


async def keeps_the_key(gateway: FieldGateway, replica: Fake) -> bool:
    await gateway.chat("hi", "Authorization: Bearer of-the-client")
    return replica.asked[-1].values("authorization") == []


async def uses_another_policy(gateway: FieldGateway, _: Fake) -> bool:
    return gateway.fleet.policy.name == "random"


LIVE: dict[str, Effect] = {
    "[gateway]\nmax_body_bytes = 1000\n": refuses_big_bodies,
    "[gateway]\nanswer_timeout_s = 0.1\n": gives_up,
    f'[gateway]\napi_keys = ["{HASH}"]\n': asks_for_a_key,
    '[gateway]\ncors_origins = ["http://page.example"]\n': allows_an_origin,
    "[gateway]\nforward_authorization = false\n": keeps_the_key,
    '[policy]\nname = "random"\n': uses_another_policy,
}


@pytest.mark.parametrize("text", LIVE)
@pytest.mark.parametrize("by", ["admin", "signal"])
async def test_cfg_02_a_setting_that_is_said_to_be_in_force_is(
    text: str, by: str, tmp_path: Path
) -> None:
    toml = tmp_path / "gateway.toml"
    has_effect = LIVE[text]
    async with Fake() as a:
        toml.write_text(members(a))
        async with gateway_of(toml=toml, retry_max=0) as gateway:
            if has_effect is not gives_up:
                assert not await has_effect(gateway, a)
            generation = gateway.count("warmroute_config_generation")
            toml.write_text(text + members(a))
            if by == "admin":
                assert (await reload(gateway)).status == 200
            else:
                gateway.signals.hangup.set()
            await until(lambda: gateway.count("warmroute_config_generation") == generation + 1)

            assert await has_effect(gateway, a)


@pytest.mark.parametrize(
    "text",
    ["[gateway]\nbacklog = 17\n", "[routing]\nretry_budget = 0.5\n", "[store]\nfleet = 'x'\n"],
)
async def test_cfg_02_a_setting_that_needs_a_restart_is_refused_by_its_name(
    text: str, tmp_path: Path
) -> None:
    toml = tmp_path / "gateway.toml"
    async with Fake() as a:
        toml.write_text(members(a))
        async with gateway_of(toml=toml) as gateway:
            toml.write_text(text + members(a))
            answer = await reload(gateway)
            rows = json.loads((await gateway.admin("GET", "/admin/config")).body)["settings"]

            assert gateway.count("warmroute_config_generation") == 1

    name = text.split("\n")[1].split(" ")[0]
    assert answer.status == 400
    assert name in json.loads(answer.body)["error"]["message"]
    assert next(row["origin"] for row in rows if row["name"] == name) == "default"


BROKEN = {
    "no_toml": "[gateway\nmax_body_bytes = 1000\n",
    "truncated": "[gateway]\nmax_body_bytes =",
    "unknown_key": "[gateway]\nmax_body_bites = 1000\n",
    "impossible": "[gateway]\nmax_body_bytes = -1\n",
    "wrong_type": '[gateway]\nmax_body_bytes = "many"\n',
    "no_url": '[[replicas]]\nid = "x"\n',
    "twice": "{members}{members}",
    "no_utf8": "\udcff",
}


async def test_cfg_04_what_is_wrong_changes_nothing_and_the_next_right_one_counts(
    tmp_path: Path,
) -> None:
    toml = tmp_path / "gateway.toml"
    async with Fake() as a, Fake(replica_id="b") as b:
        toml.write_text(members(a))
        async with gateway_of(toml=toml) as gateway:
            for text in BROKEN.values():
                wrong = text.replace("{members}", members(a))
                toml.write_bytes(wrong.encode("utf-8", "surrogateescape"))
                answer = await reload(gateway)
                assert (answer.status, (await gateway.chat()).status) == (400, 200)
                assert json.loads(answer.body)["error"]["message"]
                assert gateway.count("warmroute_config_generation") == 1
            toml.unlink()
            assert (await reload(gateway)).status == 400
            assert gateway.count("warmroute_config_refused_total") == len(BROKEN) + 1
            toml.write_text("[gateway]\nmax_body_bytes = 1000\n" + members(b))
            assert (await reload(gateway)).status == 200
            big, small = await gateway.chat("x" * 2000), await gateway.chat()

            assert gateway.count("warmroute_config_generation") == 2

    assert (big.status, small.status) == (413, 200)
    assert len(b.asked) == 1
