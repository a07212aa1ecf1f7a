"""The command line: what it prints, and one clear line for each wrong input."""

import json
from importlib.metadata import version
from pathlib import Path

import pytest

from warmroute.cli import main


def test_version_is_the_package_s(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0

    assert capsys.readouterr().out == f"warmroute {version('warmroute')}\n"


def test_version_is_told_where_it_is_looked_for_first(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])

    assert end.value.code == 0
    assert capsys.readouterr().out == f"warmroute {version('warmroute')}\n"


@pytest.mark.parametrize(
    "argv",
    [
        ["config", "--fleet", "a b"],
        ["replica", "--fleet", "a b"],
        ["agent", "--url", "http://h:1", "--redis-url", "redis://h:1", "--fleet", "a b"],
    ],
)
def test_no_side_takes_a_fleet_that_the_others_could_not_name(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 3

    assert "fleet is 'a b', must be a name without" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["engine-1", "ftp://engine-1:8000", "http://", "http://h:99999"])
def test_a_replica_gives_no_address_that_no_gateway_could_use(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replica", "--advertise-url", url]) == 3

    assert "advertise_url cannot be used, expected http://" in capsys.readouterr().err


def test_a_trace_that_is_neither_file_nor_workload_is_told_what_there_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["explain", "--trace", "conversatoin", "--request", "1"]) == 3

    assert "'conversatoin' is no file, and no workload; known: conv" in capsys.readouterr().err


def test_policies_lists_every_policy_with_its_first_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["policies"]) == 0

    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names == sorted(names)
    assert {"round_robin", "least_loaded", "two_choices", "prefix_hash"} < set(names)
    assert {"prefix_capped", "prefix_load"} < set(names)


def test_config_tells_value_and_origin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "warmroute.toml"
    file.write_text("[gateway]\nport = 9000\n[routing]\nretry_max = 1\n")
    monkeypatch.setenv("WARMROUTE_REDIS_URL", "redis://:secret@127.0.0.1:1/0")

    status = main(["config", "--json", "--config", str(file), "--port", "9001"])

    output = capsys.readouterr().out
    rows = {f"{row['section']}.{row['name']}": row for row in json.loads(output)}
    assert status == 0
    assert (rows["gateway.port"]["value"], rows["gateway.port"]["origin"]) == ("9001", "flag")
    assert (rows["routing.retry_max"]["value"], rows["routing.retry_max"]["origin"]) == (
        "1",
        "file",
    )
    assert rows["store.redis_url"]["origin"] == "environment"
    assert "secret" not in output
    assert rows["policy.name"]["origin"] == "default"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["config", "--policy", "magic"], ["no policy 'magic'", "prefix_load"]),
        (["config", "--port", "many"], ["port", "'many'", "whole number"]),
        (["config", "--port", "99999"], ["port is 99999", "0 to 65535"]),
        (["demo", "--json", "/nowhere/x.json"], ["no folder /nowhere"]),
        (["demo", "--port", "99999"], ["port is 99999", "0 to 65535"]),
        (["config", "--set", "routing.nonsense=1"], ["nonsense", "retry_max"]),
        (["config", "--set", "nonsense"], ["SECTION.SETTING=VALUE"]),
        (["config", "--config", "/nowhere/warmroute.toml"], ["/nowhere/warmroute.toml"]),
        (["demo", "--policies", "magic"], ["no policy 'magic'", "round_robin"]),
        (["demo", "--replicas", "0"], ["replicas is 0", "1 or more"]),
        (["replica", "--kv-blocks", "-5"], ["kv_blocks is -5"]),
        (["replica", "--batching", "magic"], ["'magic'", "continuous, static"]),
    ],
)
def test_a_wrong_setting_is_named_with_what_is_possible(
    argv: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 3

    error = capsys.readouterr().err
    assert error.startswith("warmroute: ")
    assert error.count("\n") == 1
    assert [word for word in words if word not in error] == []
