"""A policy in one file outside the repository: packages that work, and packages that do not.

Each is installed as pip would leave it: a module and a ``.dist-info`` folder on ``sys.path``.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.options import SettingError
from router.config import load_router_config
from router.core import policy as registry
from router.core.policy import DEFAULT_POLICY, POLICIES, build_policy
from router.policies.plugins import GROUP, load_plugins
from tests.router.policies.making import request, view
from warmroute.pages import policies_markdown, policies_text

SOURCE = '''
"""A policy of somebody else."""

from dataclasses import dataclass
from typing import ClassVar

from router.core.policy import Policy


@dataclass(frozen=True)
class Last(Policy):
    """Choose the last name."""

    name: ClassVar[str] = "last"

    def choose(self, request, eligible):
        return max(eligible, key=lambda replica: replica.replica_id)
'''


@pytest.fixture(autouse=True)
def _registry_as_it_was() -> Iterator[None]:
    before = dict(POLICIES)
    yield
    POLICIES.clear()
    POLICIES.update(before)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "Install":
    monkeypatch.syspath_prepend(str(tmp_path))
    return Install(tmp_path)


class Install:
    """Puts a package with one entry point where Python finds it, and loads it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, module: str, source: str, entry: str) -> None:
        (self.folder / f"{module}.py").write_text(source)
        metadata = self.folder / f"{module}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(f"[{GROUP}]\n{entry}\n")
        load_plugins()


def test_a_policy_of_another_package_is_built_by_its_name(install: Install) -> None:
    install("plugin_plain", SOURCE, "last = plugin_plain:Last")

    chosen = build_policy("last").choose(request(), [view("b"), view("c"), view("a")])

    assert chosen.replica_id == "c"
    assert "last" in policies_text()


def test_a_policy_that_registers_itself_is_registered_once(install: Install) -> None:
    source = SOURCE.replace("import Policy", "import Policy, register")
    source = source.replace("@dataclass(frozen=True)", "@register\n@dataclass(frozen=True)")

    install("plugin_registered", source, "last = plugin_registered:Last")

    assert build_policy("last").name == "last"


def test_the_page_about_policies_is_about_those_in_the_box(install: Install) -> None:
    before = policies_markdown()

    install("plugin_undocumented", SOURCE, "last = plugin_undocumented:Last")

    assert policies_markdown() == before


def test_the_example_of_the_page_works_as_it_stands(install: Install) -> None:
    page = policies_markdown()
    (source,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (entry,) = re.findall(r'\[project\.entry-points\."warmroute\.policies"\]\n(.*)\n', page)
    name, _, target = entry.replace('"', "").partition(" = ")

    install(target.partition(":")[0], source, f"{name} = {target}")

    replicas = [view("a", 3), view("b")]
    prompt = request(tokens=3000, a=2000)
    assert build_policy(name).choose(prompt, replicas).replica_id == "a"
    assert build_policy(name, {"prefix_tokens_max": 200}).choose(prompt, replicas) is replicas[1]


@pytest.mark.parametrize(
    ("module", "source", "entry", "found"),
    [
        ("plugin_raises", "import no_module", "mine = plugin_raises:Mine", "no_module"),
        ("plugin_empty", "", "mine = plugin_empty:Mine", "has no attribute 'Mine'"),
        ("plugin_value", "Mine = 7", "mine = plugin_value:Mine", "Mine is 7, expected"),
        (
            "plugin_abstract",
            "from router.core.policy import Policy\nclass Mine(Policy):\n    name = 'mine'\n",
            "mine = plugin_abstract:Mine",
            "expected a subclass of Policy with choose",
        ),
        (
            "plugin_nameless",
            SOURCE.replace('name: ClassVar[str] = "last"', ""),
            "mine = plugin_nameless:Last",
            "name",
        ),
        (
            "plugin_undecorated",
            SOURCE.replace("@dataclass(frozen=True)", ""),
            "mine = plugin_undecorated:Last",
            "put @dataclass(frozen=True) before it",
        ),
        (
            "plugin_unitless",
            SOURCE.replace("Policy", "CostPolicy").replace("choose(self", "cost(self"),
            "mine = plugin_unitless:Last",
            "has a cost without a unit",
        ),
        ("plugin_exits", "raise SystemExit(2)", "mine = plugin_exits:Mine", "SystemExit: 2"),
    ],
)
def test_a_policy_that_cannot_be_loaded_says_why_when_it_is_chosen(
    module: str, source: str, entry: str, found: str, install: Install
) -> None:
    install(module, source, entry)

    assert f"'mine' of the package {module!r} cannot be loaded" in policies_text()
    with pytest.raises(SettingError, match=re.escape(found)):
        load_router_config(flags={"policy": "mine"})
    assert load_router_config().policy.name == DEFAULT_POLICY


def test_a_policy_without_a_description_is_listed(install: Install) -> None:
    source = SOURCE + "\n\nclass Mute(Last):\n    name = 'mute'\n"

    install("plugin_mute", source, "mute = plugin_mute:Mute")

    assert "mute  " in policies_text()


def test_a_policy_with_a_name_that_is_taken_does_not_replace_the_other(install: Install) -> None:
    source = SOURCE.replace('"last"', '"prefix_load"')

    install("plugin_thief", source, "prefix_load = plugin_thief:Last")

    assert registry.POLICIES["prefix_load"].__module__ == "router.policies.prefix_load"
    with pytest.raises(SettingError, match="there is a policy 'prefix_load' already"):
        build_policy("plugin_thief.prefix_load")
