"""Embeddings: the prompt is computed and shares its blocks; the vector is fixed by the prompt."""

import base64
import math
import struct
from typing import Any

import aiohttp
import openai
import pytest

from replicas.server.replica import Replica
from tests.replicas.server.conftest import MODEL, Start

EMBEDDINGS = "/v1/embeddings"
TEXT = "a text of some blocks " * 10


async def embed(http: aiohttp.ClientSession, replica: Replica, **body: Any) -> dict[str, Any]:
    async with http.post(replica.url + EMBEDDINGS, json=body) as response:
        assert response.status == 200, await response.text()
        answer: dict[str, Any] = await response.json()
        return answer


def vectors(answer: dict[str, Any]) -> list[list[float]]:
    return [each["embedding"] for each in answer["data"]]


async def test_an_answer_has_openais_shape(start: Start, http: aiohttp.ClientSession) -> None:
    replica = await start(embedding_dimensions=8)

    answer = await embed(http, replica, model=MODEL, input=["one", "two words"])

    assert answer["object"] == "list"
    assert answer["model"] == MODEL
    assert answer["id"].startswith("embd-")
    assert [(each["object"], each["index"]) for each in answer["data"]] == [
        ("embedding", 0),
        ("embedding", 1),
    ]
    assert answer["usage"] == {
        "prompt_tokens": 1 + 3,
        "completion_tokens": 0,
        "total_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


async def test_equal_prompts_have_equal_vectors_of_length_one(
    start: Start, http: aiohttp.ClientSession
) -> None:
    first, second = await start(), await start()

    one = vectors(await embed(http, first, input=[TEXT, TEXT, TEXT + "?"]))
    two = vectors(await embed(http, second, input=TEXT))

    assert one[0] == one[1] == two[0]
    assert one[0] != one[2]
    assert all(len(vector) == 1_024 for vector in one)
    assert all(math.hypot(*vector) == pytest.approx(1) for vector in one)


async def test_fewer_dimensions_are_the_beginning_of_more(
    start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start(embedding_dimensions=16)

    (whole,) = vectors(await embed(http, replica, input=TEXT))
    (short,) = vectors(await embed(http, replica, input=TEXT, dimensions=4))

    scale = math.hypot(*whole[:4])
    assert short == pytest.approx([number / scale for number in whole[:4]], rel=1e-6)


async def test_base64_is_the_same_vector(start: Start, http: aiohttp.ClientSession) -> None:
    replica = await start(embedding_dimensions=8)

    (numbers,) = vectors(await embed(http, replica, input=TEXT))
    answer = await embed(http, replica, input=TEXT, encoding_format="base64")

    packed = base64.b64decode(answer["data"][0]["embedding"])
    assert list(struct.unpack("<8f", packed)) == numbers


async def test_the_official_client_reads_it(start: Start) -> None:
    replica = await start(embedding_dimensions=8)
    async with openai.AsyncOpenAI(base_url=f"{replica.url}/v1", api_key="none") as client:
        answer = await client.embeddings.create(model=MODEL, input=TEXT)

    assert len(answer.data[0].embedding) == 8


async def test_prompts_share_their_blocks_with_completions(
    start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start()
    prompt = list(range(100))
    async with http.post(
        f"{replica.url}/v1/completions", json={"prompt": prompt, "max_tokens": 1}
    ) as response:
        await response.read()

    answer = await embed(http, replica, input=prompt)

    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 96
    stats = replica.driver.engine.stats()
    assert (stats.output_tokens_total, stats.kv_blocks_used, replica.driver.num_live) == (1, 0, 0)
    assert stats.finished_total == 2


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": ""}, "input"),
        ({"input": ["x", ""]}, "input"),
        ({"input": ["x", 1]}, "input"),
        ({"input": [-1]}, "input"),
        ({"input": ["x"] * 129}, "input"),
        ({"input": [1] * 65}, "input"),
        ({"input": "x", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "x", "dimensions": 0}, "dimensions"),
        ({"input": "x", "dimensions": 1_025}, "dimensions"),
    ],
)
async def test_every_bad_field_is_a_400_that_names_it(
    start: Start, http: aiohttp.ClientSession, body: dict[str, Any], param: str
) -> None:
    replica = await start(max_model_len=64)

    async with http.post(replica.url + EMBEDDINGS, json=body) as response:
        error = (await response.json())["error"]

    assert (response.status, error["param"]) == (400, param), error


async def test_an_unknown_model_is_a_404(start: Start, http: aiohttp.ClientSession) -> None:
    replica = await start()

    async with http.post(replica.url + EMBEDDINGS, json={"input": "x", "model": "no"}) as response:
        error = (await response.json())["error"]

    assert (response.status, error["code"]) == (404, "model_not_found")


async def test_a_prompt_may_fill_the_whole_context(
    start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start(max_model_len=64)

    answer = await embed(http, replica, input=[1] * 64)

    assert answer["usage"]["prompt_tokens"] == 64
