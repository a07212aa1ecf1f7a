"""HTTP by hand: messages as bytes, and readers that hide nothing of what came."""

import asyncio
import json
from dataclasses import dataclass, field

LIMIT = 16 * 1024 * 1024


@dataclass
class Received:
    """A request as it came."""

    line: str
    headers: list[tuple[str, str]]
    body: bytes
    head: bytes

    @property
    def target(self) -> str:
        """What was asked for."""
        return self.line.split(" ")[1]

    def values(self, name: str) -> list[str]:
        """Return all values of a header."""
        return [value for key, value in self.headers if key.lower() == name.lower()]


@dataclass
class Answer:
    """An answer as it came. ``raw`` is the body with its framing."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    raw: bytes
    is_whole: bool
    chunks: list[bytes] = field(default_factory=list)

    def values(self, name: str) -> list[str]:
        """Return all values of a header."""
        return [value for key, value in self.headers if key.lower() == name.lower()]

    def value(self, name: str) -> str:
        """Return the value of a header that is there once."""
        (value,) = self.values(name)
        return value

    @property
    def code(self) -> str:
        """Return the code of an error in OpenAI's shape."""
        error = json.loads(self.body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return str(error["code"])


def split_head(head: bytes) -> tuple[str, list[tuple[str, str]]]:
    """Return the first line and the headers."""
    first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    pairs = [line.partition(":") for line in lines]
    return first, [(name, value.strip()) for name, _, value in pairs]


async def read_request(reader: asyncio.StreamReader) -> Received:
    """Read one request with a Content-Length or without a body."""
    head = await reader.readuntil(b"\r\n\r\n")
    line, headers = split_head(head)
    received = Received(line, headers, b"", head)
    lengths = received.values("content-length")
    if lengths:
        received.body = await reader.readexactly(int(lengths[0]))
    return received


async def read_answer(reader: asyncio.StreamReader, *, bodiless: bool = False) -> Answer:
    """Read one answer, interim ones excepted. One that is cut has ``is_whole`` False."""
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        line, headers = split_head(head)
        answer = Answer(int(line.split(" ")[1]), headers, b"", b"", is_whole=True)
        if answer.status >= 200:
            break
    if bodiless or answer.status in (204, 304):
        return answer
    try:
        if answer.values("transfer-encoding"):
            assert not answer.values("content-length")
            await _read_chunks(reader, answer)
        elif answer.values("content-length"):
            await _read_exactly(reader, answer, int(answer.value("content-length")))
        else:
            await _read_to_end(reader, answer)
    except (asyncio.IncompleteReadError, ConnectionError):
        answer.is_whole = False
    return answer


async def _read_exactly(reader: asyncio.StreamReader, answer: Answer, size: int) -> None:
    try:
        answer.body = answer.raw = await reader.readexactly(size)
    except asyncio.IncompleteReadError as error:
        answer.body = answer.raw = error.partial
        raise


async def _read_to_end(reader: asyncio.StreamReader, answer: Answer) -> None:
    pieces: list[bytes] = []
    try:
        while data := await reader.read(65_536):
            pieces.append(data)
    finally:
        answer.body = answer.raw = b"".join(pieces)


async def _read_chunks(reader: asyncio.StreamReader, answer: Answer) -> None:
    raw: list[bytes] = []
    try:
        while await _read_chunk(reader, answer, raw):
            pass
    finally:
        answer.raw = b"".join(raw)
        answer.body = b"".join(answer.chunks)


async def _read_chunk(reader: asyncio.StreamReader, answer: Answer, raw: list[bytes]) -> bool:
    """Read one chunk; return whether another follows."""
    line = await reader.readuntil(b"\r\n")
    size = int(line.split(b";")[0], 16)
    raw.append(line)
    try:
        data = await reader.readexactly(size)
    except asyncio.IncompleteReadError as error:
        answer.chunks.append(error.partial)
        raise
    if size:
        answer.chunks.append(data)
    end = await reader.readexactly(2)
    raw.append(data + end)
    assert end == b"\r\n"
    return size > 0


def ok(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    """Return a whole JSON answer."""
    lines = [f"HTTP/1.1 {status}", "Content-Type: application/json", *headers]
    head = "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""])
    return head.encode("latin-1") + body


def chunk(data: bytes) -> bytes:
    """Return one chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
LAST_CHUNK = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"
USAGE = {
    "prompt_tokens": 10,
    "completion_tokens": 3,
    "total_tokens": 13,
    "prompt_tokens_details": {"cached_tokens": 8},
}


def event(text: str, finish: str | None = None, **more: object) -> bytes:
    """Return one event of a chat stream."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    body = {"id": "c", "object": "chat.completion.chunk", "choices": [choice], **more}
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"


def completion(text: str = "hi", **more: object) -> bytes:
    """Return the body of a chat answer that is not streamed."""
    choice = {"index": 0, "message": {"content": text}, "finish_reason": "stop"}
    return json.dumps({"id": "c", "choices": [choice], "usage": USAGE, **more}).encode()


def chat(text: str = "hi", *, stream: bool = False, model: str = "m", **more: object) -> bytes:
    """Return the body of a chat request."""
    body = {"model": model, "messages": [{"role": "user", "content": text}], **more}
    if stream:
        body["stream"] = True
    return json.dumps(body).encode()


def post(
    body: bytes, *headers: str, path: str = "/v1/chat/completions", version: str = "1.1"
) -> bytes:
    """Return a whole request."""
    lines = [f"POST {path} HTTP/{version}", "Host: gateway.example", *headers]
    head = "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""])
    return head.encode("latin-1") + body


def get(path: str, *headers: str, method: str = "GET") -> bytes:
    """Return a request without a body."""
    lines = [f"{method} {path} HTTP/1.1", "Host: gateway.example", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1")
