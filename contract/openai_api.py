"""The OpenAI fields that a router or a fake engine needs, and the rendered prompt both agree on.

A gateway decodes these fields out of a body that it forwards byte for byte; unknown fields are
skipped. The rendered prompt keeps the prefix property: tools first, then each message in order,
so turn n+1 of a conversation extends turn n.

Rule: every part of a rendered prompt is padded to whole 4-byte words. A message therefore has the
same words wherever it stands, and text that an engine of 4-byte tokens generated has the same
token ids when it comes back as the assistant's message of the next turn.
"""

from array import array
from collections.abc import Iterable

import msgspec
from xxhash import xxh3_128_digest

from contract.blocks import TOKEN_BYTES, token_bytes

_NO_JSON = msgspec.Raw()


class InvalidPromptError(ValueError):
    """The prompt cannot be rendered; the message says what was found and what is accepted."""


class ContentPart(msgspec.Struct):
    """One part of a message: text, or something known by its digest (image, audio, file)."""

    type: str = "text"
    text: str | None = None
    image_url: msgspec.Raw = _NO_JSON
    input_audio: msgspec.Raw = _NO_JSON
    file: msgspec.Raw = _NO_JSON
    video_url: msgspec.Raw = _NO_JSON  # vLLM's, as are the next four
    audio_url: msgspec.Raw = _NO_JSON
    image_embeds: msgspec.Raw = _NO_JSON
    audio_embeds: msgspec.Raw = _NO_JSON
    uuid: msgspec.Raw = _NO_JSON  # the client's name for what may then be left out

    def digest(self) -> bytes:
        """Return 128 bits of everything that names the attachment: its last byte counts too."""
        openai = (self.image_url, self.input_audio, self.file)
        vllm = (self.video_url, self.audio_url, self.image_embeds, self.audio_embeds, self.uuid)
        raw = b"\0".join(map(bytes, openai + vllm))
        return xxh3_128_digest(self.type.encode("utf-8", "surrogatepass") + b"\0" + raw)


class ChatMessage(msgspec.Struct):
    """One message; ``content`` may be null where ``tool_calls`` speak instead."""

    role: str = ""
    content: str | list[ContentPart] | None = None
    tool_calls: msgspec.Raw = _NO_JSON
    tool_call_id: str | None = None


class StreamOptions(msgspec.Struct):
    """``stream_options`` of a request."""

    include_usage: bool | None = None


class ChatFields(msgspec.Struct):
    """What routing needs of a body of ``/v1/chat/completions``."""

    messages: list[ChatMessage]
    model: str | None = None
    stream: bool | None = None
    n: int | None = None
    tools: msgspec.Raw = _NO_JSON
    cache_salt: str | None = None
    add_generation_prompt: bool | None = None  # vLLM's names, as is the next
    continue_final_message: bool | None = None


class CompletionFields(msgspec.Struct):
    """What routing needs of a body of ``/v1/completions``."""

    prompt: str | list[str | int | list[int]]
    model: str | None = None
    stream: bool | None = None
    n: int | None = None
    cache_salt: str | None = None


class ChatRequest(ChatFields, kw_only=True):
    """What an engine needs of a chat request."""

    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: str | list[str] | None = None
    stream_options: StreamOptions | None = None
    priority: int | None = None


class CompletionRequest(CompletionFields, kw_only=True):
    """What an engine needs of a completion request."""

    max_tokens: int | None = None
    stop: str | list[str] | None = None
    stream_options: StreamOptions | None = None
    echo: bool | None = None
    priority: int | None = None


class EmbeddingRequest(msgspec.Struct):
    """What an engine needs of a body of ``/v1/embeddings``."""

    input: str | list[str | int | list[int]]
    model: str | None = None
    encoding_format: str | None = None
    dimensions: int | None = None
    cache_salt: str | None = None
    priority: int | None = None


class TokenizeRequest(msgspec.Struct):
    """A body of ``/tokenize``: a prompt, or the messages of a chat."""

    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    model: str | None = None
    tools: msgspec.Raw = _NO_JSON
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(msgspec.Struct):
    """A body of ``/detokenize``."""

    tokens: list[int]
    model: str | None = None


class LoadAdapterRequest(msgspec.Struct):
    """A body of ``/v1/load_lora_adapter``."""

    lora_name: str
    lora_path: str
    load_inplace: bool | None = None


class UnloadAdapterRequest(msgspec.Struct):
    """A body of ``/v1/unload_lora_adapter``."""

    lora_name: str


class PromptTokensDetails(msgspec.Struct):
    """The share of the prompt that came out of the engine's prefix cache."""

    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """``usage`` of an answer; ``cached_tokens`` is the engine's own word on prefix reuse."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    prompt_tokens_details: PromptTokensDetails | None = None

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens that the engine did not compute, None where it does not say."""
        details = self.prompt_tokens_details
        return None if details is None else details.cached_tokens


