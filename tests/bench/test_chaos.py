"""The chaos run in small, the judge of its ledger case by case, and the page of the results."""

import math
from pathlib import Path

import msgspec
import pytest

from bench.reliability.chaos import ChaosConfig, chaos
from bench.reliability.ledger import End, Entry, Spec, Trouble, forbidden
from bench.reliability.page import NoTableError, put_row
from bench.reliability.watchdog import Line, longest_stop
from contract.sse import DONE_PAYLOAD

REPLICAS = ["replica-0", "replica-1"]


@pytest.mark.blackbox
async def test_a_fleet_that_falls_apart_loses_no_request_and_lies_about_none(
    tmp_path: Path,
) -> None:
    config = ChaosConfig(seed=1, num_streams=60, num_plain=60, rate=15, gap_s=0.5, resumes=True)

    result = await chaos(config, tmp_path)

    assert result.complaints == []
    assert result.accidents
    assert result.ends[True, End.WHOLE] + result.ends[True, End.LEFT] == 60


# ---- the ledger

STREAM = Spec(0, is_stream=True, is_chat=False, prompt="p", num_tokens=2)
PLAIN = Spec(0, is_stream=False, is_chat=False, prompt="p", num_tokens=2)


def event(text: str, finish: str | None = None, response_id: str = "c") -> bytes:
    choice = {"index": 0, "text": text, "finish_reason": finish}
    return msgspec.json.encode({"id": response_id, "choices": [choice]})


def whole_stream() -> list[bytes]:
    text = STREAM.expected()
    return [event(text[:4]), event(text[4:], "length"), DONE_PAYLOAD]


def whole_plain(num_tokens: int = 2) -> list[bytes]:
    choice = {"index": 0, "text": PLAIN.expected(), "finish_reason": "length"}
    usage = {"completion_tokens": num_tokens}
    return [msgspec.json.encode({"id": "c", "choices": [choice], "usage": usage})]


def entry(
    payloads: list[bytes], *, spec: Spec = STREAM, status: int = 200, error: str = ""
) -> Entry:
    return Entry(spec, 0.0, 1.0, status, "replica-0", "r", payloads, transport_error=error)


@pytest.mark.parametrize(
    ("ended", "end"),
    [
        (entry(whole_stream()), End.WHOLE),
        (entry(whole_plain(), spec=PLAIN), End.WHOLE),
        (entry(whole_stream()[:1], error="cut"), End.BROKEN),
        (entry([*whole_stream()[:1], b'{"error": {}}']), End.BROKEN),
        (entry([b'{"id"'], spec=PLAIN, error="cut"), End.BROKEN),
        (entry([b'{"error": {}}'], status=502), End.FAILED),
        (entry([], status=0, error="refused"), End.FAILED),
        (entry(whole_stream()[:1]), End.FALSE),
        (entry([whole_stream()[0], DONE_PAYLOAD]), End.FALSE),
        (entry([b'{"id"'], spec=PLAIN), End.FALSE),
        (entry([event("zzzz"), *whole_stream()[1:]]), End.WRONG),
        (entry([*whole_stream()[:2], event("zzzz")], error="cut"), End.WRONG),
        (entry([*whole_stream(), DONE_PAYLOAD]), End.WRONG),
        (
            entry([whole_stream()[0], event(STREAM.expected()[4:], "length", "d"), DONE_PAYLOAD]),
            End.WRONG,
        ),
        (entry([*whole_stream()[:2], event("", "length"), DONE_PAYLOAD]), End.WRONG),
        (entry(whole_plain(num_tokens=3), spec=PLAIN), End.WRONG),
    ],
)
def test_a_request_ends_in_one_way(ended: Entry, end: End) -> None:
    assert ended.end() is end


def test_a_client_that_left_or_waited_in_vain_is_told_apart() -> None:
    left, hung = entry(whole_stream()[:1]), entry(whole_stream()[:1])
    left.has_left, hung.is_hung = True, True

    assert (left.end(), hung.end()) == (End.LEFT, End.HUNG)


BROKEN, FAILED = entry(whole_stream()[:1], error="cut"), entry([], status=503)
KILLED = Trouble("replica-0", "kill -9", may_break=True, began_s=0.5)
DRAINED = Trouble("replica-0", "drain", may_break=False, began_s=0.5)
OTHER = Trouble("replica-1", "kill -9", may_break=True, began_s=0.5, ended_s=0.6)
LATER = Trouble("replica-0", "kill -9", may_break=True, began_s=2.0, ended_s=math.inf)


@pytest.mark.parametrize(
    ("ended", "troubles", "resumes", "is_forbidden"),
    [
        (BROKEN, [KILLED], False, False),
        (BROKEN, [KILLED], True, True),
        (BROKEN, [KILLED, OTHER], True, False),
        (BROKEN, [], False, True),
        (BROKEN, [DRAINED], False, True),
        (BROKEN, [OTHER], False, True),
        (BROKEN, [LATER], False, True),
        (FAILED, [KILLED], False, True),
        (FAILED, [KILLED, OTHER], False, False),
        (FAILED, [LATER, OTHER], False, True),
        (entry(whole_stream()), [], True, False),
        (entry(whole_stream()[:1]), [KILLED, OTHER], False, True),
    ],
)
def test_an_end_is_allowed_only_for_its_causes(
    ended: Entry, troubles: list[Trouble], resumes: bool, is_forbidden: bool
) -> None:
    found = list(forbidden([ended], troubles, REPLICAS, resumes=resumes))

    assert bool(found) is is_forbidden


# ---- the watchdog and the page


def test_a_stop_is_what_a_loop_has_more_than_an_idle_one_at_that_time() -> None:
    watched = [Line(10.0, stop_s=0.06), Line(20.0, stop_s=0.05, lag_s=0.2)]
    idle = [Line(10.5, stop_s=0.04), Line(30.0, stop_s=1.0)]

    stop = longest_stop(watched, idle)

    assert (stop.ended_s, stop.stop_s, stop.lag_s) == (20.0, 0.05, 0.2)


def test_a_result_replaces_that_of_the_same_keys_and_leaves_the_text(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# T\n\n<!-- rows: a -->\n| k | v |\n| --- | --- |\n| 1 | x |\n\nend\n")

    put_row(page, "a", ["2", "y"], num_keys=1)
    put_row(page, "a", ["1", "z"], num_keys=1)

    assert page.read_text() == (
        "# T\n\n<!-- rows: a -->\n| k | v |\n| --- | --- |\n| 2 | y |\n| 1 | z |\n\nend\n"
    )
    with pytest.raises(NoTableError, match="has no line '<!-- rows: b -->'"):
        put_row(page, "b", ["1"], num_keys=1)
