"""Write the ledger as a page in Markdown, with a picture beside it."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path

from florilegium.apps.reports.verdicts import HEAD as CLAIM_HEAD
from florilegium.apps.reports.verdicts import MEANING as CLAIMED
from florilegium.apps.runs.experiment import read_layers
from florilegium.apps.runs.recipes import recipe_names
from florilegium.apps.sweeps.sweep import read_sweep
from florilegium.common.pages import page_of, table_of, write_page, write_picture
from florilegium.research.board.claims import CLAIMS, named
from florilegium.research.ledger.records import Cell, Paper, Runs, Table
from florilegium.research.ledger.verdicts import VERDICTS, counts, difference, orders, verdict

HEAD = ("paper", "numbers", "with ours", *VERDICTS)
ORDER = ("paper", "table", "column", "methods", "seeds", "Kendall τ", "p", "Spearman ρ")
CLAIMS_OF = Path(__file__).parent / "claims"
"""Folder of verdicts on claims: `<recipe>-claims.toml` of boards of attacks, `<recipe>.<sweep>.toml` of sweeps."""
MEANING = """\
- *published*: as the paper prints it. What its ± means stands under each paper's heading.
- *ours*: mean over the seeds ± standard error of that mean; without ± for one seed, or where only the mean is recorded.
  Values are recorded from the results pages, rounded as there, so that a mean may be 0.1 from the page's. No folders of
  runs are read.
- *budget*: work of training relative to the paper's: rounds times clients a round, or what the setting says.
- *verdict*: by the 95 % interval of the difference, ours − published, Student's t over seeds. *Reproduced* if it lies
  within a margin: two points, a tenth of counts, lengths and ε, a quarter of numbers that are differences themselves.
  Otherwise *higher* or *lower* if 0 is not in it, which says where our number lies, not which is better, and *not
  distinguishable* if it is. *No interval*: one seed has none, nor has a mean whose seeds are not recorded. The
  paper's ± is part of the interval, a standard deviation of n runs divided by √n first; where it prints none, its
  number is taken as exact. Runs with the paper's own draws (FLamby) differ by what was computed alone, and have an
  interval of no width. A verdict holds for the setting and the budget of its row.
- *runs*: number of the setting and command below the table; it leads to the results page, which has the whole protocol.
- *Not run*: hours of one core (AMD EPYC) for all cells of the reason, estimated from the seconds of a few rounds
  or of similar runs; without hours something else is missing, which the reason names. Runs can be continued.
- Numbers that a paper prints twice are listed once, averages over columns and figures without numbers not at all."""


def write_ledger(papers: Sequence[Paper], folder: Path) -> None:
    """Write ``ledger.md`` and ``ledger.png`` to ``folder``, from where links lead to the results pages beside them."""
    from florilegium.research.ledger.picture import draw

    write_picture(draw(papers), folder / "ledger.png")
    write_page(folder / "ledger.md", page(papers))


def summary(papers: Sequence[Paper]) -> list[list[str]]:
    """Return a row for each paper, and one for all, in the order of ``HEAD``: how many cells have which verdict."""
    groups = [(paper.published.title, paper.cells) for paper in papers]
    groups.append(("all", [cell for paper in papers for cell in paper.cells]))
    rows = []
    for title, cells in groups:
        found = counts(cells)
        rows.append([title, *(str(n) for n in (len(cells), len(cells) - found["not run"], *found.values()))])
    return rows


def page(papers: Sequence[Paper]) -> str:
    """Return the page in Markdown."""
    overview = summary(papers)
    listed, ours, *kinds, _ = overview[-1][1:]
    found = ", ".join(f"{count} {kind}" for kind, count in zip(VERDICTS, kinds, strict=False))
    linked = [[f"[{row[0]}](#{anchor(row[0])})", *row[1:]] for row in overview[:-1]]
    parts = [
        "# Ledger",
        "<!-- Written by `florilegium ledger` from research/ledger: change its files. -->",
        f"{listed} numbers that the papers print, beside ours. For {ours} of them there is a value of ours: {found}. "
        "For each of the others the page says why it was not run.",
        table_of(HEAD, [*linked, overview[-1]]),
        "![Measured against published values](ledger.png)",
        MEANING,
        "## Does the order hold?",
        "Rank correlations of our values and the paper's, where the paper claims an order of methods and at least "
        "three of them have a value of ours: 1 is the same order, −1 the reverse. Methods are compared on the seeds "
        "that all of them have. *p*: how often chance alone gives a τ as far from 0. With three or four methods no "
        "order differs from chance at 5 %, with five only the same order, or its reverse. Of one seed, p says nothing "
        "of other seeds.",
        table_of(ORDER, ordered(papers)),
        "## Do claimed orders of defences hold?",
        f"{CLAIMED} *Board*: the recipe of `florilegium board`, whose `<recipe>-claims.toml` has these rows.",
        table_of(("board", *CLAIM_HEAD), _claims()),
        "## Do claimed orders of methods hold?",
        "As above. *Sweep*: recipe and name of `florilegium sweep`, whose `claims.toml` has these rows.",
        table_of(("sweep", *CLAIM_HEAD), _of_sweeps()),
    ]  # fmt: skip
    return page_of(*parts, *map(_paper, papers))


def ordered(papers: Sequence[Paper]) -> list[list[str]]:
    """Return a row for each order of methods that a paper claims and we have measured, as in ``ORDER``."""
    return [
        [paper.published.title, order.table, order.column, str(order.n),
         ", ".join(map(str, order.seeds)) or "each its own", _signed(order.kendall),
         "" if math.isnan(order.p) else f"{order.p:.2g}", _signed(order.spearman)]
        for paper in papers
        for order in orders(paper)
    ]  # fmt: skip


def _claims() -> list[list[str]]:
    """Return a row for each claim of :data:`CLAIMS` and board that has tested it, or one that none has."""
    files = sorted(CLAIMS_OF.glob("*-claims.toml"))
    recorded = {path.stem.removesuffix("-claims"): tomllib.loads(path.read_text("utf-8")) for path in files}
    rows = []
    for claim in CLAIMS:
        own = named(claim)
        found = [
            [f"`{recipe}`, {share}", *row]
            for recipe, file in recorded.items()
            for share, *row in file["verdicts"]
            if row[: len(own)] == own
        ]
        rows += found or [["–", *own, "–", "not run"]]
    return rows


def _of_sweeps() -> list[list[str]]:
    """Return a row for each claim that a sweep of the suite's recipes states, and each value that it has tested."""
    rows = []
    for recipe in recipe_names():
        layers = read_layers(recipe)
        for name, table in layers.sweeps.items():
            if not table.get("claims"):
                continue
            file, sweep = CLAIMS_OF / f"{recipe}.{name}.toml", read_sweep(recipe, name)
            if file.exists():
                found = tomllib.loads(file.read_text("utf-8"))["verdicts"]
            else:
                plain = str(layers.keys["method"])  # of the variant ""
                found = [["", o.paper, o.better or plain, o.worse or plain, "–", "not run"] for o in sweep.claims]
            rows += [
                [f"`{recipe} {name}`{f', {sweep.over} = {value}' if value else ''}", *row] for value, *row in found
            ]
    return rows


