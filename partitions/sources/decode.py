"""Decode the columns of a source (local parquet, hub) into plain arrays: images, texts, tables, numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow
from numpy.typing import NDArray

from florilegium.common.errors import DataError
from florilegium.common.text import ALPHABET, encode
from florilegium.partitions.sources.columns import plain
from florilegium.partitions.sources.names import names_of
from florilegium.partitions.sources.numbers import arrays_of, targets_of
from florilegium.partitions.sources.pictures import pixels, read_picture, read_pictures
from florilegium.partitions.sources.tables import encode_table
from florilegium.partitions.sources.words import Vocabulary
from florilegium.partitions.spec import DatasetSpec, Split

if TYPE_CHECKING:
    from datasets import Dataset as HubDataset


def decode(
    spec: DatasetSpec,
    source: pyarrow.Table | HubDataset,
    name: str,
    words: Vocabulary | None = None,
    *,
    resize: bool = False,
) -> Split:
    """Turn the rows of ``source`` into arrays as ``spec`` describes.

    Args:
        spec: the dataset's description.
        source: a parquet table, or a dataset of the hub, in the hub's schema.
        name: name of the source in error messages.
        words: the vocabulary, for a dataset of words.
        resize: whether images of other sizes are resized to the dataset's.

    Raises:
        DataError: if a column is missing, an image has another size, or a label is out of range.
    """
    table = source if isinstance(source, pyarrow.Table) else source.data.table
    _check_columns(spec, table, [*spec.targets.columns], name)
    x = decode_inputs(spec, table, name, words, resize=resize)
    y = decode_targets(spec, table, name) if spec.y else np.zeros(len(x), np.int64)
    clients = {
        column: names_of(table.column(column).to_pylist(), f"{name}: column '{column}'")
        for column in spec.client_columns
        if column in table.column_names
    }
    return Split(x, y, clients)


def fitted(spec: DatasetSpec, table: pyarrow.Table, source: str) -> Split:
    """Decode the rows of files that were not written for ``spec``: images are resized, and labels compared as text.

    Raises:
        DataError: as :func:`decode`.
    """
    table = plain(table)
    if spec.labels and spec.y in table.column_names:
        known = {str(label): label for label in spec.labels}
        labels = [known.get(str(cell), cell) for cell in table.column(spec.y).to_pylist()]
        index = table.column_names.index(spec.y)
        table = table.set_column(index, spec.y, [labels])
    return decode(spec, table, source, resize=True)


def decode_targets(spec: DatasetSpec, table: pyarrow.Table, name: str) -> NDArray[Any]:
    """Decode the columns of targets alone, as they are stored (see :func:`decode`)."""
    if spec.targets.numbers:
        return numbers_to_predict(spec, [table.column(column) for column in spec.targets.columns], name)
    return labels_of(spec, table.column(spec.y).to_pylist(), name)


def numbers_to_predict(spec: DatasetSpec, columns: Sequence[Any], name: str) -> NDArray[np.float32]:
    """Return the columns of targets as they are stored, (n,) or (n, k); raises as :func:`targets_of`."""
    named = zip(spec.targets.columns, columns, strict=True)
    found = [targets_of(cells, f"{name}: column '{column}'") for column, cells in named]
    return found[0] if len(found) == 1 else np.stack(found, axis=1)


def decode_inputs(
    spec: DatasetSpec, table: pyarrow.Table, name: str, words: Vocabulary | None = None, *, resize: bool = False
) -> NDArray[np.generic]:
    """Decode the input columns alone (see :func:`decode`)."""
    _check_columns(spec, table, [], name)
    match spec.kind:
        case "image":
            cells = table.column(spec.x).to_pylist()
            named = ((f"row {row} of column '{spec.x}'", cell) for row, cell in enumerate(cells))
            needs = "" if resize else spec.name
            return read_pictures(named, len(cells), spec.shape, needs=needs, where=f"{name}: ")
        case "characters":
            return _texts(spec, table.column(spec.x).to_pylist(), name, encode)
        case "words":
            assert words is not None, "texts in words are decoded with a vocabulary"
            numbers = _texts(spec, table.column(spec.x).to_pylist(), name, words.encode)
            if len(numbers) and not numbers.any():
                raise DataError(f"{name}: not one word of column '{spec.x}' is in the file of embeddings")
            return numbers
        case "tokens":
            return _tokens(spec, table.column(spec.x), f"{name}: column '{spec.x}'")
        case "table" | "numbers":
            if spec.table is not None:
                return encode_table(spec.table, {c: table.column(c) for c in spec.table.columns}, name)
            return arrays_of(table.column(spec.x), spec.shape, f"{name}: column '{spec.x}'")


def _check_columns(spec: DatasetSpec, table: pyarrow.Table, labels: list[str], name: str) -> None:
    wanted = [*(spec.table.columns if spec.table else [spec.x]), *labels]
    missing = [column for column in wanted if column not in table.column_names]
    if missing:
        raise DataError(
            f"{name}: column '{missing[0]}' is missing. Found: {', '.join(table.column_names)}; "
            f"'{spec.name}' needs: {', '.join(wanted)}."
        )


def decode_image(data: bytes, channels: int) -> NDArray[np.uint8]:
    """Decode a picture's file to an array (height, width, ``channels``), converting grey and colour as needed."""
    picture = read_picture(data)
    return pixels(picture, channels, picture.size)


def _texts(
    spec: DatasetSpec, cells: Sequence[Any], name: str, encode: Callable[[str, int], NDArray[np.generic]]
) -> NDArray[np.generic]:
    for row, cell in enumerate(cells):
        if not isinstance(cell, str):
            raise DataError(f"{name}: row {row} of column '{spec.x}' is {cell!r}, not a text")
    length = spec.shape[0]
    return np.stack([encode(text, length) for text in cells]) if cells else encode("", length)[None][:0]


def _tokens(spec: DatasetSpec, column: pyarrow.ChunkedArray, where: str) -> NDArray[np.int64]:
    """Return lists of tokens as an array (n, length); raise :class:`DataError` if a cell holds something else."""
    tokens: NDArray[np.int64] = arrays_of(column, spec.shape, where, tokens=True)
    wrong = ((tokens < 0) | (tokens >= spec.tokens)).any(axis=1)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise DataError(f"{where}: row {row} is no list of {spec.shape[0]} integers 0 to {spec.tokens - 1}")
    return tokens


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
