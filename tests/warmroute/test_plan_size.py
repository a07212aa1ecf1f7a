"""`plan size` from its flags to its text, page and manifests, on a load of a few requests."""

import json
import re
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from contract.options import SettingError
from simulator.sizing.settings import SizeSettings
from warmroute.cli import _parser, main
from warmroute.plan.size import source_of
from warmroute.workloads import parse_workload, read_workload

pytestmark = pytest.mark.long

SMALL = (
    *("plan", "size", "--jobs=1", "--model=llama-3.1-8b", "--gpu=l4", "--sweep=l4"),
    *("--rate=4", "--shared-tokens=800", "--groups=5", "--prompt-tokens=100"),
    *("--output-tokens=20", "--window-s=6", "--warm-up-s=2", "--seeds=2", "--itl-p99-ms=100"),
)


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each format prints, by its name."""
    folder = tmp_path_factory.mktemp("size")
    flags = {
        "text": ["--html", str(folder / "page.html")],
        "json": ["--json"],
        "compose": ["--compose"],
        "kubernetes": ["--kubernetes"],
    }
    printed = {}
    for name, more in flags.items():
        with pytest.MonkeyPatch.context() as patch:
            lines: list[str] = []
            patch.setattr("builtins.print", lambda text, lines=lines: lines.append(text))
            assert main([*SMALL, *more]) == 0
        printed[name] = "\n".join(lines)
    printed["page"] = (folder / "page.html").read_text(encoding="utf-8")
    return printed


def test_every_section_is_there_and_every_figure_says_where_it_is_from(
    answer: dict[str, str],
) -> None:
    text = answer["text"]

    for heading in ("Size:", "Memory of one", "Fleets that", "Other rates", "GPU types", "What if"):
        assert heading in text
    assert "GPUs x price per hour x 730 h" in text
    assert "llm-d-planner 0.3.3" in text
    assert max(map(len, text.splitlines())) < 260


def test_too_few_requests_for_a_p99_are_said(answer: dict[str, str]) -> None:
    assert re.search(r"Only \d\d requests are judged, of which 0 may be late", answer["text"])
    assert "Caches begin empty" not in answer["text"]  # its load is drawn, and warmed up


def test_json_and_text_tell_the_same_answer(answer: dict[str, str]) -> None:
    document = json.loads(answer["json"])

    chosen, inputs = document["results"]["chosen"], document["inputs"]
    assert f"answer  {chosen['replicas']} replicas of 1 x L4" in answer["text"]
    assert inputs["rate"] == 4
    assert document["results"]["fit"]["kv_tokens"] > 0
    assert chosen["ttft_p99_ms"]["n"] == 2


def test_the_page_needs_nothing_around_it(answer: dict[str, str]) -> None:
    page = answer["page"]

    assert page.count("<svg") == 2
    assert page.count("<table>") == page.count("</table>") == 5
    assert not re.search(r"(src|href)=|url\(|<script", page)


def test_the_compose_file_lists_a_service_for_each_replica(answer: dict[str, str]) -> None:
    services = yaml.safe_load(answer["compose"])["services"]
    replicas = json.loads(answer["json"])["results"]["spare"]["replicas"]

    engines = [name for name in services if name.startswith("engine-")]
    assert len(engines) == replicas
    devices = [
        device
        for name in engines
        for each in services[name]["deploy"]["resources"]["reservations"]["devices"]
        for device in each["device_ids"]
    ]
    assert len(set(devices)) == len(devices)
    for name in ("gateway", "agent"):
        assert _parser().parse_args(services[name]["command"]).command


def test_the_manifests_are_documents_whose_flags_the_command_line_takes(
    answer: dict[str, str],
) -> None:
    documents = list(yaml.safe_load_all(answer["kubernetes"]))

    by_name = {(each["kind"], each["metadata"]["name"]): each for each in documents}
    assert set(by_name) == {
        *(("Deployment", name) for name in ("engine", "gateway", "redis")),
        *(("Service", name) for name in ("gateway", "redis")),
    }
    pods = [each["spec"]["template"]["spec"] for each in documents if each["kind"] == "Deployment"]
    ours = [
        container["args"]
        for pod in pods
        for container in pod["containers"]
        if container["image"].startswith("warmroute")
    ]
    assert [_parser().parse_args(args).command for args in ours] == ["agent", "router"]
    for (kind, _), document in by_name.items():
        if kind == "Service":
            labels = by_name["Deployment", document["metadata"]["name"]]["spec"]["template"]
            assert document["spec"]["selector"] == labels["metadata"]["labels"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--gpu=h100", "--tensor-parallel=1", "--model=llama-3.1-70b"], "use 2 or 4 or 8 GPUs"),
        (["--gpu=l40s"], "L40S has no price; give --prices 'L40S=USD'"),
        (["--policy=best"], "no policy 'best'; known: "),
        (["--itl-p99-ms=1"], "more than the ITL limit; use more GPUs"),
        (["--trace=conversation,seed=7"], "trace has a seed of its own"),
        (["--trace=nothing"], "workload 'nothing' is unknown; known: "),
        (["--memory-share=2"], "memory_share is 2, must be from 0.01 to 1"),
        (["--jobs=-1"], "jobs is -1"),
    ],
)
def test_a_question_without_an_answer_says_what_would_do(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SMALL, *flags]) == 2

    assert message in capsys.readouterr().err


def test_a_page_that_cannot_be_written_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SMALL, "--html", str(tmp_path / "no" / "page.html")]) == 2

    assert "No such file" in capsys.readouterr().err


@pytest.mark.parametrize("changes", [{}, {"shared_tokens": 0}, {"rate": 0.5, "length_cv": 0.0}])
def test_a_drawn_load_is_a_workload_of_the_command_line(changes: dict[str, float]) -> None:
    settings = SizeSettings(**changes)  # type: ignore[arg-type]
    source = source_of(settings)

    spec = parse_workload(source.seeded(3))

    assert source.is_drawn
    assert spec.shape.seed == "3"
    requests = read_workload(source.seeded(0)).requests
    seconds = requests[-1].arrival_us / 1e6
    assert len(requests) / seconds == pytest.approx(settings.rate, rel=0.1)


def test_each_seed_of_a_trace_but_the_first_moves_its_arrivals() -> None:
    source = source_of(SizeSettings(trace="sharegpt-llama"))

    first, second = (read_workload(source.seeded(seed)).requests for seed in (0, 1))

    assert first == read_workload("sharegpt-llama").requests
    assert len(first) == len(second)
    assert [each.arrival_us for each in first] != [each.arrival_us for each in second]


def test_a_trace_with_a_seed_is_taken_as_it_is_for_one_run() -> None:
    settings = SizeSettings(trace="sharegpt-llama,seed=7", seeds=1)

    assert source_of(settings).seeded(0) == "sharegpt-llama,seed=7"
    with pytest.raises(SettingError, match="leave it out"):
        source_of(SizeSettings(trace="sharegpt-llama,seed=7"))
