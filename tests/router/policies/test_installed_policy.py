"""The example of docs/policies.md as a distribution of its own, put by pip into a folder.

Nothing of the repository is changed or told: the program finds it by its entry point.
"""

import base64
import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from router.policies.plugins import GROUP
from warmroute.pages import policies_markdown

pytestmark = pytest.mark.blackbox


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the page's example, installed from a wheel."""
    folder = tmp_path_factory.mktemp("third-party")
    wheel, target = folder / "frugal-1.0-py3-none-any.whl", folder / "site"
    _write_wheel(wheel)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    # What a compiled file would save is less than what compiling costs.
    subprocess.run([*pip, "--no-compile", "--target", target, wheel], check=True, timeout=60)
    return target


def test_an_installed_policy_is_listed_and_decides(installed: Path) -> None:
    listed = _warmroute(installed, "policies").stdout
    planned = _warmroute(
        installed, "plan", "routing", "--policy", "frugal:prefix_tokens_max=4000", "--json"
    )

    assert "frugal" in [line.split()[0] for line in listed.splitlines()]
    assert planned.returncode == 0, planned.stderr
    assert '"policy": "frugal:prefix_tokens_max=4000"' in planned.stdout


def test_its_settings_are_known_by_name(installed: Path) -> None:
    refused = _warmroute(installed, "config", "--set", "policy.frugal.tokens=1")

    assert refused.returncode == 3
    assert "prefix_tokens_max, request_tokens" in refused.stderr


def _warmroute(installed: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "warmroute", *arguments],
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def _write_wheel(path: Path) -> None:
    page = policies_markdown()
    (source,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (entry,) = re.findall(r'\[project\.entry-points\."warmroute\.policies"\]\n(.*)\n', page)
    name, target = entry.replace('"', "").split(" = ")
    metadata = f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": source,
        f"{metadata}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{metadata}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{metadata}/entry_points.txt": f"[{GROUP}]\n{name} = {target}\n",
    }
    record = [f"{file},sha256={_digest(text)},{len(text)}\n" for file, text in files.items()]
    files[f"{metadata}/RECORD"] = "".join([*record, f"{metadata}/RECORD,,\n"])
    with ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
