"""A request that is answered with an error, and the answers of aiohttp that routes share."""

import secrets

from aiohttp import hdrs, web

from contract.failures import Failure, error_body

REQUEST_ID_CHARS_MAX = 128
"""Of a client's x-request-id, which becomes part of every chunk."""


class RefusedError(Exception):
    """A request that is answered with ``failure``; ``param`` names the field at fault."""

    def __init__(self, failure: Failure, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.failure = failure
        self.message = message
        self.param = param


def json_response(body: bytes, status: int = 200) -> web.Response:
    """Return an answer whose body is JSON already."""
    return web.Response(body=body, status=status, content_type="application/json")


def error_response(error: RefusedError) -> web.Response:
    """Return a refusal in OpenAI's shape, with Retry-After where there is one."""
    kind = error.failure.kind
    response = json_response(error_body(error.failure, error.message, error.param), kind.status)
    if kind.retry_after_s is not None:
        response.headers[hdrs.RETRY_AFTER] = str(kind.retry_after_s)
    return response


def request_id(request: web.Request) -> str:
    """Return the client's own request id, or a new one."""
    given = request.headers.get("x-request-id", "")[:REQUEST_ID_CHARS_MAX]
    return given or secrets.token_hex(12)
