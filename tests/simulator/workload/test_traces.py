"""Readers of traces, on rows written here; the shipped ones are in test_shipped_traces.py."""

import pytest

from simulator.request import SimRequest
from simulator.workload.rows import TraceError, TraceFile
from simulator.workload.traces import (
    AzureSettings,
    BlocksSettings,
    BurstGptSettings,
    MooncakeSettings,
    read_azure,
    read_blocks,
    read_burstgpt,
    read_mooncake,
)


def mooncake(*lines: str, block_tokens: int = 512, first: int | None = None) -> list[SimRequest]:
    settings = MooncakeSettings(block_tokens=block_tokens)
    return list(read_mooncake(TraceFile("m.jsonl", lines), settings, first).requests)


def line(timestamp: float, input_length: int, hash_ids: list[int]) -> str:
    return (
        f'{{"timestamp": {timestamp}, "input_length": {input_length}, "output_length": 9, '
        f'"hash_ids": {hash_ids}}}'
    )


def test_each_id_is_a_segment_and_the_last_block_may_be_partial() -> None:
    (request,) = mooncake(line(0, 1_100, [5, 6, 7]))

    assert [segment.num_tokens for segment in request.segments] == [512, 512, 76]
    assert request.prompt_tokens == 1_100


def test_equal_ids_are_the_same_tokens_in_every_prompt() -> None:
    one, two = mooncake(line(0, 1_100, [5, 6, 7]), line(1, 1_024, [5, 8]))

    assert one.tokens()[:512] == two.tokens()[:512]
    assert set(one.tokens()[512:]) & set(two.tokens()[512:]) == set()


@pytest.mark.parametrize("lengths", [(100, 600), (600, 100), (100, 100)])
def test_a_partial_block_shares_what_it_has_of_the_whole_one(lengths: tuple[int, int]) -> None:
    one, two = mooncake(*(line(0, length, [5, 6][: 1 + length // 512]) for length in lengths))

    assert (one.prompt_tokens, two.prompt_tokens) == lengths
    assert one.segments[0].segment_id == two.segments[0].segment_id


def test_what_has_no_id_is_unique() -> None:
    one, two = mooncake(line(0, 600, [5]), line(1, 600, [5]))

    assert one.segments[0] == two.segments[0]
    assert one.segments[1].segment_id != two.segments[1].segment_id
    assert one.segments[1].num_tokens == 88


def test_ids_of_any_size_and_blocks_of_any_size_are_read() -> None:
    (request,) = mooncake(line(0, 20, [2**60, -1]), block_tokens=16)

    assert [segment.num_tokens for segment in request.segments] == [16, 4]


def test_no_answer_shares_its_segment() -> None:
    requests = mooncake(line(0, 512, [5]), line(0, 512, [5]))

    ids = [request.output_id for request in requests]
    assert len({*ids, requests[0].segments[0].segment_id}) == 3


def test_more_ids_than_the_prompt_has_blocks_are_refused() -> None:
    with pytest.raises(TraceError, match=r"m\.jsonl line 1: hash_ids is .*at most 1 ids of 512"):
        mooncake(line(0, 512, [5, 6]))


def test_rows_out_of_order_are_sorted_and_the_first_arrives_at_zero() -> None:
    requests = mooncake(line(30.5, 10, []), line(20, 20, []), line(30.5, 30, []))

    assert [(each.arrival_us, each.prompt_tokens) for each in requests] == [
        (0, 20),
        (10_500, 10),
        (10_500, 30),
    ]


def test_only_the_first_rows_are_read() -> None:
    assert len(mooncake(line(0, 1, []), "not JSON", first=1)) == 1


def test_a_bad_row_is_named() -> None:
    with pytest.raises(TraceError, match=r"m\.jsonl line 2: input_length is 0, expected"):
        mooncake(line(0, 1, []), line(0, 0, []))


def test_sharegpt_rows_have_ids_of_full_blocks_only() -> None:
    text = '{"arrival_ms": 46.927, "input_length": 40, "output_length": 5, "hash_ids": [0, 1]}'

    (request,) = read_blocks(TraceFile("s.jsonl", [text]), BlocksSettings(), None).requests

    assert [segment.num_tokens for segment in request.segments] == [16, 16, 8]


def test_a_block_of_no_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="block_tokens is 0"):
        MooncakeSettings(block_tokens=0)
    with pytest.raises(ValueError, match="block_tokens is -1"):
        BlocksSettings(block_tokens=-1)


def test_azure_prompts_are_unique_and_the_provenance_says_why() -> None:
    lines = [
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "2023-11-16 18:17:03.9799600,4808,10",
        "2023-11-16 18:17:04.0319600,4808,8",
    ]

    workload = read_azure(TraceFile("a.csv", lines), AzureSettings(), None)

    one, two = workload.requests
    assert two.arrival_us == 52_000
    assert set(one.segments).isdisjoint(two.segments)
    assert (one.prompt_tokens, one.output_tokens) == (4808, 10)
    assert "does not say which prompts share a prefix" in workload.provenance


BURSTGPT = [
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type",
    "5,s1,3.2,ChatGPT,472,18,490,Conversation log",
    "45,,1.0,GPT-4,1087,0,1087,API log",
    "118,,9.9,GPT-4,417,276,693,API log",
]


def test_burstgpt_failures_are_left_out_and_counted() -> None:
    workload = read_burstgpt(TraceFile("b.csv", BURSTGPT), BurstGptSettings(), None)

    assert [(each.arrival_us, each.prompt_tokens) for each in workload.requests] == [
        (0, 472),
        (113_000_000, 417),
    ]
    assert "1 failed requests left out" in workload.provenance
    assert [each.session for each in workload.requests] == ["s1", None]


def test_burstgpt_models_are_kept_only_when_asked_for() -> None:
    file = TraceFile("b.csv", BURSTGPT)

    without = read_burstgpt(file, BurstGptSettings(), None).requests
    named = read_burstgpt(file, BurstGptSettings(models=True), None).requests

    assert {each.model for each in without} == {None}
    assert [each.model for each in named] == ["ChatGPT", "GPT-4"]


def test_burstgpt_is_also_read_without_sessions() -> None:
    lines = [
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
        "5,ChatGPT,472,18,490,Conversation log",
    ]

    (request,) = read_burstgpt(TraceFile("b.csv", lines), BurstGptSettings(), None).requests

    assert request.session is None
