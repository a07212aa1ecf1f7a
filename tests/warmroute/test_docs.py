"""The pages that are made from the code say what the code says now; `make docs` makes them anew."""

import re
from importlib.metadata import version
from pathlib import Path

import pytest

from router.core.exchange import state_diagram
from warmroute.pages import (
    configuration_markdown,
    faults_markdown,
    metrics_markdown,
    policies_markdown,
    with_picture,
)

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("policies.md", policies_markdown),
        ("configuration.md", configuration_markdown),
        ("metrics.md", metrics_markdown),
        ("faults.md", faults_markdown),
    ],
    ids=["policies", "configuration", "metrics", "faults"],
)
def test_a_generated_page_is_current(name: str, made: object) -> None:
    assert callable(made)

    assert (ROOT / "docs" / name).read_text() == made(), "stale: run `make docs`"


def test_the_picture_of_the_exchange_is_the_table_s() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()

    assert state_diagram() in text
    assert text == with_picture(text), "stale: run `make docs`"


def test_the_changelog_begins_with_the_version_of_the_code() -> None:
    versions = re.findall(r"^## \[(.*?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)

    assert versions[0] == version("warmroute")
