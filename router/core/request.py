"""Reads out of a request's body what routing needs, and nothing that routing does not need.

A body that is JSON but odd (numbers as strings, unknown shapes) is the engine's to judge: it is
routed by load alone, as long as the model's name can be read. Only a chat or completion body
that is not JSON at all is refused here.
"""

import json
import re
from codecs import BOM_UTF8
from functools import lru_cache
from math import ceil
from typing import Any

import msgspec
from xxhash import xxh3_64_intdigest

from contract.blocks import TOKEN_BYTES, BlockHash, root_hash
from contract.failures import Failure
from contract.openai_api import (
    ChatFields,
    CompletionFields,
    InvalidPromptError,
    decode_chat_fields,
    decode_completion_fields,
    render_chat,
    render_completion,
)
from router.core.config import RoutingConfig
from router.core.dialects import DIALECTS, told_as_chat
from router.core.forms import form_fields
from router.core.view import RouteRequest

CHAT_PATH = "/v1/chat/completions"
COMPLETION_PATH = "/v1/completions"

_ROOTS_MAX = 1024  # models times salts; a client that invents them only loses the memo


class BadRequestError(ValueError):
    """The client must change its request; ``failure`` says how it is answered."""

    def __init__(self, failure: Failure, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.failure = failure
        self.message = message
        self.param = param


class _Names(msgspec.Struct):
    """A JSON object of any shape whose model is text or missing."""

    model: str | None = None
    stream: Any = None


_decode_names = msgspec.json.Decoder(_Names).decode
_HALF_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_root_of = lru_cache(_ROOTS_MAX)(root_hash)


def route_request(
    path: str,
    body: bytes,
    request_id: str,
    config: RoutingConfig,
    session_key: str | None = None,
    tenant: str = "",
) -> RouteRequest:
    """Return ``body``, sent to ``path``, as routing sees it.

    Raises BadRequestError for a chat or completion body that is not a JSON object, or whose model
    is not text. On other paths the body may be anything; its model is read if it has one.
    """
    path = path.partition("?")[0]
    body = body.removeprefix(BOM_UTF8)  # engines skip it, as json.loads() does; it is sent on
    must_be_json = path in (CHAT_PATH, COMPLETION_PATH)
    if not must_be_json and path not in DIALECTS:
        return _without_prompt(body, request_id, config, session_key, must_be_json=False)
    try:
        if path == COMPLETION_PATH:
            completion = decode_completion_fields(body)
            fields: ChatFields | CompletionFields = completion
            prompts = render_completion(completion)
            answer_at = _answer_in_completion(completion)
        else:
            is_chat = path == CHAT_PATH
            fields = chat = decode_chat_fields(body) if is_chat else told_as_chat(path, body)
            prompts = [render_chat(chat)] if chat.messages else [b""]
            answer_at = _answer_in_chat(chat, prompts[0]) if is_chat else None
    except (msgspec.DecodeError, InvalidPromptError, UnicodeError, RecursionError):
        return _without_prompt(body, request_id, config, session_key, must_be_json=must_be_json)
    # Several prompts in one request are one unit of routing: the first stands for all.
    prompt = prompts[0]
    root = _root_of(fields.model or "", "", fields.cache_salt or "", tenant)
    num_bytes = sum(map(len, prompts))
    has_name = len(prompt) >= config.index_block_bytes or _has_words(fields)
    return RouteRequest(
        request_id=request_id,
        model=fields.model,
        prompt_tokens=max(1, ceil(num_bytes / config.bytes_per_token)),
        root=root,
        prompt=prompt,
        cache_salt=fields.cache_salt or "",
        tenant=tenant,
        prefix_key=prefix_key(prompt, root, config) if has_name else None,
        session_key=session_key,
        stream=fields.stream is True,
        num_choices=(fields.n or 1) * len(prompts),
        answer_at=answer_at,
    )


def _answer_in_chat(chat: ChatFields, prompt: bytes) -> int | None:
    """Return where the text of the answer stands in the prompt of the next turn, if it will.

    That is behind the assistant's header, or behind the text that it goes on from.
    """
    if not chat.messages:
        return None
    if not chat.continue_final_message:
        return None if chat.add_generation_prompt is False else len(prompt)
    last = chat.messages[-1]
    if not isinstance(last.content, str) or last.tool_calls or last.tool_call_id:
        return None
    padding = -len(last.content.encode("utf-8", "surrogatepass")) % TOKEN_BYTES
    return len(prompt) - padding


def _answer_in_completion(completion: CompletionFields) -> int | None:
    """Likewise: behind the prompt, unless it is of token ids, as the answer is text."""
    prompt = completion.prompt
    return len(prompt.encode("utf-8", "surrogatepass")) if isinstance(prompt, str) else None


def _has_words(fields: ChatFields | CompletionFields) -> bool:
    """Say whether the prompt says anything: one image or a few token ids begin no other prompt."""
    if isinstance(fields, CompletionFields):
        prompt = fields.prompt
        return isinstance(prompt, str) or isinstance(prompt[0], str)
    contents = (message.content or () for message in fields.messages)
    return any(
        content if isinstance(content, str) else any(part.text for part in content)
        for content in contents
    )


def prefix_key(prompt: bytes, root: BlockHash, config: RoutingConfig) -> int | None:
    """Return the hash of the first whole blocks; of all, where the prompt fills not even one."""
    if not prompt:
        return None
    block_bytes = config.index_block_bytes
    num_blocks = min(len(prompt) // block_bytes, config.prefix_key_blocks)
    return xxh3_64_intdigest(prompt[: num_blocks * block_bytes] if num_blocks else prompt, root)


def _without_prompt(
    body: bytes,
    request_id: str,
    config: RoutingConfig,
    session_key: str | None,
    *,
    must_be_json: bool,
) -> RouteRequest:
    """Return a request that is routed by load: its cost is guessed from the body's length."""
    try:
        names = _read_names(body)
    except (ValueError, RecursionError) as error:  # all of msgspec's and json's are ValueErrors
        if must_be_json:
            raise _bad_request(error, body) from error
        names = _names_in_form(body)
    return RouteRequest(
        request_id=request_id,
        model=names.model,
        prompt_tokens=max(1, ceil(len(body) / config.bytes_per_token)),
        session_key=session_key,
        stream=names.stream is True,
    )


def _read_names(body: bytes) -> _Names:
    try:
        return _decode_names(body)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        # A text cut in the middle of an emoji has half of a surrogate pair: that is JSON, but
        # msgspec takes it for a truncated document. Everything else is left at its word.
        if not _HALF_SURROGATE.search(body):
            raise
        names = msgspec.convert(json.loads(body), _Names)
        if names.model is not None:  # it will stand in labels and messages, so it must be UTF-8
            names.model = names.model.encode("utf-8", "replace").decode()
        return names


def _names_in_form(body: bytes) -> _Names:
    fields = form_fields(body)
    return _Names(fields.get("model") or None, fields.get("stream", "").lower() in ("true", "1"))


def _bad_request(error: Exception, body: bytes) -> BadRequestError:
    if isinstance(error, msgspec.ValidationError):
        return BadRequestError(Failure.INVALID_REQUEST, f"the request cannot be read: {error}")
    position = "" if "byte " in str(error) else f" (byte {len(body)})"
    return BadRequestError(Failure.INVALID_JSON, f"the body is not JSON: {error}{position}")
