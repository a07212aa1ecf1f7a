"""Answers that the gateway gives itself: errors, the models, its own health.

An error has OpenAI's shape, or Anthropic's below ``/v1/messages``; both with the same ``code``.
"""

from functools import lru_cache
from http import HTTPStatus

import msgspec

from contract.failures import Failure, anthropic_error_body, error_body
from router.gateway.verdict import Refusal

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
ANTHROPIC_PATH = "/v1/messages"


class _Model(msgspec.Struct):
    id: str
    object: str = "model"
    created: int = 0
    owned_by: str = "warmroute"


class _ModelList(msgspec.Struct):
    data: list[_Model]
    object: str = "list"


_encode = msgspec.json.Encoder().encode


def json_answer(
    status: int, body: bytes, extra_lines: bytes = b"", *, close: bool, bodiless: bool = False
) -> bytes:
    """Return a whole answer. ``bodiless``: to a HEAD, so the head only."""
    head = b"%bContent-Type: application/json\r\nContent-Length: %d\r\n%b%b\r\n" % (
        *(_status_line(status), len(body), extra_lines, b"Connection: close\r\n" if close else b""),
    )
    return head if bodiless else head + body


def error_answer(
    refusal: Refusal,
    extra_lines: bytes = b"",
    *,
    close: bool,
    bodiless: bool = False,
    path: str = "",
) -> bytes:
    """Return the gateway's own error, with Retry-After where the failure is a passing one."""
    kind = refusal.failure.kind
    if kind.retry_after_s is not None:
        extra_lines += b"Retry-After: %d\r\n" % kind.retry_after_s
    if refusal.failure is Failure.INVALID_API_KEY:
        extra_lines += b"WWW-Authenticate: Bearer\r\n"
    if refusal.failure is Failure.UNSUPPORTED_ENCODING:
        extra_lines += b"Accept-Encoding: gzip, deflate\r\n"  # RFC 9110, 12.5.3
    body = _error_body(refusal, path)
    return json_answer(kind.status, body, extra_lines, close=close, bodiless=bodiless)


def error_event(refusal: Refusal, path: str) -> bytes:
    """Return the event that ends a stream which cannot be completed."""
    name = b"event: error\n" if path.startswith(ANTHROPIC_PATH) else b""
    return b"%bdata: %b\n\n" % (name, _error_body(refusal, path))


def options_answer(methods: str, extra_lines: bytes = b"", *, close: bool) -> bytes:
    """Return the answer to an OPTIONS request."""
    if close:
        extra_lines += b"Connection: close\r\n"
    return b"%bAllow: %b\r\n%b\r\n" % (_status_line(204), methods.encode(), extra_lines)


def request_id_line(request_id: str) -> bytes:
    """Return the header that names a request."""
    return b"x-request-id: %b\r\n" % request_id.encode("latin-1", "replace")


def models_body(names: list[str]) -> bytes:
    """Return OpenAI's list of models."""
    return _encode(_ModelList([_Model(name) for name in names]))


def model_body(name: str) -> bytes:
    """Return OpenAI's object of one model."""
    return _encode(_Model(name))


def status_body(status: str) -> bytes:
    """Return the body of a health check."""
    return _encode({"status": status})


def _error_body(refusal: Refusal, path: str) -> bytes:
    if path.startswith(ANTHROPIC_PATH):
        return anthropic_error_body(refusal.failure, refusal.message)
    return error_body(refusal.failure, refusal.message, refusal.param)


@lru_cache(64)
def _status_line(status: int) -> bytes:
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode()
