"""The dependency rule of docs/architecture.md and the shape of the tree, checked on the source."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
IMPURE = {
    *("aiohttp", "asyncio", "httptools", "logging", "os", "prometheus_client", "random"),
    *("redis", "signal", "socket", "subprocess", "threading", "time", "uvloop"),
}
MAY_IMPORT = {  # the longest matching row rules a module; pure packages have their own row
    "contract": ["contract"],
    "router.core": ["contract", "router.core"],
    "router.policies": ["contract", "router.core", "router.policies"],
    "router": ["contract", "router"],
    "replicas.core": ["contract", "replicas.core"],
    "replicas.agents.engines": ["contract", "replicas.agents.engines"],
    "replicas": ["contract", "replicas"],
    "simulator": ["contract", "router.core", "router.policies", "replicas.core", "simulator"],
    "bench": ["contract", "router", "replicas", "simulator", "warmroute", "bench"],
    "warmroute": ["contract", "router", "replicas", "simulator", "warmroute"],
}
PURE = {
    *("contract", "router.core", "router.policies", "replicas.core", "replicas.agents.engines"),
    "simulator",
}
CONTRACT_LIBRARIES = {"msgspec", "xxhash"}
OURS = {row.partition(".")[0] for row in MAY_IMPORT}
PATHS = [path for package in sorted(OURS) for path in sorted((ROOT / package).rglob("*.py"))]
FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 400
VAGUE_NAMES = {"utils", "util", "helpers", "common", "misc"}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imports_of(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_in(module: str, package: str) -> bool:
    return f"{module}.".startswith(f"{package}.")


@pytest.mark.parametrize("path", PATHS, ids=name_of)
def test_imports_point_inwards(path: Path) -> None:
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    row = max((row for row in MAY_IMPORT if is_in(module, row)), key=len)

    for imported in imports_of(ast.parse(path.read_text())):
        top = imported.partition(".")[0]
        if top in OURS:
            assert any(is_in(imported, allowed) for allowed in MAY_IMPORT[row]), imported
        assert row not in PURE or top not in IMPURE, f"{row} is pure, but imports {imported}"
        if row == "contract" and top not in OURS:
            assert top in CONTRACT_LIBRARIES or is_standard(top), imported


def is_standard(top: str) -> bool:
    return top in __import__("sys").stdlib_module_names


@pytest.mark.parametrize("path", PATHS, ids=name_of)
def test_imports_stand_at_the_top_of_the_file(path: Path) -> None:
    tree = ast.parse(path.read_text())

    inner = [
        f"{path.name}:{node.lineno}"
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]

    assert inner == []


@pytest.mark.parametrize("path", PATHS, ids=name_of)
def test_files_and_functions_fit_on_a_screen_or_two(path: Path) -> None:
    text = path.read_text()

    assert text.count("\n") <= FILE_LINES_MAX
    assert path.stem not in VAGUE_NAMES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < FUNCTION_LINES_MAX, node.name


@pytest.mark.parametrize("path", PATHS, ids=name_of)
def test_every_file_says_what_it_is_for(path: Path) -> None:
    tree = ast.parse(path.read_text())

    assert not tree.body or ast.get_docstring(tree), "no docstring"
