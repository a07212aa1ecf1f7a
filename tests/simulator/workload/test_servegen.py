"""ServeGen's clients: as many requests as recorded, as bursty as the fit, and as long."""

import gzip
from collections.abc import Sequence
from itertools import pairwise
from math import gamma, sqrt
from pathlib import Path
from statistics import fmean, pstdev

import pytest

from simulator.request import Workload
from simulator.workload.rows import TraceError, TraceFile
from simulator.workload.servegen import ServeGenClient, ServeGenSettings, read_servegen

DATA = Path(__file__).parent / "data"
REASON = "reason_deepseek-r1_chunk-10"
LANGUAGE = "language_m-large_chunk-106"
TWO_WEEKS = ServeGenSettings(duration_s=1_209_600)


def client(name: str) -> ServeGenClient:
    def file(suffix: str) -> TraceFile:
        text = gzip.decompress((DATA / f"{name}{suffix}.gz").read_bytes()).decode()
        return TraceFile(f"{name}{suffix}", text.splitlines())

    return ServeGenClient(name, file("-trace.csv"), file("-dataset.json"))


def written(trace: Sequence[str], dataset: str) -> Workload:
    files = TraceFile("c-trace.csv", trace), TraceFile("c-dataset.json", [dataset])
    return read_servegen("test", [ServeGenClient("c", *files)], TWO_WEEKS, "0")


GOOD = '{"0": {"input_tokens": "{5: 0.5, 7: 0.5}", "output_tokens": "{9: 1.0}"}}'


def test_as_many_requests_as_were_recorded_come_in_each_window() -> None:
    workload = read_servegen("test", [client(REASON), client(LANGUAGE)], TWO_WEEKS, "0")

    assert len(workload.requests) == 1_770 + 7_571
    reason = [each for each in workload.requests if each.request_id.startswith(REASON)]
    start_us = reason[0].arrival_us
    assert sum(each.arrival_us - start_us < 600_000_000 for each in reason) >= 1_743


def test_only_windows_of_the_time_asked_for_are_drawn() -> None:
    settings = ServeGenSettings(start_s=56_400, duration_s=600)

    workload = read_servegen("test", [client(REASON)], settings, "0")

    assert len(workload.requests) == 27
    assert workload.requests[-1].arrival_us < 600_000_000


def test_gaps_are_as_bursty_as_the_window_s_fit() -> None:
    settings = ServeGenSettings(start_s=235_800, duration_s=600)

    workload = read_servegen("test", [client(LANGUAGE)], settings, "0")

    gaps = [b.arrival_us - a.arrival_us for a, b in pairwise(workload.requests)]
    shape = 0.2347724758933314
    fitted = gamma(1 + 2 / shape) / gamma(1 + 1 / shape) ** 2 - 1
    assert len(workload.requests) == 6_590
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(sqrt(fitted), rel=0.2)


def test_lengths_are_those_of_the_window_s_own_distribution() -> None:
    dataset = (
        '{"0": {"input_tokens": "{5: 0.5, 7: 0.5}", "output_tokens": "{9: 1.0}"},'
        ' "600": {"input_tokens": "{50: 1.0}", "output_tokens": "{}"}}'
    )

    requests = written(["0,1,1,Gamma,1,1", "600,1,1,Gamma,1,1"], dataset).requests

    assert {each.prompt_tokens for each in requests[:600]} == {5, 7}
    assert {each.prompt_tokens for each in requests[600:]} == {50}
    assert {each.output_tokens for each in requests} == {9}
    assert fmean(each.prompt_tokens for each in requests[:600]) == pytest.approx(6, abs=0.17)


def test_a_window_before_all_lengths_has_the_first_ones() -> None:
    assert len(written(["0,1,1,,0,0"], GOOD.replace('"0"', '"21600"')).requests) == 600


def test_prompts_are_unique_and_the_provenance_says_why() -> None:
    workload = written(["0,1,1,Weibull,1,1"], GOOD)

    assert len({each.segments for each in workload.requests}) == 600
    assert "do not say which prompts share a prefix" in workload.provenance


@pytest.mark.parametrize(
    ("trace", "dataset", "message"),
    [
        ("0,1,1,Pareto,1,1", GOOD, "c-trace.csv line 1: distribution is 'Pareto', expected Gamma"),
        ("0,1,1,Gamma,0,1", GOOD, "c-trace.csv line 1: shape is '0', expected a number above 0"),
        ("0,x,1,Gamma,1,1", GOOD, "c-trace.csv line 1: rate is 'x', expected a number"),
        ("0,1,1,Gamma,1", GOOD, "c-trace.csv line 1: found 5 fields, expected 6"),
        ("0,1,1,Gamma,1,1", "[", "c-dataset.json: .*expected an object of windows"),
        ("0,1,1,Gamma,1,1", "{}", "c-dataset.json: no window has input_tokens"),
        (
            "0,1,1,Gamma,1,1",
            '{"0": {"input_tokens": "{0: 1}"}}',
            "c-dataset.json window 0: input_tokens is '{0: 1}', expected",
        ),
        ("0,1,1,Gamma,1,1", '{"0": {"input_tokens": "{5: 0}"}}', "window 0: input_tokens is"),
        ("0,1,1,Gamma,1,1", '{"0": {"input_tokens": 5}}', "window 0: input_tokens is '5'"),
    ],
)
def test_a_bad_file_is_named(trace: str, dataset: str, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        written([trace], dataset)
