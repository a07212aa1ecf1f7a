"""What names a prefix, as bytes on the wire show it: the gateway's word beside the engine's own.

The replicas are the product's own where the test asks what was cached, and fakes elsewhere.
"""

import asyncio
import json
from collections import Counter
from math import ceil
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from contract.openai_api import decode_chat_fields, render_chat
from router.core.config import RoutingConfig
from router.core.request import route_request
from tests.field.asking import (
    LONG,
    PATIENT,
    Held,
    cached,
    end_all,
    home_of,
    matched,
    most_known,
    say,
    talk,
    untold,
)
from tests.field.harness import Fake, FieldGateway, gateway_of
from tests.field.redis_side import reporting
from tests.field.simulated import BLOCK_TOKENS, is_empty, simulated, stats_of
from tests.field.test_kv_admission import complete, prompt_of
from tests.redis_server import RedisServer
from tests.router.core.making import chosen, make_fleet
from tests.router.gateway.scripted_replica import Turn
from tests.router.gateway.wire import USAGE, completion, ok, post
from tests.waiting import until
from warmroute.demo.processes import free_port

CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
COMPLETIONS = "/v1/completions"


async def test_pfx_01_turns_go_where_their_own_conversation_is() -> None:
    system, held = say(LONG, "system"), Held()
    fakes = [Fake(held.play, name) for name in "abcd"]
    async with fakes[0], fakes[1], fakes[2], fakes[3], gateway_of(*fakes) as gateway:
        clients = [await gateway.connect() for _ in range(12)]
        for number, client in enumerate(clients):  # the first turns are under way together
            body = {"model": "m", "messages": [system, opening(number)], "stream": True}
            await client.send(post(json.dumps(body).encode()))
        await until(lambda: sum(len(fake.asked) for fake in fakes) == 12)
        homes = {}
        for fake in fakes:
            for request in fake.asked:
                asks = json.loads(request.body)["messages"][1]["content"]
                homes[asks.partition(" ")[0]] = fake.replica_id
            fake.play = untold
        await end_all(held, clients)
        stayed = 0
        for turn in range(1, 6):
            for number in range(12):
                history = [say(f"{LONG[:600]} {n}", "assistant") for n in range(turn)]
                answer = await talk(gateway, system, opening(number), *history)
                stayed += home_of(answer) == homes[str(number)]

    assert set(homes.values()) == set("abcd")
    assert stayed >= 0.9 * 60


@pytest.mark.parametrize(
    ("path", "name"), [("/v1/messages", "messages"), ("/v1/responses", "input")]
)
async def test_pfx_01_turns_stay_together_in_other_dialects(path: str, name: str) -> None:
    fakes = [Fake(untold, name) for name in "abcd"]
    homes: list[set[str]] = []
    async with fakes[0], fakes[1], fakes[2], fakes[3], gateway_of(*fakes) as gateway:
        for number in range(8):
            said, seen = [opening(number)], set()
            for turn in range(4):
                body = json.dumps({"model": "m", name: said}).encode()
                seen.add(home_of(await gateway.ask(post(body, path=path))))
                await gateway.rests()
                said += [say(f"{LONG[:600]} {turn}", "assistant"), say("and then?")]
            homes.append(seen)

    assert all(len(seen) == 1 for seen in homes)
    assert len(set.union(*homes)) > 1


def opening(number: int) -> dict[str, Any]:
    """Return the first message of a conversation."""
    return say(f"{number} asks: {LONG}")


SAME_TEXT = {
    "one part": [{"type": "text", "text": LONG}],
    "many parts": [{"type": "text", "text": LONG[n : n + 9]} for n in range(0, len(LONG), 9)],
    "untyped": [{"text": LONG}],
    "an empty part": [{"type": "text", "text": ""}, {"type": "text", "text": LONG}],
}


@pytest.mark.parametrize("form", SAME_TEXT)
async def test_pfx_02_text_in_parts_is_the_text(form: str) -> None:
    fakes = [Fake(untold, name) for name in "abcd"]
    async with fakes[0], fakes[1], fakes[2], fakes[3], gateway_of(*fakes) as gateway:
        plain = await talk(gateway, say(LONG))
        counted = gateway.count("warmroute_prompt_tokens_total")
        parts = await talk(gateway, say(SAME_TEXT[form]))
        assert gateway.count("warmroute_prompt_tokens_total") == 2 * counted > 1_000

    assert home_of(parts) == home_of(plain)
    assert matched(parts) > 500


