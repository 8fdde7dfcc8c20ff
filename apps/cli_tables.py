"""Print tables of the command line."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table


def show(table: Table) -> None:
    """Print a table: as wide as the terminal, or 240 columns wide into a file or pipe."""
    Console(width=None if sys.stdout.isatty() else 240).print(table)
