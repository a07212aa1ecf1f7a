"""The demo as a newcomer runs it, and what is left when it is ended in the middle: nothing."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = [pytest.mark.blackbox, pytest.mark.timeout(180)]

DEADLINE_S = 120.0


def processes_of(folder: Path) -> list[str]:
    """Return the command lines of all processes of a demo whose temporary folder is ``folder``.

    They inherit it in their environment; Redis, which writes its title over that, works in it.
    """
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            is_inside = str(folder) in os.readlink(process / "cwd")
            if is_inside or f"TMPDIR={folder}".encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue  # it has ended, or is not ours to read
    return found


async def start_demo(folder: Path, *flags: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "warmroute", "demo", *flags),
        env=os.environ | {"TMPDIR": str(folder)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def wait_for_processes(folder: Path, right: Callable[[int], bool]) -> None:
    running = processes_of(folder)
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not right(len(running)):
                await asyncio.sleep(0.02)
                running = processes_of(folder)
    except TimeoutError:
        pytest.fail(f"running after {DEADLINE_S} s: {running}")


async def test_the_demo_prints_a_row_per_policy_and_writes_the_same(tmp_path: Path) -> None:
    file = tmp_path / "demo.json"

    demo = await start_demo(
        tmp_path,
        *("--policies", "round_robin,prefix_load", "--json", str(file)),
        *("--requests", "400", "--time-compression", "40", "--speedup", "8"),
    )
    output, errors = await asyncio.wait_for(demo.communicate(), DEADLINE_S)

    assert demo.returncode == 0, errors.decode()
    first, last = json.loads(file.read_text())["policies"]
    assert (first["policy"], last["policy"]) == ("round_robin", "prefix_load")
    assert (first["requests"], first["errors"]) == (last["requests"], last["errors"]) == (400, 0)
    assert last["hit_rate_actual"] > first["hit_rate_actual"] > 0
    assert abs(last["hit_rate_predicted"] - last["hit_rate_actual"]) < 0.03
    assert sum(last["requests_per_replica"].values()) == 400
    text = output.decode()
    assert "prefix_load against round_robin" in text
    assert "<- chosen" in text
    await wait_for_processes(tmp_path, lambda number: number == 0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
async def test_ending_the_demo_in_the_middle_ends_all_its_processes(
    number: signal.Signals, tmp_path: Path
) -> None:
    demo = await start_demo(tmp_path, "--policies", "prefix_load")
    # Itself, Redis, a gateway and three replicas.
    await wait_for_processes(tmp_path, lambda number: number >= 6)

    demo.send_signal(number)
    await asyncio.wait_for(demo.communicate(), DEADLINE_S)

    assert demo.returncode == (-signal.SIGKILL if number is signal.SIGKILL else 130)
    await wait_for_processes(tmp_path, lambda number: number == 0)
