"""``warmroute replay-scheduler``: what it prints, and with which status it ends."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from warmroute.cli import main

RECORDINGS = Path(__file__).parents[1] / "data" / "vllm" / "scheduler_steps.jsonl.gz"


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    with gzip.open(RECORDINGS) as file:
        recording: dict[str, Any] = json.loads(file.readline())
    return recording


def written(path: Path, *recordings: object) -> str:
    path.write_text("".join(json.dumps(each) + "\n" for each in recordings))
    return str(path)


@pytest.mark.parametrize("flags", [[], ["--leap"]])
def test_equal_recordings_are_counted_and_the_status_is_0(
    recorded: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    file = written(tmp_path / "two.jsonl", recorded, recorded)

    status = main(["replay-scheduler", file, *flags])

    way = "leaping" if flags else "step by step"
    steps = 2 * len(recorded["steps"])
    assert capsys.readouterr().out == f"2 workloads, {steps} steps {way}, 0 differences\n"
    assert status == 0


def test_a_compressed_file_is_known_by_its_content(
    recorded: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "recording"
    path.write_bytes(gzip.compress(json.dumps(recorded).encode()))

    status = main(["replay-scheduler", str(path)])

    assert status == 0
    assert capsys.readouterr().out.startswith("1 workloads, ")


def test_the_first_difference_is_shown_and_the_status_is_1(
    recorded: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = [dict(step) for step in recorded["steps"]]
    free, number = steps[3]["free"], steps[3]["step"]
    steps[3]["free"] = steps[7]["free"] = -1
    file = written(tmp_path / "wrong.jsonl", recorded, recorded | {"steps": steps})

    status = main(["replay-scheduler", file])

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"first difference: line 2, step {number}, free"
    assert [line.split() for line in lines[1:3]] == [["expected", "-1"], ["got", str(free)]]
    assert lines[3].endswith(" 2 differences")
    assert status == 1


@pytest.mark.parametrize(
    ("content", "status", "message"),
    [
        (None, 2, "cannot be read: No such file"),
        (b"", 3, "there is no recording in it"),
        (b"not json\n", 3, "line 1 is no recording: JSON is malformed"),
        (b"\n\n[]\n", 3, "line 3 is no recording: Expected `object`, got `array`"),
        (b"\xff\xfe\n", 3, "line 1 is no recording"),
        (gzip.compress(b"{}", mtime=0)[:-6], 3, "is damaged"),
        (b"\x1f\x8bnothing", 3, "is damaged"),
    ],
)
def test_what_is_no_recording_is_refused_with_the_reason(
    content: bytes | None,
    status: int,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)

    got = main(["replay-scheduler", str(path)])

    assert (got, capsys.readouterr().err.count(message)) == (status, 1)
