"""Rendering: the prefix property, one text in two forms, and attachments by their digest."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.openai_api import (
    InvalidPromptError,
    decode_chat_fields,
    decode_chat_request,
    decode_completion_fields,
    decode_completion_request,
    decode_usage,
    render_chat,
    render_completion,
)

HEADER = b"<|assistant|>\0\0\0"
ROLES = st.sampled_from(["system", "user", "assistant", "tool"])
TEXTS = st.text(alphabet="aé🙂 \n", max_size=12)
MESSAGES = st.lists(st.fixed_dictionaries({"role": ROLES, "content": TEXTS}), max_size=5)


def render(messages: Any, **fields: Any) -> bytes:
    return render_chat(decode_chat_fields(json.dumps({"messages": messages} | fields)))


def complete(prompt: Any) -> list[bytes]:
    return render_completion(decode_completion_fields(json.dumps({"prompt": prompt})))


@given(history=MESSAGES, turn=MESSAGES)
def test_longer_conversation_extends_the_shorter(history: Any, turn: Any) -> None:
    before = render(history).removesuffix(HEADER)

    assert render(history + turn).startswith(before)


@given(messages=MESSAGES)
def test_prompt_is_whole_words_and_ends_where_the_answer_begins(messages: Any) -> None:
    prompt = render(messages)

    assert len(prompt) % 4 == 0
    assert prompt.endswith(HEADER)


@given(texts=st.lists(TEXTS, min_size=1, max_size=4))
def test_text_parts_render_like_their_text(texts: list[str]) -> None:
    parts = [{"type": "text", "text": text} for text in texts]

    as_parts = render([{"role": "user", "content": parts}])

    assert as_parts == render([{"role": "user", "content": "".join(texts)}])


@given(first=MESSAGES, second=MESSAGES)
def test_different_conversations_render_differently(first: Any, second: Any) -> None:
    assert (render(first) == render(second)) == (first == second)


def test_tools_come_first_and_change_the_prefix() -> None:
    messages = [{"role": "user", "content": "hi"}]

    one, two = (render(messages, tools=[{"name": name}]) for name in ("a", "b"))

    assert one.startswith(b"<|tools|>")
    assert one[:40] != two[:40]


def test_null_content_with_tool_calls_renders_the_calls() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}

    assert b'"id"' in render([call])


def test_tool_result_is_bound_to_its_call() -> None:
    results = [
        render([{"role": "tool", "content": "x", "tool_call_id": call}]) for call in ("1", "2")
    ]

    assert results[0] != results[1]


def image(url: str) -> list[dict[str, Any]]:
    return [{"type": "image_url", "image_url": {"url": url}}]


def test_every_byte_of_an_attachment_counts_and_its_length_does_not() -> None:
    small, changed, large = (
        render([{"role": "user", "content": image(url)}])
        for url in ("data:" + "a" * 9, "data:" + "a" * 8 + "b", "data:" + "a" * 100_000)
    )

    assert small != changed
    assert len(small) == len(changed) == len(large)


@pytest.mark.parametrize(
    "field",
    [
        *("image_url", "input_audio", "file", "video_url", "audio_url", "image_embeds"),
        *("audio_embeds", "uuid"),
    ],
)
def test_every_kind_of_attachment_is_known_by_what_it_names(field: str) -> None:
    def prompt(value: Any) -> bytes:
        return render([{"role": "user", "content": [{"type": "x", field: value}]}])

    assert prompt("a") != prompt("b")
    assert prompt("a") == prompt("a")
    assert prompt("a") != render([{"role": "user", "content": [{"type": "x", "other": "a"}]}])


def test_attachments_of_two_kinds_differ_though_they_name_the_same() -> None:
    parts = [{"type": "x", field: "a"} for field in ("image_url", "video_url", "audio_url")]

    assert len({render([{"role": "user", "content": [part]}]) for part in parts}) == 3


@pytest.mark.parametrize("nothing", [None, []])
def test_no_tools_are_none_however_that_is_written(nothing: list[str] | None) -> None:
    """Clients send back an assistant's message as they got it, with a null for all it lacks."""
    asked, said = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}

    assert render([asked, said | {"tool_calls": nothing}], tools=nothing) == render([asked, said])


def test_tools_stand_before_the_system_message_and_that_before_the_rest() -> None:
    messages = [{"role": "system", "content": "SYSTEM"}, {"role": "user", "content": "USER"}]

    prompt = render(messages, tools=[{"name": "TOOL"}])

    places = [prompt.index(word) for word in (b"TOOL", b"SYSTEM", b"USER")]
    assert places == sorted(places)


def test_text_is_its_bytes_however_json_writes_it_and_never_normalised() -> None:
    composed, decomposed = "é", "e\u0301"  # one to the eye

    body = '{"messages":[{"role":"user","content":"%s"}]}'
    escaped = render_chat(decode_chat_fields(body % "\\u00e9 \\ud83d\\ude42"))

    assert escaped == render([{"role": "user", "content": f"{composed} 🙂"}])
    assert escaped != render([{"role": "user", "content": f"{decomposed} 🙂"}])
    assert "é 🙂".encode() in escaped
    assert complete(composed) != complete(decomposed)
    assert complete("a\u200b") != complete("a"), "a space of no width is still there"


def test_text_after_an_image_keeps_what_is_before() -> None:
    text = {"type": "text", "text": "look"}

    with_image = render([{"role": "user", "content": [text, *image("data:a")]}])

    assert with_image.startswith(render([{"role": "user", "content": "look"}]).removesuffix(HEADER))


@pytest.mark.parametrize(
    ("prompt", "rendered"),
    [
        ("abcde", [b"abcde\0\0\0"]),
        ("", [b""]),
        ([1, 2**32 - 1], [b"\1\0\0\0\xff\xff\xff\xff"]),
        (["a", "bc"], [b"a\0\0\0", b"bc\0\0"]),
        ([[1], [2]], [b"\1\0\0\0", b"\2\0\0\0"]),
    ],
)
def test_completion_prompt_renders_in_each_of_its_forms(prompt: Any, rendered: Any) -> None:
    assert complete(prompt) == rendered


@pytest.mark.parametrize("prompt", [[], ["a", 1], [1, [2]], [-1], [2**32], [[-1]]])
def test_completion_prompt_that_cannot_be_is_refused(prompt: Any) -> None:
    with pytest.raises(InvalidPromptError):
        complete(prompt)


def test_unknown_fields_are_skipped() -> None:
    body = b'{"model": "m", "chat_template_kwargs": {"x": 1}, "messages": [], "stream": true}'

    assert decode_chat_fields(body).model == "m"


@pytest.mark.parametrize("tokens", [b"null", b"5"])
def test_null_is_the_same_as_absent(tokens: bytes) -> None:
    """KV-06"""
    chat = decode_chat_request(b'{"messages": [], "max_tokens": %s, "n": null}' % tokens)
    completion = decode_completion_request(b'{"prompt": "", "max_tokens": %s}' % tokens)

    assert chat.max_tokens == completion.max_tokens == json.loads(tokens)


@pytest.mark.parametrize(
    ("body", "cached"),
    [
        (b'{"prompt_tokens": 9}', None),
        (b'{"prompt_tokens": 9, "prompt_tokens_details": null}', None),
        (b'{"prompt_tokens_details": {}}', None),
        (b'{"prompt_tokens_details": {"cached_tokens": 7, "audio_tokens": 0}}', 7),
    ],
)
def test_cached_tokens_are_the_engines_own_word(body: bytes, cached: int | None) -> None:
    assert decode_usage(body).cached_tokens == cached
