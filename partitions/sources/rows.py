"""Rows made in Python for a dataset that exists: in any layout that is clear, to the dataset's own."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from florilegium.common.errors import DataError
from florilegium.partitions.spec import DatasetSpec


def laid_out(spec: DatasetSpec, x: Any, name: str) -> NDArray[Any]:
    """Return images or arrays of numbers in the layout of a dataset's decoded rows.

    Args:
        spec: the dataset, of images or of arrays; its shape has channels first.
        x: rows, as an array, a tensor or a list: of the dataset's shape, with channels first or last, or without an
            axis for a single channel.
        name: name of the rows in error messages.

    Returns:
        The rows: images (n, height, width, channels) of uint8, others (n, *shape) of the caller's type.

    Raises:
        DataError: if the rows have another shape, are no numbers, or are images of another type than uint8.
    """
    try:
        rows = np.asarray(x.detach().cpu() if hasattr(x, "detach") else x)
    except ValueError as error:
        raise DataError(f"{name}: the rows have several shapes ({error})") from error
    if spec.kind == "image" and rows.dtype != np.uint8:
        raise DataError(f"{name} are {rows.dtype}, '{spec.name}' needs uint8, 0 to 255")
    if rows.dtype.kind not in "biuf":
        raise DataError(f"{name} are no numbers (found: {rows.dtype})")
    own = spec.shape
    if len(own) != 3:
        return rows if rows.shape[1:] == own else _refused(rows, [own], spec, name)
    first, last = own, (*own[1:], own[0])
    wanted = [last, first] if spec.kind == "image" else [first, last]
    plain = [own[1:]] if own[0] == 1 else []
    if rows.shape[1:] in plain and rows.shape not in wanted:
        return rows.reshape(len(rows), *wanted[0])
    if rows.shape[1:] == wanted[0]:
        return rows
    if rows.shape[1:] == wanted[1]:
        return np.ascontiguousarray(np.moveaxis(rows, 1, 3) if spec.kind == "image" else np.moveaxis(rows, 3, 1))
    return _refused(rows, [*wanted, *plain], spec, name)


def _refused(rows: NDArray[Any], wanted: list[tuple[int, ...]], spec: DatasetSpec, name: str) -> NDArray[Any]:
    shapes = " or ".join(f"(n, {', '.join(map(str, shape))})" for shape in dict.fromkeys(wanted))
    advice = "; this is a single row, give x[None]" if rows.shape in wanted else ""
    raise DataError(f"{name} have shape {rows.shape}, '{spec.name}' needs {shapes}{advice}")
