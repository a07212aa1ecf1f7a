"""The prompts of Anthropic's Messages and OpenAI's Responses, told as a chat is.

Turn n+1 of a conversation extends turn n here, too. Ids of calls and marks like ``cache_control``,
which clients move from turn to turn, are no part of a prompt.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import msgspec

from contract.openai_api import ChatFields, ChatMessage, ContentPart

_NO_JSON = msgspec.Raw()


class _Node(msgspec.Struct):
    """A message, an item, or a part of one: what it says, and what is attached to it."""

    role: str = ""
    type: str = "text"
    text: str | None = None
    content: "str | list[_Node] | None" = None
    name: msgspec.Raw = _NO_JSON
    input: msgspec.Raw = _NO_JSON  # of a tool, in Messages; the next two in Responses
    arguments: msgspec.Raw = _NO_JSON
    output: msgspec.Raw = _NO_JSON
    thinking: msgspec.Raw = _NO_JSON
    summary: msgspec.Raw = _NO_JSON
    source: msgspec.Raw = _NO_JSON  # of an image or a document, in Messages; in Responses ...
    image_url: msgspec.Raw = _NO_JSON
    file_id: msgspec.Raw = _NO_JSON
    file_url: msgspec.Raw = _NO_JSON
    file_data: msgspec.Raw = _NO_JSON
    input_audio: msgspec.Raw = _NO_JSON

    def message(self) -> ChatMessage:
        """Return it as a message of a chat; an item without a role is known by its type."""
        return ChatMessage(self.role or self.type, list(self.parts()))

    def parts(self) -> Iterator[ContentPart]:
        """Yield what it is made of, in order."""
        if self.text is not None:
            yield ContentPart(text=self.text)
        called = (self.name, self.input, self.arguments, self.output)
        for spoken in (*called, self.thinking, self.summary):
            if spoken:
                yield ContentPart(text=bytes(spoken).decode("utf-8", "replace"))
        attached = (self.source, self.image_url, self.file_id, self.file_url, self.file_data)
        if any(attached) or self.input_audio:
            file = msgspec.Raw(b"\0".join(map(bytes, attached)))
            yield ContentPart(self.type, input_audio=self.input_audio, file=file)
        if isinstance(self.content, str):
            yield ContentPart(text=self.content)
        for node in self.content if isinstance(self.content, list) else ():
            yield from node.parts()


class _Fields(Protocol):
    """The fields that both have, and their conversation as messages."""

    model: str | None
    stream: bool | None
    tools: msgspec.Raw
    cache_salt: str | None

    def messages_told(self) -> list[ChatMessage]:
        """Return what is said, in order."""


class _Messages(msgspec.Struct):
    messages: list[_Node]
    system: str | list[_Node] | None = None
    model: str | None = None
    stream: bool | None = None
    tools: msgspec.Raw = _NO_JSON
    cache_salt: str | None = None

    def messages_told(self) -> list[ChatMessage]:
        system = [_Node("system", content=self.system)] if self.system else []
        return [node.message() for node in [*system, *self.messages]]


class _Responses(msgspec.Struct):
    input: str | list[_Node]
    instructions: str | None = None
    model: str | None = None
    stream: bool | None = None
    tools: msgspec.Raw = _NO_JSON
    cache_salt: str | None = None

    def messages_told(self) -> list[ChatMessage]:
        said = [_Node("user", content=self.input)] if isinstance(self.input, str) else self.input
        system = [_Node("system", content=self.instructions)] if self.instructions else []
        return [node.message() for node in [*system, *said]]


DIALECTS: Mapping[str, Callable[[bytes], _Fields]] = {
    "/v1/messages": msgspec.json.Decoder(_Messages).decode,
    "/v1/responses": msgspec.json.Decoder(_Responses).decode,
}
"""How a body is read that is sent to this path."""


def told_as_chat(path: str, body: bytes) -> ChatFields:
    """Return the chat that ``body`` tells. Raises DecodeError, if it is of another shape."""
    fields = DIALECTS[path](body)
    return ChatFields(
        fields.messages_told(),
        fields.model,
        fields.stream,
        tools=fields.tools,
        cache_salt=fields.cache_salt,
    )
