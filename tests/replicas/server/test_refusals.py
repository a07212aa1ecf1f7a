"""Each refusal has its own status, code and field, before anything is held; streams too."""

import asyncio
from typing import Any

import aiohttp
import pytest

from replicas.server.replica import Replica
from tests.replicas.server.conftest import FOREVER_MS, MODEL, Start
from tests.waiting import until

CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}]}
PROMPT: dict[str, Any] = {"prompt": "hello"}


async def refusal(
    http: aiohttp.ClientSession, replica: Replica, path: str, body: Any
) -> tuple[int, dict[str, Any]]:
    data = body if isinstance(body, bytes) else None
    sent = {"data": data} if data is not None else {"json": body}
    async with http.post(replica.url + path, **sent) as response:
        assert response.content_type == "application/json"
        answer = await response.json()
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    return response.status, answer["error"]


BAD: list[tuple[str, Any, str, str | None]] = [
    (CHAT, {}, "invalid_request", "messages"),
    (CHAT, {"messages": []}, "invalid_request", "messages"),
    (CHAT, {"messages": "hi"}, "invalid_request", "messages"),
    (CHAT, {"messages": [{"content": "hi"}]}, "invalid_request", "messages[0].role"),
    (CHAT, {"messages": [{"role": 3}]}, "invalid_request", "messages[0].role"),
    (CHAT, HELLO | {"max_tokens": 0}, "invalid_request", "max_tokens"),
    (CHAT, HELLO | {"max_tokens": -1}, "invalid_request", "max_tokens"),
    (CHAT, HELLO | {"max_tokens": 1.5}, "invalid_request", "max_tokens"),
    (CHAT, HELLO | {"max_tokens": "5"}, "invalid_request", "max_tokens"),
    (CHAT, HELLO | {"max_completion_tokens": 0}, "invalid_request", "max_completion_tokens"),
    (CHAT, HELLO | {"max_tokens": 2**63}, "context_length_exceeded", "messages"),
    (CHAT, HELLO | {"max_tokens": 10**30}, "context_length_exceeded", "messages"),
    (CHAT, HELLO | {"n": 0}, "invalid_request", "n"),
    (CHAT, HELLO | {"n": 129}, "invalid_request", "n"),
    (CHAT, HELLO | {"stop": ""}, "invalid_request", "stop"),
    (CHAT, HELLO | {"stop": ["x"] * 17}, "invalid_request", "stop"),
    (CHAT, HELLO | {"stop": ["x" * 1025]}, "invalid_request", "stop"),
    (CHAT, HELLO | {"stop": [1]}, "invalid_request", "stop[0]"),
    (CHAT, HELLO | {"stream": "yes"}, "invalid_request", "stream"),
    (CHAT, [1], "invalid_request", None),
    (CHAT, b"", "invalid_json", None),
    (CHAT, b"{", "invalid_json", None),
    (CHAT, b"\xff\xfe", "invalid_json", None),
    (COMPLETION, {}, "invalid_request", "prompt"),
    (COMPLETION, {"prompt": ""}, "invalid_request", "prompt"),
    (COMPLETION, {"prompt": []}, "invalid_request", "prompt"),
    (COMPLETION, {"prompt": ["a", ""]}, "invalid_request", "prompt"),
    (COMPLETION, {"prompt": [1, "a"]}, "invalid_request", "prompt"),
    (COMPLETION, {"prompt": [-1]}, "invalid_request", "prompt"),
    (COMPLETION, {"prompt": [2**32]}, "invalid_request", "prompt"),
    (COMPLETION, {"prompt": ["a"] * 65, "n": 2}, "invalid_request", "n"),
]


