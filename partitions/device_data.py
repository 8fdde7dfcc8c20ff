"""Load a real device's own data, which ``data-path`` names: parquet, CSV, images in folders, or a Python function.

    data-path = "/data/site-a"         train.parquet or train.csv, optionally test.…; or train/<class>/*.png
    data-path = "/data/all.csv"        a single file: .csv, .data, .txt (with commas), or .parquet
    data-path = "site_a.export:rows"   a function in an importable module, which yields arrays

The data are checked and converted to network inputs when loaded, on the device.
"""

from __future__ import annotations

import hashlib
import importlib
import logging
import math
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from florilegium.common.contents import content_of
from florilegium.common.errors import DataError
from florilegium.common.places import read_utf8
from florilegium.partitions.clientdata import CPU, ClientData, Examples, joined, standardised, to_inputs
from florilegium.partitions.duplicates import DROP, REFUSE
from florilegium.partitions.held_out import HELD_BACK
from florilegium.partitions.sources.cells import meant
from florilegium.partitions.sources.decode import decode, decode_inputs, without_gaps
from florilegium.partitions.sources.folders import numbers_in, present
from florilegium.partitions.sources.parts import VALIDATION, chosen, contents
from florilegium.partitions.sources.picture_files import pictures_in
from florilegium.partitions.sources.pictures import read_pictures
from florilegium.partitions.sources.places import LEFT_OUT
from florilegium.partitions.sources.rows import laid_out
from florilegium.partitions.sources.table_files import (
    blank_lines,
    first_line,
    read_parquet,
    read_shards,
    read_texts,
    refuse_twins,
)
from florilegium.partitions.sources.tables import TableSchema, encode_table, of_column, placeholder
from florilegium.partitions.sources.targets import labels_of, labels_of_words, numbers_to_predict, positions_of
from florilegium.partitions.sources.words import Vocabulary
from florilegium.partitions.spec import PARTS, DatasetSpec
from florilegium.partitions.terms import ALL, Terms
from florilegium.tasks.measured import Measured
from florilegium.tasks.task import CLASSES

log = logging.getLogger("flwr")

TEXTS = (".csv", ".data", ".txt")
"""What names of files with values separated by commas end in."""
HOOK = r"[A-Za-z_][\w.]*:[A-Za-z_]\w*"
"""Pattern of a reference to a function, ``module:function``."""


