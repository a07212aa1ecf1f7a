"""Every way in which a gateway or a replica itself refuses or breaks a request.

The type says whose fault it is, hence what may be done: only a failure of the replica may count
against its health, only one that says ``retry_elsewhere`` may be sent to another replica, and
that before the first response byte only. ``code`` is stable: clients and alerts may match on it.
"""

from dataclasses import dataclass
from enum import Enum

import msgspec


class Fault(Enum):
    """Who has to change something."""

    CLIENT = "client"
    REPLICA = "replica"
    FLEET = "fleet"
    GATEWAY = "gateway"


@dataclass(frozen=True)
class FailureKind:
    """What all failures of one code have in common."""

    code: str
    status: int
    error_type: str  # OpenAI's `error.type`
    fault: Fault
    retry_elsewhere: bool = False
    retry_after_s: int | None = None


class Failure(Enum):
    """The closed list; the value carries status, fault and what may be tried."""

    INVALID_JSON = FailureKind("invalid_json", 400, "invalid_request_error", Fault.CLIENT)
    INVALID_REQUEST = FailureKind("invalid_request", 400, "invalid_request_error", Fault.CLIENT)
    CONTEXT_LENGTH = FailureKind(
        "context_length_exceeded", 400, "invalid_request_error", Fault.CLIENT
    )
    NEVER_FITS = FailureKind("never_fits", 400, "invalid_request_error", Fault.CLIENT)
    BAD_HTTP = FailureKind("bad_http", 400, "invalid_request_error", Fault.CLIENT)
    INVALID_API_KEY = FailureKind("invalid_api_key", 401, "invalid_request_error", Fault.CLIENT)
    NOT_ALLOWED = FailureKind("not_allowed", 403, "invalid_request_error", Fault.CLIENT)
    UPGRADE_REFUSED = FailureKind("upgrade_refused", 400, "invalid_request_error", Fault.CLIENT)
    NOT_FOUND = FailureKind("not_found", 404, "invalid_request_error", Fault.CLIENT)
    MODEL_NOT_FOUND = FailureKind("model_not_found", 404, "invalid_request_error", Fault.CLIENT)
    METHOD_NOT_ALLOWED = FailureKind(
        "method_not_allowed", 405, "invalid_request_error", Fault.CLIENT
    )
    REQUEST_TIMEOUT = FailureKind("request_timeout", 408, "invalid_request_error", Fault.CLIENT)
    BODY_TOO_LARGE = FailureKind("body_too_large", 413, "invalid_request_error", Fault.CLIENT)
    UNSUPPORTED_ENCODING = FailureKind(
        "unsupported_encoding", 415, "invalid_request_error", Fault.CLIENT
    )
    EXPECTATION_FAILED = FailureKind(
        "expectation_failed", 417, "invalid_request_error", Fault.CLIENT
    )
    HEADERS_TOO_LARGE = FailureKind("headers_too_large", 431, "invalid_request_error", Fault.CLIENT)
    INTERNAL = FailureKind("internal_error", 500, "server_error", Fault.GATEWAY)
    LOOP_DETECTED = FailureKind("loop_detected", 508, "server_error", Fault.FLEET)
    CONNECT_FAILED = FailureKind(
        "replica_connect_failed", 502, "server_error", Fault.REPLICA, retry_elsewhere=True
    )
    UPSTREAM_LOST = FailureKind(
        "replica_connection_lost", 502, "server_error", Fault.REPLICA, retry_elsewhere=True
    )
    UPSTREAM_PROTOCOL = FailureKind(
        "replica_protocol_error", 502, "server_error", Fault.REPLICA, retry_elsewhere=True
    )
    NO_REPLICA = FailureKind(
        "no_replica_available", 503, "server_error", Fault.FLEET, retry_after_s=1
    )
    OVERLOADED = FailureKind("overloaded", 503, "server_error", Fault.FLEET, retry_after_s=1)
    DRAINING = FailureKind("draining", 503, "server_error", Fault.GATEWAY, retry_after_s=1)
    REPLICA_OVERLOADED = FailureKind(
        "replica_overloaded",
        503,
        "server_error",
        Fault.REPLICA,
        retry_elsewhere=True,
        retry_after_s=1,
    )
    MODEL_MISSING = FailureKind(
        "replica_lacks_model", 502, "server_error", Fault.REPLICA, retry_elsewhere=True
    )
    CONNECT_TIMEOUT = FailureKind(
        "replica_connect_timeout", 504, "server_error", Fault.REPLICA, retry_elsewhere=True
    )
    FIRST_BYTE_TIMEOUT = FailureKind(
        "replica_first_byte_timeout", 504, "server_error", Fault.REPLICA, retry_elsewhere=True
    )
    TOTAL_TIMEOUT = FailureKind("request_timed_out", 504, "server_error", Fault.GATEWAY)
    BETWEEN_BYTES_TIMEOUT = FailureKind("replica_stalled", 504, "server_error", Fault.REPLICA)

    @property
    def kind(self) -> FailureKind:
        """Status, fault and what may be tried."""
        return self.value


class Health(Enum):
    """What one upstream status says of the replica that sent it."""

    GOOD = "good"
    BACK_PRESSURE = "back_pressure"
    BAD = "bad"


RETRYABLE_STATUSES = frozenset({429, 502, 503, 504})
"""An engine that answers so has not begun the request: another replica may be asked."""


def health_of_status(status: int) -> Health:
    """A 4xx never counts against a replica; 429 and an admission 503 are back-pressure."""
    if status in (429, 503):
        return Health.BACK_PRESSURE
    return Health.BAD if status >= 500 else Health.GOOD


class _Error(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str


class _ErrorBody(msgspec.Struct):
    error: _Error


_encode = msgspec.json.Encoder().encode


def error_body(failure: Failure, message: str, param: str | None = None) -> bytes:
    """Return the OpenAI error object: ``{"error": {"message", "type", "param", "code"}}``."""
    kind = failure.kind
    return _encode(_ErrorBody(_Error(message, kind.error_type, param, kind.code)))


class _AnthropicError(msgspec.Struct):
    type: str
    message: str
    code: str


class _AnthropicErrorBody(msgspec.Struct):
    error: _AnthropicError
    type: str = "error"


_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    503: "overloaded_error",
    504: "timeout_error",
}


def anthropic_error_body(failure: Failure, message: str) -> bytes:
    """Return Anthropic's error object, whose ``error`` has our stable ``code`` beside its type.

    Types by status: docs.anthropic.com, "Errors"; others are 4xx or 5xx in general.
    """
    kind = failure.kind
    other = "invalid_request_error" if kind.status < 500 else "api_error"
    name = _ANTHROPIC_TYPES.get(kind.status, other)
    return _encode(_AnthropicErrorBody(_AnthropicError(name, message, kind.code)))
