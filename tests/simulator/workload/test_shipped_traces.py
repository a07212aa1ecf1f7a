"""The shipped traces: their published statistics, and the reuse that another simulator found."""

from functools import cache
from itertools import pairwise
from statistics import fmean, pstdev, quantiles

import pytest

from simulator.request import Workload
from simulator.workload.reuse import ideal_reuse
from warmroute.workloads import read_workload

pytestmark = pytest.mark.long


@cache
def shipped(name: str) -> Workload:
    return read_workload(name)


@pytest.mark.parametrize(
    ("name", "share", "computed_tokens"),
    [
        # AISimulate 1.6 (NVIDIA Dynamo) with one worker and a cache without end.
        ("conversation", 0.373379905854133, 90_730_719),
        ("synthetic", 0.6504309495925, 21_391_748),
    ],
)
def test_ideal_reuse_is_that_of_another_simulator(
    name: str, share: float, computed_tokens: int
) -> None:
    reuse = ideal_reuse(shipped(name).requests, block_size=512)

    assert reuse.share == pytest.approx(share, abs=1e-13)
    assert reuse.computed_tokens == computed_tokens


@pytest.mark.parametrize(
    ("name", "requests", "span_s", "distinct", "prompt_tokens", "output_tokens", "cv"),
    [
        ("conversation", 12_031, 3_537.0, 1_180, 144_793_823, 4_122_048, 3.03),
        ("synthetic", 3_993, 1_022.0, 3_982, 61_194_628, 595_432, 1.01),
        ("azure-code", 8_819, 3_435.9, 8_819, 18_059_974, 245_896, 13.15),
        ("azure-conv", 19_366, 3_501.7, 19_366, 22_361_870, 4_088_665, 1.09),
        ("sharegpt-llama", 300, 29.1, 300, 257_239, 195_753, 0.94),
        ("sharegpt-qwen", 300, 29.1, 300, 258_691, 199_486, 0.94),
    ],
)
def test_counts_and_arrivals_are_the_trace_s(
    name: str,
    requests: int,
    span_s: float,
    distinct: int,
    prompt_tokens: int,
    output_tokens: int,
    cv: float,
) -> None:
    workload = shipped(name)

    arrivals = [each.arrival_us for each in workload.requests]
    gaps = [later - sooner for sooner, later in pairwise(arrivals)]
    assert len(workload.requests) == requests
    assert arrivals[0] == 0
    assert arrivals[-1] / 1e6 == pytest.approx(span_s, abs=0.06)
    assert len(set(arrivals)) == distinct
    assert sum(each.prompt_tokens for each in workload.requests) == prompt_tokens
    assert sum(each.output_tokens for each in workload.requests) == output_tokens
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(cv, abs=0.006)


@pytest.mark.parametrize(
    ("name", "prompts", "answers"),
    [
        ("conversation", (6_909, 27_367, 85_400, 126_195), (350, 597, 1_119, 2_000)),
        ("synthetic", (11_587, 38_611, 66_456, 191_378), (69, 389, 768, 893)),
        ("azure-conv", (1_020, 2_734, 4_142, 14_050), (129, 424, 601, 1_000)),
        ("azure-code", (1_469, 5_188, 7_436, 7_437), (13, 55, 251, 1_899)),
    ],
)
def test_lengths_have_the_trace_s_p50_p90_p99_and_maximum(
    name: str, prompts: tuple[int, ...], answers: tuple[int, ...]
) -> None:
    requests = shipped(name).requests

    for lengths, expected in (
        ([each.prompt_tokens for each in requests], prompts),
        ([each.output_tokens for each in requests], answers),
    ):
        cuts = quantiles(lengths, n=100, method="inclusive")
        found = (cuts[49], cuts[89], cuts[98], max(lengths))
        assert found == pytest.approx(expected, abs=0.51)


def test_all_conversations_begin_with_the_same_block() -> None:
    assert len({each.segments[0].segment_id for each in shipped("conversation").requests}) == 1
