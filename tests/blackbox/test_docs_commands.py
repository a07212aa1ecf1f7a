"""Every command of docs/put-it-in-front-of-your-engine.md runs, in its order, in one shell.

What is not as in the docs is in two tables: ports are free ones, and programs that need a GPU or a
download are stood in for by what is next to them.
"""

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.blackbox.tiny_gguf import write_tiny_llama
from warmroute.demo.processes import free_port
from warmroute.demo.redis_server import find_redis

pytest.importorskip("xllamacpp", reason="needs llama.cpp: pip install 'warmroute[engines]'")
pytestmark = [pytest.mark.blackbox, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "put-it-in-front-of-your-engine.md").read_text()
DEADLINE_S = 240.0

PORTS = ("6379", "8001", "8002", "8011", "8012", "8080", "8081", "8090", "8091")
PROGRAMS = {
    # This checkout, installed or not.
    "warmroute": 'exec {python} -m warmroute "$@"',
    # Needs a GPU and a model: a replica that imitates it, metrics included, takes its place.
    "vllm": (
        'exec {python} -m warmroute replica --model "$2" --port "$4" '
        "--fixed-prefill-ms 1 --fixed-decode-ms 1 --kv-blocks 4000"
    ),
    # llama.cpp's own server out of the wheel; the model, which would be a download, is noise.
    "llama-server": 'shift 2; exec {python} -m tests.blackbox.llamacpp -m {model} "$@"',
    "redis-server": 'exec {redis} "$@"',
}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def with_free_ports(text: str) -> str:
    free = {port: str(free_port()) for port in PORTS}
    return re.sub(r"\b\d{4}\b", lambda number: free.get(number[0], number[0]), text)


def write_programs(folder: Path) -> None:
    model = folder / "tiny.gguf"
    write_tiny_llama(model)
    places = {"python": sys.executable, "model": model, "redis": find_redis().path}
    for name, command in PROGRAMS.items():
        program = folder / name
        program.write_text(f"#!/bin/sh\n{command.format(**places)}\n")
        program.chmod(0o755)


async def test_every_command_of_the_page_runs_and_shows_what_the_page_says(tmp_path: Path) -> None:
    write_programs(tmp_path)
    script = ["set -eu -o pipefail"]
    for number, block in enumerate(blocks("sh")):
        script += [f"echo '=== {number}'", block, "echo"]
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONUNBUFFERED": "1"}
    log = tmp_path / "output.txt"

    with log.open("wb") as output:
        shell = await asyncio.create_subprocess_exec(
            *("bash", "-c", with_free_ports("\n".join(script))),
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        code = await asyncio.wait_for(shell.wait(), DEADLINE_S)
    finally:
        os.killpg(shell.pid, signal.SIGTERM)

    shown = log.read_text(errors="replace")
    assert code == 0, shown
    standings = re.findall(r'"standing":"(\w+)"', shown)
    assert standings == ["eligible"] * 4, shown
    replicas = re.findall(r"^x-warmroute-replica: (\S+)", shown, re.MULTILINE)
    matched = re.findall(r"^x-warmroute-matched-tokens: (\d+)", shown, re.MULTILINE)
    cached = re.findall(r'^"cached_tokens": ?(\d+)', shown, re.MULTILINE)
    assert (replicas[0], replicas[2]) == (replicas[1], replicas[3]), shown
    assert [int(tokens) > 400 for tokens in matched] == [False, True] * 2, shown
    assert [int(tokens) > 400 for tokens in cached] == [False, True] * 2, shown
    confirmed = re.findall(r"^warmroute_cached_tokens_total\{.*\} ([1-9]\S*)", shown, re.MULTILINE)
    assert len(confirmed) == 2, shown


def test_the_scrape_config_of_the_page_is_one(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("needs promtool: apt-get install prometheus")
    config = tmp_path / "prometheus.yml"
    config.write_text(blocks("yaml")[0])

    checked = subprocess.run(
        [promtool, "check", "config", str(config)], capture_output=True, text=True, check=False
    )

    assert checked.returncode == 0, checked.stdout + checked.stderr
