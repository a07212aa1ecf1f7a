"""Command-line flags made from the same declarations as the TOML keys and the docs."""

import argparse
from collections.abc import Collection
from typing import Any

from contract.options import option_rows


def add_flags(
    parser: argparse.ArgumentParser, section: type, only: Collection[str] | None = None
) -> None:
    """Add one flag per setting of ``section``, or of those in ``only``.

    A flag that is not given leaves no trace in what is parsed.
    """
    for row in option_rows(section):
        if only is not None and row.name not in only:
            continue
        default = "none" if row.default is None else row.default
        if isinstance(default, tuple):
            default = ",".join(map(str, default))
        default = getattr(default, "value", default)
        unit = f" [{row.unit}]" if row.unit else ""
        help_text = f"{row.meaning}{unit} (default {default})".replace("%", "%%")
        parser.add_argument(
            f"--{row.name.replace('_', '-')}",
            dest=row.name,
            metavar=row.type_name.split(" or ")[0].replace(" | ", "|").replace(" ", "-").upper(),
            default=argparse.SUPPRESS,
            help=help_text,
        )


def add_policies_flag(parser: argparse.ArgumentParser, help_text: str) -> None:
    """Add ``--policy``, which names several, each with its settings."""
    parser.add_argument(
        "--policy",
        dest="policies",
        nargs="+",
        action="extend",
        metavar="NAME[:SETTING=VALUE,...]",
        help=help_text,
    )


def given_flags(args: argparse.Namespace, section: type) -> dict[str, Any]:
    """Return the settings of ``section`` that were given as flags, as text."""
    given = vars(args)
    return {row.name: given[row.name] for row in option_rows(section) if row.name in given}