class DeviceSchema(BaseModel):
    """A device's own names for the dataset's columns and classes, from the file that its key ``schema`` names.

        names = ["photo", "age"]   # columns of a CSV file without a line of names

        [columns]               # dataset's name = device's name
        image = "photo"

        [classes]               # device's label = dataset's label
        hound = 5

    Attributes:
        names: the device's names of the columns, in the order of a CSV file that has no line of names.
        columns: the device's column for each column of the dataset that has another name on the device.
        classes: the dataset's label for each label that differs on the device.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    names: tuple[str, ...] = ()
    columns: dict[str, str] = Field(default_factory=dict)
    classes: dict[str, int | str] = Field(default_factory=dict)


def read_device_schema(path: Path) -> DeviceSchema:
    """Read a device's schema file.

    Raises:
        DataError: if the file is missing, or is not a device schema.
    """
    try:
        return DeviceSchema.model_validate(tomllib.loads(read_utf8(path)))
    except (OSError, tomllib.TOMLDecodeError, ValidationError) as error:
        raise DataError(f"schema: {path} is not a readable schema of a device: {error}") from error


def state_of(*paths: str) -> str:
    """Return a hash of the names and contents of files and of all files in folders; it changes when they do.

    It does not change for a function, ``module:function``: that is called once in each process. Of files that may not
    be read the names alone count, since that is said when the data are read.
    """
    files: list[Path] = []
    for path in paths:
        if path and not re.fullmatch(HOOK, path):
            files += _files(Path(path).expanduser())
    known = []
    for file in files:
        try:
            known.append(content_of([file]))
        except DataError:
            known.append(str(file))
    return hashlib.sha256(repr(known).encode()).hexdigest()


def _files(path: Path) -> list[Path]:
    with suppress(OSError):
        if path.is_dir():
            return [file for entry in sorted(path.iterdir()) for file in _files(entry)]
    return [path] if path.exists() else []


@dataclass(frozen=True)
class _Reader:
    """Reads the parts of a device's data, "train", "test" and "validation", in any of the supported formats.

    Attributes:
        spec: the dataset of the run.
        words: its vocabulary, for a dataset of words.
        schema: the device's own names of columns and classes.
        labeled: whether training rows have labels that may be used.
        notes: what is to be said of files that were skipped, a line each.
        predicting: whether the rows are only predicted: none is dropped, and unknown categories are no error.
        withheld: columns that the owner lets no run use.
        by_column: whether the run can do without some columns: those that cannot be used are noted in ``lacking``.
    """

    spec: DatasetSpec
    words: Vocabulary | None
    schema: DeviceSchema
    labeled: bool
    notes: list[str] = field(default_factory=list)
    predicting: bool = False
    withheld: frozenset[str] = frozenset()
    by_column: bool = False
    lacking: set[str] = field(default_factory=set)

    def table(self, table: pyarrow.Table, name: str, part: str) -> Examples:
        """Return the examples of a table, whose columns may have the device's names."""
        ours = {theirs: column for column, theirs in self.schema.columns.items()}
        table = table.rename_columns([ours.get(column, column) for column in table.column_names])
        refuse_twins(table.column_names, name if not ours else f"{name}, with the columns that the schema renames,")
        if self.spec.table is not None and not self.predicting:
            table = self._usable(self.spec.table, table, name, part)
        if self.predicting:
            x = decode_inputs(self.spec, table, name, self.words, self.notes, lenient=True)
            if not self.spec.word_labels:
                return self._examples(x, None, name)
            unlabeled = table.select([self.spec.x])
            y = torch.from_numpy(labels_of_words(self.spec, unlabeled, name))  # which positions are words
            return Examples(to_inputs(self.spec, x, self.words), y)
        if self._unlabeled(part):
            table = without_gaps(self.spec, table, name, self.notes)
            return self._examples(decode_inputs(self.spec, table, name, self.words), None, name)
        plain = self.spec.targets.numbers or self.spec.positions or self.spec.responses
        if self.spec.y in table.column_names and not plain:
            labels = self._translated(table.column(self.spec.y).to_pylist())
            index = table.column_names.index(self.spec.y)
            table = table.set_column(index, self.spec.y, [labels])
        split = decode(self.spec, table, name, self.words, part, notes=self.notes)
        weights = None if split.weights is None else torch.from_numpy(split.weights)
        targets = self._targets(split.x, split.y)
        return Examples(to_inputs(self.spec, split.x, self.words), targets, weights=weights)

    def _usable(self, schema: TableSchema, table: pyarrow.Table, name: str, part: str) -> pyarrow.Table:
        """Return the table with placeholders in columns that cannot be used, if the run can do without them.

        Raises:
            DataError: if the owner withholds a column, and the run cannot do without it.
        """
        if (kept := [c for c in schema.columns if c in self.withheld]) and not self.by_column:
            raise DataError(f"withhold: the owner withholds column '{kept[0]}', and this run needs all columns")
        for column in schema.columns if self.by_column else ():
            why = "the owner withholds it" if column in self.withheld else _unusable(schema, column, table, name, part)
            if not why:
                continue
            if column not in self.lacking:
                self.notes.append(f"{LEFT_OUT}column '{column}': {why}")
            self.lacking.add(column)
            cells = placeholder(schema, column, table.num_rows)
            place = table.column_names.index(column) if column in table.column_names else None
            table = table.append_column(column, cells) if place is None else table.set_column(place, column, cells)
        return table

    def part(self, paths: Sequence[Path], part: str) -> Examples:
        """Return the examples of one part: a file of rows, its shards, or a folder of pictures."""
        if paths[0].is_dir():
            return self.pictures(paths[0], part)
        if paths[0].suffix.lower() == ".parquet":
            return self.table(read_shards(paths, may_be_empty=part != "train"), str(paths[0]), part)
        return joined([self.csv(path, part) for path in paths])

    def csv(self, path: Path, part: str) -> Examples:
        """Return the examples of a CSV file, with a line of names unless the device's schema has names."""
        spec = self.spec
        vectors = spec.table is not None and spec.table.vectors
        if spec.kind in ("image", "numbers", "tokens") or spec.word_labels or vectors:
            raise DataError(f"{path}: rows of '{spec.name}' do not fit into a CSV file; give parquet")
        ours = [spec.x] if spec.table is None else [*spec.table.columns]
        wanted = {self.schema.columns.get(column, column) for column in ours}
        if not self.schema.names and not self.by_column and wanted.isdisjoint(found := first_line(path)):
            raise DataError(
                f"{path} has none of the columns {', '.join(sorted(wanted))} in its first line, which is "
                f"{', '.join(found)}. If it has no line of names, write names = [...] into the device's own schema "
                "file, which its key schema names"
            )
        table = read_texts(path, self._layouts)
        if blank := blank_lines(table):
            if self.predicting:
                raise DataError(
                    f"{path} has {blank} blank lines, which are no rows, so that predictions would stand beside other "
                    "lines; remove them"
                )
            self.notes.append(f"{LEFT_OUT}{path}: {blank} blank lines")
        if part == "train" and table.num_rows == 0:
            raise DataError(f"{path} has no rows")
        return self.table(self._numbers(table, path), str(path), part)

    @property
    def _layouts(self) -> list[tuple[str, ...]]:
        """The columns of a CSV file without a line of names; rows to predict may lack the targets."""
        if not self.schema.names:
            return []
        targets = {self.schema.columns.get(column, column) for column in self.spec.targets.columns}
        inputs = tuple(name for name in self.schema.names if name not in targets)
        return [self.schema.names, *([inputs] if self.predicting or not self.labeled else [])]

    def _numbers(self, table: pyarrow.Table, path: Path) -> pyarrow.Table:
        """Return a table of texts with its columns of numbers as such, and null where a number or date is missing.

        What a column holds is not found out from its texts, since a category may look numeric.
        """
        spec, schema = self.spec, self.spec.table
        numbers = [*(spec.targets.columns if spec.targets.numbers else ()), *([spec.weight] if spec.weight else [])]
        dates = [] if schema is None else [*schema.dates]
        for column in (*numbers, *([] if schema is None else schema.numbers), *dates):
            name = self.schema.columns.get(column, column)
            if name in table.column_names:
                texts = present(table.column(name))
                found = None if column in dates else numbers_in(texts, pyarrow.float64())
                table = table.set_column(table.column_names.index(name), name, texts if found is None else found)
        return table

    def pictures(self, path: Path, part: str) -> Examples:
        """Return the images in ``<path>/<class>/``, in the dataset's size; without labels, all images in ``path``."""
        if self.spec.kind != "image":
            raise DataError(f"data-path: {path} is a folder of folders, but '{self.spec.name}' has no pictures")
        if self.spec.targets.numbers and not self._unlabeled(part):
            raise DataError(
                f"data-path: {path} has pictures in folders named by class, but '{self.spec.name}' has numbers to "
                "predict; give train.parquet"
            )
        apart = [own.name for paths in contents(path).parts.values() for own in paths]
        found = pictures_in(path, deep=self._unlabeled(part), apart=apart)
        self.notes.extend(f"{path}: {note}" for note in found.notes())
        if not found.files and part == "train":
            raise DataError(". ".join([f"data-path: {path} holds no pictures", *found.notes()]))
        return self.files(found.files, str(path), None if self._unlabeled(part) else found.labels)

    def files(self, files: Sequence[Path], name: str, labels: Sequence[str] | None = None) -> Examples:
        """Return the images in ``files`` as examples, in the dataset's size, with their labels if given."""
        rows = read_pictures(((str(file), file) for file in files), len(files), self.spec.shape)
        return self._examples(rows, labels, name)

    def arrays(self, x: Any, y: Any, name: str, part: str) -> Examples:
        """Return the examples of decoded rows x and labels y, which the owner's function has yielded."""
        if y is None and self.spec.y and not self._unlabeled(part):
            raise DataError(f"{name}: there are no labels (y is None); set labeled=false in --node-config")
        if self.spec.kind != "image":
            columns = dict(x) if isinstance(x, Mapping) else {self.spec.x: self._cells(x, name)}
            given = [] if y is None or not self.spec.y else self._columns(y)
            labels = dict(zip(self.spec.targets.columns if given else (), given, strict=True))
            try:
                given_cells = {
                    column: cells if isinstance(cells, pyarrow.Array) else pyarrow.array(cells, from_pandas=True)
                    for column, cells in {**columns, **labels}.items()
                }
                table = pyarrow.table(given_cells)
            except (pyarrow.ArrowException, TypeError, ValueError) as error:
                raise DataError(f"{name}: a column mixes values that do not go together: {error}") from error
            return self.table(table, name, part)
        rows = laid_out(self.spec, x, f"{name}: pictures")
        return self._examples(rows, None if self._unlabeled(part) else y, name)

    def _cells(self, x: Any, name: str) -> Any:
        """Return the cells of the only input column: texts, or lists of numbers."""
        if self.spec.kind in ("characters", "words", "pieces"):
            return list(x)
        if self.spec.table is not None:
            columns = ", ".join(self.spec.table.columns)
            raise DataError(f"{name}: '{self.spec.name}' has columns; give a DataFrame or a mapping of {columns}")
        rows = laid_out(self.spec, x, f"{name}: rows")
        return pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(rows.ravel()), math.prod(self.spec.shape))

    def _examples(self, x: NDArray[np.generic], labels: Sequence[Any] | None, name: str) -> Examples:
        """Return decoded rows as examples; without labels, class 0 is a placeholder that must not be used."""
        if self.spec.weight and labels is not None:
            raise DataError(
                f"{name}: rows without columns have no weights, which '{self.spec.name}' needs; give a table"
            )
        y: NDArray[Any]
        if labels is None:  # not checked, since a placeholder need be no target
            y = np.zeros((len(x), *self.spec.learned.shape), self.spec.learned.dtype)
            return Examples(to_inputs(self.spec, x, self.words), torch.from_numpy(y))
        if self.spec.positions:
            y = positions_of(self.spec, [*np.asarray(labels).reshape(len(x), -1).tolist()], name)
        elif self.spec.targets.numbers:
            y = numbers_to_predict(self.spec, self._columns(labels), name)
        else:
            y = labels_of(self.spec, self._translated(labels), name)
        if len(x) != len(y):
            raise DataError(f"{name}: there are {len(x)} inputs and {len(y)} labels")
        return Examples(to_inputs(self.spec, x, self.words), self._targets(x, y))

    def _targets(self, x: NDArray[np.generic], stored: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(self.spec.learned.derived(x, stored))

    def _columns(self, y: Any) -> list[Any]:
        """Return the columns of targets that the owner's function has yielded as (n,) or (n, k)."""
        if self.spec.positions:
            return [[*np.asarray(y).reshape(len(y), -1).tolist()]]
        return [list(y)] if len(self.spec.targets.columns) == 1 else [*np.asarray(y).T]

    def _translated(self, labels: Iterable[Any]) -> list[Any]:
        """Translate labels to the dataset's labels, by the device's schema or by their text.

        Labels are text in CSV files and in names of folders.
        """
        ours = self.spec.labels or (() if self.spec.kind == "characters" else range(self.spec.classes))
        given = [*labels]
        words = {str(label) for label in given}
        known = meant(words, ours) | meant(words, self.schema.classes, self.schema.classes.values())
        return [known.get(str(label), label) for label in given]

    def _unlabeled(self, part: str) -> bool:
        return part == "train" and not self.labeled


def _unusable(schema: TableSchema, column: str, table: pyarrow.Table, name: str, part: str) -> str:
    """Return why a column of a device's table cannot be used; "" if it can."""
    if column not in table.column_names:
        return f"{name} has none of this name"
    try:
        encode_table(of_column(schema, column), {column: table.column(column)}, name, None if part == "train" else [])
    except DataError as error:
        return str(error)
    return ""


def read_device(
    where: str | Path,
    spec: DatasetSpec,
    device: torch.device = CPU,
    words: Vocabulary | None = None,
    *,
    labeled: bool = True,
    schema: DeviceSchema | None = None,
    duplicates: str = "warn",
    terms: Terms = ALL,
    by_column: bool = False,
) -> ClientData:
    """Return the data of a device: training examples and, if it has them, test and validation examples.

    Without test rows, about a fifth of the training rows is held out for evaluation (:func:`held_back`). If the device
    is not ``labeled``, training rows need no labels, all of them are used for training, and their classes are set to 0,
    a placeholder that must not be used.

    Args:
        where: absolute path of a folder with ``train.parquet`` or ``train.csv``, or with images in ``train/<class>/``
            or ``<class>/``; of a single file of rows, parquet or CSV; or ``module:function``, a function that yields
            (x, y) for training and optionally for tests. x holds rows in the dataset's decoded form (uint8 images
            (n, height, width, channels), texts, or a mapping of columns), y labels or None.
        spec: the dataset of the run.
        device: PyTorch device of the tensors.
        words: the vocabulary of a dataset of words.
        labeled: whether training may use labels.
        schema: the device's own names of columns and classes.
        duplicates: what equal rows are, "warn", "drop" or "refuse"; those to be used once are dropped before rows are
            held back, so that a row more or less still changes one training row at most.
        terms: what the owner allows; ``lacking`` names the columns that no run may use.
        by_column: whether the run can do without some columns; those that the device has not, or not in the form of the
            schema, are added to the terms of what is returned.

    Raises:
        DataError: if there are no usable training rows, or a row does not fit the dataset. The message may quote data
            and file names, so it must not leave the device.
    """
    reader = _Reader(spec, words, schema or DeviceSchema(), labeled, withheld=terms.lacking, by_column=by_column)
    found = _from_function(str(where), reader) if re.fullmatch(HOOK, str(where)) else _from_folder(Path(where), reader)
    train, test = found.pop("train"), found.pop("test", None)  # what is divided below is not held twice
    own = found.pop(VALIDATION, None)
    if own is not None:
        reader.notes.append(
            f"part 'validation': {len(own)} rows, with which validation-fraction above 0 validates in place of "
            "training rows; 0 does not use them"
        )
    if test is None and not labeled:
        test = train.rows(slice(0))
    elif test is None:
        if duplicates == DROP:
            train = _dropped(train, reader.notes)
        held = held_back(train)
        if held.all():
            raise DataError(f"data-path: {where}: all {len(train)} rows are held back for tests; give test rows, too")
        test, train = train.rows(held), train.rows(~held)
    if labeled:
        train, test = _apart(train, test, f"data-path: {where}", duplicates, reader.notes)
        if own is not None:
            own = _unknown(train, own, "validation", f"data-path: {where}", duplicates, reader.notes)
    kept, tested = train, test
    part = None if own is None or not len(own) else lambda: own
    data = ClientData(
        lambda: kept,
        lambda: tested,
        labeled=labeled,
        simulated=False,
        device=device,
        notes=reader.notes,
        part=part,
        terms=replace(terms, lacking=frozenset(reader.lacking)),
    )
    return standardised(data, spec)


def _apart(train: Examples, test: Examples, where: str, duplicates: str, notes: list[str]) -> tuple[Examples, Examples]:
    """Return training and test examples, without copies if ``duplicates`` is "drop"; note how many are equal.

    Raises:
        DataError: if test examples equal training examples, and ``duplicates`` is "refuse".
    """
    known = {*_contents(train)}
    fresh = torch.tensor([content not in known for content in _contents(test)], dtype=torch.bool)
    equal = len(test) - int(fresh.sum())
    if not equal and len(known) == len(train):
        return train, test
    said = f"{equal} of {len(test)} test examples equal training examples"
    if duplicates == REFUSE and equal:
        raise DataError(f"duplicates: {where}: {said}. Remove them, or set duplicates = 'drop'")
    notes.append(f"{said}, {len(train) - len(known)} training examples repeat others")
    if duplicates != DROP:
        return train, test
    return _dropped(train, notes), test.rows(fresh)


def _unknown(train: Examples, others: Examples, what: str, where: str, duplicates: str, notes: list[str]) -> Examples:
    """Return ``others`` without those that equal training examples if ``duplicates`` is "drop"; note how many do.

    Raises:
        DataError: if some do, and ``duplicates`` is "refuse".
    """
    known = {*_contents(train)}
    fresh = torch.tensor([content not in known for content in _contents(others)], dtype=torch.bool)
    if fresh.all():
        return others
    said = f"{len(others) - int(fresh.sum())} of {len(others)} {what} examples equal training examples"
    if duplicates == REFUSE:
        raise DataError(f"duplicates: {where}: {said}. Remove them, or set duplicates = 'drop'")
    notes.append(said)
    return others.rows(fresh) if duplicates == DROP else others


def _dropped(examples: Examples, notes: list[str]) -> Examples:
    """Return the first of equal examples alone; note how many copies there are."""
    first = {content: row for row, content in reversed([*enumerate(_contents(examples))])}
    if len(first) < len(examples):
        notes.append(f"{LEFT_OUT}{len(examples) - len(first)} of {len(examples)} examples, which repeat others")
    return examples.rows(torch.tensor(sorted(first.values()), dtype=torch.int64))


def _contents(examples: Examples) -> Iterator[bytes]:
    """Yield a hash of each example's input and target."""
    for x, y in zip(examples.x.numpy(), examples.y.numpy(), strict=True):
        yield blake2b(x.tobytes() + y.tobytes(), digest_size=32).digest()


def held_back(examples: Examples) -> torch.Tensor:
    """Return which examples are held back for tests, a fifth of them on average: (n,) bool.

    A keyed hash of a row, and of its running number among the rows that equal it, alone decides. So of few kinds of
    rows, too, about a fifth is held back of each. A row more or less moves no other: of m equal rows, those of the
    numbers 0 to m - 1 stay what they are when another comes or goes, wherever it stands, since equal rows are the same
    whichever has which number. With private examples, the training rows then change in one row at most.
    """
    weights = [b""] * len(examples) if examples.weights is None else [w.tobytes() for w in examples.weights.numpy()]
    seen = Counter[bytes]()
    chosen = torch.zeros(len(examples), dtype=torch.bool)
    # Iterating over a tensor would make an object for each row at once.
    for row, (x, y, weight) in enumerate(zip(examples.x.numpy(), examples.y.numpy(), weights, strict=True)):
        content = x.tobytes() + y.tobytes() + weight
        number = seen[kind := blake2b(content, digest_size=32).digest()]
        seen[kind] += 1
        content += number.to_bytes(8, "big") if number else b""  # the first is where earlier versions had it
        drawn = blake2b(content, digest_size=8, key=b"hold-back").digest()
        chosen[row] = int.from_bytes(drawn, "big") < HELD_BACK * 2**64
    return chosen


def _from_folder(path: Path, reader: _Reader) -> dict[str, Examples]:
    if not path.is_absolute():
        raise DataError(f"data-path: '{path}' is relative; give an absolute path in --node-config")
    if path.is_file() and path.suffix.lower() in (*TEXTS, ".parquet"):
        return {"train": reader.part([path], "train")}
    held = contents(path)
    parts, notes = chosen(held.parts)
    if held.whole:
        if not reader.labeled and VALIDATION in parts:
            del parts[VALIDATION]
            notes.append(f"{LEFT_OUT}part 'validation', since the device has no labels to validate with")
        reader.notes.extend([*notes, *held.notes(whole=True)])
        return {part: reader.part(paths, part) for part, paths in parts.items()}
    entries = sorted(path.iterdir()) if path.is_dir() else []
    if reader.spec.kind == "image" and any(paths[0].is_dir() for paths in held.others.values()):
        return {"train": reader.pictures(path, "train")}
    there = ", ".join(entry.name for entry in entries[:10]) if path.is_dir() else "no such folder"
    if path.is_file():
        there = f"a file; a single file of rows ends in {', '.join(TEXTS)} or .parquet"
    raise DataError(
        f"data-path: {path} holds no train.parquet, train.csv or pictures in train/<class>/ (found: "
        f"{there or 'nothing'})"
    )


def _from_function(name: str, reader: _Reader) -> dict[str, Examples]:
    module, function = name.split(":")
    try:
        yielded = list(getattr(importlib.import_module(module), function)())
    except Exception as error:  # the owner's code may raise any exception
        raise DataError(f"data-path: function {name} failed: {type(error).__name__}: {error}") from error
    pairs = [part for part in yielded if isinstance(part, tuple) and len(part) == 2]
    if not 1 <= len(yielded) <= len(PARTS) or len(pairs) < len(yielded):
        raise DataError(f"data-path: {name} must yield (x, y) for training, and may yield another for tests")
    found = {part: reader.arrays(*pair, f"{name} ({part})", part) for part, pair in zip(PARTS, pairs, strict=False)}
    if not len(found["train"]):
        raise DataError(f"data-path: {name} has no rows for training")
    return found


def read_inputs(
    path: Path, spec: DatasetSpec, words: Vocabulary | None = None, schema: DeviceSchema | None = None
) -> tuple[Examples, list[str] | None]:
    """Read network inputs from a parquet or CSV file, an image, or a folder of images.

    Images of other sizes are resized to the dataset's, as in a device's data.

    Returns:
        The inputs, with placeholders of targets that say which positions have any; and the images' paths within the
        folder (None if ``path`` is no folder).

    Raises:
        DataError: if the inputs cannot be read, or do not fit the dataset.
    """
    reader = _Reader(spec, words, schema or DeviceSchema(), labeled=False, predicting=True)
    found = _read_inputs(path, spec, reader)
    for note in reader.notes:
        log.warning("%s", note)
    return found


def _read_inputs(path: Path, spec: DatasetSpec, reader: _Reader) -> tuple[Examples, list[str] | None]:
    if path.is_dir():
        found = pictures_in(path, deep=True)
        for note in found.notes():
            log.warning("%s: %s", path, note)
        files = [str(file.relative_to(path)) for file in found.files]
        return reader.files(found.files, str(path)), files
    if path.suffix.lower() in TEXTS:
        return reader.csv(path, "train"), None
    if path.suffix == ".parquet":
        return reader.table(read_parquet(path), str(path), "train"), None
    if spec.kind != "image":
        raise DataError(f"{path}: give a .parquet or .csv with the columns of '{spec.name}', or a .npy of decoded rows")
    return reader.files([path], str(path)), None


def read_rows(rows: Any, spec: DatasetSpec, words: Vocabulary | None = None) -> Examples:
    """Return decoded rows as inputs: uint8 images (n, height, width, channels), texts, or columns by name.

    Targets are placeholders that say which positions have any.

    Raises:
        DataError: if the rows do not fit the dataset.
    """
    reader = _Reader(spec, words, DeviceSchema(), labeled=False, predicting=True)
    found = reader.arrays(rows, None, "inputs", "train")
    for note in reader.notes:
        log.warning("%s", note)
    return found


def report(data: ClientData, spec: DatasetSpec) -> str:
    """Return a summary of a device's data for its own log: number of examples, of each class, and files skipped.

    Of a task with positive and negative examples it says how many are positive.
    """
    text = f"{len(data.train)} training and {len(data.test)} test examples"
    if not data.labeled:
        text += ", without labels"
    elif CLASSES in spec.learned.provides and spec.y:
        held = Counter(data.train.y.tolist())
        names = ", ".join(f"{spec.labels[label] if spec.labels else label}: {held[label]}" for label in sorted(held))
        text += f", {len(held)} of {spec.classes} classes in training ({names})"
    elif isinstance(spec.learned, Measured) and spec.learned.has_positives:
        text += f", {int(data.train.y.sum())} and {int(data.test.y.sum())} of them positive"
    return "\n".join([text, *data.notes])
