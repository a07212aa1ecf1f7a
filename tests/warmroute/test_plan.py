"""``warmroute plan`` from the command line: exact figures, other figures, one-line refusals."""

import argparse
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from warmroute.plan.command import add_plan_parser, run_plan

LLAMA_CONFIG = {
    "model_type": "llama",
    "hidden_size": 4_096,
    "intermediate_size": 14_336,
    "max_position_embeddings": 131_072,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128_256,
}


@cache
def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="warmroute")
    add_plan_parser(parser.add_subparsers(required=True))
    return parser


def plan(*words: str) -> int:
    return run_plan(parser().parse_args(["plan", *words]))


def plan_json(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert plan(*words, "--json") == 0
    return json.loads(capsys.readouterr().out)


def plan_lines(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    """The text with runs of spaces as one, so that column widths do not matter."""
    assert plan(*words) == 0
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert plan(*words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


def test_example_capacity_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    results = plan_json(capsys, "example")["capacity"]["results"]

    assert results["weight_bytes"] == 140e9
    assert results["kv_bytes_per_token"] == 327_680
    assert results["kv_memory_bytes"] == 436e9
    assert results["kv_tokens"] == 1_330_566
    assert round(results["decode_floor_us"]) == 5_224
    assert round(results["output_tokens_per_s"]) == 208_333
    assert round(results["prompt_tokens_per_s"]) == 1_041_667
    assert results["node_output_tokens_per_s"] == 5_120
    assert results["nodes"] == 41
    assert round(results["computed_prompt_tokens_per_s"]) == 416_667


def test_example_batching_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    results = plan_json(capsys, "example")["batching"]["results"]

    assert list(results) == ["static", "continuous"]
    static, continuous = results["static"], results["continuous"]
    assert static["finished_at_step"] == [5, 40, 8, 12, 70, 46, 60, 50]
    assert (static["steps"], static["mean_finished_at_step"]) == (70, 36.375)
    assert round(static["slot_use"], 3) == 0.468
    assert continuous["finished_at_step"] == [5, 40, 8, 12, 35, 14, 32, 24]
    assert (continuous["steps"], continuous["mean_finished_at_step"]) == (40, 21.25)
    assert round(continuous["slot_use"], 3) == 0.819


def test_example_admission_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    part = plan_json(capsys, "example")["admission"]

    assert part["inputs"]["kv_tokens"] == 1_330_566
    assert part["results"]["reserved_sequences"] == 162
    assert part["results"]["paged_sequences"] == 735


def test_example_routing_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    runs = plan_json(capsys, "example")["routing"]["results"]

    assert [run["prompt_tokens"] for run in runs] == [25_200] * 3
    assert [
        (
            run["policy"].partition(":")[0],
            run["prefill_tokens"],
            round(run["saved_share"], 3),
            run["requests_per_replica"],
        )
        for run in runs
    ] == [
        ("round_robin", 15_200, 0.397, [4, 4, 4]),
        ("prefix_hash", 7_200, 0.714, [2, 8, 2]),
        ("prefix_capped", 9_200, 0.635, [5, 4, 3]),
    ]


@pytest.mark.parametrize(
    "line",
    [
        "weights 140 GB parameters x bytes per element",
        "KV cache per token 327,680 bytes 2 x layers x KV heads x head dimension",
        "memory for KV 436 GB GPUs x (memory x share - reserve) - weights",
        "tokens in KV 1,330,566 tokens memory for KV / KV cache per token",
        "decode floor 5.22 ms weights read by a step / (GPUs x bandwidth)",
        "step 25 ms as given",
        "output of one node 5,120 tokens/s batch / step: 128 sequences",
        "output at peak 208,333 tokens/s requests x output / 86,400 s x peak factor",
        "prompts at peak 1,041,667 tokens/s requests x prompt / 86,400 s x peak factor",
        "prompts to compute 416,667 tokens/s prompts at peak x (1 - hit rate)",
        "nodes 41 nodes output at peak / output of one node",
        "finished at step 5,40,8,12,70,46,60,50 replicas.core.scheduler, stepped",
        "steps 70 steps replicas.core.scheduler, stepped",
        "mean finish 36.38 steps mean of",
        "slot use 46.8 % output tokens / (slots x steps)",
        "finished at step 5,40,8,12,35,14,32,24 replicas.core.scheduler, stepped",
        "steps 40 steps replicas.core.scheduler, stepped",
        "mean finish 21.25 steps mean of",
        "slot use 81.9 % output tokens / (slots x steps)",
        "admitted, reserving 162 sequences replicas.core.scheduler, filled",
        "admitted, paged 735 sequences replicas.core.scheduler, filled",
        "requests per replica 4/4/4",
        "requests per replica 2/8/2",
        "requests per replica 5/4/3",
        "prompt tokens 25,200 tokens requests x (system + own tokens)",
        "prefill tokens 15,200 tokens uncached tokens of each request's lease",
        "prefill tokens 7,200 tokens uncached tokens of each request's lease",
        "prefill tokens 9,200 tokens uncached tokens of each request's lease",
        "saved 39.7 % 1 - prefill tokens / prompt tokens",
        "saved 71.4 % 1 - prefill tokens / prompt tokens",
        "saved 63.5 % 1 - prefill tokens / prompt tokens",
    ],
)
def test_example_in_text_gives_each_figure_with_its_origin(
    capsys: pytest.CaptureFixture[str], line: str
) -> None:
    assert any(printed.startswith(line) for printed in plan_lines(capsys, "example"))


def test_every_figure_in_the_text_has_an_origin(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan("example") == 0

    # Label, value and origin stand two spaces apart at least.
    figures = [
        [cell for cell in line.strip().split("  ") if cell]
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("  ")
    ]
    assert len(figures) == 13 + 2 * 5 + 5 + 3 * 5
    assert all(len(cells) == 3 for cells in figures)


def test_capacity_of_a_config_file_is_that_of_the_same_catalogued_model(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(LLAMA_CONFIG))
    words = ("capacity", "--gpu", "l40s", "--gpus", "1", "--batch", "16", "--hit-rate", "0")

    known = plan_json(capsys, *words, "--model", "llama-3.1-8b")
    by_file = plan_json(capsys, *words, "--model", str(config))
    by_folder = plan_json(capsys, *words, "--model", str(tmp_path))

    assert known["results"] == by_file["results"] == by_folder["results"]
    assert known["inputs"]["gpu"] == "l40s"
    # 48 GB x 0.9 - 16.06 GB, at 131,072 bytes per token
    assert known["results"]["kv_tokens"] == int((48e9 * 0.9 - 2 * 8_030_261_248) // 131_072)


def test_capacity_takes_every_figure_as_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    planned = plan_json(
        *(capsys, "capacity", "--model", "llama-3.1-70b", "--gpu", "h200", "--gpus", "4"),
        *("--requests-per-day", "8640000", "--prompt-tokens", "1000", "--output-tokens", "100"),
        *("--peak-factor", "2", "--hit-rate", "0.5", "--memory-share", "0.8", "--batch", "64"),
        *("--step-ms", "16", "--precision", "fp8", "--kv-precision", "fp8", "--reserve-gb", "2"),
    )

    results = planned["results"]
    assert planned["inputs"]["precision"] == "fp8"
    assert results["weight_bytes"] == 70_553_706_496
    assert results["kv_bytes_per_token"] == 163_840
    kv_memory_bytes = 4 * (141e9 * 0.8 - 2e9) - 70_553_706_496
    assert results["kv_memory_bytes"] == pytest.approx(kv_memory_bytes)
    assert results["output_tokens_per_s"] == 20_000  # 100 requests/s, twice
    assert results["computed_prompt_tokens_per_s"] == 100_000
    assert results["node_output_tokens_per_s"] == 4_000
    assert results["nodes"] == 5


def test_batching_takes_other_figures(capsys: pytest.CaptureFixture[str]) -> None:
    lines = plan_lines(capsys, "batching", "--lengths", "4,1,3,1", "--slots", "2")

    assert "Static batching of 4 answers on 2 slots" in lines
    assert any(line.startswith("finished at step 4,1,7,5 ") for line in lines)
    assert any(line.startswith("finished at step 4,1,4,5 ") for line in lines)


def test_a_long_list_is_cut_in_the_text_and_whole_in_json(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lengths = ",".join(["2"] * 40)

    lines = plan_lines(capsys, "batching", "--lengths", lengths, "--slots", "40")
    planned = plan_json(capsys, "batching", "--lengths", lengths, "--slots", "40")

    cut = f"finished at step {','.join(['2'] * 16)},... (40) "
    assert any(line.startswith(cut) for line in lines)
    assert planned["results"]["static"]["finished_at_step"] == [2] * 40


def test_admission_takes_other_figures(capsys: pytest.CaptureFixture[str]) -> None:
    planned = plan_json(
        *(capsys, "admission", "--kv-tokens", "43", "--reserve", "16"),
        *("--used", "5", "--block-size", "4"),
    )

    assert planned["results"]["reserved_sequences"] == 2
    assert planned["results"]["paged_sequences"] == 5


def test_routing_takes_other_figures_and_policies(capsys: pytest.CaptureFixture[str]) -> None:
    planned = plan_json(
        *(capsys, "routing", "--tenants", "AAAA", "--system-tokens", "10", "--own-tokens", "3"),
        *("--replicas", "2", "--policy", "round_robin"),
        *("prefix_capped:ahead_max=9,tie=lowest_slot", "--policy", "least_loaded"),
    )

    runs = planned["results"]
    assert [run["policy"].partition(":")[0] for run in runs] == [
        "round_robin",
        "prefix_capped",
        "least_loaded",
    ]
    assert runs[0]["prefill_tokens"] == 2 * 13 + 2 * 3
    assert runs[1]["requests_per_replica"] == [4, 0]


def test_two_runs_print_the_same_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan("example", "--json") == 0
    first = capsys.readouterr().out
    assert plan("example", "--json") == 0

    assert capsys.readouterr().out == first


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("capacity --model gpt-5", "no model 'gpt-5'; known: Llama-3.1-8B, "),
        ("capacity --model gpt-5", "or give the path of a config.json"),
        ("capacity --gpu h1000", "no GPU 'h1000'; known: A100-80, H100, "),
        ("capacity --gpus eight", "gpus is 'eight', expected whole number"),
        ("capacity --gpus 3", "64 attention heads, which 3 GPUs cannot share evenly; choose"),
        ("capacity --gpus 1", "the weights take 141.1 GB, 1 x 72.0 GB are usable; use 2 GPUs"),
        ("capacity --precision int3", "precision is 'int3', expected one of bf16, fp8"),
        ("capacity --hit-rate 2", "hit_rate is 2.0, must be below 1"),
        ("capacity --model no/such/config.json", "cannot read no/such/config.json: No such file"),
        ("batching --lengths 5,long", "lengths is 'long', expected whole number"),
        ("batching --lengths ,", "lengths is empty"),
        ("admission --used 9000", "used is 9000, must be below reserve, which is 8192"),
        ("routing --policy nearest", "no policy 'nearest'; known: "),
        ("routing --replicas 0", "replicas is 0, must be above 0"),
    ],
)
def test_wrong_figures_are_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], words: str, message: str
) -> None:
    part = words.partition(" ")[0]

    printed = refusal(capsys, *words.split())

    assert printed.startswith(f"warmroute plan {part}: ")
    assert message in printed


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is not JSON"),
        (b"\xff\xfe\x00", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", "holds no JSON object"),
        (b'{"model_type": "mamba"}', "model_type is 'mamba', expected one of llama, "),
        (b" " * (4 * 1024 * 1024 + 1), "has more than 4194304 bytes"),
    ],
    ids=["cut", "bytes", "deep", "list", "other", "huge"],
)
def test_a_file_that_is_no_model_config_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)

    assert message in refusal(capsys, "capacity", "--model", str(path))


def test_a_part_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        plan()

    assert left.value.code == 2
    assert "PART" in capsys.readouterr().err
