"""The layout of HTML pages: style, script, tables. They load nothing; without its script a page has all, unsorted."""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Callable, Iterable, Sequence
from html import escape

from florilegium.common.pages import Table


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def page_html(title: str, subtitle: str, *parts: str) -> str:
    """Return a whole page: title and subtitle are texts, the parts HTML."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n"
        f'<header>\n<h1>{escape(title)}</h1>\n<p class="quiet">{escape(subtitle)}</p>\n</header>\n<main>\n'
        + "\n".join(parts)
        + f"\n</main>\n<script>\n{SCRIPT}</script>\n</body>\n</html>\n"
    )


def table_html(
    content: Table,
    name: str,
    cards: str = "",
    number: int = 0,
    shown: Callable[[str], str] | None = None,
    colour: Callable[[str], str] | None = None,
) -> Html:
    """Return a table with its numbers as CSV beside it; cells that are :class:`Html` are pictures, which the CSV lacks.

    Args:
        content: the table.
        name: what the table is called.
        cards: "many": rows are cards on pages below 1,280 pixels, and not only on narrow ones.
        number: of the table on its page, where several have a name; 0: the name is its own.
        shown: returns the HTML of a cell of the first column; None: the cell is a text.
        colour: returns a light colour of CSS for a cell of another column, "" for none.
    """
    label = escape(f"{name}, table {number}" if number else name)
    grey = [' class="grey"' if head in content.quiet else "" for head in content.head]
    # Roles: where rows are shown as cards, a table's parts are no longer a table to screen readers.
    heads = "".join(
        f'<th role="columnheader" scope="col"{quiet}>{escape(head)}</th>'
        for head, quiet in zip(content.head, grey, strict=True)
    )
    rows = "".join(f'<tr role="row">{_cells(content.head, row, grey, shown, colour)}</tr>\n' for row in content.rows)
    return Html(
        f'<div class="tools">\n<a class="csv" download="{escape(name.lower().replace(" ", "-"))}.csv" '
        f'href="{csv_of(content)}">{escape(name)} as CSV</a>\n</div>\n'
        f'<div class="wide {cards}" role="region" aria-label="{label}" tabindex="0"><table role="table">\n'
        f'<thead role="rowgroup"><tr role="row">{heads}</tr></thead>\n<tbody role="rowgroup">\n{rows}</tbody>'
        "</table></div>"
    )


def _cells(
    heads: Sequence[str],
    row: Sequence[str],
    grey: Sequence[str],
    shown: Callable[[str], str] | None,
    colour: Callable[[str], str] | None,
) -> str:
    first, *rest = (cell if isinstance(cell, Html) else escape(cell) for cell in row)
    tints = [colour(cell) if colour else "" for cell in row[1:]]
    styles = [f' style="background:{tint};color:#1c2126"' if tint else "" for tint in tints]
    named = zip(heads[1:], rest, grey[1:], styles, strict=True)
    cells = (
        f'<td role="cell" data-label="{escape(head)}"{quiet}{style}>{cell}</td>' for head, cell, quiet, style in named
    )
    return f'<th role="rowheader" scope="row">{shown(row[0]) if shown else first}</th>' + "".join(cells)


def csv_of(table: Table) -> str:
    """Return a table as CSV in a data URI, without columns of pictures."""
    kept = [i for i in range(len(table.head)) if not any(isinstance(row[i], Html) for row in table.rows)]
    return csv_uri([[line[i] for i in kept] for line in (table.head, *table.rows)])


def csv_uri(rows: Iterable[Sequence[object]]) -> str:
    """Return rows as CSV in a data URI."""
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return data_uri("text/csv;charset=utf-8", text.getvalue())


def data_uri(kind: str, text: str) -> str:
    """Return a text of a media type as a data URI."""
    return f"data:{kind};base64,{base64.b64encode(text.encode()).decode()}"


_CARDS = """\
  BOX { background: none; overflow: visible; }
  BOX table, BOX tbody, BOX tr, BOX th, BOX td { display: block; width: 100%; }
  BOX thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  BOX tr { border: 1px solid var(--strong); border-radius: 6px; padding: 0.4rem 0.7rem; margin: 0.5rem 0; }
  BOX tr[hidden] { display: none; }
  BOX tbody th { position: static; max-width: none; font-size: 1rem; padding: 0.1rem 0; }
  BOX td { display: flex; justify-content: space-between; gap: 1rem; padding: 0.15rem 0; white-space: normal;
    overflow-wrap: anywhere; }
  BOX td:last-child { border-bottom: 0; }
  BOX td:empty { display: none; }
  BOX td::before { content: attr(data-label); color: var(--quiet); text-align: left; overflow-wrap: normal; }"""
"""Rows as cards: on narrow pages, and of tables with many long cells on others."""

STYLE = (
    (
        """\
