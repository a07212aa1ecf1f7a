"""Which requests can be continued, and that what the client wrote goes out as it wrote it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.openai_api import (
    decode_chat_request,
    decode_completion_request,
    render_chat,
    render_completion,
)
from router.core.reason import NotResumed
from router.core.request import CHAT_PATH, COMPLETION_PATH
from router.gateway.continuation import Continuation, NotResumableError

MESSAGES = [{"role": "user", "content": "hi"}]


def chat(**more: Any) -> bytes:
    return json.dumps({"model": "m", "messages": MESSAGES, "stream": True} | more).encode()


def completion(**more: Any) -> bytes:
    return json.dumps(
        {"model": "m", "prompt": "hi", "max_tokens": 5, "stream": True} | more
    ).encode()


def why_not(path: str, body: bytes) -> NotResumed | None:
    try:
        Continuation(path, body)
    except NotResumableError as error:
        return error.why
    return None


@pytest.mark.parametrize(
    "more",
    [
        {"temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "logit_bias": {"5": 1}},
        {"n": 1, "stop": None, "logprobs": False, "tools": [], "tool_choice": "auto", "seed": None},
        {"presence_penalty": 0.0, "frequency_penalty": 0, "repetition_penalty": 1.1},
        {"response_format": {"type": "text"}, "stream_options": {"include_usage": True}},
        {"user": "u", "metadata": {"a": "b" * 500}, "priority": 3, "cache_salt": "s"},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]},
        {"messages": [{"role": "assistant", "content": None, "tool_calls": []}, *MESSAGES]},
    ],
    ids=repr,
)
def test_a_request_whose_fields_mean_the_same_later_can_be_continued(more: dict[str, Any]) -> None:
    assert why_not(CHAT_PATH, chat(**more)) is None


def test_one_prompt_in_a_list_is_that_prompt() -> None:
    asked = json.loads(Continuation(COMPLETION_PATH, completion(prompt=["hi"])).body(" you", 1))

    assert (asked["prompt"], asked["max_tokens"]) == ("hi you", 4)


@pytest.mark.parametrize(
    ("path", "body", "why"),
    [
        (CHAT_PATH, chat(n=2), NotResumed.FIELD),
        (CHAT_PATH, chat(seed=1), NotResumed.FIELD),
        (CHAT_PATH, chat(logprobs=True), NotResumed.FIELD),
        (COMPLETION_PATH, completion(logprobs=0), NotResumed.FIELD),
        (COMPLETION_PATH, completion(echo=True), NotResumed.FIELD),
        (COMPLETION_PATH, completion(best_of=2), NotResumed.FIELD),
        (COMPLETION_PATH, completion(suffix="end"), NotResumed.FIELD),
        (CHAT_PATH, chat(stop=["\n"]), NotResumed.FIELD),
        (CHAT_PATH, chat(tools=[{"type": "function"}]), NotResumed.FIELD),
        (CHAT_PATH, chat(tool_choice="required"), NotResumed.FIELD),
        (CHAT_PATH, chat(response_format={"type": "json_object"}), NotResumed.FIELD),
        (CHAT_PATH, chat(guided_json={"type": "object"}), NotResumed.FIELD),
        (CHAT_PATH, chat(structured_outputs={"choice": ["a"]}), NotResumed.FIELD),
        (CHAT_PATH, chat(presence_penalty=0.1), NotResumed.FIELD),
        (CHAT_PATH, chat(continue_final_message=True), NotResumed.FIELD),
        (CHAT_PATH, chat(chat_template_kwargs={"thinking": False}), NotResumed.FIELD),
        (CHAT_PATH, chat(unknown="x" * 1000), NotResumed.FIELD),
        (COMPLETION_PATH, completion(prompt=[1, 2]), NotResumed.PROMPT),
        (COMPLETION_PATH, completion(prompt=[[1, 2]]), NotResumed.PROMPT),
        (COMPLETION_PATH, completion(prompt=[]), NotResumed.PROMPT),
        (COMPLETION_PATH, completion(prompt=["a", "b"]), NotResumed.PROMPT),
        (CHAT_PATH, chat(messages=[]), NotResumed.PROMPT),
        (
            CHAT_PATH,
            chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]),
            NotResumed.ATTACHMENT,
        ),
        (COMPLETION_PATH, completion(max_tokens=None), NotResumed.NO_LIMIT),
        (COMPLETION_PATH, completion(max_tokens="5"), NotResumed.UNREADABLE),
        (COMPLETION_PATH, b'{"max_tokens": 9, "prompt": "half \\ud83d"}', NotResumed.UNREADABLE),
        (CHAT_PATH, b"{", NotResumed.UNREADABLE),
        (CHAT_PATH, b"[]", NotResumed.UNREADABLE),
        ("/v1/messages", chat(), NotResumed.OTHER_API),
    ],
    ids=repr,
)
def test_a_request_that_could_not_be_continued_exactly_is_named(
    path: str, body: bytes, why: NotResumed
) -> None:
    assert why_not(path, body) is why


def test_what_the_client_wrote_goes_out_as_it_wrote_it() -> None:
    odd = b'"a\\u00e9 \\/ \\ud83d\\ude42"'
    body = b'{"prompt" : %b , "max_tokens":9, "temperature": 1.50, "user":"\\u0075"}' % odd

    asked = Continuation(COMPLETION_PATH, body).body('"é\n', 2)

    assert odd[:-1] + '\\"é\\n"'.encode() in asked
    assert b'"temperature":1.50' in asked
    assert b'"user":"\\u0075"' in asked
    assert b'"max_tokens":7' in asked


@given(st.text(), st.text(), st.integers(0, 50), st.integers(1, 99))
def test_the_longer_prompt_is_the_prompt_and_the_text(
    prompt: str, text: str, num_tokens: int, limit: int
) -> None:
    body = completion(prompt=prompt, max_tokens=limit)

    asked = decode_completion_request(Continuation(COMPLETION_PATH, body).body(text, num_tokens))

    assert asked.prompt == prompt + text
    assert asked.max_tokens == (max(1, limit - num_tokens) if text or num_tokens else limit)


@given(st.text(min_size=1), st.integers(1, 50), st.integers(60, 99))
def test_a_chat_goes_on_in_the_assistants_message(text: str, num_tokens: int, limit: int) -> None:
    body = chat(max_completion_tokens=limit, max_tokens=limit + 1, min_tokens=20)

    asked = decode_chat_request(Continuation(CHAT_PATH, body).body(text, num_tokens))

    assert (asked.messages[-1].role, asked.messages[-1].content) == ("assistant", text)
    assert asked.max_completion_tokens == limit - num_tokens
    assert asked.max_tokens == limit + 1 - num_tokens
    assert render_chat(asked).startswith(render_chat(decode_chat_request(body)))


def test_a_rendered_continuation_extends_what_was_rendered() -> None:
    body = completion(prompt="four" * 4)

    asked = decode_completion_request(Continuation(COMPLETION_PATH, body).body("bab bac ", 2))

    (before,) = render_completion(decode_completion_request(body))
    (after,) = render_completion(asked)
    assert after == before + b"bab bac "


def test_nothing_sent_is_the_request_itself() -> None:
    body = chat(max_tokens=3)

    assert Continuation(CHAT_PATH, body).body("", 0) == body


@pytest.mark.parametrize(
    ("options", "wanted"), [(None, False), ({"include_usage": True}, True), ({}, False)]
)
def test_whether_usage_is_wanted_is_known(options: object, wanted: bool) -> None:
    assert Continuation(CHAT_PATH, chat(stream_options=options)).wants_usage is wanted
