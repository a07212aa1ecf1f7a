"""The dependency rule of docs/architecture.md and the shape of the tree, checked on the source."""

import ast
import sys
from dataclasses import dataclass
from functools import cache
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
PATHS = {package: sorted((ROOT / package).rglob("*.py")) for package in sorted(OURS)}
FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 400
VAGUE_NAMES = {"utils", "util", "helpers", "common", "misc"}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


Import = ast.Import | ast.ImportFrom
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Shape:
    """What the tests look at in a file, which is parsed once for all of them."""

    imported: list[str]
    lines_of_inner_imports: list[int]
    lines_by_function: dict[str, int]  # the longest of a name
    num_lines: int
    says_what_it_is_for: bool


@cache
def shape_of(path: Path) -> Shape:
    text = path.read_text()
    tree = ast.parse(text)
    nodes = list(ast.walk(tree))
    functions = [node for node in nodes if isinstance(node, Function)]
    lengths = {each.name: 0 for each in functions}
    for each in functions:
        assert each.end_lineno is not None
        lengths[each.name] = max(lengths[each.name], each.end_lineno - each.lineno)
    return Shape(
        imported=[name for node in nodes if isinstance(node, Import) for name in names_in(node)],
        lines_of_inner_imports=[
            node.lineno for each in functions for node in ast.walk(each) if isinstance(node, Import)
        ],
        lines_by_function=lengths,
        num_lines=text.count("\n"),
        says_what_it_is_for=not tree.body or bool(ast.get_docstring(tree)),
    )


def names_in(node: Import) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    assert node.level == 0, "relative import"
    return [f"{node.module}.{alias.name}" for alias in node.names]


def is_in(module: str, package: str) -> bool:
    return f"{module}.".startswith(f"{package}.")


def may_import(path: Path, imported: str) -> bool:
    module = name_of(path).removesuffix(".py").replace("/", ".")
    row = max((row for row in MAY_IMPORT if is_in(module, row)), key=len)
    top = imported.partition(".")[0]
    if top in OURS:
        return any(is_in(imported, allowed) for allowed in MAY_IMPORT[row])
    if row in PURE and top in IMPURE:
        return False
    return row != "contract" or top in CONTRACT_LIBRARIES | sys.stdlib_module_names


@pytest.mark.parametrize("package", PATHS)
def test_imports_point_inwards(package: str) -> None:
    outwards = [
        f"{name_of(path)} imports {imported}"
        for path in PATHS[package]
        for imported in shape_of(path).imported
        if not may_import(path, imported)
    ]

    assert outwards == []


@pytest.mark.parametrize("package", PATHS)
def test_imports_stand_at_the_top_of_the_file(package: str) -> None:
    inner = [
        f"{name_of(path)}:{line}"
        for path in PATHS[package]
        for line in shape_of(path).lines_of_inner_imports
    ]

    assert inner == []


@pytest.mark.parametrize("package", PATHS)
def test_files_and_functions_fit_on_a_screen_or_two(package: str) -> None:
    shapes = {name_of(path): shape_of(path) for path in PATHS[package]}

    long = [
        *(name for name, shape in shapes.items() if shape.num_lines > FILE_LINES_MAX),
        *(
            f"{name}: {function}"
            for name, shape in shapes.items()
            for function, num_lines in shape.lines_by_function.items()
            if num_lines >= FUNCTION_LINES_MAX
        ),
    ]
    assert long == []


@pytest.mark.parametrize("package", PATHS)
def test_every_file_says_what_it_is_for(package: str) -> None:
    vague = [name_of(path) for path in PATHS[package] if path.stem in VAGUE_NAMES]
    silent = [name_of(path) for path in PATHS[package] if not shape_of(path).says_what_it_is_for]

    assert (vague, silent) == ([], [])
