"""One page for a simulation: it opens anywhere, loads nothing, and is the same for equal runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from simulator.plot import PLOT_CSS, Bars, Plot, svg

_CSS = """
:root { --ink: #1f2430; --soft: #667085; --rule: #e3e6ec; --paper: #fff; --back: #f6f7f9 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ef; --soft: #98a2b3; --rule: #2c3340; --paper: #171b22; --back: #0f1217 }
}
* { box-sizing: border-box }
body { margin: 0; background: var(--back); color: var(--ink);
  font: 14px/1.5 system-ui, -apple-system, sans-serif }
main { max-width: 1240px; margin: 0 auto; padding: 32px 20px 64px }
h1 { font-size: 24px; margin: 0 0 4px } h2 { font-size: 17px; margin: 32px 0 8px }
p { margin: 8px 0; color: var(--soft) }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 16px; margin: 16px 0 }
dt { color: var(--soft) } dd { margin: 0; overflow-wrap: anywhere }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr));
  gap: 16px }
figure, .table { margin: 0; background: var(--paper); border: 1px solid var(--rule);
  border-radius: 8px; padding: 14px 16px }
.table { overflow-x: auto; padding: 4px 8px }
table { border-collapse: collapse; font-size: 13px; width: 100% }
th { font-weight: 600; color: var(--soft); vertical-align: bottom }
th, td { padding: 5px 8px; border-bottom: 1px solid var(--rule); text-align: right;
  font-variant-numeric: tabular-nums }
tr:last-child td { border-bottom: 0 } small { color: var(--soft); white-space: nowrap }
th.left, td.left { text-align: left } td:first-child { white-space: nowrap }
footer { margin-top: 32px; color: var(--soft); font-size: 12px }
"""


@dataclass(frozen=True)
class Table:
    """A table of a page; columns but those in ``left`` are numbers."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: Sequence[int]
    note: str = ""


@dataclass(frozen=True)
class Page:
    """What a report has, from top to bottom."""

    title: str
    facts: Sequence[tuple[str, str]]
    notes: Sequence[str]
    tables: Sequence[Table]
    plots: Sequence[Plot | Bars]


def page_html(page: Page) -> str:
    """Return the whole page."""
    facts = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in page.facts)
    notes = "".join(f"<p>{escape(note)}</p>" for note in page.notes)
    plots = "\n".join(f"<figure>{svg(plot)}</figure>" for plot in page.plots)
    first, *others = map(_table, page.tables)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(page.title)}</title>\n<style>{_CSS}{PLOT_CSS}</style></head>\n<body><main>"
        f"<h1>{escape(page.title)}</h1>\n<dl>{facts}</dl>{notes}\n{first}\n"
        f'<h2>Plots</h2>\n<div class="plots">{plots}</div>\n{"".join(others)}\n'
        "<footer>Simulated in virtual time by the code that routes and schedules live traffic; "
        "GPU steps are modelled, tokens are not computed.</footer></main></body></html>\n"
    )


def _cell(text: str) -> str:
    """Return a cell; how far a mean may be off stands below it."""
    mean, off, half_width = text.partition(" ± ")
    return f"{escape(mean)}<br><small>± {escape(half_width)}</small>" if off else escape(text)


def _table(table: Table) -> str:
    def row(tag: str, texts: Sequence[str]) -> str:
        cells = (
            f"<{tag}{' class=left' if column in table.left else ''}>{_cell(text)}</{tag}>"
            for column, text in enumerate(texts)
        )
        return f"<tr>{''.join(cells)}</tr>"

    note = f"<p>{escape(table.note)}</p>" if table.note else ""
    body = "\n".join(row("td", texts) for texts in table.rows)
    return (
        f"<h2>{escape(table.title)}</h2>\n{note}"
        f'<div class="table"><table><thead>{row("th", table.headings)}</thead>\n'
        f"<tbody>{body}</tbody></table></div>\n"
    )
