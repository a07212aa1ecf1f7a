"""Log lines: JSON objects, written in the background, with nothing in them that is a client's."""

import io
import json
import logging
import threading
from typing import Any

import pytest

from contract.failures import Failure
from contract.openai_api import PromptTokensDetails, Usage
from router.core.reason import Outcome, Reason
from router.core.record import ExchangeRecord
from router.logs import log_request, logging_to

log = logging.getLogger("router.test")


def lines_of(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_an_object_with_time_level_and_message() -> None:
    stream = io.StringIO()
    with logging_to(stream):
        log.warning("store is %s", "down")
        log.debug("not written")

    (line,) = lines_of(stream)
    assert line.keys() == {"time", "level", "logger", "message"}
    assert (line["level"], line["message"]) == ("warning", "store is down")


def test_a_traceback_stays_in_its_line() -> None:
    stream = io.StringIO()
    with logging_to(stream):
        try:
            raise ValueError("inside")
        except ValueError:
            log.exception("outside")

    (line,) = lines_of(stream)
    assert "ValueError: inside" in line["traceback"]


def test_an_ended_request_is_one_line() -> None:
    stream = io.StringIO()
    record = ExchangeRecord(
        *("id", "/v1/completions", Outcome.BROKEN, 200, 1_000, 9_000),
        model="m" * 5_000,
        policy="prefix_load",
        reason=Reason.WARM,
        replica_id="a",
        failure=Failure.UPSTREAM_LOST,
        usage=Usage(10, 2, 12, PromptTokensDetails(4)),
        sent_us=1_500,
    )
    with logging_to(stream):
        log_request(record)

    (line,) = lines_of(stream)
    assert (line["request_id"], line["outcome"], line["status"]) == ("id", "broken", 200)
    assert (line["failure"], line["reason"]) == ("replica_connection_lost", "warm")
    assert (line["sent_after_us"], line["ended_after_us"]) == (500, 8_000)
    assert line["first_byte_after_us"] is None
    assert line["usage_cached_tokens"] == 4
    assert len(line["model"]) == 100


class BlockedStream(io.StringIO):
    """A pipe that nobody reads, until it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.is_open = threading.Event()

    def write(self, text: str) -> int:
        self.is_open.wait()
        return super().write(text)


def test_a_pipe_that_nobody_reads_holds_up_nothing_and_what_is_lost_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("router.logs.LINES_WAITING_MAX", 50)
    stream = BlockedStream()
    with logging_to(stream):
        for number in range(150):
            log.info("line %d", number)
        stream.is_open.set()
        log.info("after")
        while not any("lines lost" in line for line in stream.getvalue().splitlines()):
            log.info("again")

    assert 50 <= len(lines_of(stream)) < 150
