"""Goal: this engine schedules as vLLM does. Method: replay recordings of the real scheduler."""

import gzip
from pathlib import Path
from typing import Any

import msgspec
import pytest

from replicas.core.recording import Recording, RecordingError, decode_recording
from replicas.core.replay import replay

FOLDER = Path(__file__).parents[2] / "data" / "vllm"
RECORDED = {"scheduler_steps.jsonl.gz": (300, 31_774), "adapters_pooling.jsonl.gz": (40, 7_181)}


def read(name: str) -> list[Recording]:
    with gzip.open(FOLDER / name) as file:
        return [decode_recording(line) for line in file]


@pytest.fixture(scope="module")
def recording() -> Recording:
    with gzip.open(FOLDER / "scheduler_steps.jsonl.gz") as file:
        return decode_recording(file.readline())


def with_step(recording: Recording, index: int, **fields: Any) -> Recording:
    steps = list(recording.steps)
    steps[index] = steps[index] | fields
    return msgspec.structs.replace(recording, steps=steps)


@pytest.mark.long
@pytest.mark.parametrize("leap", [False, True])
@pytest.mark.parametrize("name", RECORDED)
def test_every_recorded_step_is_vllms(name: str, leap: bool) -> None:
    recordings = read(name)

    replayed = [replay(each, leap=leap) for each in recordings]

    assert (len(replayed), sum(each.num_steps for each in replayed)) == RECORDED[name]
    assert [each.differences for each in replayed] == [[]] * len(replayed)
    assert not any(each.fields_ignored for each in replayed)


@pytest.mark.parametrize("leap", [False, True])
def test_replay_names_the_step_and_the_field_that_differ(recording: Recording, leap: bool) -> None:
    free, number = recording.steps[3]["free"], recording.steps[3]["step"]
    wrong = msgspec.structs.replace(
        with_step(recording, 3, free=free - 1),
        free_queue_at_end=recording.free_queue_at_end[::-1],
    )

    first, last = replay(wrong, leap=leap).differences

    assert (first.step, first.field, first.expected, first.got) == (number, "free", free - 1, free)
    assert last.field == "free_queue_at_end"


@pytest.mark.parametrize("leap", [False, True])
def test_replay_sees_a_step_placed_in_another_order(recording: Recording, leap: bool) -> None:
    index = next(i for i, step in enumerate(recording.steps) if len(step["scheduled"]) > 1)
    backwards = dict(reversed(recording.steps[index]["scheduled"].items()))

    replayed = replay(with_step(recording, index, scheduled=backwards), leap=leap)

    assert [each.field for each in replayed.differences] == ["scheduled"]


@pytest.mark.parametrize(
    "field", ["scheduled", "new", "more", "resumed", "preempted", "finished", "running", "waiting"]
)
@pytest.mark.parametrize("leap", [False, True])
def test_no_field_of_a_step_can_be_wrong_unseen(
    recording: Recording, field: str, leap: bool
) -> None:
    replayed = replay(with_step(recording, 5, **{field: "wrong"}), leap=leap)

    assert [each.field for each in replayed.differences] == [field]


def test_replay_sees_a_step_that_was_not_recorded(recording: Recording) -> None:
    missing = recording.steps[3]["step"]
    steps = [step for step in recording.steps if step["step"] != missing]

    replayed = replay(msgspec.structs.replace(recording, steps=steps))

    assert {each.step for each in replayed.differences} == {missing}


def test_replay_sees_a_step_in_which_nothing_is_live(recording: Recording) -> None:
    late = recording.steps[-1] | {"step": recording.steps[-1]["step"] + 100}

    replayed = replay(msgspec.structs.replace(recording, steps=[*recording.steps, late]))

    assert {each.step for each in replayed.differences} == {late["step"]}


def test_a_recording_that_was_cut_off_is_compared_up_to_there(recording: Recording) -> None:
    cut = msgspec.structs.replace(recording, steps=recording.steps[:4], complete=False)

    fields = [each.field for each in replay(cut).differences]

    assert fields == ["free_queue_at_end"]  # that one is from the real end


def test_ties_of_priority_go_by_the_id_and_not_by_the_order_of_adding() -> None:
    requests = [
        {"id": "2", "at_step": 1, "prompt": [1], "max_tokens": 1},
        {"id": "1", "at_step": 2, "prompt": [2], "max_tokens": 1},
        {"id": "0", "at_step": 0, "prompt": [3], "max_tokens": 4},
    ]
    limits = {"num_blocks": 9, "block_size": 4, "max_num_batched_tokens": 8, "max_num_seqs": 1}
    line = msgspec.json.encode(
        limits | {"policy": "priority", "requests": requests, "steps": [], "free_queue_at_end": []}
    )

    waiting = [
        each.got
        for each in replay(decode_recording(line)).differences
        if (each.step, each.field) == (2, "waiting")
    ]

    assert waiting == [["1", "2"]]


def test_what_is_no_field_of_a_step_is_named_and_not_compared(recording: Recording) -> None:
    replayed = replay(with_step(recording, 2, weather="fine"))

    assert (replayed.differences, replayed.fields_ignored) == ([], {"weather"})


def test_a_request_that_never_fits_is_a_difference(recording: Recording) -> None:
    tiny = msgspec.structs.replace(recording, num_blocks=2)

    fields = [each.field for each in replay(tiny).differences]

    assert any(field.startswith("request ") for field in fields)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_blocks": "many"}, r"Expected `int`, got `str` - at `\$.num_blocks`"),
        ({"policy": "lottery"}, "lottery"),
        ({"requests": [{"id": "a", "at_step": 0, "prompt": [1], "max_tokens": 1}]}, "id of a req"),
        ({"requests": [{"id": "1", "at_step": 0, "prompt": [], "max_tokens": 1}]}, "no prompt"),
        ({"requests": [{"id": "1", "at_step": 0, "prompt": [-1], "max_tokens": 1}]}, "token id"),
        ({"requests": [{"id": "1", "at_step": 0, "prompt": [1], "max_tokens": 1}] * 2}, "2 req"),
        ({"steps": [{"scheduled": {}}]}, "'step' is missing"),
    ],
)
def test_what_is_not_of_the_format_is_refused(
    recording: Recording, change: dict[str, Any], message: str
) -> None:
    line = msgspec.json.encode(msgspec.to_builtins(recording) | change)

    with pytest.raises(RecordingError, match=message):
        decode_recording(line)


def test_limits_that_cannot_run_are_refused(recording: Recording) -> None:
    with pytest.raises(RecordingError, match="num_blocks is 1, must be at least 2"):
        replay(msgspec.structs.replace(recording, num_blocks=1))
