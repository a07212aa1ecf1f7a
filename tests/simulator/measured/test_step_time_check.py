"""The step-time model against 1,060 published measurements: its errors are what the docs say."""

import csv
import gzip
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path

import pytest

from contract.blocks import root_hash
from contract.hardware import find_gpu, find_model
from replicas.core.engine import Engine
from replicas.core.hardware_timing import step_time_spec
from replicas.core.scheduler_config import SchedulerConfig
from replicas.core.sequence import Sequence
from replicas.core.step_time import ENGINES, StepTimeModel
from simulator.measured.rows import MeasuredRow, MeasuredRows, read_rows
from simulator.measured.step_time_check import EngineCheck, check_rows, fit_rows, score, steady_load
from simulator.quantiles import quantile

FILE = Path("tests/data/aic/aic_silicon_dense_agg.csv.gz")


@pytest.fixture(scope="module")
def measured() -> MeasuredRows:
    with gzip.open(FILE, "rt") as file:
        return read_rows(csv.DictReader(file))


@pytest.fixture(scope="module")
def checks(measured: MeasuredRows) -> dict[str, EngineCheck]:
    return check_rows(measured.rows)


def rows_of(measured: MeasuredRows, engine: str) -> list[MeasuredRow]:
    return [row for row in measured.rows if row.engine == engine]


def test_every_row_is_scored_or_left_out_with_a_reason(measured: MeasuredRows) -> None:
    assert len(measured.rows) + sum(rows for _, rows in measured.left_out) == 1_060
    assert len(measured.rows) == 861


def test_vllm_is_within_a_tenth_and_hardly_biased(checks: dict[str, EngineCheck]) -> None:
    total = checks["vllm"].total

    assert total.rows == 250
    assert total.mape < 0.05
    assert abs(total.bias) < 0.01


@pytest.mark.parametrize("kind", ["model", "GPU"])
def test_vllm_is_within_a_tenth_on_what_it_was_not_fitted_on(
    checks: dict[str, EngineCheck], kind: str
) -> None:
    *groups, together = checks["vllm"].without[kind]

    assert together.rows == 250
    assert together.mape < 0.08
    assert abs(together.bias) < 0.03
    assert all(group.mape < 0.1 for group in groups)


def test_tensorrt_llm_is_within_a_tenth(checks: dict[str, EngineCheck]) -> None:
    check = checks["trtllm"]

    assert check.total.mape < 0.075
    assert abs(check.total.bias) < 0.03
    assert check.without["model"][-1].mape < 0.11


def test_sglang_is_not_predicted_and_it_is_known(checks: dict[str, EngineCheck]) -> None:
    """Its two files hold one model on one GPU each, and contradict each other."""
    check = checks["sglang"]

    assert 0.15 < check.total.mape < 0.18
    assert check.without["model"][-1].mape > 0.4


@pytest.mark.parametrize("name", ENGINES)
def test_the_catalogue_holds_what_the_fit_gives(measured: MeasuredRows, name: str) -> None:
    known = ENGINES[name]

    fitted = fit_rows(rows_of(measured, name), known)

    assert known.memory_efficiency == pytest.approx(fitted.memory_efficiency, abs=0.0006)
    assert known.compute_efficiency == pytest.approx(fitted.compute_efficiency, abs=0.0006)
    assert known.layer_us == pytest.approx(fitted.layer_us, abs=0.06)
    assert known.layer_sequence_us == pytest.approx(fitted.layer_sequence_us, abs=0.0006)


def test_scores_are_those_of_two_rows_done_by_hand(measured: MeasuredRows) -> None:
    rows = rows_of(measured, "vllm")[:2]
    errors = [score("one", [row], ENGINES["vllm"]).bias for row in rows]

    both = score("both", rows, ENGINES["vllm"])

    assert both.bias == pytest.approx(sum(errors) / 2)
    assert both.mape == pytest.approx(sum(map(abs, errors)) / 2)
    assert both.median == pytest.approx(both.mape)  # of two it is their middle


@pytest.mark.parametrize(("share", "expected"), [(0, 1.0), (0.5, 2.5), (0.9, 3.7), (1, 4.0)])
def test_a_quantile_lies_between_its_neighbours(share: float, expected: float) -> None:
    assert quantile([1, 2, 3, 4], share) == pytest.approx(expected)


def closed_loop(prompt_tokens: int, output_tokens: int) -> Iterator[Sequence]:
    """Yield requests whose lengths spread by a fifth around the mean, so that none keep step."""
    for number in count():
        prompt = spread(prompt_tokens, number * 0.618034)
        first = number * 2 * prompt_tokens
        output = spread(output_tokens, number * 0.414214)
        yield Sequence(str(number), range(first, first + prompt), output, root_hash("closed"))


def spread(mean: int, turns: float) -> int:
    return round(mean * (0.8 + 0.4 * (turns % 1)))


@pytest.mark.parametrize(
    ("prompt_tokens", "output_tokens", "concurrency"),
    [(1_024, 128, 8), (2_048, 128, 32), (4_096, 256, 16), (256, 256, 64)],
)
def test_the_mean_of_the_formula_is_that_of_the_engine_stepped(
    prompt_tokens: int, output_tokens: int, concurrency: int
) -> None:
    model = StepTimeModel(step_time_spec(find_model("llama-3.1-8b"), find_gpu("h100")))
    config = SchedulerConfig(num_blocks=40_000, enable_prefix_caching=False)
    engine = Engine(config, model, lambda _: 0)
    fresh = closed_loop(prompt_tokens, output_tokens)
    finished: list[Sequence] = []
    now_us = num_live = 0
    while len(finished) < 8 * concurrency:
        for sequence in islice(fresh, concurrency - num_live):
            engine.add(sequence, now_us)
        plan = engine.plan_step(now_us)
        assert plan is not None
        now_us += engine.step_time_us(plan)
        ended = engine.complete_step(plan, now_us).finished
        finished += ended
        num_live = concurrency - len(ended)

    tpots_us = [
        (each.finished_us - each.first_token_us) / (each.num_output_tokens - 1)
        for each in finished[2 * concurrency :]
        if each.finished_us is not None and each.first_token_us is not None
    ]
    formula_us = model.step_time_us(steady_load(prompt_tokens, output_tokens, concurrency))
    assert formula_us == pytest.approx(sum(tpots_us) / len(tpots_us), rel=0.04)
