"""Answers that the gateway gives itself: errors in OpenAI's shape, the models, its own health."""

from functools import lru_cache
from http import HTTPStatus

import msgspec

from contract.failures import error_body
from router.gateway.verdict import Refusal

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


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
    refusal: Refusal, extra_lines: bytes = b"", *, close: bool, bodiless: bool = False
) -> bytes:
    """Return the gateway's own error, with Retry-After where the failure is a passing one."""
    kind = refusal.failure.kind
    if kind.retry_after_s is not None:
        extra_lines += b"Retry-After: %d\r\n" % kind.retry_after_s
    body = error_body(refusal.failure, refusal.message, refusal.param)
    return json_answer(kind.status, body, extra_lines, close=close, bodiless=bodiless)


def options_answer(methods: str, *, close: bool) -> bytes:
    """Return the answer to an OPTIONS request."""
    return b"%bAllow: %b\r\nContent-Length: 0\r\n%b\r\n" % (
        *(_status_line(204), methods.encode(), b"Connection: close\r\n" if close else b""),
    )


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


@lru_cache(64)
def _status_line(status: int) -> bytes:
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode()