def anchor(heading: str) -> str:
    """Return the fragment by which a link leads to a Markdown heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _paper(paper: Paper) -> str:
    published, ours = paper.published, paper.measured
    return page_of(
        f"## {published.title}",
        f"*{published.source}.* The paper's ±: {published.error}. Results: [{ours.page}]({ours.page}).",
        f"Why it differs: {ours.why.strip()}",
        *(_cells(table, paper) for table in paper.tables),
    )


def _cells(table: Table, paper: Paper) -> str:
    """Return a table of a paper: the cells with a value of ours row by row, the others by the reason."""
    printed = table.printed
    unit = " Values in per cent." if printed.unit == "%" else ""
    parts = [f"### {paper.published.title}, {printed.name}", f"{_capital(printed.about)}.{unit}"]
    if ours := [cell for cell in table.cells if cell.measured]:
        used = list({id(cell.measured.runs): cell.measured.runs for cell in ours if cell.measured}.values())
        rows = [_row(cell, used, paper.measured.page) for cell in ours]
        parts.append(table_of(("row", "column", "published", "ours", "seeds", "budget", "verdict", "runs"), rows))
        parts.append("\n".join(f"{number}. {_made(runs)}" for number, runs in enumerate(used, 1)))
    if lines := _not_run(table.cells):
        parts.append("\n".join(["Not run:", "", *lines]))
    return page_of(*parts)


def _signed(number: float) -> str:
    return f"{number:.2f}".replace("-", "−")


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _made(runs: Runs) -> str:
    """Return in words what the runs were, and their commands."""
    return f"{_capital(runs.setting)}. {'; '.join(f'`{command}`' for command in runs.commands)}"


def _row(cell: Cell, used: list[Runs], results: str) -> list[str]:
    assert cell.measured
    runs = cell.measured.runs
    number = 1 + next(at for at, known in enumerate(used) if known is runs)
    return [
        cell.row, cell.column, cell.published.text, ours_of(cell), str(len(runs.seeds)), runs.budget,
        told(cell),
        f"[{number}]({results}#{anchor(runs.section)})",
    ]  # fmt: skip


def ours_of(cell: Cell) -> str:
    """Return our value of a cell with its error; "" without one."""
    ours = cell.measured
    if ours is None:
        return ""
    return ours.rounded(ours.mean) + ("" if ours.error is None else f" ± {ours.rounded(ours.error)}")


def told(cell: Cell) -> str:
    """Return the verdict of a cell with a value of ours, with the difference where it is not reproduced."""
    assert cell.measured
    said, found = verdict(cell), difference(cell)
    if said == "reproduced":
        return said
    size = cell.measured.rounded(abs(cell.measured.mean - cell.published.value))
    if not float(size) and found.mean:
        size = f"{abs(found.mean):.1g}"
    above = f"{size} {'above' if found.mean > 0 else 'below'}" if found.mean else "equal"
    if said == "no interval":
        return f"{said}: {'one seed' if len(cell.measured.runs.seeds) == 1 else 'mean alone'}, {above}"
    width = f" ± {found.margin:.2g}" if found.margin else ""
    return f"{said}: {above},{width}" if said == "not distinguishable" else f"{said} by {size}{width}"


def _not_run(cells: Sequence[Cell]) -> list[str]:
    """Return a line for each reason: the published numbers of its cells, by column."""
    reasons: dict[str, dict[str, list[str]]] = {}
    for cell in cells:
        if cell.measured is None:
            numbers = reasons.setdefault(cell.why, {}).setdefault(cell.column, [])
            numbers.append(f"{cell.row} ({cell.published.text})")
    return [
        f"- {_capital(why)}. " + "; ".join(f"*{column}*: {', '.join(numbers)}" for column, numbers in columns.items())
        for why, columns in reasons.items()
    ]
