"""``/tokenize`` and ``/detokenize``: a token is four bytes of the rendered prompt."""

import msgspec
from aiohttp import web

from contract.blocks import TOKEN_BYTES, token_bytes
from contract.failures import Failure
from contract.openai_api import (
    ChatFields,
    TokenizeRequest,
    decode_detokenize_request,
    decode_tokenize_request,
    render_chat,
    render_prompts,
)
from replicas.core.scheduler_config import SchedulerConfig
from replicas.core.text import token_ids
from replicas.server.gate import Gate
from replicas.server.openai_requests import decoded
from replicas.server.refusal import RefusedError, json_response
from replicas.server.served_models import ServedModels


class TokenRoutes:
    """Answers both in the shape of vLLM."""

    def __init__(self, engine: SchedulerConfig, models: ServedModels, gate: Gate) -> None:
        self._engine = engine
        self._models = models
        self._gate = gate

    def routes(self) -> list[web.RouteDef]:
        """Return what this class answers."""
        return [
            web.post("/tokenize", self._tokenize),
            web.post("/detokenize", self._detokenize),
        ]

    async def _tokenize(self, request: web.Request) -> web.Response:
        asked = decoded(decode_tokenize_request, await self._gate.read_body(request))
        self._models.adapter_of(asked.model)
        words = _rendered(asked)
        answer = {
            "count": len(words) // TOKEN_BYTES,
            "max_model_len": self._engine.max_model_len,
            "tokens": token_ids(words).tolist(),
            "token_strs": _token_strs(words) if asked.return_token_strs else None,
        }
        return json_response(msgspec.json.encode(answer))

    async def _detokenize(self, request: web.Request) -> web.Response:
        asked = decoded(decode_detokenize_request, await self._gate.read_body(request))
        self._models.adapter_of(asked.model)
        try:
            words = token_bytes(asked.tokens)
        except OverflowError as error:
            message = "'tokens' has a token id outside 0..4294967295"
            raise RefusedError(Failure.INVALID_REQUEST, message, "tokens") from error
        return json_response(msgspec.json.encode({"prompt": _text(words)}))


def _rendered(asked: TokenizeRequest) -> bytes:
    if asked.messages is not None:
        return render_chat(
            ChatFields(
                messages=asked.messages,
                tools=asked.tools,
                add_generation_prompt=asked.add_generation_prompt,
                continue_final_message=asked.continue_final_message,
            )
        )
    if asked.prompt is None:
        message = "the body has neither 'prompt' nor 'messages'; give one of them"
        raise RefusedError(Failure.INVALID_REQUEST, message, "prompt")
    (words,) = render_prompts(asked.prompt, "prompt")
    return words


def _token_strs(words: bytes) -> list[str]:
    starts = range(0, len(words), TOKEN_BYTES)
    return [_text(words[start : start + TOKEN_BYTES]) for start in starts]


def _text(words: bytes) -> str:
    """Return words as text, without the padding at their end; half a letter is shown as such."""
    return words.rstrip(b"\0").decode("utf-8", "replace")
