"""The closed list of failures: whose fault, which status, and what may be tried elsewhere."""

import json
import re
from pathlib import Path

import pytest

from contract.failures import (
    RETRYABLE_STATUSES,
    Failure,
    Fault,
    Health,
    anthropic_error_body,
    error_body,
    health_of_status,
)


@pytest.mark.parametrize("failure", list(Failure))
def test_status_says_the_same_as_the_fault(failure: Failure) -> None:
    kind = failure.kind

    assert (kind.status < 500) == (kind.fault is Fault.CLIENT)
    assert (kind.error_type == "invalid_request_error") == (kind.fault is Fault.CLIENT)


@pytest.mark.parametrize("failure", list(Failure))
def test_only_a_replicas_failure_may_be_tried_elsewhere(failure: Failure) -> None:
    assert not failure.kind.retry_elsewhere or failure.kind.fault is Fault.REPLICA


def test_failure_that_ends_by_itself_says_when_to_come_back() -> None:
    for failure in Failure:
        assert (failure.kind.status == 503) == (failure.kind.retry_after_s is not None)


def test_codes_are_unique() -> None:
    codes = [failure.kind.code for failure in Failure]

    assert len(codes) == len(set(codes))


def test_broken_stream_is_never_tried_elsewhere() -> None:
    assert not Failure.BETWEEN_BYTES_TIMEOUT.kind.retry_elsewhere


@pytest.mark.parametrize(
    ("status", "health"),
    [
        (200, Health.GOOD),
        (400, Health.GOOD),
        (404, Health.GOOD),
        (422, Health.GOOD),
        (429, Health.BACK_PRESSURE),
        (500, Health.BAD),
        (502, Health.BAD),
        (503, Health.BACK_PRESSURE),
        (504, Health.BAD),
    ],
)
def test_what_a_status_says_of_a_replica(status: int, health: Health) -> None:
    assert health_of_status(status) is health


def test_no_client_error_but_429_is_sent_elsewhere() -> None:
    assert {status for status in RETRYABLE_STATUSES if status < 500} == {429}


@pytest.mark.parametrize("message", ["plain", 'quoted "x"', "line\nend", "émoji 🙂"])
def test_error_body_is_the_openai_object(message: str) -> None:
    body = json.loads(error_body(Failure.INVALID_REQUEST, message, "model"))

    expected = {"message": message, "type": "invalid_request_error"}
    assert body == {"error": expected | {"param": "model", "code": "invalid_request"}}


def test_error_body_without_a_param_says_null() -> None:
    assert json.loads(error_body(Failure.NO_REPLICA, "none"))["error"]["param"] is None


def test_every_code_is_documented_with_its_status() -> None:
    page = Path(__file__).parent.parent.parent / "docs" / "serving-clients.md"

    rows = re.findall(r"^\| `(\w+)` \| (\d+) \|", page.read_text(), re.MULTILINE)

    assert dict(rows) == {f.kind.code: str(f.kind.status) for f in Failure}


@pytest.mark.parametrize("failure", list(Failure))
def test_anthropic_s_shape_has_the_same_code(failure: Failure) -> None:
    body = json.loads(anthropic_error_body(failure, "why"))

    assert body["type"] == "error"
    assert body["error"].keys() == {"type", "message", "code"}
    assert (body["error"]["message"], body["error"]["code"]) == ("why", failure.kind.code)
    assert body["error"]["type"].endswith("_error") or body["error"]["type"] == "request_too_large"
