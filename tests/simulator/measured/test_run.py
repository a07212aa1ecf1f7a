"""Recorded runs, replayed: the steps of a small one by hand, and four real ones against vLLM."""

from dataclasses import replace

import msgspec
import pytest

from contract.hardware import find_gpu, find_model
from replicas.core.hardware_timing import expert_parallel_spec, step_time_spec
from replicas.core.step_time import VLLM, StepLoad, StepTimeModel
from simulator.measured.run import (
    RecordedRequest,
    RecordedRun,
    RunSetup,
    calibrate,
    measured_figures,
    read_run,
    replay,
)
from simulator.measured.run_check import Comparison, RunCheck, check_runs

SETUP = RunSetup(
    run="small",
    model="Llama-3.1-8B",
    gpu="H100",
    tensor_parallel=1,
    expert_ranks=1,
    max_num_seqs=8,
    max_num_batched_tokens=64,
    kv_blocks=1_000,
)
MIXTURE = replace(SETUP, model="Qwen3-30B-A3B", expert_ranks=2)
MODEL = StepTimeModel(step_time_spec(find_model("llama-3.1-8b"), find_gpu("h100")))


def request(
    arrival_us: int, prompt_tokens: int = 40, output_tokens: int = 3, **shared: int
) -> RecordedRequest:
    return RecordedRequest(
        arrival_us=arrival_us,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        first_token_us=arrival_us + 10,
        last_token_us=arrival_us + 10 + 20 * (output_tokens - 1),
        **shared,
    )


def prefill_us(tokens: int, context: int = 0, decodes: int = 0, decode_context: int = 0) -> int:
    pairs = tokens * (context + tokens / 2)
    return MODEL.step_time_us(StepLoad(tokens, context, pairs, decodes, decode_context))


def decode_us(context: int) -> int:
    return MODEL.step_time_us(StepLoad(decode_tokens=1, decode_context_tokens=context))


def test_a_request_alone_takes_its_prefill_and_one_step_per_token() -> None:
    figures = replay(RecordedRun(SETUP, (request(0),)), VLLM).figures

    first_us = prefill_us(40)
    last_us = first_us + decode_us(40) + decode_us(41)
    assert figures.ttft_mean_us == first_us
    assert figures.makespan_us == last_us
    assert figures.tpot_mean_us == (last_us - first_us) / 2


def test_a_request_that_comes_during_a_step_waits_for_one_step_more() -> None:
    """The next step was chosen when the one under way began, before the request came."""
    early = replay(RecordedRun(SETUP, (request(0), request(0, 20))), VLLM).figures
    late = replay(RecordedRun(SETUP, (request(0), request(1, 20))), VLLM).figures

    together = StepLoad(prefill_tokens=60, prefill_attention_pairs=40 * 20 + 20 * 10)
    assert early.ttft_mean_us == MODEL.step_time_us(together)
    # Its own step is the third: after the prefill and the first decode of the other.
    waited_us = prefill_us(40) + decode_us(40)
    assert late.ttft_mean_us * 2 == prefill_us(40) + waited_us + prefill_us(20, 0, 1, 41) - 1


def test_an_idle_engine_begins_when_a_request_comes() -> None:
    figures = replay(RecordedRun(SETUP, (request(0), request(10**9))), VLLM).figures

    assert figures.ttft_p50_us == prefill_us(40)


def test_a_prefix_of_an_earlier_request_is_not_computed_again() -> None:
    apart = RecordedRun(SETUP, (request(0), request(10**9)))
    alike = RecordedRun(SETUP, (request(0), request(10**9, shares_with=0, shared_blocks=2)))

    # 32 of the 40 tokens come from the cache.
    assert replay(apart, VLLM).figures.ttft_mean_us == prefill_us(40)
    saved_us = 2 * replay(alike, VLLM).figures.ttft_mean_us - prefill_us(40)
    assert saved_us == prefill_us(8, context=32)


def test_ranks_step_together_at_the_pace_of_the_busiest() -> None:
    run = RecordedRun(MIXTURE, (request(0, 60), request(0, 10)))

    spec = expert_parallel_spec(find_model("qwen3-30b-a3b"), find_gpu("h100"), 2)
    busiest = StepLoad(prefill_tokens=60, prefill_attention_pairs=60 * 30)
    # Each rank has one of them: were they on one, 64 tokens would not hold both.
    assert replay(run, VLLM).figures.ttft_p90_us == StepTimeModel(spec).step_time_us(busiest)


def test_measured_figures_are_those_of_the_recording() -> None:
    figures = measured_figures(RecordedRun(SETUP, (request(0), request(100, output_tokens=1))))

    assert figures.tpot_mean_us == 20  # an answer of one token has none
    assert figures.makespan_us == 110
    assert (figures.ttft_mean_us, figures.ttft_p50_us, figures.ttft_p90_us) == (10, 10, 10)


def test_a_run_of_known_efficiencies_gives_them_back() -> None:
    true = replace(VLLM, memory_efficiency=0.7, compute_efficiency=0.5)
    requests = tuple(request(2_000 * i, 60 + 300 * (i % 3), 40 + i) for i in range(24))
    setup = replace(SETUP, max_num_batched_tokens=512)
    predicted = replay(RecordedRun(setup, requests), true)
    recorded = tuple(
        replace(
            each,
            first_token_us=0,
            last_token_us=round(part.terms.time_us(true) * (each.output_tokens - 1)),
        )
        for each, part in zip(requests, predicted.observations, strict=True)
    )

    found = calibrate(RecordedRun(setup, recorded), VLLM)

    assert found.memory_efficiency == pytest.approx(0.7, rel=0.01)
    assert found.compute_efficiency == pytest.approx(0.5, rel=0.03)
    assert found.layer_us == VLLM.layer_us


def test_a_run_is_read_from_its_lines() -> None:
    run = RecordedRun(SETUP, (request(0), request(5, shares_with=0, shared_blocks=2)))
    lines = [msgspec.json.encode(each) for each in (run.setup, *run.requests)]

    assert read_run(lines) == run


@pytest.mark.parametrize("lines", [[], [b"{}"], [b"no json"]])
def test_lines_that_are_no_run_are_refused(lines: list[bytes]) -> None:
    with pytest.raises(msgspec.DecodeError):
        read_run(lines)


def test_the_worst_error_is_of_a_run_that_gave_no_constant() -> None:
    one, other = (RecordedRun(replace(SETUP, run=name), (request(0),)) for name in ("a", "b"))

    check = check_runs([one, other], VLLM)

    measured = measured_figures(one)
    doubled = replace(measured, makespan_us=2 * measured.makespan_us)
    assert Comparison("a", measured, doubled).error("makespan_us") == 1
    only_b = RunCheck("a", VLLM, (Comparison("a", measured, doubled), check.comparisons[1]))
    assert only_b.unseen == (check.comparisons[1],)
    assert only_b.worst("makespan_us") == check.comparisons[1].error("makespan_us")
