"""LoRA adapters: names that requests use, blocks of their own, and a limit on how many run."""

import asyncio
from typing import Any

import aiohttp
import pytest

from contract.blocks import chain_tokens, root_hash
from replicas.server.replica import Replica
from tests.replicas.server.conftest import FOREVER_MS, MODEL, Start
from tests.replicas.server.test_metrics import scrape
from tests.waiting import until

COMPLETION = "/v1/completions"
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
PROMPT = list(range(100))
SQL = {"lora_name": "sql", "lora_path": "/adapters/sql"}


async def post(
    http: aiohttp.ClientSession, replica: Replica, path: str, body: dict[str, Any]
) -> tuple[int, Any]:
    async with http.post(replica.url + path, json=body) as response:
        is_json = response.content_type == "application/json"
        return response.status, await response.json() if is_json else await response.text()


async def cached_tokens(http: aiohttp.ClientSession, replica: Replica, **body: Any) -> int:
    status, answer = await post(
        http, replica, COMPLETION, {"prompt": PROMPT, "max_tokens": 1} | body
    )
    assert status == 200, answer
    assert answer["model"] == body.get("model", MODEL)
    cached: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return cached


async def model_ids(http: aiohttp.ClientSession, replica: Replica) -> dict[str, Any]:
    async with http.get(f"{replica.url}/v1/models") as response:
        return {card["id"]: card for card in (await response.json())["data"]}


async def test_an_adapter_and_a_salt_have_blocks_of_their_own(
    start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start(lora=("sql", "chat"))
    identities: list[dict[str, Any]] = [
        {},
        {"model": "sql"},
        {"model": "chat"},
        {"model": "sql", "cache_salt": "t1"},
        {"cache_salt": "t1"},
    ]

    cold = [await cached_tokens(http, replica, **identity) for identity in identities]
    warm = [await cached_tokens(http, replica, **identity) for identity in identities]

    assert cold == [0] * 5
    assert warm == [96] * 5


async def test_a_gateway_that_knows_only_the_model_field_finds_an_adapter_s_blocks(
    start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start(lora=("sql",))

    await cached_tokens(http, replica, model="sql")

    chain = chain_tokens(PROMPT, 16, root_hash("sql"))
    assert replica.driver.engine.cached_hashes() == chain


async def test_adapters_are_loaded_and_unloaded_while_it_runs(
    start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start()
    body = {"prompt": PROMPT, "max_tokens": 1, "model": "sql"}

    before, _ = await post(http, replica, COMPLETION, body)
    loaded = await post(http, replica, LOAD, SQL)
    during, _ = await post(http, replica, COMPLETION, body)
    cards = await model_ids(http, replica)
    unloaded = await post(http, replica, UNLOAD, {"lora_name": "sql"})
    after, answer = await post(http, replica, COMPLETION, body)

    assert (before, during, after) == (404, 200, 404)
    assert loaded == (200, "Success: LoRA adapter 'sql' added successfully.")
    assert unloaded == (200, "Success: LoRA adapter 'sql' removed successfully.")
    assert (cards["sql"]["root"], cards["sql"]["parent"]) == ("/adapters/sql", MODEL)
    assert cards[MODEL]["parent"] is None
    assert answer["error"]["code"] == "model_not_found"


async def test_a_request_goes_on_when_its_adapter_is_unloaded(
    start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start(lora=("sql",), fixed_decode_ms=5.0)
    body = {"prompt": PROMPT, "max_tokens": 30, "model": "sql"}
    running = asyncio.create_task(post(http, replica, COMPLETION, body))
    await until(lambda: replica.driver.num_live == 1)

    await post(http, replica, UNLOAD, {"lora_name": "sql"})
    status, answer = await running

    assert (status, answer["usage"]["completion_tokens"]) == (200, 30)


@pytest.mark.parametrize(
    ("path", "body", "status", "told"),
    [
        (LOAD, {"lora_name": "old", "lora_path": "/x"}, 400, "already been loaded"),
        (LOAD, {"lora_name": MODEL, "lora_path": "/x"}, 400, "another name"),
        (LOAD, {"lora_name": "new"}, 400, "lora_path"),
        (LOAD, {"lora_name": "", "lora_path": "/x"}, 400, "both"),
        (LOAD, {"lora_name": "third", "lora_path": "/x"}, 400, "2 adapters"),
        (UNLOAD, {"lora_name": "no"}, 404, "cannot be found"),
        (UNLOAD, {}, 400, "lora_name"),
    ],
)
async def test_what_cannot_be_loaded_or_unloaded_is_said(
    start: Start,
    http: aiohttp.ClientSession,
    path: str,
    body: dict[str, Any],
    status: int,
    told: str,
) -> None:
    replica = await start(lora=("old", "older"), max_loaded_loras=2)

    answered, answer = await post(http, replica, path, body)

    assert answered == status
    assert told in answer["error"]["message"]
    assert (await model_ids(http, replica)).keys() == {MODEL, "old", "older"}


async def test_an_adapter_can_be_loaded_in_place(start: Start, http: aiohttp.ClientSession) -> None:
    replica = await start(lora=("sql",))

    status, _ = await post(http, replica, LOAD, SQL | {"load_inplace": True})

    assert status == 200
    assert (await model_ids(http, replica))["sql"]["root"] == "/adapters/sql"


async def test_one_adapter_too_many_waits_and_others_pass_it(
    start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start(lora=("sql", "chat"), max_loras=1, fixed_decode_ms=FOREVER_MS)
    scheduler = replica.driver.engine.scheduler
    tasks = []
    for index, model in enumerate(("sql", "chat", "sql", MODEL)):
        body = {"prompt": [index] * 20, "max_tokens": 9, "model": model}
        tasks.append(asyncio.create_task(post(http, replica, COMPLETION, body)))
        expected = index + 1
        await until(lambda: replica.driver.num_live == expected)  # noqa: B023  # awaited here

    # One step is under way for ever: whoever arrived during it is planned by hand.
    replica.driver.engine.scheduler.plan_step(0)
    values = await scrape(http, replica)

    assert [each.adapter for each in scheduler.running] == ["sql", "sql", None]
    assert [each.adapter for each in scheduler.waiting] == ["chat"]
    assert values["vllm:num_requests_waiting_by_reason{deferred}"] == 1
    assert values["vllm:num_requests_waiting_by_reason{capacity}"] == 0
    assert "vllm:lora_requests_info{1}{sql}{chat}" in values
    for task in tasks:
        task.cancel()
