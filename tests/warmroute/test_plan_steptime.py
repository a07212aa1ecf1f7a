"""``warmroute plan steptime``: its tables, its page, its picture, and files that it refuses."""

import argparse
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from warmroute.plan.command import add_plan_parser, run_plan
from warmroute.plan.picture import picture_svg

FILE = "tests/data/aic/aic_silicon_dense_agg.csv.gz"
PAGE = Path("docs/step-time.md")
HEADER = (
    "backend,model_path,system,precision,isl,osl,batch_size,tp_size,silicon_tpot_ms,"
    "silicon_data_source\n"
)
ROW = "vllm,Qwen/Qwen3-32B,h100_sxm,,{isl},128,{c},4,{tpot},x; silicon_concurrency={c}\n"


def steptime(*words: str) -> int:
    parser = argparse.ArgumentParser(prog="warmroute")
    add_plan_parser(parser.add_subparsers(required=True))
    return run_plan(parser.parse_args(["plan", "steptime", *words]))


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Eight rows of one model and GPU."""
    rows = [
        ROW.format(isl=isl, c=c, tpot=5 + isl / 500 + c / 4)
        for isl in (512, 1_024, 4_096, 8_192)
        for c in (4, 16)
    ]
    path = tmp_path / "rows.csv"
    path.write_text(HEADER + "".join(rows))
    return path


def test_the_page_shows_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert steptime("--check", FILE) == 0

    page = PAGE.read_text()
    for line in capsys.readouterr().out.splitlines():
        assert line.rstrip() in page, f"{PAGE} is stale; copy what `plan steptime` prints"


def test_json_has_scores_by_group_and_what_was_left_out(
    small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert steptime("--check", str(small), "--json") == 0

    results = json.loads(capsys.readouterr().out)["results"]
    check = results["engines"]["vllm"]
    assert check["total"]["rows"] == 8
    assert [score["group"] for score in check["by"]["GPUs"]] == ["TP4"]
    assert check["without"] == {"model": [], "GPU": []}  # nothing would be left to fit on
    assert results["left_out"] == []


def test_a_fit_is_printed_and_no_worse_than_the_catalogue(
    small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    totals = []
    for words in ((), ("--fit",), ("--fit",)):
        assert steptime("--check", str(small), "--json", *words) == 0
        totals.append(json.loads(capsys.readouterr().out)["results"]["engines"]["vllm"])
    assert totals[1]["total"]["mape"] <= totals[0]["total"]["mape"]
    assert totals[1] == totals[2]

    assert steptime("--check", str(small), "--fit") == 0
    assert "; fitted to these rows" in capsys.readouterr().out


def test_the_picture_has_a_dot_for_every_row(small: Path, tmp_path: Path) -> None:
    picture = tmp_path / "picture.svg"

    assert steptime("--check", str(small), "--picture", str(picture)) == 0

    root = ElementTree.fromstring(picture.read_text())  # noqa: S314  # written a line above
    dots = root.findall("{*}g/{*}circle")
    assert len(dots) == 8


def test_a_dot_lies_on_the_diagonal_if_prediction_and_measurement_agree() -> None:
    root = ElementTree.fromstring(  # noqa: S314  # made here
        picture_svg("t", [("a", [(20, 20), (1, 1), (20, 40)])])
    )
    same, outside, high = root.findall("{*}g/{*}circle")

    assert float(same.attrib["cx"]) == 480 - float(same.attrib["cy"])
    assert (outside.attrib["cx"], outside.attrib["cy"]) == ("46", "434")  # the corner
    assert high.attrib["cx"] == same.attrib["cx"]
    assert float(high.attrib["cy"]) < float(same.attrib["cy"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read"),
        (b"\xff\xfe\x00", "cannot read"),
        (b"a,b\n1,2\n", "line 2 has no backend, expected backend, "),
        (HEADER.encode(), "has no row that can be scored"),
    ],
)
def test_a_file_without_rows_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, message: str
) -> None:
    path = tmp_path / "rows.csv"
    if content is not None:
        path.write_bytes(content)

    assert steptime("--check", str(path)) == 2

    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert message in said


def test_a_picture_that_cannot_be_written_is_refused(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert steptime("--check", str(small), "--picture", str(tmp_path / "no" / "x.svg")) == 2
    assert "cannot write" in capsys.readouterr().err
