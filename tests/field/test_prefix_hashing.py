"""What names a prefix: the whole history, in order, under the right name, and nothing else.

Method: bodies as clients send them, cut as the gateway cuts them, and the decisions that follow.
"""

import json
from collections import Counter
from random import Random
from typing import Any

import pytest

from contract.blocks import BlockHash
from contract.kv_events import BlockStored, KvEventBatch, KvSnapshot
from router.core.config import RoutingConfig
from router.core.fleet import FleetState
from router.core.health import AttemptOutcome
from router.core.reason import Reason
from router.core.request import route_request
from router.core.view import RouteRequest
from tests.router.core.making import chosen, lease_of, make_fleet, make_report, view_of, with_events

CONFIG = RoutingConfig(index_block_bytes=256)
LONG = "All that is said is said at length. " * 60


def chat(request_id: str, messages: list[Any], model: str = "m", **fields: Any) -> RouteRequest:
    body = json.dumps({"model": model, "messages": messages} | fields).encode()
    return route_request("/v1/chat/completions", body, request_id, CONFIG)


def chain(request: RouteRequest) -> list[BlockHash]:
    return request.chain((256, None))


def common(first: RouteRequest, second: RouteRequest) -> int:
    pairs = zip(chain(first), chain(second), strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), len(chain(first)))


def served(fleet: FleetState, request: RouteRequest, not_on: str = "") -> str:
    """Decide, and let the request end at once; return where it went."""
    decision = fleet.decide(request, 0, list(not_on))
    lease_of(decision).end(AttemptOutcome.OK, 0)
    return chosen(decision)


def say(role: str, content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **fields}


def test_pfx_01_turns_follow_their_own_conversation_not_the_system_prompt() -> None:
    fleet = make_fleet("abcd")
    homes: dict[int, str] = {}
    stayed = 0
    for turn in range(6):
        for talk in range(20):
            messages = [say("system", LONG)]
            for earlier in range(turn + 1):
                messages.append(say("user", f"{talk} asks {earlier}: {LONG[:600]}"))
                messages.append(say("assistant", f"{talk} hears {earlier}: {LONG[:600]}"))
            request = chat(f"{talk}-{turn}", messages[:-1])
            decision = fleet.decide(request, turn)
            stayed += homes.setdefault(talk, chosen(decision)) == chosen(decision)
            if turn:
                lease_of(decision).end(AttemptOutcome.OK, turn)

    assert stayed >= 20 + 0.9 * 100
    assert len(set(homes.values())) == 4


def test_pfx_02_parts_and_null_content_carry_the_same_text() -> None:
    plain = [say("system", LONG), say("user", LONG)]
    in_parts = [
        say("system", [{"type": "text", "text": LONG}]),
        say("user", [{"type": "text", "text": LONG}]),
    ]
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    called = [*plain, say("assistant", None, tool_calls=[call]), say("tool", "ok")]

    assert chain(chat("1", in_parts)) == chain(chat("2", plain))
    assert chat("1", in_parts).prompt_tokens == chat("2", plain).prompt_tokens > 1
    assert common(chat("3", plain), chat("4", called)) >= len(chain(chat("3", plain))) - 1


def test_pfx_03_only_a_match_from_the_beginning_counts() -> None:
    fleet = make_fleet("ab", index_block_bytes=256)
    first, second = LONG, LONG.upper()
    served(fleet, chat("1", [say("user", first)]), not_on="b")
    served(fleet, chat("2", [say("user", second)]), not_on="a")

    both = chat("3", [say("user", second + first)])

    assert served(fleet, both) == "b"
    assert common(chat("4", [say("user", first)]), both) == 0


def test_pfx_05_models_adapters_salts_and_tenants_share_nothing() -> None:
    body = [say("user", LONG)]
    requests = [
        chat("1", body, "base"),
        chat("2", body, "lora-a"),
        chat("3", body, "base", cache_salt="x"),
    ]
    raw = json.dumps({"model": "base", "messages": body}).encode()
    requests.append(route_request("/v1/chat/completions", raw, "4", CONFIG, tenant="t"))

    blocks = [block for request in requests for block in chain(request)]

    assert len(blocks) == len(set(blocks)) > 20