decode_chat_fields = msgspec.json.Decoder(ChatFields).decode
decode_completion_fields = msgspec.json.Decoder(CompletionFields).decode
decode_chat_request = msgspec.json.Decoder(ChatRequest).decode
decode_completion_request = msgspec.json.Decoder(CompletionRequest).decode
decode_embedding_request = msgspec.json.Decoder(EmbeddingRequest).decode
decode_tokenize_request = msgspec.json.Decoder(TokenizeRequest).decode
decode_detokenize_request = msgspec.json.Decoder(DetokenizeRequest).decode
decode_load_adapter = msgspec.json.Decoder(LoadAdapterRequest).decode
decode_unload_adapter = msgspec.json.Decoder(UnloadAdapterRequest).decode
decode_usage = msgspec.json.Decoder(Usage).decode

_NOTHING = (b"", b"null", b"[]")  # a field left out, or as clients write that there is none
_PADDING = (b"", b"\0\0\0", b"\0\0", b"\0")
_TOOLS_HEADER = b"<|tools|>\0\0\0"
_ATTACHMENT_HEADER = b"<|attachment|>\0\0"
_headers: dict[str, bytes] = {}
_HEADERS_MAX = 64  # roles are a handful; a client that invents them must not grow this table

assert len(_TOOLS_HEADER) % TOKEN_BYTES == len(_ATTACHMENT_HEADER) % TOKEN_BYTES == 0


def render_chat(fields: ChatFields) -> bytes:
    """Return the prompt of a chat request as padded bytes.

    It ends in the assistant's header, or in the final message where the answer is to go on from
    that: then what is generated has the same words before it as if the message were not cut.
    """
    pieces: list[bytes] = []
    if bytes(fields.tools) not in _NOTHING:
        _add(pieces, _TOOLS_HEADER, bytes(fields.tools))
    for message in fields.messages:
        _render_message(pieces, message)
    if fields.add_generation_prompt is not False and not fields.continue_final_message:
        pieces.append(_header("assistant"))
    return b"".join(pieces)


def _render_message(pieces: list[bytes], message: ChatMessage) -> None:
    content = message.content
    if isinstance(content, str):
        _add(pieces, _header(message.role), content.encode("utf-8", "surrogatepass"))
    else:
        pieces.append(_header(message.role))
        _render_parts(pieces, content or ())
    if bytes(message.tool_calls) not in _NOTHING:
        _add(pieces, _header("tool_calls"), bytes(message.tool_calls))
    if message.tool_call_id:
        _add(pieces, _header("tool_call_id"), message.tool_call_id.encode("utf-8", "surrogatepass"))


def _render_parts(pieces: list[bytes], parts: Iterable[ContentPart]) -> None:
    """Adjacent texts are one text, so the string form and the parts form render alike."""
    texts: list[str] = []
    for part in parts:
        if part.text is not None:
            texts.append(part.text)
            continue
        _add(pieces, b"", "".join(texts).encode("utf-8", "surrogatepass"))
        texts.clear()
        pieces += (_ATTACHMENT_HEADER, part.digest())
    _add(pieces, b"", "".join(texts).encode("utf-8", "surrogatepass"))


def _add(pieces: list[bytes], header: bytes, text: bytes) -> None:
    pieces += (header, text, _PADDING[len(text) % TOKEN_BYTES])


def _header(role: str) -> bytes:
    header = _headers.get(role)
    if header is None:
        header = f"<|{role}|>".encode("utf-8", "surrogatepass")
        header += _PADDING[len(header) % TOKEN_BYTES]
        if len(_headers) < _HEADERS_MAX:
            _headers[role] = header
    return header


def render_completion(fields: CompletionFields) -> list[bytes]:
    """Return one padded prompt for each prompt of the request (one for a string or token ids).

    Raises InvalidPromptError for a mixed list, an empty one, or an id outside 0..2**32-1.
    """
    return render_prompts(fields.prompt, "prompt")


def render_prompts(prompt: str | list[str | int | list[int]], name: str) -> list[bytes]:
    """Return what render_completion() does, of the field ``name``. Raises InvalidPromptError."""
    if isinstance(prompt, str):
        return [_padded(prompt)]
    if not prompt:
        raise InvalidPromptError(f"{name!r} is an empty list; expected at least one prompt")
    if all(isinstance(item, int) for item in prompt):
        return [_words(prompt, name)]  # type: ignore[arg-type]  # checked on the line above
    if all(isinstance(item, str) for item in prompt):
        return [_padded(item) for item in prompt]  # type: ignore[arg-type]  # likewise
    if all(isinstance(item, list) for item in prompt):
        return [_words(item, name) for item in prompt]  # type: ignore[arg-type]  # likewise
    raise InvalidPromptError(
        f"{name!r} mixes strings, token ids and lists; expected one string, one list of token "
        "ids, or a list of either"
    )


def _padded(text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return data + _PADDING[len(data) % TOKEN_BYTES]


def _words(token_ids: list[int], name: str) -> bytes:
    try:
        return token_bytes(array("I", token_ids))
    except OverflowError as error:
        raise InvalidPromptError(f"{name!r} has a token id outside 0..4294967295") from error
