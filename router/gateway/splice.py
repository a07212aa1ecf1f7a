"""One stream towards the client out of the streams of several replicas.

    Rule 1: only whole events are passed on. What a replica has begun and not finished is dropped
            with it, so every byte of the text is sent once.
    Rule 2: the text that is continued is the text that was passed on, and no other.
    Rule 3: an event that could not be continued after (other fields, other choices) makes the
            stream unfit, but is passed on all the same.

The events of the first replica go on as they came. Those of later ones are written anew, with the
first one's id, time, model and fingerprint, without a second role, and with counts that add up.

Tokens are counted by the stream's own usage where its events carry one, by their token ids where
they carry these, else one for each event. Tokens behind the last text that was passed on do not
count: the next replica generates them again.
"""

import re
from typing import Any

import msgspec

from contract.openai_api import PromptTokensDetails, Usage
from contract.sse import DONE, DONE_PAYLOAD, SseReader
from router.core.reason import NotResumed
from router.gateway.relay import Relay

_FIELD = b"data: "
_EVENT_ENDS = (b"\n\n", b"\n\r\n", b"\r\r")
_BETWEEN_EVENTS = re.compile(rb"(?:(?::[^\r\n]*+)?\r?\n)*+")
"""Comments that keep a connection alive, whole lines of them: nobody has to wait for an event."""

_ENVELOPE = ("id", "created", "model", "system_fingerprint")
_KNOWN_IN_DELTA = ("role", "content")


class _Choice(msgspec.Struct):
    index: int = 0
    text: str | None = None
    delta: dict[str, Any] | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: Usage | None = None
    error: Any = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode
_decode_any = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode


