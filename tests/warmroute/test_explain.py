"""`warmroute explain`: the decision that a whole simulation makes, and how it is shown."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from router.core.explanation import Candidate, Explanation
from router.core.reason import Ineligible, Reason
from simulator.fleet_run import FleetRun
from simulator.outcome import Outcome
from warmroute.cli import main
from warmroute.explain.command import explain_request
from warmroute.explain.text import explanation_text
from warmroute.simulate.settings import Experiment, fleet_of, workload_of

GROUPS = "groups,groups=4,requests=80,rate=20,output_tokens=20"
LADDER = "ladder,stages=4x3+8x3,system_tokens=800,output_tokens=20"
TURNS = "multiturn,conversations=12,turns=3,output_tokens=20,think_s=0.5,rate=10"


def outcomes_of(experiment: Experiment) -> dict[str, Outcome]:
    run = FleetRun(fleet_of(experiment), workload_of(experiment))
    return {outcome.request.request_id: outcome for outcome in run.run()}


@pytest.mark.parametrize(
    ("policy", "workload", "gateways", "seed"),
    [
        ("prefix_load", GROUPS, 2, 7),
        ("round_robin", GROUPS, 1, 0),
        ("prefix_load", TURNS, 2, 0),
        ("prefix_load", LADDER, 1, 0),
    ],
)
def test_explains_the_decision_that_the_whole_simulation_makes(
    policy: str, workload: str, gateways: int, seed: int
) -> None:
    experiment = Experiment(workload=workload, policy=policy, gateways=gateways, seed=seed)
    outcomes = outcomes_of(experiment)

    for name in list(outcomes)[5::25]:
        request, [explanation] = explain_request(experiment, name)

        outcome = outcomes[request.request_id]
        chosen = explanation.best_first()[0]
        assert (explanation.chosen, explanation.reason) == (outcome.replica_id, outcome.reason)
        assert chosen.replica_id == explanation.chosen
        assert chosen.matched_tokens == outcome.predicted_tokens


def test_each_attempt_is_explained() -> None:
    experiment = Experiment(
        workload=GROUPS, replicas=("3",), faults=("crash:replica=1,at_s=1,for_s=60",)
    )
    retried = [each for each in outcomes_of(experiment).values() if each.attempts > 1]
    assert retried

    _, explanations = explain_request(experiment, retried[0].request.request_id)

    assert len(explanations) == retried[0].attempts
    assert explanations[0].chosen == "replica-1"
    assert explanations[1].ineligible["replica-1"] is Ineligible.ALREADY_TRIED


def test_command_prints_a_table_and_writes_the_same_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "explained.json"

    status = main(["explain", "--trace", GROUPS, "--request", "40", "--json", str(path)])

    assert status == 0
    document = json.loads(path.read_text())
    [result] = document["results"]
    text = capsys.readouterr().out
    assert text.startswith(f"request-40 of {GROUPS}: ")
    rows = [line.split() for line in text.splitlines() if line.startswith("replica-")]
    assert next(row[0] for row in rows) == result["chosen"]
    assert {row[0] for row in rows} == {each["replica_id"] for each in result["candidates"]}
    assert document["inputs"]["request"] == "request-40"


def test_file_that_is_no_workload_is_a_trace_of_mooncake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"timestamp": n * 1000, "input_length": 1000, "output_length": 5, "hash_ids": [0, n]}
        for n in range(4)
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))

    status = main(["explain", "--trace", str(path), "--request", "2", "--replicas", "2"])

    assert status == 0
    assert "(warm)" in capsys.readouterr().out


@pytest.mark.parametrize("request_name", ["80", "-1", "nobody"])
def test_unknown_request_is_refused_with_what_there_is(
    request_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(["explain", "--trace", GROUPS, f"--request={request_name}"])

    assert status == 3
    assert "a number below 80, or an id" in capsys.readouterr().err


CANDIDATE = Candidate("a", 10, 90, 1_000, 2, 0.25, 8000.0, 1.5, {"ahead": 1.25, "own": 0.25})
EXPLANATION = Explanation(
    *("r", "p", "s", "m", 100, Reason.WARM, "a"),
    [CANDIDATE, replace(CANDIDATE, replica_id="b", cost=1.0, kv_usage=None)],
    {"c": Ineligible.DRAINING, "d": Ineligible.EJECTED, "e": Ineligible.DRAINING},
)


TEXT = """\
p chooses a: no other candidate holds more of the prompt (warm)

replica  cost ms    ahead    own  matched  uncached  tokens ahead  in flight   KV  tokens/s
-------  -------  -------  -----  -------  --------  ------------  ---------  ---  --------
a        1,500.0  1,250.0  250.0       10        90         1,000          2  25%     8,000
b        1,000.0  1,250.0  250.0       10        90         1,000          2    -     8,000
not eligible: draining: c, e
not eligible: ejected: d"""


def test_text_has_each_term_in_milliseconds_and_who_could_not_be_chosen() -> None:
    assert explanation_text(EXPLANATION) == TEXT


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_words(reason: Reason) -> None:
    assert f"({reason.value})" in explanation_text(replace(EXPLANATION, reason=reason))


def test_choice_without_costs_has_a_table_without_them() -> None:
    candidate = replace(CANDIDATE, cost=None, terms={})

    text = explanation_text(replace(EXPLANATION, cost_unit=None, candidates=[candidate]))

    assert "cost" not in text
    assert "a             10" in text


def test_nobody_to_choose_from_has_no_table() -> None:
    empty = replace(EXPLANATION, reason=Reason.NO_REPLICA, chosen=None, candidates=[])

    assert explanation_text(replace(empty, ineligible={})) == (
        "p chooses none: the fleet is empty (no_replica)"
    )
