"""Goal: this engine schedules as vLLM does. Method: replay recordings of the real scheduler."""

import copy
import gzip
import json
from pathlib import Path

import pytest

from replicas.core.replay import Recording, replay

PATH = Path(__file__).parents[2] / "data" / "vllm" / "scheduler_steps.jsonl.gz"


@pytest.fixture(scope="module")
def recordings() -> list[Recording]:
    with gzip.open(PATH, "rt") as file:
        return [json.loads(line) for line in file]


def test_every_step_of_300_workloads_is_vllms(recordings: list[Recording]) -> None:
    assert len(recordings) == 300
    assert sum(len(recording["steps"]) for recording in recordings) == 31_774

    differences = {index: found for index, each in enumerate(recordings) if (found := replay(each))}

    assert differences == {}


def test_replay_names_the_step_and_the_field_that_differ(recordings: list[Recording]) -> None:
    recording = copy.deepcopy(recordings[0])
    free = recording["steps"][3]["free"]
    recording["steps"][3] = {**recording["steps"][3], "free": free - 1}
    recording["free_queue_at_end"].reverse()

    first, last = replay(recording)

    assert (first.step, first.field) == (recording["steps"][3]["step"], "free")
    assert (first.expected, first.got) == (free - 1, free)
    assert last.field == "free_queue_at_end"


def test_replay_sees_a_step_placed_in_another_order(recordings: list[Recording]) -> None:
    recording = copy.deepcopy(recordings[0])
    index, step = next(
        (index, step) for index, step in enumerate(recording["steps"]) if len(step["scheduled"]) > 1
    )
    backwards = dict(reversed(step["scheduled"].items()))
    recording["steps"][index] = {**step, "scheduled": backwards}

    differences = replay(recording)

    assert [each.field for each in differences] == ["scheduled"]


def test_replay_sees_a_step_that_was_not_recorded(recordings: list[Recording]) -> None:
    recording = copy.deepcopy(recordings[0])
    missing = recording["steps"].pop(3)["step"]

    differences = replay(recording)

    assert {each.step for each in differences} == {missing}
