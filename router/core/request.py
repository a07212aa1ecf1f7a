"""Reads out of a request's body what routing needs, and nothing that routing does not need.

A body that is JSON but odd (numbers as strings, unknown shapes) is the engine's to judge: it is
routed by load alone, as long as the model's name can be read. Only a chat or completion body
that is not JSON at all is refused here.
"""

import json
import re
from functools import lru_cache
from math import ceil
from typing import Any

import msgspec
from xxhash import xxh3_64_intdigest

from contract.blocks import BlockHash, root_hash
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
    if path not in (CHAT_PATH, COMPLETION_PATH):
        return _without_prompt(body, request_id, config, session_key, must_be_json=False)
    try:
        if path == CHAT_PATH:
            chat = decode_chat_fields(body)
            fields: ChatFields | CompletionFields = chat
            prompts = [render_chat(chat)] if chat.messages else [b""]
        else:
            fields = completion = decode_completion_fields(body)
            prompts = render_completion(completion)
    except (msgspec.DecodeError, InvalidPromptError, UnicodeError, RecursionError):
        return _without_prompt(body, request_id, config, session_key, must_be_json=True)
    # Several prompts in one request are one unit of routing: the first stands for all.
    prompt = prompts[0]
    root = _root_of(fields.model or "", "", fields.cache_salt or "", tenant)
    num_bytes = sum(map(len, prompts))
    return RouteRequest(
        request_id=request_id,
        model=fields.model,
        prompt_tokens=max(1, ceil(num_bytes / config.bytes_per_token)),
        root=root,
        prompt=prompt,
        cache_salt=fields.cache_salt or "",
        tenant=tenant,
        prefix_key=prefix_key(prompt, root, config),
        session_key=session_key,
        stream=fields.stream is True,
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
        names = _Names()
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


def _bad_request(error: Exception, body: bytes) -> BadRequestError:
    if isinstance(error, msgspec.ValidationError):
        return BadRequestError(Failure.INVALID_REQUEST, f"the request cannot be read: {error}")
    position = "" if "byte " in str(error) else f" (byte {len(body)})"
    return BadRequestError(Failure.INVALID_JSON, f"the body is not JSON: {error}{position}")
