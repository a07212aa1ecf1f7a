"""A full garbage collection finds little to look through in a gateway that serves.

Seen in a process of its own, as pytest's is full of other objects.
"""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.blackbox


def test_what_the_imports_made_is_frozen_before_a_port_is_bound() -> None:
    command = (
        "import gc, sys; import router.serve; from router.config import load_router_config\n"
        "async def run_gateway(*_):\n"
        "    print(gc.get_freeze_count(), len(gc.get_objects()))\n"
        "    return 0\n"
        "router.serve.run_gateway = run_gateway\n"
        "sys.exit(router.serve.run(load_router_config({}, {})))"
    )

    done = subprocess.run([sys.executable, "-c", command], capture_output=True, check=True)

    num_frozen, num_looked_through = map(int, done.stdout.split())
    assert num_frozen > 10_000
    assert num_looked_through < num_frozen / 20
