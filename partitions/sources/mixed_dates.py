"""Columns in which some clients write dates, and others none, or in another format: what a description reports."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from florilegium.common.errors import ConfigurationError
from florilegium.partitions.sources.columns import is_text
from florilegium.partitions.sources.dates import DATE_LIKE, ISO, format_of, is_date

MIXED = "holds dates of some clients alone, or in several formats"
"""What a note of such a column says."""
_MOST = 5
"""Clients that are named."""


def mixed_dates(column: pa.ChunkedArray, clients: Callable[[], NDArray[np.str_]]) -> str:
    """Return how clients write the dates of a column of texts, if not all write them in one way; "" otherwise.

    Args:
        column: the cells, (n,).
        clients: returns the clients' names, (n,); called if some cells are dates.
    """
    if not is_text(column.type):
        return ""
    known = pc.unique(column.cast(pa.string())).drop_null()
    if not pc.any(pc.match_substring_regex(known, DATE_LIKE)).as_py():
        return ""
    names, places = np.unique(clients(), return_inverse=True)
    forms = {str(name): _form(column.filter(pa.array(places == i))) for i, name in enumerate(names)}
    if len({*forms.values()} - {""}) < 2:
        return ""
    named = [f"client {name}: {form}" for name, form in forms.items() if form]
    more = f", and {len(named) - _MOST} more clients" if len(named) > _MOST else ""
    return f"{'; '.join(named[:_MOST])}{more}"


def _form(cells: pa.ChunkedArray) -> str:
    """Return how a client's cells are written; "" if it has none."""
    if cells.null_count == len(cells):
        return ""
    if not is_date(cells):
        return "no dates"
    try:
        form = format_of(cells, "")
    except ConfigurationError:
        return "dates of several formats, or of one that is not clear"
    return "dates such as 2024-03-31" if form == ISO else f"dates as {form}"
