"""Workloads by their names: what the command line takes, and where the files come from."""

import gzip
from pathlib import Path

import pytest

from contract.options import SettingError
from simulator.workload.catalogue import ENTRIES
from warmroute.workloads import (
    open_workload,
    parse_workload,
    read_workload,
    shape_rows,
    workload_rows,
)

ROW = '{"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [7, 8]}\n'
SERVEGEN = Path(__file__).parent.parent / "simulator/workload/data"


def test_settings_go_to_the_workload_and_to_its_shape() -> None:
    spec = parse_workload("groups,groups=5,zipf=1.1,first=10,seed=abc")

    assert spec.entry is ENTRIES["groups"]
    assert (spec.settings.groups, spec.settings.zipf) == (5, 1.1)  # type: ignore[attr-defined]
    assert (spec.shape.first, spec.shape.seed) == (10, "abc")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "workload '' is unknown; known: conversation, synthetic, azure-code"),
        ("talk", "workload 'talk' is unknown; known: conversation"),
        ("groups:FILE", "workload 'groups' takes no file, found 'FILE'"),
        ("mooncake", "workload 'mooncake' has no file, expected mooncake:FILE"),
        ("servegen:", "workload 'servegen' has no file, expected servegen:FOLDER"),
        ("groups,zipf", "workload 'groups' has 'zipf' without a value, expected setting=value"),
        ("groups,zipf=1,zipf=2", "workload 'groups' has 'zipf=2' twice"),
        ("unique,zipf=1", "workload 'unique' has no setting 'zipf'; known: batch, cv, .*seed"),
        ("groups,groups=many", "workload 'groups' groups is 'many', expected whole number"),
        ("groups,groups=0", "workload 'groups': groups is 0, must be from 1"),
        ("groups,spacing=odd", "spacing is 'odd', expected one of even, poisson, gamma, batched"),
        ("ladder,stages=3", "workload 'ladder': stages has '3', expected a rate, x and seconds"),
        ("groups,first=0", "workload 'groups': first is 0, must be from 1"),
    ],
)
def test_what_cannot_be_is_refused_with_what_is_known(text: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        open_workload(text)


def test_a_file_without_a_format_is_told_how_to_name_one(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(ROW)

    with pytest.raises(SettingError, match=f"a file needs its format, as in mooncake:{path}$"):
        open_workload(f"{path},first=1")


def test_a_file_may_be_plain_or_packed_whatever_it_is_called(tmp_path: Path) -> None:
    plain, packed = tmp_path / "plain.gz", tmp_path / "packed.jsonl"
    plain.write_text(ROW)
    packed.write_bytes(gzip.compress(ROW.encode()))

    requests = [read_workload(f"mooncake:{path}").requests for path in (plain, packed)]

    assert requests[0] == requests[1]
    assert requests[0][0].prompt_tokens == 600


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    rows = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,48,10\n"
    path.write_text(rows, encoding="utf-8-sig")

    assert read_workload(f"azure:{path}").requests[0].prompt_tokens == 48


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read .*No such file"),
        (gzip.compress(ROW.encode() * 99)[:-20], "cannot be read .*expected a text file or .gz"),
        (b"\x1f\x8bnot really", "cannot be read"),
        (b"\xff\xfe", "is not UTF-8 at byte 0, expected text"),
        (b"", "found no request, expected at least one"),
        (b"{}", "line 1: no field hash_ids, expected one; found nothing"),
    ],
)
def test_a_file_that_is_no_trace_is_named(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    path = tmp_path / "trace.jsonl"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(SettingError, match=f"trace.jsonl:? {message}"):
        open_workload(f"mooncake:{path}")


def test_a_folder_of_servegen_s_clients_is_read() -> None:
    workload = read_workload(f"servegen:{SERVEGEN},start_s=235800,duration_s=1200")

    assert len(workload.requests) == 6_590 + 981
    assert "2 ServeGen clients from 235800 s on for 1200 s" in workload.provenance


def test_a_client_without_its_lengths_is_named(tmp_path: Path) -> None:
    (tmp_path / "a-trace.csv").write_text("0,1,1,Gamma,1,1\n")

    with pytest.raises(SettingError, match=r"has a-trace\.csv without a-dataset\.json"):
        open_workload(f"servegen:{tmp_path}")


def test_a_folder_without_clients_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"has no NAME-trace\.csv"):
        open_workload(f"servegen:{tmp_path}")
    with pytest.raises(SettingError, match="cannot be read"):
        open_workload(f"servegen:{tmp_path}/none")


def test_ladders_have_stages_and_all_others_have_one() -> None:
    staged = {
        name: len(open_workload(f"{name},first=400").stages)
        for name in ("groups", "sharegpt-llama", "llmd-37", "ladder,stages=1x3+2x4")
    }

    assert staged == {"groups": 1, "sharegpt-llama": 1, "llmd-37": 2, "ladder,stages=1x3+2x4": 2}


def test_the_provenance_says_what_was_changed() -> None:
    workload = read_workload("sharegpt-llama,first=10,jitter_ms=20")

    assert workload.provenance == (
        "llmservingsim_sharegpt300_llama31_8b.hash16.jsonl.gz: hash_ids of 16 tokens each; "
        "first 10 requests; arrivals moved by up to 20 ms either way, seed '0'"
    )


def test_every_workload_is_listed_with_its_settings() -> None:
    rows = {row.name: row for row in workload_rows()}

    assert list(rows) == list(ENTRIES)
    assert [option.name for option in rows["mooncake"].options] == ["block_tokens"]
    assert (rows["mooncake"].argument, rows["servegen"].argument) == ("FILE", "FOLDER")
    assert all(option.meaning for row in rows.values() for option in row.options)
    assert "jitter_ms" in [row.name for row in shape_rows()]


def test_no_workload_s_setting_hides_one_of_all_workloads() -> None:
    common = {row.name for row in shape_rows()}

    for row in workload_rows():
        assert common.isdisjoint(option.name for option in row.options)
