"""``florilegium ledger``: the page with every number of the papers beside ours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from florilegium.apps.cli.groups import STUDIES, Group

commands = Group(STUDIES)


@commands.add("florilegium ledger")
def ledger(
    output: Annotated[
        Path | None, typer.Option(help="folder for ledger.md and ledger.png (default: docs/results of the checkout)")
    ] = None,
    html: Annotated[bool, typer.Option(help="also write ledger.html, whose tables sort and filter")] = False,
) -> None:
    """Compare every number in the papers with ours, give each a verdict, and count the verdicts."""
    from florilegium.apps.cli.tables import show
    from florilegium.apps.origins.package import checkout
    from florilegium.research.ledger.page import HEAD, summary, write_ledger
    from florilegium.research.ledger.records import papers

    root, found = checkout(), papers()
    folder = output or (root / "docs" / "results" if root else Path("report"))
    write_ledger(found, folder)
    if html:
        from florilegium.research.ledger.html_page import write_html_ledger

        write_html_ledger(found, folder / "ledger.html")
    show(HEAD, summary(found))
    print(folder / "ledger.md")
