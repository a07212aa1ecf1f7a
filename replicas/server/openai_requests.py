"""From the body of an OpenAI request to what is to be generated, or to a refusal.

Every refusal is decided here or by the engine before the first byte of an answer, so it is a
status of its own for streams too.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

import msgspec

from contract.blocks import TOKEN_BYTES
from contract.failures import Failure
from contract.openai_api import (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    InvalidPromptError,
    decode_chat_request,
    decode_completion_request,
    decode_embedding_request,
    render_chat,
    render_completion,
    render_prompts,
)
from replicas.core.scheduler_config import SchedulerConfig
from replicas.server.config import ReplicaConfig
from replicas.server.generation import Prompt, SamplingRules
from replicas.server.refusal import RefusedError
from replicas.server.served_models import ServedModels

T = TypeVar("T")

_FIELD = re.compile(r"`\$\.([^`]+)`|missing required field `([^`]+)`")


class Route(Enum):
    """The two routes that generate."""

    CHAT = "chat"
    COMPLETION = "completion"


@dataclass(frozen=True, slots=True)
class Job:
    """What one request asks for; every prompt has ``num_choices`` answers.

    ``echoes`` has the text that each prompt's answers begin with, mostly "".
    """

    prompts: list[Prompt]
    echoes: list[str]
    num_choices: int
    rules: SamplingRules
    stream: bool
    include_usage: bool
    model: str  # as the answer names it


@dataclass(frozen=True, slots=True)
class EmbeddingJob:
    """What one request for embeddings asks for: a vector of ``dimensions`` for each prompt."""

    prompts: list[Prompt]
    rules: SamplingRules
    dimensions: int
    base64: bool
    model: str


def read_job(
    route: Route, body: bytes, models: ServedModels, config: ReplicaConfig, engine: SchedulerConfig
) -> Job:
    """Decode and check a body. Raises RefusedError."""
    request: ChatRequest | CompletionRequest
    if route is Route.CHAT:
        request = decoded(decode_chat_request, body)
    else:
        request = decoded(decode_completion_request, body)
    adapter = models.adapter_of(request.model)
    rendered, echoes = _render(request)
    num_choices = _num_choices(request, len(rendered), config)
    options = request.stream_options
    return Job(
        prompts=_prompts(rendered, models, adapter, request.cache_salt),
        echoes=echoes,
        num_choices=num_choices,
        rules=_rules(request, max(map(len, rendered)) // TOKEN_BYTES, config, engine),
        stream=bool(request.stream),
        include_usage=options is not None and bool(options.include_usage),
        model=adapter or models.model,
    )


def read_embedding_job(
    body: bytes, models: ServedModels, config: ReplicaConfig, engine: SchedulerConfig
) -> EmbeddingJob:
    """Decode and check a body of ``/v1/embeddings``. Raises RefusedError."""
    request = decoded(decode_embedding_request, body)
    adapter = models.adapter_of(request.model)
    rendered = _rendered_input(request)
    if len(rendered) > config.max_sequences_per_request:
        message = (
            f"'input' has {len(rendered)} texts, at most {config.max_sequences_per_request} are "
            "accepted"
        )
        raise RefusedError(Failure.INVALID_REQUEST, message, "input")
    longest = max(map(len, rendered)) // TOKEN_BYTES
    if longest > engine.max_model_len:
        message = f"'input' has {longest} tokens, this model's context is {engine.max_model_len}"
        raise RefusedError(Failure.CONTEXT_LENGTH, message, "input")
    return EmbeddingJob(
        prompts=_prompts(rendered, models, adapter, request.cache_salt),
        rules=SamplingRules(1, open_ended=False, priority=request.priority or 0, pooling=True),
        dimensions=_dimensions(request, config),
        base64=_is_base64(request),
        model=adapter or models.model,
    )


def _prompts(
    rendered: list[bytes], models: ServedModels, adapter: str | None, cache_salt: str | None
) -> list[Prompt]:
    root = models.root_of(adapter, cache_salt)
    return [Prompt(words, root, adapter, cache_salt) for words in rendered]


def _rendered_input(request: EmbeddingRequest) -> list[bytes]:
    try:
        rendered = render_prompts(request.input, "input")
    except InvalidPromptError as error:
        raise RefusedError(Failure.INVALID_REQUEST, str(error), "input") from error
    if not all(rendered):
        raise RefusedError(Failure.INVALID_REQUEST, "'input' has no tokens", "input")
    return rendered


def _dimensions(request: EmbeddingRequest, config: ReplicaConfig) -> int:
    most = config.embedding_dimensions
    dimensions = most if request.dimensions is None else request.dimensions
    if not 1 <= dimensions <= most:
        message = f"'dimensions' is {dimensions}, must be 1 to {most}"
        raise RefusedError(Failure.INVALID_REQUEST, message, "dimensions")
    return dimensions


def _is_base64(request: EmbeddingRequest) -> bool:
    encoding = request.encoding_format or "float"
    if encoding not in ("float", "base64"):
        message = f"'encoding_format' is {encoding!r}, must be 'float' or 'base64'"
        raise RefusedError(Failure.INVALID_REQUEST, message, "encoding_format")
    return encoding == "base64"


def decoded(decode: Callable[[bytes], T], body: bytes) -> T:
    """Return the decoded body. Raises RefusedError that names the field at fault."""
    try:
        return decode(body)
    except msgspec.ValidationError as error:
        field = _FIELD.search(str(error))
        param = (field[1] or field[2]) if field else None
        raise RefusedError(Failure.INVALID_REQUEST, str(error), param) from error
    except msgspec.DecodeError as error:
        raise RefusedError(Failure.INVALID_JSON, f"the body is not JSON: {error}") from error


def _render(request: ChatRequest | CompletionRequest) -> tuple[list[bytes], list[str]]:
    """Return the rendered prompts, and the text that each one's answers begin with."""
    if isinstance(request, ChatRequest):
        if not request.messages:
            raise RefusedError(Failure.INVALID_REQUEST, "'messages' is empty", "messages")
        for index, message in enumerate(request.messages):
            if not message.role:
                param = f"messages[{index}].role"
                raise RefusedError(Failure.INVALID_REQUEST, f"{param!r} is missing", param)
        if request.continue_final_message and request.add_generation_prompt:
            both = "'continue_final_message' and 'add_generation_prompt' exclude each other"
            raise RefusedError(Failure.INVALID_REQUEST, both, "continue_final_message")
        return [render_chat(request)], [""]
    try:
        rendered = render_completion(request)
    except InvalidPromptError as error:
        raise RefusedError(Failure.INVALID_REQUEST, str(error), "prompt") from error
    if not all(rendered):
        raise RefusedError(Failure.INVALID_REQUEST, "'prompt' has no tokens", "prompt")
    if not request.echo:
        return rendered, [""] * len(rendered)
    # A prompt of token ids is echoed as the text whose words they are.
    return rendered, [words.rstrip(b"\0").decode("utf-8", "replace") for words in rendered]


