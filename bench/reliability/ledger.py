"""How each request ended, told by nobody but its client, and which endings are not allowed."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import msgspec

from contract.openai_api import (
    ChatFields,
    ChatMessage,
    CompletionFields,
    render_chat,
    render_completion,
)
from contract.sse import DONE_PAYLOAD
from replicas.core.text import expected_text


class End(Enum):
    """The endings; the last four are lies, losses, or nothing at all."""

    WHOLE = "whole"  # every byte, once, and said to be all
    LEFT = "left"  # the client left
    BROKEN = "broken"  # begun, and the client can see that it is not whole
    FAILED = "failed"  # an error, or no answer, before the first byte
    HUNG = "hung"
    FALSE = "falsely complete"
    WRONG = "wrong bytes"


@dataclass(frozen=True)
class Spec:
    """What is asked."""

    number: int
    is_stream: bool
    is_chat: bool
    prompt: str
    num_tokens: int
    wants_usage: bool = False
    leaves_after_s: float | None = None

    @property
    def path(self) -> str:
        """The route."""
        return "/v1/chat/completions" if self.is_chat else "/v1/completions"

    def body(self, model: str) -> dict[str, Any]:
        """Return the request's body."""
        body: dict[str, Any] = {"model": model, "max_tokens": self.num_tokens}
        if self.is_chat:
            body["messages"] = [{"role": "user", "content": self.prompt}]
        else:
            body["prompt"] = self.prompt
        if self.is_stream:
            body["stream"] = True
            if self.wants_usage:
                body["stream_options"] = {"include_usage": True}
        return body

    def expected(self) -> str:
        """Return the whole answer's text."""
        if self.is_chat:
            rendered = render_chat(ChatFields(messages=[ChatMessage("user", self.prompt)]))
        else:
            (rendered,) = render_completion(CompletionFields(prompt=self.prompt))
        return expected_text(rendered, self.num_tokens)


@dataclass
class Entry:
    """One request and what its client got."""

    spec: Spec
    began_s: float
    ended_s: float = 0.0
    status: int = 0  # 0: no head came
    replica_id: str = ""
    request_id: str = ""
    payloads: list[bytes] = field(default_factory=list)  # of the events; else the whole body
    has_left: bool = False
    is_hung: bool = False
    transport_error: str = ""

    def end(self) -> End:
        """Return how it ended."""
        if self.is_hung:
            return End.HUNG
        text, looks_whole = self._read()
        expected = self.spec.expected()
        if not expected.startswith(text):
            return End.WRONG
        if self.has_left:
            return End.LEFT
        if self.status != 200:
            return End.FAILED
        if not looks_whole:
            return End.BROKEN
        if text != expected:
            return End.FALSE
        return End.WHOLE if self._is_well_formed() else End.WRONG

    def _read(self) -> tuple[str, bool]:
        """Return the text, and whether a client would take it for the whole answer."""
        if self.status != 200:
            return "", False
        if not self.spec.is_stream:
            if self.transport_error or self.has_left:
                return "", False
            try:
                return _text_of(msgspec.json.decode(b"".join(self.payloads))), True
            except (msgspec.DecodeError, KeyError):
                return "", True
        events = self.events()
        text = "".join(_text_of(event) for event in events)
        failed = bool(self.transport_error) or any("error" in event for event in events)
        return text, not failed

    def events(self) -> list[dict[str, Any]]:
        """Return the events of a stream, decoded, without the last mark."""
        return [msgspec.json.decode(p) for p in self.payloads if p != DONE_PAYLOAD]

    def _is_well_formed(self) -> bool:
        """Say whether a whole answer has each of its parts once, and counts its tokens right."""
        if not self.spec.is_stream:
            answer = msgspec.json.decode(b"".join(self.payloads))
            (choice,) = _choices(answer)
            return (
                bool(choice["finish_reason"]) and _counts(answer["usage"]) == self.spec.num_tokens
            )
        events = self.events()
        choices = [choice for event in events for choice in _choices(event)]
        usages = [event["usage"] for event in events if event.get("usage")]
        roles = sum("role" in choice.get("delta", {}) for choice in choices)
        return (
            self.payloads.count(DONE_PAYLOAD) == 1
            and self.payloads[-1] == DONE_PAYLOAD
            and sum(bool(choice.get("finish_reason")) for choice in choices) == 1
            and len({event["id"] for event in events}) == 1
            and roles == self.spec.is_chat
            and [_counts(usage) for usage in usages]
            == [self.spec.num_tokens] * self.spec.wants_usage
        )

    def __str__(self) -> str:
        kind = ("stream" if self.spec.is_stream else "plain") + f" {self.spec.path}"
        tail = b" ".join(self.payloads[-2:])[-300:].decode(errors="replace")
        return (
            f"request {self.spec.number} ({kind}, {self.spec.num_tokens} tokens): "
            f"{self.end().value}, status {self.status}, replica {self.replica_id or '-'}, "
            f"{self.began_s:.2f} to {self.ended_s:.2f} s, {len(self.payloads)} payloads, "
            f"{self.transport_error or 'no transport error'}; ... {tail}"
        )


def _choices(event: dict[str, Any]) -> list[dict[str, Any]]:
    choices: list[dict[str, Any]] = event.get("choices", [])
    return choices


def _text_of(event: dict[str, Any]) -> str:
    pieces = []
    for choice in _choices(event):
        holder = choice.get("delta") or choice.get("message") or {"content": choice.get("text")}
        pieces.append(holder.get("content") or "")
    return "".join(pieces)


def _counts(usage: Any) -> int:
    return int(usage["completion_tokens"]) if usage else -1


# ---- what was wrong in the fleet meanwhile


@dataclass
class Trouble:
    """A time in which a replica could not serve as it should. ``may_break``: also what it began."""

    replica_id: str
    kind: str
    may_break: bool
    began_s: float
    ended_s: float = math.inf

    def overlaps(self, entry: Entry) -> bool:
        """Say whether it fell into the life of a request."""
        return self.began_s <= entry.ended_s and entry.began_s <= self.ended_s


@dataclass(frozen=True)
class Complaint:
    """A request that ended as none may."""

    entry: Entry
    why: str


def forbidden(
    entries: Iterable[Entry],
    troubles: Sequence[Trouble],
    replica_ids: Sequence[str],
    *,
    resumes: bool,
) -> Iterator[Complaint]:
    """Yield each request that ended as none may.

    One that had not begun may fail only if no replica was well for all of its life; one that had
    may break only if its replica was in a trouble that breaks answers. With ``resumes`` a stream
    may break no more easily than fail.
    """
    for entry in entries:
        end = entry.end()
        mine = [trouble for trouble in troubles if trouble.overlaps(entry)]
        well = set(replica_ids) - {trouble.replica_id for trouble in mine}
        has_cause = any(t.may_break and t.replica_id == entry.replica_id for t in mine)
        if end in (End.HUNG, End.FALSE, End.WRONG):
            yield Complaint(entry, "")
        elif end is End.FAILED and well:
            yield Complaint(entry, f"well all the time: {sorted(well)}")
        elif end is End.BROKEN and not has_cause:
            yield Complaint(entry, "its replica was in no trouble")
        elif end is End.BROKEN and resumes and entry.spec.is_stream and well:
            yield Complaint(entry, f"was not continued; well all the time: {sorted(well)}")


def count_ends(entries: Iterable[Entry]) -> Counter[tuple[bool, End]]:
    """Return how many streams and plain requests ended how."""
    return Counter((entry.spec.is_stream, entry.end()) for entry in entries)
