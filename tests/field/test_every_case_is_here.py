"""Every case of the list has a test that bears its id, or one line that says why it has none.

`case_ids.txt` has the ids only: each stands for a kind of fault that people have reported of LLM
routers, gateways and inference servers (streaming, retries, dead backends, metrics, ...).
"""

import ast
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).parent
CASE_IDS = (FOLDER / "case_ids.txt").read_text().split()
NOT_APPLICABLE: dict[str, str] = {}
"""Why a case cannot apply, by its id."""


def test_every_case_has_a_test_or_a_reason() -> None:
    names = set(_names_of_tests())
    missing = [case for case in CASE_IDS if not any(_bears(name, case) for name in names)]

    assert missing == list(NOT_APPLICABLE)
    assert len(set(CASE_IDS)) == 122


def _names_of_tests() -> Iterator[str]:
    for path in FOLDER.glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node.name


def _bears(name: str, case: str) -> bool:
    return name.startswith(f"test_{case.lower().replace('-', '_')}_")