def _num_choices(
    request: ChatRequest | CompletionRequest, num_prompts: int, config: ReplicaConfig
) -> int:
    num_choices = 1 if request.n is None else request.n
    most = config.max_sequences_per_request
    if num_choices < 1 or num_choices * num_prompts > most:
        raise RefusedError(
            Failure.INVALID_REQUEST,
            f"'n' is {num_choices} for {num_prompts} prompts; n must be at least 1, and the number "
            f"of prompts times n at most {most}",
            "n",
        )
    return num_choices


def _rules(
    request: ChatRequest | CompletionRequest,
    prompt_tokens: int,
    config: ReplicaConfig,
    engine: SchedulerConfig,
) -> SamplingRules:
    param, max_tokens = "max_tokens", request.max_tokens
    if isinstance(request, ChatRequest) and request.max_completion_tokens is not None:
        param, max_tokens = "max_completion_tokens", request.max_completion_tokens
    if max_tokens is not None and max_tokens < 1:
        message = f"{param!r} is {max_tokens}, must be at least 1"
        raise RefusedError(Failure.INVALID_REQUEST, message, param)
    room = engine.max_model_len - prompt_tokens
    if room < (max_tokens or 1):
        raise RefusedError(
            Failure.CONTEXT_LENGTH,
            f"this model's context is {engine.max_model_len} tokens; the prompt has "
            f"{prompt_tokens} and {max_tokens or 1} more are asked for",
            "messages" if isinstance(request, ChatRequest) else "prompt",
        )
    # Without a limit an answer may have what the context and the KV blocks leave. The last token
    # is returned and never computed, so it needs no block.
    kv_room = (engine.num_blocks - 1) * engine.block_size + 1 - prompt_tokens
    open_max = max(1, min(room, kv_room, config.open_ended_tokens_max))
    return SamplingRules(
        max_tokens=open_max if max_tokens is None else max_tokens,
        open_ended=max_tokens is None,
        stops=_stops(request.stop, config),
        priority=request.priority or 0,
    )


def _stops(stop: str | list[str] | None, config: ReplicaConfig) -> tuple[bytes, ...]:
    listed = [stop] if isinstance(stop, str) else stop or []
    stops = tuple(each.encode("utf-8", "surrogatepass") for each in listed)
    if len(stops) > config.max_stop_strings:
        message = f"'stop' has {len(stops)} strings, at most {config.max_stop_strings} are accepted"
        raise RefusedError(Failure.INVALID_REQUEST, message, "stop")
    if any(not 0 < len(each) <= config.max_stop_bytes for each in stops):
        message = f"a string of 'stop' must have 1 to {config.max_stop_bytes} bytes"
        raise RefusedError(Failure.INVALID_REQUEST, message, "stop")
    return stops