def test_pfx_07_an_image_counts_by_all_of_its_bytes() -> None:
    def look(request_id: str, image: str) -> RouteRequest:
        parts = [
            {"type": "text", "text": LONG},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}},
            {"type": "text", "text": LONG},
        ]
        return chat(request_id, [say("user", parts)])

    one, other = look("1", "A" * 5_000 + "B"), look("2", "A" * 5_000 + "C")

    assert chain(one) == chain(look("3", "A" * 5_000 + "B"))
    assert 0 < common(one, other) < len(chain(one)) // 2 + 2
    assert len({look(f"{n}", f"{n}").prompt for n in range(2_000)}) == 2_000


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/completions"])
def test_pfx_08_a_request_without_text_goes_by_load(path: str) -> None:
    fleet = make_fleet("abcd")
    picks: Counter[str] = Counter()
    for number in range(100):
        prompt = [number] * 9 if path == "/v1/completions" else None
        body = json.dumps({"model": "m", "input": f"{number}", "prompt": prompt}).encode()
        picks[chosen(fleet.decide(route_request(path, body, f"{number}", CONFIG), 0))] += 1

    assert max(picks.values()) <= 1.5 * min(picks.values())


def test_pfx_10_tools_come_first_and_what_precedes_a_change_still_matches() -> None:
    def turn(arguments: str, tool: str) -> RouteRequest:
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
        messages = [say("user", LONG), say("assistant", None, tool_calls=[call]), say("user", "?")]
        tools = [{"type": "function", "function": {"name": tool, "description": LONG}}]
        return chat("1", messages, tools=tools)

    compact, spaced = turn('{"a":1}', "f"), turn('{"a": 1}', "f")

    assert common(compact, spaced) >= len(chain(compact)) - 2
    assert common(compact, turn('{"a":1}', "g")) == 0


@pytest.mark.parametrize("by_events", [False, True])
def test_pfx_12_a_restarted_replica_is_believed_empty(by_events: bool) -> None:
    report = with_events if by_events else make_report
    fleet = make_fleet(index_block_bytes=256)
    for replica_id in "ab":
        fleet.on_report(report(replica_id), 0, 0)
    hot = chat("hot", [say("user", LONG)])
    key = (256, "m" if by_events else None)
    for sequence, replica_id in enumerate("ab" * 100):
        request = hot if sequence < 2 else chat(f"{sequence}", [say("user", f"{sequence}{LONG}")])
        if by_events:
            batch = KvEventBatch("first", sequence // 2, [BlockStored(request.chain(key))])
            fleet.on_kv_batch(replica_id, batch, 0)
        else:
            served(fleet, request, not_on="ab".replace(replica_id, ""))

    fleet.on_report(report("a", 0, incarnation="second"), 0, 1)
    believed = fleet.index.num_blocks(view_of(fleet, "a").slot)

    assert believed == 0
    assert served(fleet, chat("again", [say("user", LONG)])) == "b"


def test_pfx_13_a_new_gateway_finds_placements_again_in_the_snapshots() -> None:
    first, second = make_fleet(index_block_bytes=256), make_fleet(index_block_bytes=256)
    held: dict[str, list[BlockHash]] = {each: [] for each in "abcd"}
    homes = {}
    for fleet in (first, second):
        for replica_id in held:
            fleet.on_report(with_events(replica_id), 0, 0)
    for number in range(100):
        request = chat(f"{number}", [say("user", f"{number} {LONG}")])
        homes[number] = served(first, request)
        held[homes[number]] += request.chain((256, "m"))

    for replica_id, blocks in held.items():
        assert second.on_kv_snapshot(replica_id, KvSnapshot("first", 5, blocks), 0)
    again = {n: served(second, chat(f"x{n}", [say("user", f"{n} {LONG}")])) for n in homes}

    assert sum(again[n] == homes[n] for n in homes) >= 80


@pytest.mark.parametrize("seed", range(5))
def test_pfx_13_where_no_cache_is_told_of_another_order_leads_to_nearly_the_same_homes(
    seed: int,
) -> None:
    first, second = make_fleet("abcd"), make_fleet("abcd")
    numbers = list(range(100))
    homes = {n: served(first, chat(f"{n}", [say("user", f"{n} {LONG}")])) for n in numbers}
    Random(seed).shuffle(numbers)

    again = {n: served(second, chat(f"x{n}", [say("user", f"{n} {LONG}")])) for n in numbers}

    assert sum(again[n] == homes[n] for n in numbers) >= 80
    assert max(Counter(homes.values()).values()) <= 33


@pytest.mark.parametrize("field", ["content", "model", "user"])
def test_pfx_15_half_of_a_surrogate_is_read_or_refused(field: str) -> None:
    text = {"content": "x", "model": "m", "user": "u"} | {field: "HALF"}
    message = {"role": "user", "content": text["content"]}
    body = {"model": text["model"], "user": text["user"], "messages": [message]}
    raw = json.dumps(body).replace("HALF", "\\ud83d").encode()

    request = route_request("/v1/chat/completions", raw, "1", CONFIG)
    decision = make_fleet("ab").decide(request, 0)

    assert (request.model or "").encode().decode() == request.model
    wanted = Reason.MODEL_NOT_FOUND if field == "model" else Reason.NO_PROMPT
    assert decision.reason in (wanted, Reason.COLD)
