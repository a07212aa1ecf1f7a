"""Puts results into the tables of docs/reliability.md; the text around them stays as it is.

A table is named by a comment before it, `<!-- rows: chaos -->`. A row replaces the one whose first
cells are the same, else it is added.
"""

from pathlib import Path


class NoTableError(Exception):
    """The page has no such table."""


def put_row(page: Path, table: str, cells: list[str], num_keys: int) -> None:
    """Put a row into a table of a page. Raises NoTableError."""
    lines = page.read_text().splitlines()
    mark = f"<!-- rows: {table} -->"
    if mark not in lines:
        raise NoTableError(f"{page} has no line {mark!r}")
    first = lines.index(mark) + 1
    while first < len(lines) and not lines[first].startswith("| ---"):
        first += 1
    end = first + 1
    while end < len(lines) and lines[end].startswith("|"):
        end += 1
    rows = [line for line in lines[first + 1 : end] if _cells(line)[:num_keys] != cells[:num_keys]]
    rows.append("| " + " | ".join(cells) + " |")
    page.write_text("\n".join([*lines[: first + 1], *rows, *lines[end:]]) + "\n")


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]
