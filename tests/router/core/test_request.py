"""What routing reads out of a body, and what it refuses."""

import json
from typing import Any

import pytest

from contract.failures import Failure
from router.core.config import RoutingConfig
from router.core.request import BadRequestError, route_request
from router.core.view import RouteRequest

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
CONFIG = RoutingConfig()


def read(body: Any, path: str = CHAT, **others: Any) -> RouteRequest:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return route_request(path, data, "r1", CONFIG, **others)


def chat(*contents: Any, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": content} for content in contents]
    return {"model": "m", "messages": messages} | fields


def refusal(body: Any, path: str = CHAT) -> BadRequestError:
    with pytest.raises(BadRequestError) as caught:
        read(body, path)
    return caught.value


def test_next_turn_extends_the_prompt_of_the_turn_before() -> None:
    """PFX-01: the whole history, in order."""
    first = read(chat("a" * 1000)).chain((256, None))

    second = read(chat("a" * 1000, "b" * 1000)).chain((256, None))

    assert len(second) > len(first) >= 3
    assert second[:3] == first[:3]


def test_text_parts_and_string_are_the_same_prompt() -> None:
    """PFX-02"""
    parts = [{"type": "text", "text": "Hello "}, {"type": "text", "text": "you"}]

    assert read(chat(parts)).prompt == read(chat("Hello you")).prompt


def test_message_without_content_is_read() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    body = chat("a" * 300)
    body["messages"] = [*body["messages"], call]

    assert read(body).chain((256, None))[:1] == read(chat("a" * 300)).chain((256, None))[:1]


def test_image_that_differs_in_its_last_byte_is_another_prompt() -> None:
    """PFX-07"""

    def prompt(url: str) -> bytes:
        return read(chat([{"type": "image_url", "image_url": {"url": url}}])).prompt

    assert prompt("data:aaaa") != prompt("data:aaab")
    assert prompt("data:aaaa") == prompt("data:aaaa")


@pytest.mark.parametrize("body", [{"model": "m", "messages": []}, {"model": "m", "messages": 7}])
def test_no_prompt_means_no_affinity_and_still_a_cost(body: Any) -> None:
    """PFX-08"""
    request = read(body)

    assert (request.prompt, request.prefix_key) == (b"", None)
    assert request.prompt_tokens >= 1


def test_other_tools_are_another_prefix() -> None:
    """PFX-10"""
    tools = [[{"name": name, "description": "d" * 600}] for name in ("one", "two")]

    chains = [read(chat("a" * 300, tools=tool)).chain((256, None)) for tool in tools]

    assert chains[0][0] != chains[1][0]


def test_prefix_key_names_the_beginning_and_not_the_end() -> None:
    beginning = "a" * 600

    keys = {read(chat(beginning + end)).prefix_key for end in ("x", "y")}
    other = read(chat("b" + beginning)).prefix_key

    assert len(keys) == 1
    assert other not in keys


def test_short_prompts_have_keys_of_their_own() -> None:
    assert read(chat("x")).prefix_key != read(chat("y")).prefix_key


def test_model_salt_and_tenant_each_set_prompts_apart() -> None:
    body = chat("a" * 600)
    roots = {
        read(body).root,
        read(body | {"model": "n"}).root,
        read(body | {"cache_salt": "s"}).root,
        read(body, tenant="t").root,
    }

    assert len(roots) == 4


def test_adapter_has_prompts_of_its_own_by_its_name() -> None:
    base, adapter = (read(chat("a" * 600, model=name)) for name in ("base", "lora-a"))

    assert not {*base.chain((256, None))} & {*adapter.chain((256, None))}
    assert base.prefix_key != adapter.prefix_key


def test_salt_and_adapter_cannot_be_mistaken_for_each_other() -> None:
    prompts = [chat("a" * 600, model="ab", cache_salt="c"), chat("a" * 600, model="a")]
    prompts[1]["cache_salt"] = "bc"

    assert read(prompts[0]).root != read(prompts[1]).root


def test_request_id_is_no_affinity_key() -> None:
    body = json.dumps(chat("a" * 600)).encode()
    first, second = (route_request(CHAT, body, request_id, CONFIG) for request_id in ("1", "2"))

    assert first.session_key is None
    assert first.prefix_key == second.prefix_key
    assert first.chain((256, None)) == second.chain((256, None))
    assert route_request(CHAT, b'{"messages":[]}', "1", CONFIG).prefix_key is None


def test_session_key_and_stream_are_passed_on() -> None:
    request = read(chat("x", stream=True), session_key="s")

    assert (request.session_key, request.stream, request.model) == ("s", True, "m")


def test_prompt_tokens_are_the_bytes_over_the_bytes_per_token_rounded_up() -> None:
    assert read({"model": "m", "prompt": "abcde"}, COMPLETIONS).prompt_tokens == 2  # padded to 8


def test_token_ids_are_a_prompt() -> None:
    request = read({"model": "m", "prompt": list(range(128))}, COMPLETIONS)

    assert (request.prompt_tokens, len(request.chain((256, None)))) == (128, 2)


def test_several_prompts_are_routed_by_the_first_and_cost_all() -> None:
    request = read({"model": "m", "prompt": ["a" * 256, "b" * 256]}, COMPLETIONS)

    assert (request.prompt_tokens, len(request.prompt)) == (128, 256)


@pytest.mark.parametrize(
    "body",
    [
        chat("x", n="2"),
        chat("x", stream="yes"),
        {"model": "m", "messages": [{"role": 5}]},
        {"model": "m", "messages": "hello"},
        {"model": "m"},
        b'{"model": "m", "messages": [{"role": "user", "content": "\xff"}]}',
        b'{"model": "m", "messages": [{"role": "user", "content": "\\ud83d"}]}',
    ],
)
def test_odd_body_is_routed_by_its_model(body: Any) -> None:
    request = read(body)

    assert (request.model, request.prompt) == ("m", b"")


def test_odd_prompt_is_the_engines_to_judge() -> None:
    assert read({"model": "m", "prompt": ["a", 1]}, COMPLETIONS).model == "m"


@pytest.mark.parametrize(
    ("body", "position"),
    [(b"", 0), (b"{", 1), (b'{"model": "m",, }', 14)],
)
def test_body_that_is_not_json_is_refused_with_the_position(body: bytes, position: int) -> None:
    error = refusal(body)

    assert error.failure is Failure.INVALID_JSON
    assert f"byte {position}" in error.message


@pytest.mark.parametrize("body", [b'{"a":' * 100_000, b'{"a":' + b"[" * 100_000])
def test_body_nested_beyond_all_measure_is_refused(body: bytes) -> None:
    assert refusal(body).failure is Failure.INVALID_JSON


@pytest.mark.parametrize("body", [[], "text", 1, None, {"model": 5}, {"model": ["m"]}])
def test_body_without_a_readable_model_is_refused(body: Any) -> None:
    assert refusal(body).failure is Failure.INVALID_REQUEST


def test_model_that_is_not_unicode_can_be_printed() -> None:
    """PFX-15"""
    request = read(b'{"model": "m\\ud800", "messages": []}')

    assert request.model is not None
    assert request.model.encode() == b"m?"


@pytest.mark.parametrize("body", [b"", b"\x00\xff", b"--boundary", b"{", b"[1]", b'{"model": 5}'])
def test_other_paths_take_any_body(body: bytes) -> None:
    request = route_request("/v1/audio/transcriptions", body, "r1", CONFIG)

    assert (request.model, request.prompt, request.prefix_key) == (None, b"", None)


def test_other_paths_are_routed_by_their_model() -> None:
    request = read({"model": "m", "input": "text"}, "/v1/embeddings")

    assert request.model == "m"


def test_query_string_is_not_part_of_the_path() -> None:
    assert read(chat("x"), CHAT + "?trace=1").prompt == read(chat("x")).prompt
