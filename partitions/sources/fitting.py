"""Rows that were not written for a dataset's description: images of any size, and labels in other types."""

from __future__ import annotations

import pyarrow as pa

from florilegium.partitions.sources.columns import plain
from florilegium.partitions.sources.decode import decode
from florilegium.partitions.spec import DatasetSpec, Split


def fitted(spec: DatasetSpec, table: pa.Table, source: str) -> Split:
    """Decode the rows of files that were not written for ``spec``: images are resized, and labels compared as text.

    Raises:
        DataError: as :func:`florilegium.partitions.sources.decode.decode`.
    """
    table = plain(table)
    if spec.labels and spec.y in table.column_names:
        known = {str(label): label for label in spec.labels}
        labels = [known.get(str(cell), cell) for cell in table.column(spec.y).to_pylist()]
        index = table.column_names.index(spec.y)
        table = table.set_column(index, spec.y, [labels])
    return decode(spec, table, source, resize=True)
