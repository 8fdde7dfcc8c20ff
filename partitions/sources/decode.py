"""Decode the columns of a source (local parquet, hub) into plain arrays: images, texts, tables, numbers."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet
from numpy.typing import NDArray
from PIL import Image

from florilegium.common.errors import DataError
from florilegium.common.text import ALPHABET, encode
from florilegium.partitions.sources.columns import refuse_twins
from florilegium.partitions.sources.tables import encode_table
from florilegium.partitions.sources.words import Vocabulary
from florilegium.partitions.spec import DatasetSpec, Split

if TYPE_CHECKING:
    from datasets import Dataset as HubDataset


def read_parquet(path: Path, *, may_be_empty: bool = False) -> pyarrow.Table:
    """Read a parquet file.

    Raises:
        DataError: if the file is missing or unreadable, or has no rows unless it ``may_be_empty``.
    """
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    try:
        refuse_twins(pyarrow.parquet.read_schema(path).names, str(path))
        table = pyarrow.parquet.read_table(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{path} is not a readable parquet file: {error}") from error
    if table.num_rows == 0 and not may_be_empty:
        raise DataError(f"{path} has no rows")
    return table


def decode(spec: DatasetSpec, source: pyarrow.Table | HubDataset, name: str, words: Vocabulary | None = None) -> Split:
    """Turn the rows of ``source`` into arrays as ``spec`` describes.

    Args:
        spec: the dataset's description.
        source: a parquet table, or a dataset of the hub, in the hub's schema.
        name: name of the source in error messages.
        words: the vocabulary, for a dataset of words.

    Raises:
        DataError: if a column is missing, an image has another size, or a label is out of range.
    """
    table = source if isinstance(source, pyarrow.Table) else source.data.table
    _check_columns(spec, table, [spec.y] if spec.y else [], name)
    x = decode_inputs(spec, table, name, words)
    if not spec.y:
        y: NDArray[Any] = np.zeros(len(x), np.int64)
    elif spec.kind == "regression":
        y = _numbers(table.column(spec.y).to_pylist(), (), f"{name}: column '{spec.y}'")
    else:
        y = labels_of(spec, table.column(spec.y).to_pylist(), name)
    clients = {
        column: np.array([str(value) for value in table.column(column).to_pylist()])
        for column in spec.client_columns
        if column in table.column_names
    }
    return Split(x, y, clients)


def decode_inputs(
    spec: DatasetSpec, table: pyarrow.Table, name: str, words: Vocabulary | None = None
) -> NDArray[np.generic]:
    """Decode the input columns alone (see :func:`decode`)."""
    _check_columns(spec, table, [], name)
    match spec.kind:
        case "image":
            return _images(spec, table.column(spec.x).to_pylist(), name)
        case "characters":
            return _texts(spec, table.column(spec.x).to_pylist(), name, encode)
        case "words":
            assert words is not None, "texts in words are decoded with a vocabulary"
            numbers = _texts(spec, table.column(spec.x).to_pylist(), name, words.encode)
            if len(numbers) and not numbers.any():
                raise DataError(f"{name}: not one word of column '{spec.x}' is in the file of embeddings")
            return numbers
        case "table":
            assert spec.table is not None, "tables have a schema"
            return encode_table(spec.table, {c: table.column(c).to_pylist() for c in spec.table.columns}, name)
        case "tokens":
            return _tokens(spec, table.column(spec.x).to_pylist(), f"{name}: column '{spec.x}'")
        case "regression" if spec.table is not None:
            return encode_table(spec.table, {c: table.column(c).to_pylist() for c in spec.table.columns}, name)
        case "regression" | "numbers":
            return _numbers(table.column(spec.x).to_pylist(), spec.shape, f"{name}: column '{spec.x}'")


def _check_columns(spec: DatasetSpec, table: pyarrow.Table, labels: list[str], name: str) -> None:
    wanted = [*(spec.table.columns if spec.table else [spec.x]), *labels]
    missing = [column for column in wanted if column not in table.column_names]
    if missing:
        raise DataError(
            f"{name}: column '{missing[0]}' is missing. Found: {', '.join(table.column_names)}; "
            f"'{spec.name}' needs: {', '.join(wanted)}."
        )


def decode_image(data: bytes, channels: int) -> NDArray[np.uint8]:
    """Decode PNG or JPEG bytes to an array (height, width, ``channels``), converting grey and colour as needed."""
    with Image.open(io.BytesIO(data)) as image:
        pixels = np.asarray(image.convert("L" if channels == 1 else "RGB"))
    return pixels.reshape(*pixels.shape[:2], channels)


def _images(spec: DatasetSpec, cells: Sequence[dict[str, Any]], name: str) -> NDArray[np.uint8]:
    channels, height, width = spec.shape
    out = np.empty((len(cells), height, width, channels), dtype=np.uint8)
    for row, cell in enumerate(cells):
        try:
            pixels = decode_image(cell["bytes"], channels)
        except Exception as error:  # a damaged file can make Pillow raise any exception
            raise DataError(f"{name}: row {row} of column '{spec.x}' is not an encoded image: {error}") from error
        if pixels.shape != out.shape[1:]:
            raise DataError(
                f"{name}: the image in row {row} has {pixels.shape[0]}×{pixels.shape[1]} pixels, "
                f"'{spec.name}' needs {height}×{width}"
            )
        out[row] = pixels
    return out


def _texts(
    spec: DatasetSpec, cells: Sequence[Any], name: str, encode: Callable[[str, int], NDArray[np.generic]]
) -> NDArray[np.generic]:
    for row, cell in enumerate(cells):
        if not isinstance(cell, str):
            raise DataError(f"{name}: row {row} of column '{spec.x}' is {cell!r}, not a text")
    length = spec.shape[0]
    return np.stack([encode(text, length) for text in cells]) if cells else encode("", length)[None][:0]


def _numbers(cells: Sequence[Any], shape: tuple[int, ...], name: str) -> NDArray[np.float32]:
    """Return numbers, or lists of numbers, as an array (n, *shape).

    Raises:
        DataError: if a cell has another form, or is missing or not finite.
    """
    try:
        array = np.asarray(cells, np.float32).reshape(len(cells), *shape)
    except (TypeError, ValueError) as error:
        wanted = f"lists of {'×'.join(map(str, shape))} numbers" if shape else "numbers"
        raise DataError(f"{name} must hold {wanted}: {error}") from error
    if not np.isfinite(array).all():
        raise DataError(f"{name} has a value that is missing or not finite")
    return array


def _tokens(spec: DatasetSpec, cells: Sequence[Any], name: str) -> NDArray[np.int64]:
    """Return lists of tokens as an array (n, length); raise :class:`DataError` if a cell holds something else."""
    for row, cell in enumerate(cells):
        fits = isinstance(cell, list) and all(isinstance(token, int) and 0 <= token < spec.tokens for token in cell)
        if not fits or len(cell) != spec.shape[0]:
            raise DataError(f"{name}: row {row} is no list of {spec.shape[0]} integers 0 to {spec.tokens - 1}")
    return np.array(cells, np.int64).reshape(len(cells), *spec.shape)


def labels_of(spec: DatasetSpec, values: Sequence[Any], name: str) -> NDArray[np.int64]:
    """Map labels to 0..C-1: characters by the alphabet, named values by ``spec.labels``, numbers as they are.

    Raises:
        DataError: if a label is not one of the dataset's.
    """
    known: Sequence[Any] = spec.labels or (ALPHABET if spec.kind == "characters" else range(spec.classes))
    codes = {value: code for code, value in enumerate(known)}
    for row, value in enumerate(values):
        if value not in codes:
            raise DataError(
                f"{name}: the label in row {row} is {value!r}, but the classes of '{spec.name}' are "
                f"{list(known) if len(known) <= 10 else f'{known[0]!r} to {known[-1]!r}'}"
            )
    return np.array([codes[value] for value in values], dtype=np.int64)


def digits() -> dict[str, Split]:
    """Return scikit-learn's 1,797 8×8 digits (values 0 to 16), a fifth of every class as the test split."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    source = load_digits()
    x = source.images.astype(np.uint8)[..., None]
    y = source.target.astype(np.int64)
    parts = train_test_split(np.arange(len(y)), test_size=0.2, random_state=0, stratify=y)
    return {name: Split(x[rows], y[rows], {}) for name, rows in zip(("train", "test"), parts, strict=True)}
