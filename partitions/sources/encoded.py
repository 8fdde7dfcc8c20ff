"""Encoded images in the cells of a table, and rows that were not written for a dataset's description."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image

from florilegium.common.errors import DataError
from florilegium.partitions.sources.columns import plain
from florilegium.partitions.sources.decode import decode
from florilegium.partitions.spec import DatasetSpec, Split


def look(cell: Any, where: str) -> tuple[str, tuple[int, int]]:
    """Return mode and size of an encoded image without decoding its pixels.

    Raises:
        DataError: if the cell holds none; the message begins with ``where``.
    """
    try:
        with Image.open(io.BytesIO(cell["bytes"])) as image:
            return image.mode, image.size
    except Exception as error:  # a damaged file can make Pillow raise any exception
        raise DataError(f"{where} holds no encoded image: {error}") from error


def pixels(data: bytes, channels: int, size: tuple[int, int]) -> NDArray[np.uint8]:
    """Decode an image to an array (height, width, ``channels``), resized to ``size`` = (width, height)."""
    with Image.open(io.BytesIO(data)) as image:
        picture = image.convert("L" if channels == 1 else "RGB")
        picture = picture if picture.size == size else picture.resize(size, Image.Resampling.BILINEAR)
        return np.asarray(picture).reshape(size[1], size[0], channels)


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
    if spec.kind == "image" and spec.x in table.column_names:
        channels, height, width = spec.shape
        column = table.column(spec.x).to_pylist()
        cells = [{"bytes": _resized(cell["bytes"], channels, (width, height)), "path": None} for cell in column]
        table = table.set_column(table.column_names.index(spec.x), spec.x, pa.array(cells))
    return decode(spec, table, source)


def _resized(data: bytes, channels: int, size: tuple[int, int]) -> bytes:
    """Return an encoded image of another size; data that are no image stay as they are, and are refused later."""
    try:
        decoded = pixels(data, channels, size)
    except Exception:  # a damaged file can make Pillow raise any exception
        return data
    buffer = io.BytesIO()
    Image.fromarray(decoded.squeeze(-1) if channels == 1 else decoded).save(buffer, format="PNG")
    return buffer.getvalue()
