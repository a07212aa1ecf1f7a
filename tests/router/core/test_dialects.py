"""Messages and Responses: what of their bodies is a prompt, and how turns extend each other."""

import json
from typing import Any

import pytest

from router.core.config import RoutingConfig
from router.core.request import route_request
from router.core.view import RouteRequest

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
LONG = "All that is said is said at length. " * 40
BLOCK = (64, None)
IMAGE = {"type": "base64", "media_type": "image/png", "data": "QUFB"}


def read(path: str, body: Any) -> RouteRequest:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return route_request(path, data, "r1", RoutingConfig())


def ask(*said: Any, **fields: Any) -> RouteRequest:
    """Read a body of Messages; a plain value is what the user says."""
    messages = [one if "role" in one else {"role": "user", "content": one} for one in said]
    return read(MESSAGES, {"model": "m", "messages": messages} | fields)


def common(one: RouteRequest, other: RouteRequest) -> int:
    """Return how many blocks both begin with."""
    pairs = zip(one.chain(BLOCK), other.chain(BLOCK), strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), len(one.chain(BLOCK)))


def text(words: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": words} | fields


@pytest.mark.parametrize("path", [MESSAGES, RESPONSES])
def test_turn_extends_the_turn_before(path: str) -> None:
    name = "messages" if path == MESSAGES else "input"
    turns = [{"role": role, "content": f"{role} {LONG}"} for role in ("user", "assistant", "user")]

    first, second = (read(path, {"model": "m", name: turns[:n]}) for n in (1, 3))

    assert common(first, second) >= len(first.chain(BLOCK)) - 1 > 20  # but the answer's header
    assert (second.model, second.root) == (first.model, first.root)
    assert second.prompt_tokens > 2.9 * len(LONG) / 4


def test_text_is_the_same_in_parts_and_whatever_is_marked_for_caching() -> None:
    marked = text(LONG, cache_control={"type": "ephemeral"})

    assert ask([marked]).prompt == ask([text(LONG)]).prompt == ask(LONG).prompt


def test_tools_come_first_then_the_system() -> None:
    tools = [{"name": "f", "description": LONG}]
    one, other = ask("a", system=LONG, tools=tools), ask("b", system=[text(LONG)], tools=tools)

    assert common(one, other) >= len(one.chain(BLOCK)) - 1 > 40
    assert one.prompt.index(b"description") < one.prompt.index(b"<|system|>")
    assert common(ask("a", system=LONG), ask("a", system="B" + LONG)) == 0


def test_what_tools_are_asked_and_answer_is_part_of_the_prompt() -> None:
    def turn(argument: str, result: str) -> RouteRequest:
        use = {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": argument}}
        answer = {"type": "tool_result", "tool_use_id": "t1", "content": [text(result)]}
        return ask(LONG, {"role": "assistant", "content": [use]}, [answer])

    before = len(ask(LONG).chain(BLOCK)) - 1
    assert before <= common(turn("x" * 99, LONG), turn("y" * 99, LONG)) < before + 3
    assert common(turn("x", LONG), turn("x", LONG[:700])) > before + 9


def test_items_of_responses_are_part_of_the_prompt() -> None:
    def turn(argument: str, output: str) -> RouteRequest:
        call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": argument}
        answer = {"type": "function_call_output", "call_id": "c", "output": output}
        said = [{"role": "user", "content": [{"type": "input_text", "text": LONG}]}, call, answer]
        return read(RESPONSES, {"model": "m", "instructions": "Be brief.", "input": said})

    spoken = read(RESPONSES, {"model": "m", "instructions": "Be brief.", "input": LONG})
    before = len(spoken.chain(BLOCK)) - 1
    assert before <= common(turn("x" * 99, LONG), turn("y" * 99, LONG)) < before + 3
    assert common(turn("x", LONG), turn("x", LONG[:700])) > before + 9
    assert common(turn("x", "y"), spoken) >= before


def test_image_that_differs_in_its_last_byte_is_another_prompt() -> None:
    other = IMAGE | {"data": "QUFC"}
    prompts = [ask([{"type": "image", "source": s}, text(LONG)]) for s in (IMAGE, other, IMAGE)]

    assert common(prompts[0], prompts[1]) == 0
    assert prompts[0].prompt == prompts[2].prompt


@pytest.mark.parametrize("path", [MESSAGES, RESPONSES])
@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"model":"m"}', b'{"model":"m","messages":5,"input":5}']
)
def test_body_of_another_shape_is_routed_by_load(path: str, body: bytes) -> None:
    request = read(path, body)

    assert (request.prompt, request.prefix_key) == (b"", None)
    assert request.model == ("m" if b"model" in body else None)