:root { color-scheme: light dark; --text: #1c2126; --quiet: #59626b; --grey: #626b73; --page: #fff;
  --line: #e3e7ea; --strong: #9aa4ad;
  --link: #00588a; --accent: #0072b2; --note: #e69f00; }
@media screen and (prefers-color-scheme: dark) {
  :root { --text: #e4e8ec; --quiet: #adb6be; --grey: #a2abb3; --page: #14181c; --line: #2c333a; --strong: #5b656e;
    --link: #74bdf5;
    --accent: #56b4e9; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 90rem; padding: 1rem clamp(0.8rem, 3vw, 2.5rem) 4rem; color: var(--text);
  background: var(--page);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", "Helvetica Neue", Arial, sans-serif; }
header { border-bottom: 2px solid var(--accent); margin-bottom: 1.5rem; }
h1 { font-size: clamp(1.4rem, 4vw, 2rem); margin: 0.4rem 0; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 0.6rem; overflow-wrap: anywhere; }
h3 { font-size: 1.05rem; margin: 1.8rem 0 0.4rem; }
p, li { max-width: 48rem; overflow-wrap: anywhere; }
small, .quiet { color: var(--quiet); font-size: 0.88rem; overflow-wrap: anywhere; }
nav ul { padding-left: 1.2rem; }
a { color: var(--link); }
.tools { display: flex; flex-wrap: wrap; gap: 0.4rem 1rem; align-items: center; font-size: 0.88rem; }
.tools input, .tools select { font: inherit; color: inherit; background: var(--page);
  border: 1px solid var(--strong); border-radius: 4px;
  padding: 0.15rem 0.4rem; max-width: 100%; }
.tools .sorting { display: none; }
/* A table that has no room scrolls in its box; the shadows at its sides say that there is more. */
.wide { overflow-x: auto; max-width: 100%; background:
  linear-gradient(to right, var(--page) 1.5rem, transparent) left / 3rem 100% local no-repeat,
  linear-gradient(to left, var(--page) 1.5rem, transparent) right / 3rem 100% local no-repeat,
  linear-gradient(to right, var(--strong), transparent) left / 0.7rem 100% scroll no-repeat,
  linear-gradient(to left, var(--strong), transparent) right / 0.7rem 100% scroll no-repeat; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.3rem clamp(0.35rem, 0.8vw, 0.7rem); text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
thead th { border-bottom: 2px solid var(--strong); vertical-align: bottom; white-space: normal; }
tbody th, th:first-child { text-align: left; font-weight: 600; position: sticky; left: 0; z-index: 1;
  background: var(--page); }
tbody th { min-width: clamp(6.5rem, 14vw, 13rem); max-width: 45vw; white-space: normal; overflow-wrap: break-word; }
thead button { font: inherit; color: inherit; background: none; border: 0; padding: 0; text-align: inherit;
  cursor: pointer; }
th[aria-sort="ascending"] button::after { content: " ▲"; }
th[aria-sort="descending"] button::after { content: " ▼"; }
.grey { color: var(--grey); font-weight: 400; }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 25rem), 1fr)); gap: 1rem; }
figure { margin: 0.6rem 0; }
figure img { width: 100%; height: auto; display: block; }
.panel img { background: #fff; border-radius: 6px; }
figcaption { text-align: right; font-size: 0.88rem; }
.single figure { max-width: 44rem; }
.note { border-left: 4px solid var(--note); padding: 0.2rem 0 0.2rem 0.8rem; margin: 0.8rem 0; }
details { margin: 0.8rem 0; }
summary { cursor: pointer; font-weight: 600; }
@media screen and (max-width: 1279px) {
MANY
  .many tbody { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: 0 1rem; }
}
@media screen and (max-width: 699px) {
WIDE
  .tools .sorting { display: inline; }
}
@media print {
  body { max-width: none; padding: 0; font-size: 10pt; }
  .wide { overflow: visible; background: none; }
  .tools, figcaption { display: none; }
  table { font-size: 8pt; }
  th, td { padding: 0.15rem 0.35rem; white-space: normal; }
  th:first-child { position: static; min-width: 0; }
  .dense table { font-size: 6pt; }
  .dense th, .dense td { padding: 0.1rem 0.2rem; overflow-wrap: anywhere; }
  figure, tr { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
  nav { display: none; }
}
"""
    )
    .replace("MANY", _CARDS.replace("BOX", ".many"))
    .replace("WIDE", _CARDS.replace("BOX", ".wide"))
)

SCRIPT = r"""// Tables sort by a click on a heading, and long ones filter by words. Numbers sort by their first number.
const enhance = part => {
for (const box of part.querySelectorAll(".wide")) {
  const table = box.querySelector("table"), body = table.tBodies[0], tools = box.previousElementSibling;
  const heads = [...table.tHead.rows[0].cells], first = [...body.rows];
  const number = text => {
    const found = text.replace("−", "-").match(/^[^\d-]{0,2}(-?\d[\d.]*(?:e-?\d+)?)/);
    return found ? +found[1] : NaN;
  };
  const sort = (at, down) => {
    const key = row => row.cells[at].textContent.trim(), all = first.map(key);
    const numeric = at && all.every(text => !text || !isNaN(number(text)));
    const words = (a, b) => key(a).localeCompare(key(b), "en", {numeric: true});
    const order = (a, b) => numeric ? number(key(a)) - number(key(b)) : words(a, b);
    const empty = row => !key(row);  // last, whatever the direction
    body.append(...[...first].sort((a, b) => empty(a) - empty(b) || (down ? -1 : 1) * (order(a, b) || 0)));
    heads.forEach(head => head.removeAttribute("aria-sort"));
    heads[at].setAttribute("aria-sort", down ? "descending" : "ascending");
  };
  if (first.length < 2) continue;
  const choice = document.createElement("select");
  choice.className = "sorting";
  choice.setAttribute("aria-label", "Sort by");
  choice.append(new Option("sort by …", ""));
  heads.forEach((head, at) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.onclick = () => sort(at, head.getAttribute("aria-sort") === "ascending");
    choice.append(new Option(button.textContent, at));
    head.append(button);
  });
  choice.onchange = () => choice.value && sort(+choice.value, +choice.value > 0);
  tools.prepend(choice);
  if (first.length < 8) continue;
  const words = document.createElement("input");
  words.type = "search";
  words.placeholder = "filter rows";
  words.setAttribute("aria-label", "Filter the rows of the table " + box.getAttribute("aria-label"));
  words.oninput = () => {
    const wanted = words.value.toLowerCase().split(/\s+/);
    for (const row of first) row.hidden = !wanted.every(word => row.textContent.toLowerCase().includes(word));
  };
  tools.prepend(words);
}
};
enhance(document);
"""
