"""Kinds of inputs: how the columns of each become an array, and how its rows are stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray

from florilegium.common.errors import DataError
from florilegium.common.text import encode
from florilegium.partitions.sources.numbers import arrays_of
from florilegium.partitions.sources.pictures import read_pictures
from florilegium.partitions.sources.pieces import tokens_of, with_labels, with_responses
from florilegium.partitions.sources.tables import encode_table
from florilegium.partitions.sources.words import Vocabulary
from florilegium.partitions.spec import DatasetSpec


@dataclass(frozen=True)
class Reading:
    """What a kind of inputs may need besides the table.

    Attributes:
        name: name of the source in error messages.
        words: the vocabulary, for a dataset of words.
        resize: whether images of other sizes are resized to the dataset's.
        notes: where lines are added on what was cut or is not known.
        lenient: whether categories that are not known get a line; otherwise they are an error.
    """

    name: str
    words: Vocabulary | None = None
    resize: bool = False
    notes: list[str] = field(default_factory=list)
    lenient: bool = False


@dataclass(frozen=True)
class Inputs:
    """A kind of inputs.

    Attributes:
        read: returns the inputs of a table, (n, *shape). It raises :class:`DataError` for a cell that does not fit.
        dtype: type of the array.
        shape: shape of a row of the array.
    """

    read: Callable[[DatasetSpec, pyarrow.Table, Reading], NDArray[Any]]
    dtype: type[np.generic]
    shape: Callable[[DatasetSpec], tuple[int, ...]] = lambda spec: spec.shape


def _pictures(spec: DatasetSpec, table: pyarrow.Table, how: Reading) -> NDArray[np.uint8]:
    cells = table.column(spec.x).to_pylist()
    named = ((f"row {row} of column '{spec.x}'", cell) for row, cell in enumerate(cells))
    needs = "" if how.resize else spec.name
    return read_pictures(named, len(cells), spec.shape, needs=needs, where=f"{how.name}: ")


def _characters(spec: DatasetSpec, table: pyarrow.Table, how: Reading) -> NDArray[np.generic]:
    return _texts(spec, table, how, encode)


def _words(spec: DatasetSpec, table: pyarrow.Table, how: Reading) -> NDArray[np.generic]:
    assert how.words is not None, "texts in words are decoded with a vocabulary"
    numbers = _texts(spec, table, how, how.words.encode)
    if len(numbers) and not numbers.any():
        raise DataError(f"{how.name}: not one word of column '{spec.x}' is in the file of embeddings")
    return numbers


def _check_texts(cells: Sequence[Any], spec: DatasetSpec, how: Reading) -> None:
    for row, cell in enumerate(cells):
        if not isinstance(cell, str):
            raise DataError(f"{how.name}: row {row} of column '{spec.x}' is {cell!r}, not a text")


def _texts(
    spec: DatasetSpec, table: pyarrow.Table, how: Reading, encode: Callable[[str, int], NDArray[np.generic]]
) -> NDArray[np.generic]:
    cells: Sequence[Any] = table.column(spec.x).to_pylist()
    _check_texts(cells, spec, how)
    length = spec.shape[0]
    return np.stack([encode(text, length) for text in cells]) if cells else encode("", length)[None][:0]


def _pieces(spec: DatasetSpec, table: pyarrow.Table, how: Reading) -> NDArray[np.int32]:
    cells: list[Any] = table.column(spec.x).to_pylist()
    where = f"{how.name}: column '{spec.x}'"
    if spec.word_labels:
        return with_labels(cells, None, Path(spec.tokenizer), spec.shape[0], where, how.notes)[0]
    _check_texts(cells, spec, how)
    if spec.responses and spec.y in table.column_names:
        responses = table.column(spec.y).to_pylist()
        return with_responses(cells, responses, Path(spec.tokenizer), spec.shape[0], where, how.notes)[0]
    return tokens_of(cells, Path(spec.tokenizer), spec.shape[0], where, how.notes)


def _tokens(spec: DatasetSpec, table: pyarrow.Table, how: Reading) -> NDArray[np.int64]:
    where = f"{how.name}: column '{spec.x}'"
    tokens: NDArray[np.int64] = arrays_of(table.column(spec.x), spec.shape, where, tokens=True)
    wrong = ((tokens < 0) | (tokens >= spec.tokens)).any(axis=1)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise DataError(f"{where}: row {row} is no list of {spec.shape[0]} integers 0 to {spec.tokens - 1}")
    return tokens


def _numbers(spec: DatasetSpec, table: pyarrow.Table, how: Reading) -> NDArray[np.float32]:
    if spec.table is not None:
        return encode_table(
            spec.table, {c: table.column(c) for c in spec.table.columns}, how.name, how.notes if how.lenient else None
        )
    return arrays_of(table.column(spec.x), spec.shape, f"{how.name}: column '{spec.x}'")


INPUTS: Mapping[str, Inputs] = {
    "image": Inputs(_pictures, np.uint8, lambda spec: (*spec.shape[1:], spec.shape[0])),
    "characters": Inputs(_characters, np.uint8),
    "words": Inputs(_words, np.int32, lambda spec: spec.shape[:1]),
    "tokens": Inputs(_tokens, np.int64),
    "pieces": Inputs(_pieces, np.int32),
    "table": Inputs(_numbers, np.float32),
    "numbers": Inputs(_numbers, np.float32),
}
"""The kinds of inputs, by :attr:`DatasetSpec.kind`."""
