"""Neighbours of the listed cases in routing: the same faults in shapes that nobody has reported.

Each failed once against the running gateway.
"""

import json
from collections import Counter
from typing import Any

import pytest

from tests.field.asking import LONG, add, home_of, matched
from tests.field.harness import Fake, gateway_of, listening, saying
from tests.field.redis_side import reporting
from tests.redis_server import RedisServer
from tests.router.gateway.scripted_replica import Script, Turn
from tests.router.gateway.wire import completion, ok, post
from tests.waiting import until


@pytest.mark.parametrize("policy", ["prefix_load", "least_loaded", "random", "two_choices"])
async def test_stl_01_an_id_that_all_requests_share_brings_them_nowhere_together(
    policy: str,
) -> None:
    fakes = [Fake(replica_id=name) for name in "abcd"]
    async with listening(fakes), gateway_of(*fakes, policy=policy) as gateway:
        for _ in range(40):
            await gateway.ask(post(b"{}", "X-Request-Id: same", path="/v1/embeddings"))
        gateway.records.clear()  # they have one id

    assert all(len(fake.asked) < 30 for fake in fakes)


IMAGE = {"type": "image_url", "image_url": {"url": "https://x/1.png"}}
WORDLESS: dict[str, tuple[str, dict[str, Any]]] = {
    "image": ("/v1/chat/completions", {"messages": [{"role": "user", "content": [IMAGE]}]}),
    "embedding": ("/v1/embeddings", {"input": "text"}),
    "token ids": ("/v1/completions", {"prompt": [1, 2, 3]}),
    "nothing": ("/v1/chat/completions", {"messages": []}),
}


@pytest.mark.parametrize("kind", WORDLESS)
async def test_pfx_08_requests_without_words_take_turns_though_all_are_idle(kind: str) -> None:
    path, fields = WORDLESS[kind]
    body = json.dumps({"model": "m"} | fields).encode()
    fakes = [Fake(replica_id=name) for name in "abcd"]
    async with listening(fakes), gateway_of(*fakes) as gateway:
        homes = [home_of(await gateway.ask(post(body, path=path))) for _ in range(20)]

    assert set(Counter(homes).values()) == {5}


def having_cached(cached_tokens: int, prompt_tokens: int = 540) -> Script:
    """Return a script of an engine that says so of every prompt."""
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": 1, "total_tokens": 0}
    usage["prompt_tokens_details"] = {"cached_tokens": cached_tokens}  # type: ignore[assignment]

    async def script(turn: Turn) -> None:
        body = json.loads(completion("yes")) | {"usage": usage}
        await turn.send(ok(json.dumps(body).encode()))

    return script


@pytest.mark.parametrize("share", [0, 2])
async def test_pfx_12_an_engine_that_has_less_again_and_again_is_taken_at_its_word(
    share: int,
) -> None:
    believed = []
    async with Fake(having_cached(540 * share // 4)) as a, gateway_of(a) as gateway:
        for _ in range(16):
            believed.append(matched(await gateway.chat(LONG)))
            await gateway.rests()

        a.play = having_cached(540)  # as of one that has been set right
        for _ in range(2):
            believed.append(matched(await gateway.chat(LONG)))
            await gateway.rests()

    assert believed[1] == 512
    assert believed[15] == 128 * share
    assert believed[17] == 512


async def test_pfx_12_a_replica_that_counts_anew_is_believed_empty(
    redis_server: RedisServer,
) -> None:
    async with (
        Fake() as a,
        reporting(redis_server, a, sequence=1_000_000) as say,
        gateway_of(redis_url=redis_server.url) as gateway,
    ):
        await gateway.knows("a")
        await gateway.chat(LONG)
        assert gateway.status_of().believed_blocks

        say.say("a", sequence=0, running_requests=3)  # under the name that it had
        await until(lambda: gateway.status_of().view.running_requests == 3, "it is heard")

        assert gateway.status_of().believed_blocks == 0
        assert matched(await gateway.chat(LONG)) == 0


async def test_cfg_01_a_replica_that_is_listed_and_reports_is_one(
    redis_server: RedisServer,
) -> None:
    async with (
        Fake() as a,
        reporting(redis_server, a) as say,
        gateway_of(redis_url=redis_server.url, report_forget_s=0.1) as gateway,
    ):
        await gateway.knows("a")
        listed = Fake(replica_id="another")
        listed.port = a.port
        await add(gateway, listed)
        assert gateway.status_of().is_static
        await gateway.knows("a")

        gateway.fleet.drop_static(a.url)  # as a reload does that lists it no more
        await say.hush("a")
        await gateway.knows()


async def test_drn_01_a_request_for_which_all_are_out_is_told_why() -> None:
    fakes = [Fake(saying(name), name) for name in "ab"]
    async with listening(fakes), gateway_of(*fakes) as gateway:
        for name in "ab":
            gateway.fleet.drain(name, True)
        answer = await gateway.chat("hi", "x-warmroute-explain: 1")

    assert (answer.status, answer.code) == (503, "no_replica_available")
    told = json.loads(answer.value("x-warmroute-explanation"))
    assert told["ineligible"] == [{"replica": name, "why": "draining"} for name in "ab"]
