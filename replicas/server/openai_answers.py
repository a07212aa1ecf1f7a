"""The bodies and chunks of OpenAI answers, as vLLM sends them.

A chunk differs from the next one of its choice by a few letters of text, so everything around
that text is made once per choice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from contract.openai_api import PromptTokensDetails, Usage
from contract.sse import DONE, encode_event
from replicas.core.sequence import FinishReason
from replicas.server.generation import Generation
from replicas.server.openai_requests import Route

_json = msgspec.json.Encoder().encode

_ID_PREFIXES = {Route.CHAT: "chatcmpl-", Route.COMPLETION: "cmpl-"}
_WHOLE = {Route.CHAT: "chat.completion", Route.COMPLETION: "text_completion"}
_CHUNK = {Route.CHAT: "chat.completion.chunk", Route.COMPLETION: "text_completion"}


@dataclass(frozen=True, slots=True)
class Envelope:
    """What all chunks of one answer, or its whole body, have in common."""

    route: Route
    answer_id: str
    created: int  # seconds since 1970
    model: str

    @classmethod
    def of(cls, route: Route, request_id: str, created: int, model: str) -> "Envelope":
        """Name an answer after the request id, as vLLM does."""
        return cls(route, _ID_PREFIXES[route] + request_id, created, model)

    def fields(self, kind: str) -> dict[str, Any]:
        """Return the fields that come first in a body or chunk of this kind."""
        return {
            "id": self.answer_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
        }


class ChoiceChunks:
    """The events of one choice of a streamed answer."""

    __slots__ = ("_after", "_before", "_opening")

    def __init__(self, envelope: Envelope, index: int, echo: str) -> None:
        head = _json(envelope.fields(_CHUNK[envelope.route]))[:-1]
        start = b'data: %b,"choices":[{"index":%d,' % (head, index)
        chat = envelope.route is Route.CHAT
        self._before = start + (b'"delta":{"content":"' if chat else b'"text":"')
        # The text ends inside "delta" for chat, beside the other fields for completions.
        self._after = (b'"}' if chat else b'"') + b',"logprobs":null,"finish_reason":'
        self._opening = b""
        if chat:
            delta = b'"delta":{"role":"assistant","content":""}'
            self._opening = start + delta + b',"logprobs":null,"finish_reason":null}]}\n\n'
        elif echo:
            self._opening = self.event(_json(echo)[1:-1], None)

    def opening(self) -> bytes:
        """Return the event before the first text: the role of a chat message, or an echo."""
        return self._opening

    def event(
        self, text: bytes, reason: FinishReason | None, stop_reason: str | None = None
    ) -> bytes:
        """Return the event of some text, which needs no JSON escape."""
        end = b"null" if reason is None else b'"%b"' % reason.value.encode()
        if reason is not None:
            end += b',"stop_reason":' + _json(stop_reason)
        return b"%b%b%b%b}]}\n\n" % (self._before, text, self._after, end)


def end_of_stream(envelope: Envelope, usage: Usage | None) -> bytes:
    """Return what follows the last choice: a chunk without choices if there is usage, and DONE."""
    if usage is None:
        return DONE
    fields = envelope.fields(_CHUNK[envelope.route])
    return encode_event(_json(fields | {"choices": [], "usage": usage})) + DONE


def usage_of(generations: Sequence[Generation], num_choices: int) -> Usage:
    """Sum up an answer; a prompt counts once, however many choices it has.

    The first choice of a prompt says what was cached before the request: the others find what the
    first one has just computed.
    """
    firsts = [generation.sequence for generation in generations[::num_choices]]
    prompt_tokens = sum(sequence.num_prompt_tokens for sequence in firsts)
    cached_tokens = sum(sequence.num_cached_tokens or 0 for sequence in firsts)
    completion_tokens = sum(each.sequence.num_output_tokens for each in generations)
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens),
    )


def whole_answer(
    envelope: Envelope, texts: Sequence[str], generations: Sequence[Generation], usage: Usage
) -> bytes:
    """Return the body of an answer that is not streamed."""
    chat = envelope.route is Route.CHAT
    choices = [
        {
            "index": index,
            **({"message": {"role": "assistant", "content": text}} if chat else {"text": text}),
            "logprobs": None,
            "finish_reason": None if each.finish_reason is None else each.finish_reason.value,
            "stop_reason": each.stop_reason,
        }
        for index, (text, each) in enumerate(zip(texts, generations, strict=True))
    ]
    fields = envelope.fields(_WHOLE[envelope.route])
    return _json(fields | {"choices": choices, "usage": usage})
