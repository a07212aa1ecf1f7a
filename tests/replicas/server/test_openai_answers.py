"""What OpenAI clients see: real requests to a real replica, and the official client."""

import asyncio
from typing import Any

import aiohttp
import msgspec
import openai
import pytest

from contract.openai_api import decode_chat_request, render_chat
from contract.sse import DONE_PAYLOAD, SseReader
from replicas.core.text import expected_open_text, expected_text
from replicas.server.replica import Replica
from tests.replicas.server.conftest import MODEL, Start

CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"
MESSAGES = [{"role": "user", "content": "hello there"}]
LONG = "a prompt of some blocks " * 30


def rendered_chat(body: dict[str, Any]) -> bytes:
    return render_chat(decode_chat_request(msgspec.json.encode(body)))


def padded(prompt: str) -> bytes:
    data = prompt.encode()
    return data + b"\0" * (-len(data) % 4)


async def post(
    http: aiohttp.ClientSession, replica: Replica, path: str, body: dict[str, Any]
) -> dict[str, Any]:
    async with http.post(replica.url + path, json=body) as response:
        assert response.status == 200, await response.text()
        assert response.content_type == "application/json"
        answer: dict[str, Any] = await response.json()
        return answer


async def stream(
    http: aiohttp.ClientSession, replica: Replica, path: str, body: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return the decoded events; the stream must end with the one [DONE]."""
    async with http.post(replica.url + path, json=body | {"stream": True}) as response:
        assert response.status == 200, await response.text()
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        payloads = SseReader().feed(await response.read())
    assert payloads.pop() == DONE_PAYLOAD
    return [msgspec.json.decode(payload) for payload in payloads]


def text_of(events: list[dict[str, Any]], index: int = 0) -> str:
    choices = [c for event in events for c in event["choices"] if c["index"] == index]
    return "".join(c["text"] if "text" in c else c["delta"].get("content", "") for c in choices)


async def test_a_chat_answer_has_openais_shape_and_the_expected_text(
    start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start()
    body = {"model": MODEL, "messages": MESSAGES, "max_tokens": 7}

    answer = await post(http, replica, CHAT, body)

    prompt = rendered_chat(body)
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["model"] == MODEL
    (choice,) = answer["choices"]
    assert choice == {
        "index": 0,
        "message": {"role": "assistant", "content": expected_text(prompt, 7)},
        "logprobs": None,
        "finish_reason": "length",
        "stop_reason": None,
    }
    assert answer["usage"] == {
        "prompt_tokens": len(prompt) // 4,
        "completion_tokens": 7,
        "total_tokens": len(prompt) // 4 + 7,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


async def test_a_final_message_is_continued_where_it_stops(
    start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start()
    body = {"model": MODEL, "messages": MESSAGES, "max_tokens": 7}
    whole = await post(http, replica, CHAT, body)
    text = whole["choices"][0]["message"]["content"]
    begun = [*MESSAGES, {"role": "assistant", "content": text[:12]}]
    continued = {"continue_final_message": True, "add_generation_prompt": False, "max_tokens": 4}

    rest = await post(http, replica, CHAT, body | {"messages": begun} | continued)

    assert rest["choices"][0]["message"]["content"] == text[12:]
    assert rest["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"] + 3
    assert rest["usage"]["total_tokens"] == whole["usage"]["total_tokens"]


async def test_a_message_cannot_be_continued_and_followed_by_another(
    start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start()
    body = {"model": MODEL, "messages": MESSAGES}
    both = {"continue_final_message": True, "add_generation_prompt": True}

    async with http.post(replica.url + CHAT, json=body | both) as response:
        error = (await response.json())["error"]

    assert (response.status, error["param"]) == (400, "continue_final_message")


@pytest.mark.parametrize("max_tokens", [1, 2, 50])
async def test_a_chat_stream_is_the_whole_answer_in_words(
    start: Start, http: aiohttp.ClientSession, max_tokens: int
) -> None:
    replica = await start()
    body = {"model": MODEL, "messages": MESSAGES, "max_completion_tokens": max_tokens}

    events = await stream(http, replica, CHAT, body)

    assert text_of(events) == expected_text(rendered_chat(body), max_tokens)
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [event["choices"][0]["delta"].get("role") for event in events[1:]] == [None] * max_tokens
    reasons = [event["choices"][0]["finish_reason"] for event in events]
    assert reasons == [None] * max_tokens + ["length"]
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert len({event["id"] for event in events}) == 1


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
@pytest.mark.parametrize("asked", [True, False, None])
async def test_usage_is_one_chunk_without_choices_and_only_if_asked_for(
    start: Start, http: aiohttp.ClientSession, path: str, asked: bool | None
) -> None:
    replica = await start()
    body: dict[str, Any] = {"max_tokens": 3}
    body |= {"messages": MESSAGES} if path == CHAT else {"prompt": "hello there"}
    whole = await post(http, replica, path, body)
    options = {} if asked is None else {"stream_options": {"include_usage": asked}}

    events = await stream(http, replica, path, body | options)

    if asked:
        assert events[-1]["choices"] == []
        assert events[-1]["usage"] == whole["usage"]
        events.pop()
    assert not any("usage" in event for event in events)
    assert all(event["choices"] for event in events)


async def test_a_repeated_prompt_is_cached_but_for_its_last_block(
    start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start()
    body = {"prompt": LONG, "max_tokens": 2}

    cold = await post(http, replica, COMPLETION, body)
    warm = await post(http, replica, COMPLETION, body)
    salted = await post(http, replica, COMPLETION, body | {"cache_salt": "other"})

    tokens = len(padded(LONG)) // 4
    assert cold["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    expected = (tokens - 1) // 16 * 16
    assert warm["usage"]["prompt_tokens_details"] == {"cached_tokens": expected}
    assert salted["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert cold["choices"] == warm["choices"] == salted["choices"]


async def test_choices_are_other_texts_and_the_prompt_counts_once(
    start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start()
    body = {"prompt": LONG, "max_tokens": 4, "n": 3}

    answer = await post(http, replica, COMPLETION, body)
    events = await stream(http, replica, COMPLETION, body)

    texts = [choice["text"] for choice in answer["choices"]]
    assert texts == [expected_text(padded(LONG), 4, choice) for choice in range(3)]
    assert texts == [text_of(events, index) for index in range(3)]
    assert answer["usage"]["prompt_tokens"] == len(padded(LONG)) // 4
    assert answer["usage"]["completion_tokens"] == 12
    # The second and third choice hit the blocks of the first; the request itself found none.
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


async def test_a_batch_of_prompts_has_its_choices_in_order(
    start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start()
    prompts = ["one", "number two", LONG]

    answer = await post(
        http, replica, COMPLETION, {"prompt": prompts, "max_tokens": 3, "n": 2, "echo": True}
    )

    expected = [
        prompt + expected_text(padded(prompt), 3, choice) for prompt in prompts for choice in (0, 1)
    ]
    assert [choice["text"] for choice in answer["choices"]] == expected
    assert [choice["index"] for choice in answer["choices"]] == list(range(6))


async def test_token_ids_are_a_prompt(start: Start, http: aiohttp.ClientSession) -> None:
    replica = await start()
    ids = list(range(40))

    one = await post(http, replica, COMPLETION, {"prompt": ids, "max_tokens": 3})
    two = await post(http, replica, COMPLETION, {"prompt": [ids, [1]], "max_tokens": 3})

    assert one["usage"]["prompt_tokens"] == 40
    assert two["choices"][0]["text"] == one["choices"][0]["text"]
    assert two["usage"]["prompt_tokens"] == 41


async def test_an_echo_comes_first_and_may_hold_any_character(
    start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start()
    prompt = 'say "北京🙂\n\\"'

    events = await stream(
        http, replica, COMPLETION, {"prompt": prompt, "max_tokens": 2, "echo": True}
    )

    assert text_of(events) == prompt + expected_text(padded(prompt), 2)


async def test_a_long_echo_is_not_lost_between_head_and_first_token(
    start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start(kv_blocks=10_000)
    prompt = "x" * 500_000

    events = await stream(
        http, replica, COMPLETION, {"prompt": prompt, "max_tokens": 5, "echo": True}
    )

    assert text_of(events) == prompt + expected_text(padded(prompt), 5)


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
async def test_without_a_limit_the_text_ends_by_itself(
    start: Start, http: aiohttp.ClientSession, path: str
) -> None:
    replica = await start()
    body: dict[str, Any] = {"messages": MESSAGES} if path == CHAT else {"prompt": "hello there"}
    prompt = rendered_chat(body) if path == CHAT else padded("hello there")

    events = await stream(http, replica, path, body | {"max_tokens": None})
    whole = await post(http, replica, path, body)

    expected = expected_open_text(prompt, 1_024)
    assert text_of(events) == expected
    assert events[-1]["choices"][0]["finish_reason"] == "stop"
    assert whole["choices"][0]["finish_reason"] == "stop"
    # The end is a token too, as a model's is.
    assert whole["usage"]["completion_tokens"] == len(expected) // 4 + 1


async def test_an_open_answer_ends_at_the_bound(start: Start, http: aiohttp.ClientSession) -> None:
    replica = await start(open_ended_tokens_max=2)

    answer = await post(http, replica, COMPLETION, {"prompt": "hello there"})

    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize("streaming", [True, False])
async def test_text_ends_before_a_stop_string_that_spans_words(
    start: Start, http: aiohttp.ClientSession, streaming: bool
) -> None:
    replica = await start()
    text = expected_text(padded("hello"), 30)
    stop = text[38:45]  # from inside the tenth word to inside the twelfth
    body = {"prompt": "hello", "max_tokens": 30, "stop": ["nowhere", stop]}

    if streaming:
        usage = {"stream_options": {"include_usage": True}}
        events = await stream(http, replica, COMPLETION, body | usage)
        seen, last, used = text_of(events), events[-2]["choices"][0], events[-1]["usage"]
    else:
        answer = await post(http, replica, COMPLETION, body)
        last, used = answer["choices"][0], answer["usage"]
        seen = last["text"]

    assert seen == text[: text.index(stop)]
    assert (last["finish_reason"], last["stop_reason"]) == ("stop", stop)
    assert used["completion_tokens"] == 12
    assert replica.driver.num_live == 0


async def test_a_stop_string_that_does_not_come_takes_nothing_away(
    start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start()
    text = expected_text(padded("hello"), 10)
    stop = text[-2:] + "zzz"  # its beginning ends the text

    answer = await post(
        http, replica, COMPLETION, {"prompt": "hello", "max_tokens": 10, "stop": stop}
    )

    assert answer["choices"][0]["text"] == text
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_the_answer_is_named_after_the_request_id(
    start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start()
    headers = {"x-request-id": 'the-"one"'}
    body = {"prompt": "hello", "max_tokens": 1, "stream": True}

    async with http.post(replica.url + COMPLETION, json=body, headers=headers) as response:
        payloads = SseReader().feed(await response.read())

    assert msgspec.json.decode(payloads[0])["id"] == 'cmpl-the-"one"'


async def test_a_client_of_http_1_0_gets_the_bare_events(start: Start) -> None:
    replica = await start(fixed_decode_ms=2.0)
    body = b'{"prompt": "hello", "max_tokens": 30, "stream": true}'
    port = int(replica.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    head = b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n"
    writer.write(head % len(body) + body)
    answer = await reader.read()
    writer.close()

    _, _, events = answer.partition(b"\r\n\r\n")
    payloads = SseReader().feed(events)
    assert {line[:6] for line in events.split(b"\n")} == {b"data: ", b""}
    assert events.endswith(b"data: [DONE]\n\n")
    assert text_of([msgspec.json.decode(p) for p in payloads[:-1]]) == expected_text(
        padded("hello"), 30
    )


async def test_a_connection_is_used_again_after_a_stream(
    start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start()
    body = {"prompt": "hello", "max_tokens": 3}

    first = await stream(http, replica, COMPLETION, body)
    second = await stream(http, replica, COMPLETION, body)

    assert text_of(first) == text_of(second)
    assert http.connector is not None
    assert len(list(http.connector._conns.values())) == 1


async def test_the_openai_client_gets_what_it_expects(start: Start) -> None:
    replica = await start(aliases=("gpt-4o-mini",))
    client = openai.AsyncOpenAI(base_url=f"{replica.url}/v1", api_key="none", max_retries=0)
    messages: Any = MESSAGES

    models = [model.id async for model in client.models.list()]
    chat = await client.chat.completions.create(
        model="gpt-4o-mini", messages=messages, max_tokens=7, n=2
    )
    chunks = [
        chunk
        async for chunk in await client.chat.completions.create(
            model=MODEL,
            messages=messages,
            max_tokens=7,
            stream=True,
            stream_options={"include_usage": True},
        )
    ]
    completion = await client.completions.create(model=MODEL, prompt=["a", "b"], max_tokens=2)
    with pytest.raises(openai.NotFoundError) as not_found:
        await client.chat.completions.create(model="no-such", messages=messages)
    with pytest.raises(openai.BadRequestError) as too_long:
        await client.completions.create(model=MODEL, prompt="a", max_tokens=10**9)
    await client.close()

    assert models == [MODEL, "gpt-4o-mini"]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == chat.choices[0].message.content
    assert chat.choices[1].message.content != text
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens_details is not None
    assert [choice.finish_reason for choice in completion.choices] == ["length", "length"]
    assert not_found.value.code == "model_not_found"
    assert too_long.value.code == "context_length_exceeded"