async def test_every_bad_field_is_a_400_that_names_it(
    start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start()

    for path, body, code, param in BAD:
        for streaming in (False, True):
            sent = {"stream": True} | body if streaming and isinstance(body, dict) else body
            status, error = await refusal(http, replica, path, sent)
            assert (status, error["code"]) == (400, code), (path, body, error)
            assert error["type"] == "invalid_request_error"
            assert error["param"] == param, (body, error)

    assert replica.driver.engine.stats().kv_blocks_used == replica.driver.num_live == 0


@pytest.mark.parametrize("name", ["nope", f" {MODEL} ", MODEL.upper(), ""])
async def test_an_unknown_model_is_a_404_that_names_it(
    start: Start, http: aiohttp.ClientSession, name: str
) -> None:
    replica = await start()

    status, error = await refusal(http, replica, CHAT, HELLO | {"model": name})

    assert (status, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert repr(name) in error["message"]


@pytest.mark.parametrize(("prompt_tokens", "max_tokens"), [(63, 2), (64, 1), (65, 1), (640, 1)])
async def test_more_than_the_context_is_refused_before_generation(
    start: Start, http: aiohttp.ClientSession, prompt_tokens: int, max_tokens: int
) -> None:
    replica = await start(max_model_len=64)

    for streaming in (True, False):
        body = {
            "prompt": [7] * prompt_tokens,
            "max_tokens": max_tokens,
            "stream": streaming,
        }
        status, error = await refusal(http, replica, COMPLETION, body)
        assert (status, error["code"]) == (400, "context_length_exceeded")

    assert replica.driver.engine.stats().prompt_tokens_total == 0


async def test_the_whole_context_may_be_used(start: Start, http: aiohttp.ClientSession) -> None:
    replica = await start(max_model_len=64)

    async with http.post(
        replica.url + COMPLETION, json={"prompt": [7] * 62, "max_tokens": 2}
    ) as response:
        answer = await response.json()

    assert answer["usage"]["total_tokens"] == 64


async def test_what_never_fits_is_refused_at_exactly_one_length(
    start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start(kv_blocks=4, block_size=16)  # 64 tokens; the last one needs no block

    statuses = {}
    for total in range(64 - 33, 64 + 34):
        body = {"prompt": [7] * (total - 5), "max_tokens": 5}
        async with http.post(replica.url + COMPLETION, json=body) as response:
            answer = await response.json()
        statuses[total] = response.status
        if response.status == 400:
            assert answer["error"]["code"] == "never_fits"
        stats = replica.driver.engine.stats()
        assert stats.waiting_requests == stats.running_requests == stats.kv_blocks_used == 0

    assert [total for total, status in statuses.items() if status == 200] == list(range(31, 66))


async def test_one_choice_that_never_fits_leaves_nothing_of_the_others(
    start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start(kv_blocks=4, fixed_prefill_ms=FOREVER_MS)

    body = {"prompt": [[7], [7] * 200], "max_tokens": 5}
    status, error = await refusal(http, replica, COMPLETION, body)

    assert (status, error["code"]) == (400, "never_fits")
    assert replica.driver.num_live == 0
    assert replica.driver.engine.stats().waiting_requests == 0


async def test_an_open_answer_ends_where_the_blocks_end(
    start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start(kv_blocks=4)

    async with http.post(replica.url + COMPLETION, json={"prompt": [7] * 63}) as response:
        answer = await response.json()

    assert response.status == 200, answer
    assert answer["usage"]["completion_tokens"] <= 2


async def test_too_large_a_body_is_a_413(start: Start, http: aiohttp.ClientSession) -> None:
    replica = await start(max_body_bytes=1_000)

    status, error = await refusal(http, replica, COMPLETION, {"prompt": "x" * 1_000})

    assert (status, error["code"]) == (413, "body_too_large")
    assert "1000" in error["message"]


async def test_a_body_that_does_not_come_is_a_408(start: Start) -> None:
    replica = await start(body_timeout_s=0.02)

    async def part() -> Any:
        yield b'{"prompt": '
        await until(lambda: "request_timeout" in replica.metrics.refused, "the refusal")

    async with (
        aiohttp.ClientSession() as http,
        http.post(replica.url + COMPLETION, data=part()) as response,
    ):
        answer = await response.json()

    assert (response.status, answer["error"]["code"]) == (408, "request_timeout")


async def send(http: aiohttp.ClientSession, replica: Replica) -> None:
    async with http.post(replica.url + COMPLETION, json=PROMPT):
        pass


def load(replica: Replica) -> tuple[int, int]:
    stats = replica.driver.engine.stats()
    return stats.running_requests, stats.waiting_requests


async def test_beyond_the_queue_s_length_requests_go_elsewhere(
    start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start(max_num_seqs=1, max_queued_requests=2, fixed_prefill_ms=FOREVER_MS)
    others = []
    for waiting in (0, 1):
        others.append(asyncio.create_task(send(http, replica)))
        expected = (1, waiting)
        await until(lambda: load(replica) == expected)  # noqa: B023  # awaited in this turn

    async with http.post(replica.url + COMPLETION, json=PROMPT) as response:
        answer = await response.json()
    for other in others:
        other.cancel()

    assert (response.status, answer["error"]["code"]) == (503, "replica_overloaded")
    assert response.headers["retry-after"] == "1"
    assert replica.metrics.admission_rejections == {
        "max_num_queued_reqs": 1,
        "max_num_queued_tokens": 0,
    }


async def test_each_choice_takes_a_place_in_the_queue(
    start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start(max_queued_requests=3)

    status, error = await refusal(http, replica, COMPLETION, PROMPT | {"n": 4})
    async with http.post(replica.url + COMPLETION, json=PROMPT | {"n": 3}) as response:
        pass

    assert (status, error["code"]) == (503, "replica_overloaded")
    assert response.status == 200


async def test_a_backlog_of_prompt_tokens_sends_requests_elsewhere(
    start: Start, http: aiohttp.ClientSession
) -> None:
    """As in vLLM, what counts are whole prompts without a token, before the new one is added."""
    replica = await start(max_queued_tokens=100, fixed_prefill_ms=FOREVER_MS)
    others = []
    for tokens in (60, 60):
        body = {"prompt": [7] * tokens, "max_tokens": 5}
        others.append(asyncio.create_task(http.post(replica.url + COMPLETION, json=body)))
        expected = len(others)
        await until(lambda: replica.driver.num_live == expected)  # noqa: B023  # awaited here

    status, error = await refusal(http, replica, COMPLETION, {"prompt": [7], "max_tokens": 1})
    for other in others:
        other.cancel()

    assert (status, error["code"]) == (503, "replica_overloaded")
    assert "120 prompt tokens" in error["message"]
    assert replica.metrics.admission_rejections["max_num_queued_tokens"] == 1


async def test_tokens_that_have_been_computed_make_room(
    start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start(max_queued_tokens=100, fixed_decode_ms=FOREVER_MS)
    long = asyncio.create_task(
        http.post(replica.url + COMPLETION, json={"prompt": [7] * 200, "max_tokens": 5})
    )
    await until(lambda: replica.driver.engine.stats().output_tokens_total == 1)

    assert replica.ranks.prefilling_tokens == 0
    long.cancel()


async def test_other_routes_and_methods_are_refused_in_the_same_shape(
    start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start()

    status, error = await refusal(http, replica, "/v1/nothing", {})
    async with http.get(replica.url + CHAT) as response:
        method = await response.json()

    assert (status, error["code"]) == (404, "not_found")
    assert (response.status, method["error"]["code"]) == (405, "method_not_allowed")


async def test_nulls_are_absent_fields(start: Start, http: aiohttp.ClientSession) -> None:
    replica = await start()
    names = ("model", "max_tokens", "stop", "n", "stream", "stream_options", "echo", "priority")
    nulls = dict.fromkeys((*names, "cache_salt"))

    async with http.post(replica.url + COMPLETION, json=PROMPT | nulls) as response:
        answer = await response.json()

    assert response.status == 200, answer
