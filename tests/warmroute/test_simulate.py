"""`warmroute simulate` as it is typed: what it prints and writes, and that it does so again.

The runs are tiny; what a fleet does is tested in tests/simulator.
"""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from contract.options import SettingError
from router.core.policy import POLICIES
from simulator import fuzz
from simulator.fleet_spec import FaultKind
from simulator.plot import Plot
from warmroute.cli import main
from warmroute.simulate import fuzz as simulate_fuzz
from warmroute.simulate.figures import Row, knee_of
from warmroute.simulate.jobs import Result, TimelineSettings, run_all, run_experiment
from warmroute.simulate.plots import run_plots, sweep_plots
from warmroute.simulate.settings import Experiment, fleet_of, parse_set, workload_of
from warmroute.simulate.sweep import at_point, parse_sweep

FLEET = "3:fixed_prefill_ms=100,fixed_decode_ms=20,kv_blocks=400,block_size=16"
WORKLOAD = "groups,requests=40,rate=5,system_tokens=400,output_tokens=20"
TINY = ["--workload", WORKLOAD, "--replicas", FLEET]
EXPERIMENT = Experiment(workload=WORKLOAD, replicas=(FLEET,))


def simulate(*args: str | int | Path) -> int:
    return main(["simulate", *map(str, args)])


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_run_prints_every_figure_with_its_unit_and_origin(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert simulate("run", *TINY) == 0

    out, err = capsys.readouterr()
    assert re.search(r"^hit rate, actual +\d+\.\d+% +share +tokens from cache", out, re.MULTILINE)
    assert re.search(r"^TTFT +mean [\d.,]+, p50 .* ms +arrival to first token", out, re.MULTILINE)
    assert re.search(r"^hit rate, ideal ", out, re.MULTILINE)
    assert err == "", "a bar where nobody watches"


def test_run_writes_json_and_a_page_that_loads_nothing(tmp_path: Path) -> None:
    assert simulate("run", *TINY, "--json", tmp_path / "a", "--html", tmp_path / "b") == 0

    document, page = read(tmp_path / "a"), (tmp_path / "b").read_text()
    results = document["results"]
    assert (document["schema"], document["command"]) == (1, "run")
    assert results["summary"]["requests"] == 40
    tracks = results["timeline"]["replicas"]
    assert list(tracks) == ["replica-0", "replica-1", "replica-2"]
    assert max(max(track["running"]) for track in tracks.values()) > 0
    assert not re.search(r"(src|href)=|url\(|@import", page)
    pictures = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(pictures) == 4
    for picture in pictures:
        ElementTree.fromstring(picture)  # noqa: S314  # our own text


@pytest.mark.long
def test_equal_seeds_give_equal_bytes_whatever_the_hash_seed(tmp_path: Path) -> None:
    paths = [tmp_path / "0", tmp_path / "1"]
    lossy = ["--set", "timing.event_loss=0.2", "--set", "timing.report_loss=0.2"]
    crash = ["--fault", "crash:replica=1,at_s=2,for_s=1", "--gateways", "2", "--autoscale"]

    for number, path in enumerate(paths):
        command = [sys.executable, "-m", "warmroute", "simulate", "run", *TINY, *lossy, *crash]
        subprocess.run(
            [*command, "--json", path, "--html", f"{path}.html"],
            env={**os.environ, "PYTHONHASHSEED": str(number)},
            check=True,
            timeout=100,
            capture_output=True,
        )

    assert paths[0].read_bytes() == paths[1].read_bytes()
    pages = [Path(f"{path}.html").read_bytes() for path in paths]
    assert pages[0] == pages[1]


@pytest.mark.long
def test_results_do_not_depend_on_the_number_of_processes() -> None:
    experiments = [replace(EXPERIMENT, policy=p) for p in ("round_robin", "prefix_load")]
    told: list[int] = []

    alone = run_all(experiments, 1)
    together = run_all(experiments, 2, told.append)

    assert alone == together
    assert sum(told) == 80


@pytest.mark.long
def test_compare_has_a_row_for_every_policy_and_an_interval_over_seeds(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "out.json"

    options = ("--policy", "all", "--seeds", 3, "--processes", 1, "--json", path)
    assert simulate("compare", *TINY, *options) == 0

    out = capsys.readouterr().out
    rows = read(path)["results"]
    assert [row["policy"] for row in rows] == sorted(POLICIES)
    assert all(row["seeds"] == [0, 1, 2] for row in rows)
    assert all(re.search(rf"^{policy} .* ± ", out, re.MULTILINE) for policy in POLICIES)
    assert "n = 3 seeds" in out
    figure = rows[0]["figures"]["ttft_mean_ms"]
    means = [run["ttft_ms"]["mean"] for run in rows[0]["runs"]]
    assert figure["mean"] == pytest.approx(sum(means) / 3)
    assert figure["n"] == 3
    assert rows[0]["hit_ideal"] >= rows[0]["figures"]["hit_actual"]["mean"]


def test_warm_up_stages_are_shown_and_not_counted(tmp_path: Path) -> None:
    ladder = "ladder,stages=2x3+4x3,warm_up=5x2,system_tokens=100,question_tokens=20"
    path = tmp_path / "out.json"

    workload = f"{ladder},output_tokens=5"
    assert simulate("run", "--replicas", FLEET, "--workload", workload, "--json", path) == 0

    results = read(path)["results"]
    assert [s["warm_up"] for s in results["stages"]] == [True, False, False]
    parts = [s["summary"] for s in results["stages"]]
    assert [part["requests"] for part in parts] == [10, 6, 12]
    assert results["summary"]["requests"] == 18
    computed = "computed_prefill_tokens"
    assert results["summary"][computed] == parts[1][computed] + parts[2][computed]
    assert parts[0][computed] > 0


def test_a_sweep_has_a_row_for_each_value_and_both_plots(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page = tmp_path / "out.html"

    over = ["--over", "rate=1,20", "--policy", "round_robin", "prefix_load", "--processes", "1"]
    assert simulate("sweep", *TINY, *over, "--html", page) == 0

    out = capsys.readouterr().out
    for policy in ("round_robin", "prefix_load"):
        assert re.findall(rf"^ +([\d.]+) +{policy} ", out, re.MULTILINE) == ["1", "20"]
    assert "Mean TTFT over rate" in page.read_text()
    assert "Hit rate over rate" in page.read_text()


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("replicas", "5", lambda e: len(fleet_of(e).replicas) == 5),
        ("gateways", "2", lambda e: fleet_of(e).num_gateways == 2),
        ("kv_blocks", "77", lambda e: fleet_of(e).replicas[0].engine.num_blocks == 78),
        ("wait_factor", "2", None),
        ("requests", "7", lambda e: len(workload_of(e).stages[0].requests) == 7),
        ("rate", "9", lambda e: ",rate=9" in e.workload and "rate=5" not in e.workload),
        ("timing.report_interval_ms", "50", lambda e: e.timing.report_interval_ms == 50),
        ("routing.in_flight_max", "3", lambda e: fleet_of(e).routing.in_flight_max == 3),
    ],
)
def test_a_setting_is_found_by_its_name(name: str, value: str, found: Any) -> None:
    if found is None:
        with pytest.raises(SettingError, match="no setting of this experiment; known: rate"):
            at_point(EXPERIMENT, name, value)
    else:
        assert found(at_point(EXPERIMENT, name, value))


def test_a_setting_of_the_policy_is_found_with_and_without_its_prefix() -> None:
    option = next(iter(vars(POLICIES["prefix_capped"]())))
    capped = replace(EXPERIMENT, policy="prefix_capped")

    plain, dotted = (at_point(capped, name, "2") for name in (option, f"policy.{option}"))

    assert plain.policy == dotted.policy == f"prefix_capped:{option}=2"


def test_a_trace_comes_at_the_rate_that_is_swept() -> None:
    faster = at_point(replace(EXPERIMENT, workload="synthetic,first=200"), "rate", "50")

    arrivals = [each.arrival_us for each in workload_of(faster).stages[0].requests]
    assert 199 / (max(arrivals) - min(arrivals)) * 1e6 == pytest.approx(50, rel=1e-3)


@cache
def some_result() -> Result:
    return run_experiment(replace(EXPERIMENT, workload=f"{WORKLOAD},first=2"))


def row(rate: float, ttft_ms: float) -> Row:
    result = some_result()
    spread = replace(result.summary.ttft_ms, mean=ttft_ms)
    summary = replace(result.summary, ttft_ms=spread)
    return Row("p", f"{rate:g}", (replace(result, summary=summary),))


def test_the_knee_is_where_rate_over_ttft_is_greatest() -> None:
    # Powers: 0.01, 0.0167, 0.02, 0.008.
    rows = [row(1, 100), row(2, 120), row(3, 150), row(4, 500)]

    knee = knee_of(rows)

    assert knee is rows[2]
    (plot, *_) = sweep_plots("rate", "1/s", rows)
    assert isinstance(plot, Plot)
    assert [(mark.x, mark.y) for mark in plot.marks] == [(3, 150)]


def test_there_is_no_knee_at_an_end_of_the_sweep() -> None:
    assert knee_of([row(1, 100), row(2, 110), row(3, 120)]) is None
    assert knee_of([row(1, 100), row(2, 300), row(3, 900)]) is None


def test_seeds_change_ids_of_a_trace_and_zero_does_not() -> None:
    trace = replace(EXPERIMENT, workload="synthetic,first=3")

    zero, one = (workload_of(replace(trace, seed=seed)).stages[0].requests for seed in (0, 1))

    assert [each.request_id for each in one] == [f"1/{each.request_id}" for each in zero]
    assert [each.segments for each in one] == [each.segments for each in zero]


def test_replicas_of_several_kinds_make_one_fleet() -> None:
    mix = ("2:gpu=h100", "1:gpu=l4,max_num_seqs=8,publishes_events=false,joins_s=2")

    replicas = fleet_of(replace(EXPERIMENT, replicas=mix)).replicas

    assert [each.replica_id for each in replicas] == ["replica-0", "replica-1", "replica-2"]
    assert replicas[2].engine.max_num_seqs == 8
    assert (replicas[2].publishes_events, replicas[2].joins_us) == (False, 2_000_000)


def test_faults_and_timing_become_microseconds() -> None:
    timing, routing = parse_set(["timing.report_interval_ms=none", "routing.retry_max=0"])
    faults = ("slow:replica=1,at_s=1.5,for_s=2,factor=3",)

    fleet = fleet_of(replace(EXPERIMENT, timing=timing, routing=routing, faults=faults))

    assert (fleet.timing.report_interval_us, fleet.timing.event_delay_us) == (None, 1_000)
    (fault,) = fleet.faults
    assert (fault.kind, fault.at_us, fault.duration_us) == (FaultKind.SLOW, 1_500_000, 2_000_000)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--replicas", "x"], "begins with 'x', expected a number"),
        (["--replicas", "2:port=1"], "has no setting 'port'; known: admission"),
        (["--replicas", "2:kv_blocks"], "'kv_blocks' without a value"),
        (["--replicas", "2:gpu=none-such"], "none-such"),
        (["--fault", "melt"], "is of kind 'melt', expected one of crash, stall, slow, drain"),
        (["--fault", "crash:replica=9"], "strikes replica 9, expected one from 0 to 3"),
        (["--set", "report_loss=1"], "expected timing.SETTING=VALUE"),
        (["--set", "timing.report_loss=2"], "report_loss is 2.0, must be from 0 to 1"),
        (["--autoscale", "target=1"], "has no setting 'target'; known: target_in_flight"),
        (["--policy", "best"], "no policy 'best'; known: "),
        (["--workload", "none-such"], "workload 'none-such' is unknown"),
        (["--json", "/nowhere/x"], "there is no folder /nowhere"),
        (["--slo-ttft-ms", "0"], "slo_ttft_ms is 0.0, must be above 0"),
    ],
)
def test_errors_say_what_was_found_and_what_is_known(
    args: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate("run", *args) == 3

    assert message in capsys.readouterr().err


@pytest.mark.parametrize("text", ["rate", "rate=", "=1", "rate=1,1"])
def test_a_sweep_names_a_setting_and_different_values(text: str) -> None:
    with pytest.raises(SettingError):
        parse_sweep(text)


def test_fuzz_says_that_the_laws_hold(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate("fuzz", "--seeds", 3, "--first", 7) == 0

    assert re.fullmatch(r"3 seeds from 7, \d+ requests: all laws hold\n", capsys.readouterr().out)


def test_fuzz_prints_how_to_try_a_bad_seed_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_case(seed: int) -> int:
        assert seed != 8, "a law is broken"
        return fuzz.run_case(seed)

    monkeypatch.setattr(simulate_fuzz, "run_case", run_case)

    assert simulate("fuzz", "--seeds", 3, "--first", 7) == 1

    out = capsys.readouterr().out
    assert "AssertionError: a law is broken" in out
    assert "again: warmroute simulate fuzz --first 8 --seeds 1\n" in out
    assert "1 seeds fail" in out


@pytest.mark.long
def test_a_png_has_the_same_plots(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "out.png"

    assert simulate("compare", *TINY, "--policy", "round_robin", "--png", path) == 0

    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_png_without_matplotlib_names_the_extra(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("matplotlib", "matplotlib.axes", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "warmroute.simulate.png", raising=False)

    assert simulate("run", *TINY, "--png", tmp_path / "out.png") == 3

    assert "pip install 'warmroute[plots]'" in capsys.readouterr().err


def test_workloads_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate("workloads") == 0

    assert re.search(r"^mooncake:FILE +a trace", capsys.readouterr().out, re.MULTILINE)


def test_more_replicas_than_colours_share_three_lines() -> None:
    many = replace(EXPERIMENT, replicas=(f"9:{FLEET.partition(':')[2]}",))

    plots = run_plots(run_experiment(many, TimelineSettings()))

    names = [[line.name for line in plot.lines] for plot in plots[1:] if isinstance(plot, Plot)]
    assert names == [["most of 9", "mean", "least"]] * 3
