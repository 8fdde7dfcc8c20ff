"""Rows for a flwr-datasets partitioner, of which a selection costs a microsecond until its columns are read.

A partitioner selects the rows of one client at a time. Building a dataset for each takes a thousand times as long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from datasets import Dataset as HubDataset
from numpy.typing import NDArray

from florilegium.partitions.shares import Rows


class RowsToDivide(HubDataset):
    """A dataset with a column ``row``, whose selections are made when they are first used."""

    _rows: Rows
    _divided: object

    @classmethod
    def of(cls, columns: dict[str, NDArray[Any]]) -> RowsToDivide:
        """Return the dataset with these columns, of which ``row`` is one."""
        made: RowsToDivide = cls.from_dict(columns)
        made._rows, made._divided = columns["row"], made._data
        return made

    def select(self, indices: Any, *more: Any, **options: Any) -> HubDataset:
        """Return the rows at ``indices`` as a dataset (``datasets.Dataset.select``)."""
        select = super().select
        chosen = np.asarray(indices) if isinstance(indices, list | range | np.ndarray) else np.array("")
        changed = self._indices is not None or self._data is not self._divided  # a copy that was filtered, say
        if changed or chosen.dtype.kind not in "iu" or chosen.ndim != 1 or chosen.min(initial=0) < 0:
            return select(indices, *more, **options)
        return Selection(lambda: select(indices, *more, **options), self._rows[chosen])


class Selection(HubDataset):
    """Some rows of a :class:`RowsToDivide`, which become a dataset of their own when anything of it is first used.

    Args:
        make: returns that dataset.
        rows: its column ``row``, (m,).
    """

    def __init__(self, make: Callable[[], HubDataset], rows: Rows) -> None:
        self.make, self.rows = make, rows

    def __getattr__(self, name: str) -> Any:
        """Become the dataset: what a selection lacks are a dataset's attributes."""
        return getattr(self._made(), name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Become the dataset, which can be copied and pickled."""
        return self._made().__reduce_ex__(protocol)

    def _made(self) -> HubDataset:
        made = self.make()  # when this is deleted, it lets go of what its own dictionary holds
        self.__class__, self.__dict__ = HubDataset, made.__dict__.copy()
        return self

    def __del__(self) -> None:
        """Do nothing: what a dataset deletes has not been made."""


def rows_in(part: HubDataset) -> Rows | None:
    """Return the column ``row`` of what a partitioner returned for a client, (m,); None if it has no such column."""
    if type(part) is Selection:
        return part.rows
    return np.asarray(part["row"], dtype=np.int64) if "row" in part.column_names else None
