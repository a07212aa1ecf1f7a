"""Tokens in and out: what the engine counts is what ``/tokenize`` says."""

from typing import Any

import aiohttp
import pytest

from replicas.server.replica import Replica
from tests.replicas.server.conftest import Start

MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello there"}]


async def post(http: aiohttp.ClientSession, replica: Replica, path: str, body: Any) -> Any:
    async with http.post(replica.url + path, json=body) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def test_a_prompt_comes_back_as_it_was(start: Start, http: aiohttp.ClientSession) -> None:
    replica = await start(max_model_len=512)
    for prompt in ("", "a", "four", "hello there", "Grüße 🙂"):
        tokenized = await post(http, replica, "/tokenize", {"prompt": prompt})
        text = await post(http, replica, "/detokenize", {"tokens": tokenized["tokens"]})

        assert text == {"prompt": prompt}
        assert tokenized["count"] == len(tokenized["tokens"])
        assert tokenized["max_model_len"] == 512
        assert tokenized["token_strs"] is None


async def test_the_count_is_that_of_the_request(start: Start, http: aiohttp.ClientSession) -> None:
    replica = await start()

    chat = await post(http, replica, "/tokenize", {"messages": MESSAGES})
    prompt = await post(http, replica, "/tokenize", {"prompt": "hello there"})
    answers = [
        await post(http, replica, f"/v1/{path}", body | {"max_tokens": 1})
        for path, body in (
            ("chat/completions", {"messages": MESSAGES}),
            ("completions", {"prompt": "hello there"}),
            ("completions", {"prompt": chat["tokens"]}),
        )
    ]

    counts = [answer["usage"]["prompt_tokens"] for answer in answers]
    assert counts == [chat["count"], prompt["count"], chat["count"]]


async def test_a_chat_may_end_with_its_last_message(
    start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start()
    body: dict[str, Any] = {"messages": MESSAGES}

    whole = await post(http, replica, "/tokenize", body)
    bare = await post(http, replica, "/tokenize", body | {"add_generation_prompt": False})

    header = await post(http, replica, "/tokenize", {"messages": []})
    assert bare["tokens"] + header["tokens"] == whole["tokens"]


async def test_the_text_of_each_token_is_given_if_asked_for(
    start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start()

    answer = await post(
        http, replica, "/tokenize", {"prompt": "hello there", "return_token_strs": True}
    )

    assert answer["token_strs"] == ["hell", "o th", "ere"]


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": 3}, 400, "prompt"),
        ("/tokenize", {"prompt": "x", "model": "no"}, 404, "model"),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": [-1]}, 400, "tokens"),
        ("/detokenize", {"tokens": [2**32]}, 400, "tokens"),
        ("/detokenize", {"tokens": ["x"]}, 400, "tokens[0]"),
        ("/detokenize", {"tokens": [], "model": "no"}, 404, "model"),
    ],
)
async def test_a_bad_field_is_named(
    start: Start,
    http: aiohttp.ClientSession,
    path: str,
    body: dict[str, Any],
    status: int,
    param: str,
) -> None:
    replica = await start()

    async with http.post(replica.url + path, json=body) as response:
        error = (await response.json())["error"]

    assert (response.status, error["param"]) == (status, param), error
