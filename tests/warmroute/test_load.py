"""`warmroute load`: the order of what is sent, the rows of what came back, and the exit status.

Nothing listens here: connections are refused by a port that was just closed. A live fleet is in
tests/blackbox/test_load.py.
"""

from collections import Counter

import pytest

from warmroute.cli import main
from warmroute.demo.processes import free_port
from warmroute.demo.replay import Answer, ReplayResult
from warmroute.demo.report import table
from warmroute.demo.workload import TraceRequest
from warmroute.load import repeated, rows_of

A, B = "http://127.0.0.1:1", "http://127.0.0.1:2"


def request(request_id: str, arrival_s: float) -> TraceRequest:
    return TraceRequest(request_id, arrival_s, "text", 1, 1)


def answer(url: str, cached: int, error: str | None = None) -> Answer:
    return Answer(request("r", 0.0), error, "replica-0", 0.1, 0.2, 100, cached, 0, url)


def test_each_round_begins_where_the_one_before_ended() -> None:
    rounds = repeated([request("a", 0.0), request("b", 4.0)], times=3)

    assert [r.arrival_s for r in rounds] == [0.0, 4.0, 4.0, 8.0, 8.0, 12.0]
    assert len({r.request_id for r in rounds}) == 6


def test_every_gateway_has_its_own_row_and_all_have_one() -> None:
    answers = [answer(A, 10), answer(A, 30), answer(B, 80), answer(B, 0, error="status 503")]
    result = ReplayResult(answers, 1.0, 0.0, Counter({"status 503": 1}))

    rows = rows_of((A, B), result)

    assert [row.name for row in rows] == [A, B, "all"]
    assert [row.requests for row in rows] == [2, 2, 4]
    assert [row.errors_by_kind for row in rows] == [{}, {"status 503": 1}, {"status 503": 1}]
    assert [round(row.hit_rate_actual, 3) for row in rows] == [0.2, 0.8, 0.4]


def test_a_single_gateway_needs_no_sum() -> None:
    rows = rows_of((A,), ReplayResult([answer(A, 10)], 1.0, 0.0))

    assert [row.name for row in rows] == [A]
    assert table(rows, names="gateway").startswith("gateway ")


def test_requests_that_fail_are_counted_by_kind_and_make_the_status_1(
    capsys: pytest.CaptureFixture[str],
) -> None:
    urls = f"http://127.0.0.1:{free_port()},http://127.0.0.1:{free_port()}"

    status = main(["load", "--urls", urls, "--requests", "3", "--time-compression", "1e6"])

    output = capsys.readouterr().out
    assert status == 1
    assert output.splitlines()[-1] == "failed: 3 with ClientConnectorError"
    assert [line.split()[1:3] for line in output.splitlines()[2:5]] == [
        ["2", "2"],
        ["1", "1"],
        ["3", "3"],
    ]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--urls", ""], "urls is empty"),
        (["--urls", "127.0.0.1:8080"], "'127.0.0.1:8080', expected http://HOST:PORT"),
        (["--urls", f"{A}/"], "expected http://HOST:PORT"),
        (["--urls", f"{A},{A}"], "names a gateway twice"),
        (["--requests", "0"], "requests is 0, must be 1 or more"),
        (["--repeat", "0"], "repeat is 0, must be 1 or more"),
        (["--time-compression", "0"], "time_compression is 0.0, must be above 0"),
        (["--time-compression", "nan"], "time_compression is nan, must be above 0"),
    ],
)
def test_a_wrong_flag_is_refused_before_anything_is_sent(
    flags: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["load", *flags]) == 3

    assert words in capsys.readouterr().err