@pytest.mark.parametrize("content", [None, "", []], ids=repr)
async def test_pfx_02_a_turn_without_text_is_no_end_of_the_prefix(content: Any) -> None:
    async with simulated() as s, simulated() as t, gateway_of(s.url, t.url) as gateway:
        calling = say(content, "assistant", tool_calls=[CALL])
        turns = [say(LONG), calling, say(LONG, "tool", tool_call_id="1"), say("and?")]
        first = await talk(gateway, *turns[:-1])
        second = await talk(gateway, *turns)

    assert home_of(second) == home_of(first)
    assert matched(second) > 1_000 < cached(second)


async def test_pfx_03_what_stands_in_the_middle_is_no_prefix() -> None:
    one, two = LONG, LONG.upper()
    async with simulated() as s, gateway_of(s.url) as gateway:

        async def ask(prompt: str) -> tuple[int, int]:
            body = {"model": "m", "prompt": prompt, "max_tokens": 1}
            answer = await gateway.ask(post(json.dumps(body).encode(), path=COMPLETIONS))
            await gateway.rests()
            return matched(answer), cached(answer)

        await ask(one)
        swapped, repeated = await ask(two + one), await ask(one + one)

    assert swapped == (0, 0)
    assert 0 < max(repeated) <= len(one) // 4


