"""Whether the rest of an answer can be had from another replica, and the request that asks for it.

    completions   the prompt, and behind it the text that the client has
    chat          one more message, the assistant's, which the engine is told to go on from
    both          limits on tokens less those that the client has

A field counts as harmless only if it is known to mean the same for the longer prompt; a field that
nobody here knows refuses the request. Values are never decoded and written again: what the client
sent goes out as it came, with pieces added.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from contract.openai_api import ChatMessage, StreamOptions
from router.core.reason import NotResumed
from router.core.request import CHAT_PATH, COMPLETION_PATH

_SMALL_BYTES = 64
"""A value that means nothing is shorter than this."""

_LIMITS = ("max_tokens", "max_completion_tokens")
_HARMLESS = frozenset(
    {"model", "stream", "stream_options", "user", "priority", "cache_salt", "session_id"}
    | {"metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}
    # Of each token by itself. A temperature, too: the rest is drawn as it would have been.
    | {"temperature", "top_p", "top_k", "min_p", "logit_bias", "allowed_token_ids"}
    # Over prompt and answer alike (vLLM), so the cut makes no difference.
    | {"repetition_penalty", "ignore_eos", "stop_token_ids", "skip_special_tokens"}
    | {"spaces_between_special_tokens", "messages", "prompt", "min_tokens", *_LIMITS}
)
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logprobs": (False,),  # 0 asks completions for those of the chosen tokens
    "top_logprobs": (0,),
    # These count what has been generated, of which the next replica sees a prompt only.
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "stop": ([], ""),  # engines hold back text for them, of unknown length
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "response_format": ({"type": "text"},),
    "use_beam_search": (False,),
    "include_stop_str_in_output": (False,),
    "return_token_ids": (False,),
    "return_prompt_text": (False,),
    "stream_interval": (1,),
    "bad_words": ([],),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
}
"""Beside null, what these may be; with another value the rest would not be the rest."""

_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_options = msgspec.json.Decoder(StreamOptions | None).decode
_decode_prompts = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_messages = msgspec.json.Decoder(list[ChatMessage]).decode
_encode = msgspec.json.Encoder().encode
_NULL = msgspec.Raw(b"null")


class NotResumableError(ValueError):
    """The rest of this answer could not be told from a new one; ``why`` names the kind."""

    def __init__(self, why: NotResumed) -> None:
        super().__init__(why.value)
        self.why = why


class Continuation:
    """One request, able to ask for the rest of its answer."""

    def __init__(self, path: str, body: bytes) -> None:
        """Read ``body``, sent to ``path``. Raises NotResumableError."""
        if path not in (CHAT_PATH, COMPLETION_PATH):
            raise NotResumableError(NotResumed.OTHER_API)
        self.is_chat = path == CHAT_PATH
        self._body = body
        try:
            self._fields = _decode_fields(body)
            self._check_fields()
            self._check_prompt()
            self._min_tokens = self._number("min_tokens")
            self.wants_usage = self._include_usage()
            limits = [self._number(name) for name in _LIMITS]
        except msgspec.MsgspecError as error:
            raise NotResumableError(NotResumed.UNREADABLE) from error
        given = [limit for limit in limits if limit is not None]
        if not given and not self.is_chat:
            raise NotResumableError(NotResumed.NO_LIMIT)  # the engine's own is not known
        self.tokens_max = min(given) if given else None

    @property
    def num_bytes(self) -> int:
        """What it holds."""
        return len(self._body)

    def body(self, text: str, num_tokens: int) -> bytes:
        """Return the request for what follows ``text``, of which ``num_tokens`` tokens are gone."""
        if not text and not num_tokens:
            return self._body
        fields = dict(self._fields)
        if text:
            self._add_text(fields, text)
        for name in _LIMITS:
            limit = self._number(name)
            if limit is not None:
                fields[name] = _raw(max(1, limit - num_tokens))
        if self._min_tokens:
            fields["min_tokens"] = _raw(max(0, self._min_tokens - num_tokens))
        return _encode(fields)

    def _add_text(self, fields: dict[str, msgspec.Raw], text: str) -> None:
        if self.is_chat:
            message = _encode({"role": "assistant", "content": text})
            before = bytes(fields["messages"]).rstrip()[:-1]
            fields["messages"] = msgspec.Raw(b"%b,%b]" % (before, message))
            fields["continue_final_message"] = _raw(True)
            fields["add_generation_prompt"] = _raw(False)
        else:
            before = bytes(fields["prompt"]).rstrip()[:-1]
            fields["prompt"] = msgspec.Raw(before + _encode(text)[1:])

    def _check_fields(self) -> None:
        for name, raw in self._fields.items():
            if name in _HARMLESS:
                continue
            value = msgspec.json.decode(raw) if len(bytes(raw)) <= _SMALL_BYTES else ...
            if value is not None and not _is_one_of(value, _NEUTRAL.get(name, ())):
                raise NotResumableError(NotResumed.FIELD)

    def _check_prompt(self) -> None:
        if not self.is_chat:
            prompt = self._fields.get("prompt", _NULL)
            if bytes(prompt).startswith(b"["):
                prompts = _decode_prompts(prompt)
                prompt = prompts[0] if len(prompts) == 1 else _NULL  # one in a list is that one
            if not bytes(prompt).startswith(b'"'):
                raise NotResumableError(NotResumed.PROMPT)  # several, or token ids
            self._fields["prompt"] = prompt
            return
        messages = _decode_messages(self._fields.get("messages", _NULL))
        if not messages:
            raise NotResumableError(NotResumed.PROMPT)
        for message in messages:
            parts = message.content if isinstance(message.content, list) else ()
            if any(part.text is None for part in parts):
                raise NotResumableError(NotResumed.ATTACHMENT)

    def _include_usage(self) -> bool:
        options = _decode_options(self._fields.get("stream_options", _NULL))
        return options is not None and options.include_usage is True

    def _number(self, name: str) -> int | None:
        return msgspec.json.decode(self._fields.get(name, _NULL), type=int | None)


def _raw(value: int) -> msgspec.Raw:
    return msgspec.Raw(_encode(value))


def _is_one_of(value: Any, neutral: tuple[Any, ...]) -> bool:
    """Compare by type too: 0 is not False here, but 0.0 is 0."""
    return any(
        value == item and isinstance(value, bool) == isinstance(item, bool) for item in neutral
    )
