"""The engine core against four recorded runs of vLLM 0.19, and the page that says how well."""

import argparse
from pathlib import Path

import pytest

from contract.options import SettingError
from replicas.core.step_time import VLLM
from simulator.measured.run_check import RunCheck, check_runs
from warmroute.plan.command import add_plan_parser, run_plan
from warmroute.plan.validate import (
    CALIBRATED_ON,
    RUNS,
    ValidateInputs,
    ValidateResults,
    check_text,
    load_run,
    plan_validate,
    validate_text,
)

pytestmark = pytest.mark.long

PAGE = Path("docs/step-time.md")
TPOT_ERROR_MAX = 0.05
MAKESPAN_ERROR_MAX = 0.05
TTFT_ERROR_MAX = 0.10
EDGE = 0.01
"""The p90 of one run lies at the bar, and moves by this with the last digits of the constants."""


@pytest.fixture(scope="module")
def check() -> RunCheck:
    return check_runs([load_run(name) for name in RUNS], VLLM, CALIBRATED_ON)


def test_constants_of_one_run_predict_the_other_three(check: RunCheck) -> None:
    assert len(check.unseen) == 3
    assert abs(check.worst("tpot_mean_us")) < TPOT_ERROR_MAX
    assert abs(check.worst("makespan_us")) < MAKESPAN_ERROR_MAX
    assert abs(check.worst("ttft_p50_us")) < TTFT_ERROR_MAX
    assert abs(check.worst("ttft_p90_us")) < TTFT_ERROR_MAX + EDGE


def test_the_page_shows_what_the_command_prints(check: RunCheck) -> None:
    page = PAGE.read_text()

    for line in check_text(check).splitlines():
        assert line.rstrip() in page, f"{PAGE} is stale; copy what `plan validate` prints"


@pytest.mark.parametrize("name", RUNS)
def test_every_run_has_its_300_requests_and_its_own_hardware(name: str) -> None:
    run = load_run(name)

    assert run.setup.run == name
    assert len(run.requests) == 300
    assert all(each.arrival_us < each.first_token_us <= each.last_token_us for each in run.requests)
    assert all(
        each.shares_with is None or each.shares_with < index
        for index, each in enumerate(run.requests)
    )


def test_the_text_has_the_chosen_calibration_and_the_worst_of_every_choice(
    check: RunCheck,
) -> None:
    results = ValidateResults(check, {CALIBRATED_ON: check})

    text = validate_text(ValidateInputs(), results)

    assert f"two constants from {CALIBRATED_ON}" in text
    worst = f"{100 * check.worst('tpot_mean_us'):+.1f} %"
    assert text.splitlines()[-1].strip().startswith(CALIBRATED_ON)
    assert worst in text.splitlines()[-1]


def test_a_run_that_is_not_shipped_is_refused_with_those_that_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SettingError, match="no run 'x'; known: rtx4090"):
        plan_validate(ValidateInputs("x"))
    parser = argparse.ArgumentParser(prog="warmroute")
    add_plan_parser(parser.add_subparsers(required=True))
    assert run_plan(parser.parse_args(["plan", "validate", "--calibrate", "x"])) == 2
    assert "warmroute plan validate: no run 'x'" in capsys.readouterr().err