class Splice:
    """Takes the events of one replica after the other, and writes them to ``relay``."""

    def __init__(self, relay: Relay, *, tokens_max: int | None, bytes_max: int) -> None:
        self.relay = relay
        self.why_unfit: NotResumed | None = None
        self.is_finished = False  # the client has the reason why the answer ended
        self.is_done = False  # and the mark behind which nothing follows
        self.usage: Usage | None = None  # as the client has it, of a stream that was continued
        self.text_tokens = 0  # whose text has been passed on
        self._tokens_max = tokens_max
        self._bytes_max = bytes_max
        self._pieces: list[str] = []
        self._text_bytes = 0
        self._tokens = 0  # that were seen
        self._held = b""  # an unfinished event
        self._held_error = b""  # the replica's own, which ends its stream
        self._is_within_event = False
        self._envelope: dict[str, Any] = {}
        self._has_role = False
        self._has_usage = False  # of the whole
        self._prompt_tokens: int | None = None  # of the client's own prompt, if a replica told
        self._cached_tokens: int | None = None
        # Of a replica that is not the first:
        self._is_rest = False
        self._base_tokens = 0  # of those before it
        self._wants_end_only = False  # the client has all of the text

    # ---- what its owner asks

    @property
    def text(self) -> str:
        """What the client has of the answer."""
        return "".join(self._pieces)

    def misses_only_the_mark(self, *, wants_usage: bool) -> bool:
        """Whether the client has all but [DONE], or even that."""
        return self.is_done or (self.is_finished and (self._has_usage or not wants_usage))

    @property
    def has_failed(self) -> bool:
        """Whether the replica has said that it cannot go on, which was not passed on."""
        return bool(self._held_error)

    def begin_rest(self) -> None:
        """What comes from here on is another replica's."""
        self._is_rest = True
        self._held = self._held_error = b""
        self._wants_end_only = self.is_finished or (
            self._tokens_max is not None and self.text_tokens >= self._tokens_max
        )
        if not self.is_finished:
            self._tokens = self.text_tokens
        self._base_tokens = self.text_tokens

    # ---- what comes from a replica

    def take(self, payload: bytes) -> None:
        """Pass on the events that ``payload`` completes."""
        if not self._held and payload.endswith(b"\n\n"):  # as nearly always
            self._pass_on(payload)
            return
        data = self._held + payload if self._held else payload
        end = 0
        for mark in _EVENT_ENDS:
            at = data.rfind(mark)
            end = max(end, at + len(mark)) if at >= 0 else end
        between = _BETWEEN_EVENTS.match(data, end)
        end = between.end() if between is not None else end
        whole, self._held = data[:end], data[end:]
        if whole:
            self._pass_on(whole)
        if len(self._held) > self._bytes_max:
            self._mark_unfit(NotResumed.TOO_LARGE)
            self._is_within_event = True
            self._write(self._held)
            self._held = b""

    def end(self) -> None:
        """Write what is left when the replica's stream has ended: an event without its end."""
        held, self._held = self._held, b""
        if not self._is_rest:
            self._write(held)

    def write_done(self) -> None:
        """Write the mark of the end in the place of a replica that was lost before it did."""
        if not self.is_done:
            self.is_done = True
            self._write(DONE)

    def break_off(self, error: bytes) -> bool:
        """Write the replica's own error if it sent one, else the event ``error``.

        Returns whether the client can tell from a closed connection that the body is not whole.
        """
        if self.relay.end_is_visible and not self._is_within_event:
            self.relay.add_chunk(self._held_error or error)
        return self.relay.end_is_visible

    # ---- events

    def _pass_on(self, whole: bytes) -> None:
        if self.why_unfit is not None and not self._is_rest:
            self._write(whole)
            return
        kept: list[bytes] = []
        for payload in _payloads(whole):
            passed = self._read(payload)
            if self._held_error:
                break
            if passed is not None:
                kept.append(passed)
        if self._is_rest or self._held_error:
            whole = b"".join(map(_event, kept))
        self._write(whole)

    def _read(self, payload: bytes) -> bytes | None:
        """Take note of one event; return it as it goes on, None if it does not."""
        if payload == DONE_PAYLOAD:
            self.is_done = True
            return payload
        try:
            chunk = _decode_chunk(payload)
            # What the first skips is not looked at by it: text that is no UTF-8, say.
            fields = _decode_any(payload) if self._is_rest or not self._envelope else {}
        except msgspec.MsgspecError:
            self._mark_unfit(NotResumed.UNREADABLE)
            return payload
        if chunk.error is not None:
            self._take_error(payload, chunk.error)
            return payload
        passed: bytes | None = payload
        if self._is_rest:
            passed = self._rewritten(fields, chunk)
        else:
            self._envelope = self._envelope or _envelope_of(fields)
            self._count(chunk)
        if chunk.usage is not None and self.is_finished and passed is not None:
            self._has_usage = True
        return passed

    def _take_error(self, payload: bytes, error: Any) -> None:
        code = error.get("code") if isinstance(error, dict) else None
        is_clients_fault = isinstance(code, int) and 400 <= code < 500  # so it is so everywhere
        if not is_clients_fault:
            self._held_error = _event(payload)

    def _count(self, chunk: _Chunk) -> None:
        usage = chunk.usage
        if usage is not None and not self._is_rest:
            self._prompt_tokens = usage.prompt_tokens
            if usage.cached_tokens is not None:
                self._cached_tokens = usage.cached_tokens
        if not chunk.choices:
            return
        choice = chunk.choices[0]
        text, is_token = choice.text, choice.text is not None
        if choice.delta is not None:
            text, is_token = self._read_delta(choice.delta)
        if len(chunk.choices) > 1 or choice.index or not isinstance(text, str | None):
            self._mark_unfit(NotResumed.CONTENT)
            return
        if usage is not None:
            self._tokens = self._base_tokens + usage.completion_tokens
        else:
            self._tokens += is_token if choice.token_ids is None else len(choice.token_ids)
        if text:
            self._pieces.append(text)
            self._text_bytes += len(text.encode())
            self.text_tokens = self._tokens
            if self._text_bytes > self._bytes_max:
                self._mark_unfit(NotResumed.TOO_LARGE)
        self.is_finished = self.is_finished or choice.finish_reason is not None

    def _read_delta(self, delta: dict[str, Any]) -> tuple[Any, bool]:
        """Return its text, and whether it stands for a token."""
        if any(delta[name] is not None and name not in _KNOWN_IN_DELTA for name in delta):
            self._mark_unfit(NotResumed.CONTENT)
        text = delta.get("content")
        opens = bool(delta.get("role"))
        self._has_role = self._has_role or opens
        return text, text is not None and bool(text or not opens)

    # ---- the rest, from another replica

    def _rewritten(self, fields: dict[str, Any], chunk: _Chunk) -> bytes | None:
        self._envelope = self._envelope or _envelope_of(fields)
        fields.update(self._envelope)
        if chunk.choices:
            choice = fields["choices"][0]
            if not (self._keep_end(choice) if self._wants_end_only else self._keep(choice)):
                return None
            if not self._wants_end_only:
                self._count(chunk)
        if chunk.usage is not None:
            fields["usage"] = self._summed(fields["usage"], chunk.usage)
        return _encode(fields)

    def _keep(self, choice: dict[str, Any]) -> bool:
        """Say whether there is more in it than the second opening of a message."""
        delta = choice.get("delta")
        if isinstance(delta, dict) and delta.get("role") and self._has_role:
            del delta["role"]
            return bool(delta.get("content") or choice.get("finish_reason"))
        return True

    def _keep_end(self, choice: dict[str, Any]) -> bool:
        """Keep what says that the answer ended, without text: the client has all of it."""
        if self.is_finished or not choice.get("finish_reason"):
            return False
        self.is_finished = True
        choice["finish_reason"] = "length"  # whatever the token meant that was asked for besides
        if "text" in choice:
            choice["text"] = ""
        else:
            choice["delta"] = {}
        return True

    def _summed(self, fields: dict[str, Any], usage: Usage) -> dict[str, Any]:
        """Return the usage of the whole: of the client's own prompt, and of all generated."""
        generated = self._tokens
        if not self._wants_end_only:
            generated = self._base_tokens + usage.completion_tokens
        prompt = self._prompt_tokens
        if prompt is None:
            prompt = max(0, usage.prompt_tokens - self._base_tokens)
        cached = self._cached_tokens
        if cached is None and usage.cached_tokens is not None:
            cached = min(usage.cached_tokens, prompt)
        self.usage = Usage(prompt, generated, prompt + generated, PromptTokensDetails(cached))
        fields |= {"prompt_tokens": prompt, "completion_tokens": generated}
        fields["total_tokens"] = prompt + generated
        if isinstance(fields.get("prompt_tokens_details"), dict):
            fields["prompt_tokens_details"]["cached_tokens"] = cached
        return fields

    def _mark_unfit(self, why: NotResumed) -> None:
        self.why_unfit = self.why_unfit or why
        self._pieces.clear()

    def _write(self, data: bytes) -> None:
        if data:
            self.relay.pass_on(data, data)


def _payloads(whole: bytes) -> list[bytes]:
    if whole.startswith(_FIELD) and whole.find(b"\n") == len(whole) - 2:  # one event, as mostly
        return [whole[len(_FIELD) : -2]]
    return SseReader().feed(whole)


def _event(payload: bytes) -> bytes:
    """Return one event; a payload of several lines has a field for each."""
    return b"data: %b\n\n" % payload.replace(b"\n", b"\ndata: ")


def _envelope_of(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: fields[name] for name in _ENVELOPE if fields.get(name) is not None}
