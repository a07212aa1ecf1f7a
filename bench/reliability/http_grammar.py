"""Random HTTP from both sides: messages that are right, and ways to make them wrong.

Everything is drawn from the generator that is handed in, so a case is its seed. Bytes of a body
carry a mark, by which an answer in the wrong place is found.
"""

import json
import re
from random import Random

MODEL = "m"

_LINE_END = re.compile(rb"\r\n")

_PATHS = (
    *(b"/v1/chat/completions", b"/v1/completions", b"/v1/chat/completions", b"/v1/completions"),
    *(b"/v1/embeddings", b"/v1/models", b"/v1/models/m", b"/health", b"/ready", b"/v1/x?q=1"),
    *(b"/nowhere", b"*", b"http://a/v1/completions", b"/v1/../admin", b"/v1/%2e%2e/x"),
)
_EXTRA_FIELDS = (
    *(b"Accept: */*", b"accept: a", b"X-A:b", b"X-A:  c ", b"X-Empty:", b"X-Obs: \xe9\xff"),
    *(b"Connection: close", b"Connection: keep-alive", b"Connection: X-A, TE", b"TE: trailers"),
    *(b"Expect: 100-continue", b"Expect: x", b"x-request-id: mine", b"X-Session-Id: s"),
    *(b"Upgrade: h2c", b"Authorization: Bearer k", b"Host: b", b"Content-Type: application/json"),
    *(b"Origin: http://o", b"Access-Control-Request-Method: POST", b"x-warmroute-timeout-ms: 900"),
    *(
        b"Authorization: Bearer wrong",
        b"x-api-key: k",
        b"x-warmroute-replica: r9",
        b"Content-Encoding: gzip",
    ),
)
_ODDITIES = (
    *(b"\n", b"\r", b"\r\n", b"\r\n\r\n", b"\0", b" ", b"\t", b":", b";", b",", b"\x0b", b"\xff"),
    *(b"\r\n ", b"\n\n", b"0\r\n\r\n", b"1\r\n", b"0", b"00000000000000005", b"fffffffffffffffff"),
    *(b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: identity\r\n", b"Host: x\r\n"),
    *(b"Transfer-Encoding : chunked\r\n", b"Transfer-Encoding:\x0bchunked\r\n", b"chunked"),
    *(b"Content-Length: 3\r\n", b"Content-Length: +3\r\n", b"Content-Length: 3, 3\r\n", b"_"),
    *(b"Content-Length: 99999999999999999999\r\n", b"Content-Length:\r\n", b"HTTP/1.0", b"HTTP/2"),
    *(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"Connection: close\r\n", b"x" * 700, b"-1", b"0x3"),
    *(b"data: [DONE]\n\n", b'"usage":{', b'{"error":{', b"HTTP/1.1 100 Continue\r\n\r\n"),
)


def split(rng: Random, data: bytes) -> list[bytes]:
    """Return ``data`` cut into pieces: not at all, here and there, or byte by byte."""
    way = rng.random()
    if way < 0.3 or len(data) < 2:
        return [data] if data else []
    if way > 0.95 and len(data) < 600:
        return [data[at : at + 1] for at in range(len(data))]
    num_cuts = min(len(data) - 1, rng.randint(1, 6))
    ends = [*sorted(rng.sample(range(1, len(data)), num_cuts)), len(data)]
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def spoil(rng: Random, data: bytes) -> bytes:
    """Return ``data`` with one to three things wrong, or only odd."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + rng.choice((1, 1, 2, 5, 20, 100)))
        lines = [match.start() for match in _LINE_END.finditer(data)]
        way = rng.randrange(7)
        if way <= 1 and lines:  # a whole header line, or something that breaks one
            at = rng.choice(lines) + rng.choice((0, 2, 2, 2))
            data = data[:at] + rng.choice(_ODDITIES) + data[at:]
        elif way <= 3:
            data = data[:at] + rng.choice(_ODDITIES) + data[at:]
        elif way == 4:
            data = data[:at] + data[end:]
        elif way == 5:
            data = data[:at] + data[at:end] + data[at:]
        elif at < len(data):
            data = data[:at] + bytes((data[at] ^ (1 << rng.randrange(8)),)) + data[at + 1 :]
    return data


def requests(rng: Random, mark: str) -> bytes:
    """Return what one client sends: a few requests, spoilt in half of all cases.

    Those of some clients are alike but for their bodies, as those of real clients are.
    """
    style = rng.getrandbits(32) if rng.random() < 0.3 else None
    parts = [
        _request(rng if style is None else Random(style), f"{mark}{index}")
        for index in range(rng.choice((1, 1, 2, 3, 5)))
    ]
    data = b"".join(parts)
    return spoil(rng, data) if rng.random() < 0.5 else data


def _request(rng: Random, mark: str) -> bytes:
    path = rng.choice(_PATHS)
    method = rng.choice((b"GET", b"HEAD", b"OPTIONS", b"PUT", b"POST", b"POST"))
    body = b""
    if b"completions" in path and rng.random() < 0.9:
        method, body = b"POST", _prompt(rng, path, mark)
    elif method in (b"POST", b"PUT"):
        body = b'{"model": "m", "input": "%b"}' % mark.encode()
    version = b"1.0" if rng.random() < 0.1 else b"1.1"
    fields = [b"Host: a"] if version == b"1.1" or rng.random() < 0.5 else []
    fields += rng.sample(_EXTRA_FIELDS, rng.choice((0, 0, 1, 2, 4)))
    framed = body
    if body or rng.random() < 0.1:
        if version == b"1.1" and rng.random() < 0.4:
            fields.append(rng.choice((b"Transfer-Encoding: chunked", b"transfer-encoding:chunked")))
            framed = chunked(rng, body)
        else:
            fields.append(rng.choice((b"Content-Length: %d", b"content-length:%d")) % len(body))
    rng.shuffle(fields)
    lines = b"".join(field + b"\r\n" for field in fields)
    return b"%b %b HTTP/%b\r\n%b\r\n%b" % (method, path, version, lines, framed)


def _prompt(rng: Random, path: bytes, mark: str) -> bytes:
    text = mark + "x" * rng.choice((0, 3, 300, 1500))
    fields: dict[str, object] = {"model": rng.choice((MODEL, MODEL, MODEL, "other", None))}
    if b"chat" in path:
        fields["messages"] = [{"role": "user", "content": text}]
    else:
        fields["prompt"] = text
    if rng.random() < 0.6:
        fields["stream"] = True
    if rng.random() < 0.3:
        fields |= {"max_tokens": rng.choice((1, 4, 100)), "stream_options": {"include_usage": True}}
    if rng.random() < 0.1:
        fields |= rng.choice(({"n": 2}, {"seed": 1}, {"stop": "a"}, {"logprobs": 1}, {"tools": []}))
    body = json.dumps(fields).encode()
    return spoil(rng, body) if rng.random() < 0.1 else body


def chunked(rng: Random, body: bytes) -> bytes:
    """Return ``body`` in chunks, now and then with extensions and trailers."""
    framed = b""
    for piece in split(rng, body):
        size = rng.choice((b"%x", b"%X", b"0%x", b"%x;a=b", b"%x;")) % len(piece)
        framed += b"%b\r\n%b\r\n" % (size, piece)
    return framed + b"0\r\n" + rng.choice((b"", b"", b"X-T: 1\r\n")) + b"\r\n"


# ---- the replica's side


def answer(rng: Random, mark: str, *, is_chat: bool) -> bytes:
    """Return what a replica sends for one request, spoilt in a third of all cases."""
    way = rng.random()
    if way < 0.5:
        data = _stream(rng, mark, is_chat=is_chat)
    elif way < 0.75:
        data = _whole(rng, mark, rng.choice((b"200 OK", b"404 Not Found", b"500 Oops", b"201 ")))
    elif way < 0.9:
        data = _whole(rng, mark, rng.choice((b"503 Busy", b"429 Slow", b"502 Bad", b"504 Late")))
    else:
        data = rng.choice((b"HTTP/1.1 204 No\r\n\r\n", b"HTTP/1.1 304 Same\r\nX: 1\r\n\r\n", b""))
    if rng.random() < 0.1:
        data = b"HTTP/1.1 1%02d Wait\r\nX: 1\r\n\r\n" % rng.choice((0, 2, 3, 1)) + data
    if rng.random() < 0.05:
        data += data
    return spoil(rng, data) if data and rng.random() < 0.33 else data


def _whole(rng: Random, mark: str, status: bytes) -> bytes:
    body = b'{"mark": "%b", "usage": {"prompt_tokens": 3, "completion_tokens": 1}, "x": "%b"}' % (
        *(mark.encode(), b"y" * rng.choice((0, 0, 100, 700))),
    )
    return _framed(rng, b"HTTP/1.1 %b\r\nContent-Type: application/json\r\n" % status, body)


def _stream(rng: Random, mark: str, *, is_chat: bool) -> bytes:
    events = [b": comment\n\n"] if rng.random() < 0.2 else []
    if is_chat and rng.random() < 0.9:
        events.append(_event(mark, {"delta": {"role": "assistant", "content": ""}}))
    for index in range(rng.choice((0, 1, 3, 8))):
        text = f"{mark}-{index} "
        events.append(_event(mark, {"delta": {"content": text}} if is_chat else {"text": text}))
    if rng.random() < 0.2:
        events.append(b'data: {"error":{"message":"no","code":%d}}\n\n' % rng.choice((400, 500)))
    if rng.random() < 0.8:
        end: dict[str, object] = {"delta": {}} if is_chat else {"text": ""}
        events.append(_event(mark, end | {"finish_reason": "stop"}))
    if rng.random() < 0.3:
        usage = {"prompt_tokens": 9, "completion_tokens": 8, "total_tokens": 17}
        events.append(_event(mark, None, usage=usage))
    if rng.random() < 0.8:
        events.append(b"data: [DONE]\n\n")
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    return _framed(rng, head, b"".join(events))


def _event(mark: str, choice: dict[str, object] | None, **more: object) -> bytes:
    choices = [] if choice is None else [{"index": 0, "finish_reason": None} | choice]
    event = {"id": mark, "object": "o", "created": 1, "model": "m", "choices": choices} | more
    return b"data: %b\n\n" % json.dumps(event).encode()


def _framed(rng: Random, head: bytes, body: bytes) -> bytes:
    fields = rng.choice((b"", b"", b"X-R: 1\r\n", b"Connection: close\r\n", b"X-Request-Id: r\r\n"))
    way = rng.random()
    if way < 0.6:
        return head + fields + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(rng, body)
    if way < 0.9:
        return b"%b%bContent-Length: %d\r\n\r\n%b" % (head, fields, len(body), body)
    return head + fields + b"\r\n" + body  # its end is that of the connection
