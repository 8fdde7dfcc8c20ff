"""Scikit-learn's 1,797 8×8 digits, which need no download."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
from PIL import Image

from florilegium.partitions.sources.source import Source, Tables, Unread
from florilegium.partitions.spec import DatasetSpec


def found(spec: DatasetSpec, source: Source) -> Unread:
    """Return the digits (values 0 to 16) as pictures, not made yet; a fifth of every class is the test split."""
    return Unread(spec.name, spec.name, [], _read)


def _read() -> Tables:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    source, cells = load_digits(), []
    for pixels in source.images.astype(np.uint8):
        Image.fromarray(pixels).save(file := io.BytesIO(), format="PNG")
        cells.append({"bytes": file.getvalue()})
    table = pa.table({"image": cells, "label": source.target})
    parts = train_test_split(np.arange(len(table)), test_size=0.2, random_state=0, stratify=source.target)
    return {name: table.take(rows) for name, rows in zip(("train", "test"), parts, strict=True)}, []