@pytest.mark.parametrize("by_events", [False, True])
async def test_pfx_05_names_salts_and_tenants_share_nothing(
    redis_server: RedisServer, by_events: bool
) -> None:
    redis = {"redis_url": redis_server.url} if by_events else {}
    loras = {"lora": ("lora-a", "lora-b"), "max_loras": 2}
    identities = [{}, {"model": "lora-a"}, {"model": "lora-b"}, {"cache_salt": "salt"}]
    async with simulated(replica_id="s", **loras, **redis) as s:
        known = [] if by_events else [s.url]
        async with gateway_of(*known, **redis, **PATIENT) as gateway:
            await gateway.knows("s" if by_events else "r0")
            await until(lambda: gateway.fleet.knows_model("lora-b"))
            first = [await talk(gateway, say(LONG), **identity) for identity in identities]
            await until(lambda: most_known(gateway) >= 4 * (len(LONG) // 512))
            second = [await talk(gateway, say(LONG), **identity) for identity in identities]

    assert [(matched(answer), cached(answer)) for answer in first] == [(0, 0)] * 4
    assert all(matched(answer) > 500 < cached(answer) for answer in second)


URL = "data:image/png;base64," + "A" * 4_000
ATTACHMENTS: dict[str, Any] = {
    "image_url": {"url": URL},
    "input_audio": {"data": URL, "format": "wav"},
    "video_url": {"url": URL},
    "file": {"file_data": URL},
}


@pytest.mark.parametrize("kind", ATTACHMENTS)
async def test_pfx_07_an_attachment_counts_to_its_last_byte(kind: str) -> None:
    def look(last: str) -> dict[str, Any]:
        attachment = json.loads(json.dumps(ATTACHMENTS[kind]).replace(URL, URL + last))
        return say([{"type": "text", "text": LONG}, {"type": kind, kind: attachment}, *after])

    after = [{"type": "text", "text": LONG}]
    before = len(LONG) // 4
    async with simulated() as s, gateway_of(s.url) as gateway:
        await talk(gateway, look("B"))
        other, same = await talk(gateway, look("C")), await talk(gateway, look("B"))

    for count in (matched, cached):
        assert before - 200 < count(other) <= before + 16  # the role's header comes first
        assert count(same) > 2 * before - 200


def test_pfx_07_no_two_of_many_images_have_one_digest() -> None:
    template = json.dumps({"messages": [say([{"type": "image_url", "image_url": {"url": "#"}}])]})
    head, tail = template.encode().split(b"#")
    prompts = {render_chat(decode_chat_fields(b"%b%d%b" % (head, n, tail))) for n in range(70_000)}

    assert len(prompts) == 70_000


TEXTLESS: dict[str, tuple[str, Any]] = {
    "images": ("/v1/chat/completions", "messages"),
    "embeddings": ("/v1/embeddings", "input"),
    "token ids": (COMPLETIONS, "prompt"),
    "nothing": ("/v1/chat/completions", "nothing"),
}


@pytest.mark.parametrize("policy", ["prefix_load", "prefix_capped", "prefix_hash", "min_ttft"])
@pytest.mark.parametrize("kind", TEXTLESS)
def test_pfx_08_without_text_load_decides(kind: str, policy: str) -> None:
    fleet, homes = make_fleet("abcd", policy), Counter[str]()
    path, field = TEXTLESS[kind]
    for number in range(100):
        image = {"type": "image_url", "image_url": {"url": f"https://x/{number}.png"}}
        value = {"messages": [say([image])], "nothing": None}.get(field, [number] * 3)
        body = json.dumps({"model": "m", "messages": [], field: value}).encode()
        request = route_request(path, body, f"{kind} {number}", RoutingConfig())
        homes[chosen(fleet.decide(request, 0))] += 1

    # Others than prefix_hash are exact; it has a bound, within which one key gives 31, 31, 31, 7.
    assert max(homes.values()) <= ceil(1.25 * 100 / 4)
    assert min(homes[name] for name in "abcd") >= 12


async def test_pfx_10_other_spaces_in_a_call_end_the_match_only_there() -> None:
    def turns(arguments: str) -> list[dict[str, Any]]:
        call = json.loads(json.dumps(CALL))
        call["function"]["arguments"] = arguments
        return [say(LONG), say(None, "assistant", tool_calls=[call]), say(LONG, "tool"), say("?")]

    async with simulated() as s, simulated() as t, gateway_of(s.url, t.url) as gateway:
        for count in (1, 2, 3):
            first = await talk(gateway, *turns('{"a":1}')[:count])
        other = await talk(gateway, *turns('{"a": 1}'))

    assert home_of(other) == home_of(first)
    for tokens in (matched(other), cached(other)):
        assert len(LONG) // 4 - 200 < tokens < len(LONG) // 4 + 64


@pytest.mark.parametrize("common", [0, 2_000])
async def test_pfx_10_other_tools_share_what_they_have_in_common(common: int) -> None:
    def tools(name: str) -> list[dict[str, Any]]:
        return [{"description": "d" * common, "name": name}]

    async with simulated() as s, gateway_of(s.url) as gateway:
        await talk(gateway, say(LONG), tools=tools("f"))
        other = await talk(gateway, say(LONG), tools=tools("g"))
        without = await talk(gateway, say(LONG))

    for count in (matched, cached):
        assert count(other) <= (common + 64) // 4
        assert count(without) == 0
    assert cached(other) >= common // 4 - BLOCK_TOKENS


async def test_pfx_12_a_replica_that_restarts_in_place_is_believed_empty(
    redis_server: RedisServer,
) -> None:
    redis, port = {"redis_url": redis_server.url}, free_port()
    async with gateway_of(**redis, slow_start_s=0.0) as gateway:
        async with simulated(replica_id="s", port=port, **redis) as s:
            await gateway.knows("s")
            for number in range(10):
                await talk(gateway, say(f"{number} {LONG}"))
            await until(lambda: most_known(gateway) >= 10 * len(LONG) // 64)
            first = s.incarnation
        async with simulated(replica_id="s", port=port, **redis) as s:
            assert s.incarnation != first
            await until(lambda: told_by(gateway) == s.incarnation, "it reports again")
            assert most_known(gateway) == 0
            again = await talk(gateway, say(f"1 {LONG}"))

    assert (matched(again), cached(again)) == (0, 0)


def told_by(gateway: FieldGateway) -> str | None:
    """Return which process of the only replica reported last."""
    report = gateway.status_of("s").report
    return None if report is None else report.incarnation


async def test_pfx_12_a_hot_prefix_goes_to_who_still_has_it(redis_server: RedisServer) -> None:
    redis = {"redis_url": redis_server.url, "slow_start_s": 0.0, **PATIENT}
    a, b = Fake(untold), Fake(untold, "b")
    async with a, b, reporting(redis_server, a) as reports, gateway_of(**redis) as gateway:
        await gateway.knows("a")
        await talk(gateway, say(LONG))
        reports.say(b)
        await gateway.knows("a", "b")
        await gateway.admin("POST", "/admin/replicas/a/drain")
        await talk(gateway, say(LONG))
        await gateway.admin("POST", "/admin/replicas/a/undrain")
        assert [gateway.status_of(name).believed_blocks for name in "ab"] == [4, 4]
        reports.say(a, incarnation="second", sequence=0)
        await until(lambda: gateway.status_of("a").believed_blocks == 0)
        homes = {home_of(await talk(gateway, say(LONG))) for _ in range(10)}

    assert homes == {"b"}


async def test_pfx_12_the_engines_word_corrects_what_is_believed_of_a_silent_replica() -> None:
    """One that never reports cannot say that it has restarted; its next answer does."""

    async def cold(turn: Turn) -> None:
        usage = USAGE | {"prompt_tokens": 540, "prompt_tokens_details": {"cached_tokens": 0}}
        await turn.send(ok(completion(usage=usage)))

    async with Fake(untold) as a, gateway_of(a) as gateway:
        for number in range(20):
            await talk(gateway, say(f"{number} {LONG}"))
        assert most_known(gateway) == 20 * 4
        a.play = cold
        await talk(gateway, say(f"19 {LONG}"))

        assert most_known(gateway) <= 4


async def test_pfx_13_a_new_gateway_learns_what_replicas_hold(redis_server: RedisServer) -> None:
    redis = {"redis_url": redis_server.url}
    replica = {"snapshot_interval_ms": 50, **redis}
    async with simulated(replica_id="s", **replica), simulated(replica_id="t", **replica):
        async with gateway_of(**redis, **PATIENT) as gateway:
            await gateway.knows("s", "t")
            homes = [home_of(await talk(gateway, say(f"{n} {LONG}"))) for n in range(20)]
            await until(lambda: total_known(gateway) >= 20 * (len(LONG) // 64))
        async with gateway_of(**redis, **PATIENT) as gateway:
            await gateway.knows("s", "t")
            await until(lambda: total_known(gateway) >= 20 * (len(LONG) // 64))
            again = [home_of(await talk(gateway, say(f"{n} {LONG}"))) for n in range(20)]

    assert again == homes
    assert set(homes) == {"s", "t"}


def total_known(gateway: FieldGateway) -> int:
    """Return how many blocks it believes on all replicas."""
    return sum(status.believed_blocks for status in gateway.fleet.views())


async def test_pfx_13_a_hashed_prefix_needs_no_memory_and_no_order_of_the_replicas() -> None:
    fakes = [Fake(untold, name) for name in "abcd"]
    homes = []
    async with fakes[0], fakes[1], fakes[2], fakes[3]:
        for order in (fakes, fakes[::-1]):
            async with gateway_of(*order, policy="prefix_hash") as gateway:
                homes.append([home_of(await talk(gateway, say(f"{n} {LONG}"))) for n in range(20)])

    assert homes[0] == homes[1]
    assert len(set(homes[0])) > 1


HALF = "\\ud83d"
"""As JSON has it: the first half of an emoji, which is no text by itself."""

HALVES: dict[str, str] = {
    "content": '{"model":"m","messages":[{"role":"user","content":"#"}]}',
    "model": '{"model":"#","messages":[{"role":"user","content":"hi"}]}',
    "user": '{"model":"m","user":"#","messages":[{"role":"user","content":"hi"}]}',
    "role": '{"model":"m","messages":[{"role":"#","content":"hi"}]}',
    "part": '{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"#"}]}]}',
    "type": '{"model":"m","messages":[{"role":"user","content":[{"type":"#","file":1}]}]}',
    "call": '{"model":"m","messages":[{"role":"tool","content":"x","tool_call_id":"#"}]}',
    "salt": '{"model":"m","cache_salt":"#","messages":[{"role":"user","content":"hi"}]}',
    "key": '{"model":"m","#":1,"messages":[{"role":"user","content":"hi"}]}',
    "prompt": '{"model":"m","prompt":"#"}',
    "prompts": '{"model":"m","prompt":["#","hi"]}',
    "input": '{"model":"#","input":"#"}',
}


@pytest.mark.parametrize("half", [HALF, "\\uDFFF", f"x{HALF}x{HALF}", "\udcff"], ids=ascii)
async def test_pfx_15_half_an_emoji_breaks_nothing(half: str) -> None:
    """The last of the halves is a byte that is no UTF-8, which JSON does not have at all."""
    async with Fake() as a, gateway_of(a) as gateway:
        client = await gateway.connect()
        for name, template in HALVES.items():
            path = {"prompt": COMPLETIONS, "prompts": COMPLETIONS, "input": "/v1/embeddings"}
            body = template.replace("#", half).encode("utf-8", "surrogateescape")
            before = len(a.asked)
            answer = await client.ask(post(body, path=path.get(name, "/v1/chat/completions")))
            assert answer.status in (200, 400, 404), name
            assert [request.body for request in a.asked[before:]] in ([], [body])
            assert answer.status != 200 or len(a.asked) == before + 1
            assert (await client.ask(post(HALVES["content"].encode()))).status == 200
        page = (await gateway.admin("GET", "/metrics")).body.decode()
        shown = gateway.log.getvalue().encode()

    assert list(text_string_to_metric_families(page))
    assert b"Traceback" not in shown


@pytest.mark.parametrize("tokens", [1, 15, 16, 17, 31, 32, 33, 48, 49])
async def test_pfx_16_whole_blocks_count_and_the_last_token_is_always_computed(
    tokens: int,
) -> None:
    async with simulated() as s:
        first, second = await complete(s, tokens, 1), await complete(s, tokens, 1)

    assert cached(first) == 0
    assert cached(second) == (tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS


async def test_pfx_16_a_preempted_request_is_not_credited_with_its_own_blocks() -> None:
    async with simulated(kv_blocks=40, max_num_batched_tokens=256) as s:
        asking = (
            complete(s, 1, 40, prompt=prompt_of(90, number), ignore_eos=True)
            for number in range(20)
        )
        async with asyncio.timeout(60):
            answers = await asyncio.gather(*asking)
        await is_empty(s)
        stats = stats_of(s)

    assert stats.preemptions_total > 0
    assert [cached(answer) for answer in answers] == [0] * 20
    assert stats.cached_tokens_total == 0
