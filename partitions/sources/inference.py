"""Infer what the columns of a dataset are: its inputs, their scales and categories, and its label.

Every decision is a line of text (``Imported.notes``), which is logged and stands at the top of the ``schema.toml``.
Scales, categories and classes come from the training rows alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from PIL import Image

from florilegium.common.errors import ConfigurationError, DataError, nearest
from florilegium.partitions.sources.columns import (
    category_of,
    class_labels,
    count_distinct,
    is_binary,
    is_image,
    is_number,
    is_text,
    is_vector,
    listed,
    plain,
)
from florilegium.partitions.sources.decode import decode_inputs
from florilegium.partitions.sources.names import names_of
from florilegium.partitions.sources.numbers import LOST, moments, numbers_of
from florilegium.partitions.sources.pictures import Size, each_picture, pixels, read_picture, resized
from florilegium.partitions.sources.schema import Schema
from florilegium.partitions.sources.source import LONGEST_TEXT, Inference
from florilegium.partitions.sources.store import Imported, scales
from florilegium.partitions.sources.targets import decode_targets
from florilegium.partitions.spec import Split

Tables = Mapping[str, pa.Table]

LABELS = ("label", "labels", "target", "class", "y")
"""Names of columns that are taken for the label."""
CLIENTS = (
    "client", "client_id", "user", "user_id", "writer", "writer_id", "speaker", "speaker_id", "subject_id",
    "patient_id", "device_id", "site_id", "hospital", "hospital_id",
)  # fmt: skip
"""Names of columns that are taken for the names of natural clients."""
NUMBERING = ("", "id", "idx", "index", "unnamed: 0", "__index_level_0__")
"""Names of columns that number the rows, and are no inputs; pandas writes one without a name."""
_CATEGORIES = 100
"""Text columns with more values than this are no categories, and numeric labels with more may be targets."""


def infer(name: str, source: str, tables: Tables, keys: Inference) -> Imported:
    """Infer the schema of ``tables`` and decode them.

    Args:
        name: the dataset's name in messages and file names.
        source: where the data are, for messages.
        tables: the rows of "train" and perhaps "test". Features of the Hugging Face hub in their metadata are used.
        keys: what the configuration says.

    Raises:
        ConfigurationError: if a key names no column, or the data leave open which column is meant; with the candidates.
        DataError: if rows cannot be used: missing values, images of several sizes, one class only.
    """
    return _Work(
        name, source, {part: plain(table) for part, table in tables.items()}, keys, class_labels(tables["train"])
    ).done()


@dataclass
class _Work:
    name: str
    source: str
    tables: dict[str, pa.Table]
    keys: Inference
    classes: Mapping[str, list[str]]
    notes: list[str] = field(default_factory=list)
    _naming: list[str] = field(default_factory=list)

    @property
    def _train(self) -> pa.Table:
        return self.tables["train"]

    def done(self) -> Imported:
        for part, table in self.tables.items():
            if table.num_rows == 0:
                raise DataError(f"{self.source}: the {part} split has no rows")
            if missing := [name for name in self._train.column_names if name not in table.column_names]:
                raise DataError(
                    f"{self.source}: the {part} split has no column '{missing[0]}', which training rows have"
                )
        label, *further = labels = self._label()
        chosen = [part.strip() for part in self.keys.input_column.split("+")] if self.keys.input_column else []
        for column in chosen:
            self._known("input-column", column)
        if twice := [column for column in labels if column in chosen]:
            raise ConfigurationError(f"input-column: '{twice[0]}' is the label of {self.source}; name another column")
        kinds = {c: self._train.schema.field(c).type for c in self._train.column_names if c not in labels}
        free = {c: k for c, k in kinds.items() if c.lower() not in CLIENTS and c.lower() not in NUMBERING}
        kind, inputs = self._inputs({c: kinds[c] for c in chosen} if chosen else free, named=bool(chosen))
        schema: dict[str, Any] = {"name": self.name, **(self._several(labels) if further else self._outputs(label))}
        clients = sorted((c for c in kinds if c.lower() in CLIENTS), key=lambda c: CLIENTS.index(c.lower()))
        # `client` is the name that folders of clients give; among other names the data leave open which is meant.
        clear = len(clients) < 2 or clients[0].lower() == "client"
        schema["clients"] = clients if clear else []
        self._naming = [c for c, k in kinds.items() if self._may_name(c, k)]
        if clients:
            named = f"column '{clients[0]}'" if clear else f"named by client-column, one of {', '.join(clients)}"
            self.notes.append(f"natural clients: {named}")
        unused = [c for c in kinds if c not in inputs and c not in clients]
        if unused:
            self.notes.append(f"not used: {listed(unused)}")
        for key, fits in (("text-length", kind == "texts"), ("image-size", kind == "pictures")):
            if key in self.keys.given() and not fits:
                raise ConfigurationError(f"{key}: {self.source} has no {'texts' if key == 'text-length' else 'images'}")
        images: dict[str, NDArray[np.uint8]] = {}
        if kind == "pictures":
            schema["pictures"], images = self._pictures(inputs[0])
        else:
            schema |= self._texts(inputs[0]) if kind == "texts" else self._table(inputs)
        spec, splits = Schema.model_validate(schema).spec(Path(self.name)), {}
        for part, table in self.tables.items():
            where = f"{self.source}, {part}"
            x = images[part] if images else decode_inputs(spec, table, where)
            splits[part] = Split(x, decode_targets(spec, table, where), self._names(part))
        return Imported(schema, splits, tuple(self.notes))

    # ----------------------------------------------------------------------------------------- label

    def _known(self, key: str, column: str) -> None:
        if column not in self._train.column_names:
            names = self._train.column_names
            raise ConfigurationError(
                f"{key}: '{column}' is not a column of {self.source}{nearest(column, names)} Columns: "
                f"{', '.join(names)}"
            )

    def _label(self) -> list[str]:
        """Return the label column, or several columns of numbers to predict."""
        if self.keys.label_column:
            whole = self.keys.label_column
            columns = [whole] if whole in self._train.column_names else [part.strip() for part in whole.split("+")]
            for column in columns:
                self._known("label-column", column)
            return columns
        names = self._train.column_names
        found = list(self.classes) or [name for name in names if name.lower() in LABELS]
        if len(found) != 1:
            said = f"several columns may be the label: {', '.join(found)}" if found else (
                f"no column is called {', '.join(LABELS)}; its columns are {', '.join(names)}")  # fmt: skip
            raise ConfigurationError(f"dataset: {self.source}: {said}. Name the label with key label-column")
        return found[:1]

    def _several(self, columns: list[str]) -> dict[str, Any]:
        """Return the schema's keys of several columns of numbers to predict."""
        for column in columns:
            if not is_number(kind := self._train.schema.field(column).type):
                raise ConfigurationError(
                    f"label-column: column '{column}' of {self.source} holds {kind}; several targets are numbers"
                )
        self.notes.append(f"targets: columns {listed(columns)}, numbers to predict")
        return {"target": columns}

    def _outputs(self, label: str) -> dict[str, Any]:
        """Return the schema's keys of the label, and replace its column by the values that they list."""
        for part, table in self.tables.items():
            cells = table.column(label).to_pylist()
            missing = [row for row, cell in enumerate(cells) if cell is None or cell != cell or cell == ""]
            if missing:
                raise DataError(
                    f"{self.source}, {part}: column '{label}' has no label in row {missing[0]}, {len(missing)} rows in "
                    "all; remove these rows, or name another column with label-column"
                )
        column = self._train.column(label)
        if is_number(column.type):
            values = numbers_of(column, f"{self.source}, train: column '{label}'")
            distinct = len(np.unique(values))
            if (values != np.round(values)).any() or (distinct > _CATEGORIES and 10 * distinct > len(values)):
                self.notes.append(f"target: column '{label}', numbers to predict")
                return {"target": label}
        if not (is_text(column.type) or is_number(column.type) or pa.types.is_boolean(column.type)):
            raise ConfigurationError(
                f"label-column: column '{label}' of {self.source} holds {column.type}, not classes or numbers"
            )
        words = {part: self._classes_of(table.column(label)) for part, table in self.tables.items()}
        known = self.classes.get(label) or sorted(set(words["train"]))
        if unknown := sorted(set(words.get("test", [])) - set(known)):
            raise DataError(
                f"{self.source}: the test rows have classes that no training row has: {listed(unknown)}. Remove these "
                "rows, or add training rows"
            )
        if len(known) < 2:
            raise DataError(
                f"{self.source}: column '{label}' has one class only, '{known[0]}'; two are needed to learn"
            )
        for part, table in self.tables.items():
            index = table.column_names.index(label)
            self.tables[part] = table.set_column(index, label, pa.array(words[part]))
        self.notes.append(f"label: column '{label}', {len(known)} classes: {listed(known)}")
        return {"label": label, "labels": known}

    @staticmethod
    def _classes_of(column: pa.ChunkedArray) -> list[Any]:
        """Return the labels of a column: whole numbers as integers, all else as text."""
        if is_number(column.type):
            return [int(cell) if cell == int(cell) else cell for cell in column.to_pylist()]
        return [str(cell) for cell in column.to_pylist()]

    # ---------------------------------------------------------------------------------------- inputs

    def _inputs(self, kinds: dict[str, pa.DataType], *, named: bool) -> tuple[str, list[str]]:
        """Return the kind of inputs (pictures, texts, table) and their columns, chosen among ``kinds``."""
        if images := [c for c, k in kinds.items() if is_image(k) or (is_binary(k) and (named or self._shows(c)))]:
            if len(images) > 1 or (named and len(kinds) > 1):
                raise self._open("images", images if len(images) > 1 else list(kinds))
            return "pictures", images
        numbers = [c for c, kind in kinds.items() if is_number(kind) or is_vector(kind) or pa.types.is_boolean(kind)]
        words = [c for c, kind in kinds.items() if is_text(kind)]
        if named and (other := [c for c in kinds if c not in numbers and c not in words]):
            raise ConfigurationError(
                f"input-column: column '{other[0]}' of {self.source} holds {kinds[other[0]]}, not images, "
                "texts or numbers"
            )
        if len(words) == 1 and not numbers:
            return "texts", words
        texts = [] if named else [c for c in words if not self._categorical(c)]
        if len(texts) > 1:
            raise self._open("texts", texts)
        if texts:
            return "texts", texts
        if not numbers and not words:
            raise DataError(
                f"{self.source} has no column of images, texts or numbers to learn from; its columns are "
                f"{', '.join(self._train.column_names)}"
            )
        return "table", [c for c in kinds if c in numbers or c in words]

    def _shows(self, column: str) -> bool:
        """Return whether the first cell of a column of bytes is a picture."""
        try:
            read_picture(next((cell for cell in self._train.column(column).to_pylist() if cell), None))
        except DataError:
            return False
        return True

    def _categorical(self, column: str) -> bool:
        """Return whether a text column holds categories: at most 100 values, at most half as many as rows."""
        distinct = count_distinct(self._train.column(column))
        return distinct <= _CATEGORIES and 2 * distinct <= self._train.num_rows

    def _open(self, what: str, columns: list[str]) -> ConfigurationError:
        return ConfigurationError(
            f"dataset: {self.source}: several columns hold inputs ({what}): {', '.join(columns)}. Name one with key "
            "input-column, or several columns of a table, joined by '+'"
        )

    def _texts(self, column: str) -> dict[str, Any]:
        length = self.keys.text_length
        if not length:
            lengths = pc.utf8_length(self._train.column(column).cast(pa.string()))
            length = min(LONGEST_TEXT, max(1, pc.max(lengths).as_py() or 1))
        self.notes.append(f"inputs: texts of column '{column}', the last {length} characters of each")
        return {"texts": {"column": column, "length": length}}

    def _table(self, columns: list[str]) -> dict[str, Any]:
        numbers: dict[str, list[float]] = {}
        categories: dict[str, list[str]] = {}
        vectors: dict[str, int] = {}
        for column in columns:
            kind = self._train.schema.field(column).type
            if is_vector(kind):
                vectors[column] = self._vector(column)
            elif is_number(kind):
                mean, std = self._moments(column)
                if std > 0:
                    numbers[column] = [mean, std]
                else:
                    self.notes.append(f"not used: column '{column}', which is {mean:g} in all training rows")
            else:
                categories[column] = self._values(column)
        schema: dict[str, dict[str, Any]] = {"numbers": numbers, "categories": categories, "vectors": vectors}
        for what, found in schema.items():
            if found:
                sized = [f"{c} ({n if isinstance(n, int) else len(n)})" for c, n in found.items()]
                self.notes.append(f"inputs: {what} of columns {listed(found if what == 'numbers' else sized)}")
        if not any(schema.values()):
            raise DataError(f"{self.source}: all input columns are constant; name others with input-column")
        return {what: found for what, found in schema.items() if found}

    def _moments(self, column: str) -> tuple[float, float]:
        """Return mean and deviation of a numeric column's training values, to a millionth of the deviation.

        Raises:
            DataError: if a value of any split is missing, or the mean cannot be written as a float.
        """
        for part, table in self.tables.items():
            try:
                numbers_of(table.column(column), f"{self.source}, {part}: column '{column}'")
            except DataError as error:
                raise DataError(f"{error}, or choose other columns with input-column") from error
        mean, std = moments(self._train.column(column), column)
        if math.ulp(mean) > LOST * std > 0:
            raise DataError(
                f"{self.source}: column '{column}' has numbers that differ too little, near {mean:g}, for 64-bit "
                "floats; subtract a constant, or choose other columns with input-column"
            )
        return (round(mean, 6 - math.floor(math.log10(std))) if std else mean), float(f"{std:.6g}")

    def _vector(self, column: str) -> int:
        lengths = pc.unique(pc.list_value_length(self._train.column(column))).to_pylist()
        if len(lengths) != 1 or not lengths[0]:
            raise DataError(
                f"{self.source}: the lists of column '{column}' have {listed(sorted(map(str, lengths)))} numbers, not "
                "all as many; choose other columns with input-column"
            )
        return int(lengths[0])

    def _values(self, column: str) -> list[str]:
        """Return the categories of a column, as :func:`encode_table` reads them."""
        found = {
            part: {category_of(cell) for cell in pc.unique(table.column(column)).to_pylist()}
            for part, table in self.tables.items()
        }
        if unknown := sorted(found.get("test", set()) - found["train"]):
            raise DataError(
                f"{self.source}: column '{column}' has categories in test rows that no training row has: "
                f"{listed(unknown)}. Remove these rows, or choose other columns with input-column"
            )
        if "" in found["train"]:
            self.notes.append(f"column '{column}': a missing value is a category of its own, \"\"")
        return sorted(found["train"])

    # --------------------------------------------------------------------------------------- decoding

    def _names(self, part: str) -> dict[str, NDArray[np.str_]]:
        """Return the columns that may name clients or domains, or choose rows: those whose values repeat."""
        return {
            column: names_of(self.tables[part].column(column).to_pylist(), f"{self.source}, {part}: column '{column}'")
            for column in self._naming
        }

    def _may_name(self, column: str, kind: pa.DataType) -> bool:
        names = is_text(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)
        return column.lower() in CLIENTS or (
            names and 2 * count_distinct(self._train.column(column)) <= self._train.num_rows
        )

    def _pictures(self, column: str) -> tuple[dict[str, Any], dict[str, NDArray[np.uint8]]]:
        """Return the schema's entry of pictures, and those of each part."""
        side = self.keys.image_size
        sizes: dict[Size, tuple[str, int]] = {}
        seen = {part: self._seen(part, column, side, sizes) for part in self.tables}
        if len(sizes) > 1 and not side:
            found = "; ".join(f"{h}×{w} ({part}, row {row})" for (w, h), (part, row) in [*sizes.items()][:3])
            raise DataError(
                f"{self.source}: the images have {len(sizes)} sizes: {found}. Give a size with key image-size, to "
                "which all are resized"
            )
        channels = 1 if all(picture.mode == "L" for picture in seen["train"]) else 3
        size = (side, side) if side else next(iter(sizes))
        x = {part: np.stack([pixels(picture, channels, size) for picture in each]) for part, each in seen.items()}
        mean, std = scales(x["train"])
        shape = [channels, size[1], size[0]]
        resized = f", resized to {side}×{side}" if side else ""
        colour = "grey" if channels == 1 else "colour"
        self.notes.append(f"inputs: images of column '{column}', {colour}, {shape[1]}×{shape[2]}{resized}")
        return {"column": column, "shape": shape, "mean": mean, "std": std}, x

    def _seen(self, part: str, column: str, side: int, sizes: dict[Size, tuple[str, int]]) -> list[Image.Image]:
        """Return the pictures of a column, resized if ``side`` is given; note each size, with its first part and row.

        Pictures of several sizes cannot be used without ``side``, and are not kept.
        """
        kept: list[Image.Image] = []
        rows = count()

        def keep(picture: Image.Image) -> None:
            sizes.setdefault(picture.size, (part, next(rows)))
            if side or len(sizes) == 1:
                kept.append(resized(picture, (side, side)) if side else picture)

        cells = enumerate(self.tables[part].column(column).to_pylist())
        named = ((f"row {row} of column '{column}'", cell) for row, cell in cells)
        each_picture(named, keep, f"{self.source}, {part}: ")
        return kept
