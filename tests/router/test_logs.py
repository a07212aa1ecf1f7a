"""Log lines: JSON objects, written in the background, with nothing in them that is a client's."""

import io
import json
import logging
import re
import threading
from typing import Any

import pytest

from contract.failures import Failure
from contract.openai_api import PromptTokensDetails, Usage
from router.core.reason import Outcome, Reason
from router.core.record import ExchangeRecord
from router.logs import log_request, logging_to
from tests.waiting import until

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


def ended(request_id: str = "id") -> ExchangeRecord:
    return ExchangeRecord(
        *(request_id, "/v1/completions", Outcome.BROKEN, 200, 1_000, 9_000),
        model="m" * 5_000,
        policy="prefix_load",
        reason=Reason.WARM,
        replica_id="a",
        stream=True,
        detail="it broke",
        prompt_tokens=11,
        matched_tokens=7,
        attempts=2,
        resumes=1,
        body_bytes=300,
        answer_bytes=400,
        chunks=5,
        failure=Failure.UPSTREAM_LOST,
        usage=Usage(10, 2, 12, PromptTokensDetails(4)),
        sent_us=1_500,
    )


async def test_an_ended_request_is_one_line() -> None:
    stream = io.StringIO()
    with logging_to(stream):
        log_request(ended())

    (line,) = lines_of(stream)
    assert [*line][:4] == ["time", "level", "logger", "message"]
    assert (line["request_id"], line["outcome"], line["status"]) == ("id", "broken", 200)
    assert (line["failure"], line["reason"]) == ("replica_connection_lost", "warm")
    assert (line["sent_after_us"], line["ended_after_us"]) == (500, 8_000)
    assert line["first_byte_after_us"] is None
    assert [line[f"usage_{what}_tokens"] for what in ("prompt", "cached", "completion")] == [
        10,
        4,
        2,
    ]
    assert [line[name] for name in ("attempts", "resumes", "prompt_tokens", "matched_tokens")] == [
        *(2, 1, 11, 7)
    ]
    assert [line[name] for name in ("body_bytes", "answer_bytes", "chunks")] == [300, 400, 5]
    assert (line["path"], line["policy"], line["replica"]) == (
        "/v1/completions",
        "prefix_load",
        "a",
    )
    assert (line["stream"], line["detail"]) == (True, "it broke")
    assert len(line["model"]) == 100


class CountedWrites(io.StringIO):
    """Counts what would be calls of the kernel."""

    num_writes = 0

    def write(self, text: str) -> int:
        self.num_writes += 1
        return super().write(text)


async def test_requests_that_end_together_are_written_together_and_in_order() -> None:
    stream = CountedWrites()
    with logging_to(stream):
        for number in range(600):
            log_request(ended(f"r{number}"))

    assert [line["request_id"] for line in lines_of(stream)] == [f"r{n}" for n in range(600)]
    assert stream.num_writes < 10


async def test_a_line_does_not_wait_for_another_request() -> None:
    stream = io.StringIO()
    with logging_to(stream):
        log_request(ended())

        await until(lambda: len(lines_of(stream)) == 1)


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


async def test_lines_of_requests_are_lost_and_counted_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("router.logs.LINES_WAITING_MAX", 50)
    monkeypatch.setattr("router.logs.GATHERED_MAX", 20)
    stream = BlockedStream()

    def told() -> int:
        lost = re.findall(r"\((\d+) lines lost\)", stream.getvalue())
        return stream.getvalue().count("\n") + sum(map(int, lost))

    with logging_to(stream):
        for _ in range(200):
            log_request(ended())
        stream.is_open.set()
        await until(lambda: stream.getvalue().count("\n") >= 50)
        log_request(ended("after"))

        await until(lambda: told() == 201)

    assert len(lines_of(stream)) < 201
