"""Infer what the columns of a dataset are: its inputs, their scales and categories, and its label.

Every decision is a line of text (``Imported.notes``), which is logged and stands at the top of the ``schema.toml``.
Scales, categories and classes come from the training rows alone.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from PIL import Image

from florilegium.common.errors import ConfigurationError, DataError, nearest
from florilegium.common.text import listed as separated
from florilegium.partitions.sources.cells import spellings
from florilegium.partitions.sources.columns import (
    category_codes,
    class_labels,
    count_distinct,
    is_binary,
    is_image,
    is_number,
    is_text,
    is_vector,
    is_words,
    listed,
    plain,
)
from florilegium.partitions.sources.dates import ISO, days_of, format_of, is_date
from florilegium.partitions.sources.decode import decode_inputs, weights_of
from florilegium.partitions.sources.fitted_scales import applied
from florilegium.partitions.sources.labelled_words import are_labels_of_words, labels_of_lists
from florilegium.partitions.sources.mixed_dates import MIXED, mixed_dates
from florilegium.partitions.sources.names import names_in
from florilegium.partitions.sources.numbers import LOST, moments, numbers_of, refuse_missing
from florilegium.partitions.sources.pictures import Size, each_picture, pixels, read_picture, resized
from florilegium.partitions.sources.places import LEFT_OUT, in_file, noted
from florilegium.partitions.sources.schema import Schema
from florilegium.partitions.sources.source import LONGEST_TEXT, Inference
from florilegium.partitions.sources.store import Imported, scales
from florilegium.partitions.sources.tables import DROP, INDICATOR, MEDIAN, TableSchema, lacks
from florilegium.partitions.sources.targets import decode_targets
from florilegium.partitions.spec import Split

Tables = Mapping[str, pa.Table]

log = logging.getLogger("flwr")

LABELS = ("label", "labels", "target", "class", "y")
"""Names of columns that are taken for the label."""
CLIENTS = (
    "client", "client_id", "user", "user_id", "writer", "writer_id", "speaker", "speaker_id", "subject_id",
    "patient_id", "device_id", "site_id", "hospital", "hospital_id",
)  # fmt: skip
"""Names of columns that are taken for the names of natural clients."""
NUMBERING = ("", "id", "idx", "index", "unnamed: 0", "__index_level_0__")
"""Names of columns that number the rows, and are no inputs; pandas writes one without a name."""
_OF_TABLES = ("input-columns", "drop-columns", "missing", "date-parts", "date-format")
"""Keys that only tables have, besides ``standardise``, which :meth:`DatasetSpec.scaled_by` refuses."""
MOST_CATEGORIES = 10_000
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
    _dates: set[str] = field(default_factory=set)

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
        chosen, dropped = self._chosen(labels)
        weight = [self.keys.weight_column] if self.keys.weight_column else []
        for column in weight:
            self._known("weight-column", column)
        kinds = {c: self._train.schema.field(c).type for c in self._train.column_names if c not in (*labels, *weight)}
        free = {c: k for c, k in kinds.items() if c.lower() not in (*CLIENTS, *NUMBERING) and c not in dropped}
        candidates = {c: kinds[c] for c in chosen} if chosen else free
        self._dates = {c for c in candidates if is_date(self._train.column(c), self.keys.date_format)}
        self.notes += [
            f"column '{column}' {MIXED}: {said}"
            for column in candidates.keys() - self._dates
            if (said := self._mixed_dates(column))
        ]
        kind, inputs = self._inputs(candidates, named=bool(chosen))
        if kind == "table" and self.keys.missing == DROP:
            self._drop(inputs)
        schema: dict[str, Any] = {"name": self.name, **(self._several(labels) if further else self._outputs(label))}
        schema |= {"weight": weight[0]} if weight else {}
        if ("word-labels" in schema) != is_words(kinds[inputs[0]]):
            raise ConfigurationError(
                f"input-column: '{inputs[0]}' and '{label}' of {self.source} do not go together; lists of words need a "
                "list with a label for each word, and texts one label a row"
            )
        clients = sorted((c for c in kinds if c.lower() in CLIENTS), key=lambda c: CLIENTS.index(c.lower()))
        # `client` is the name that folders of clients give; among other names the data leave open which is meant.
        clear = len(clients) < 2 or clients[0].lower() == "client"
        schema["clients"] = clients if clear else []
        self._naming = [c for c, k in kinds.items() if self._may_name(c, k)]
        if clients:
            named = f"column '{clients[0]}'" if clear else f"named by client-column, one of {', '.join(clients)}"
            self.notes.append(f"natural clients: {named}")
        unused = [c for c in kinds if c not in inputs and c not in clients]
        if kind != "table" and (needless := [k for k in _OF_TABLES if k in self.keys.given()]):
            raise ConfigurationError(f"{needless[0]}: {self.source} is no table, but {kind}; leave it out")
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
        spec = spec.read_by(self.keys.tokenizer, self.keys.text_length)
        if spec.table is not None and self.keys.standardise == "client":
            spec = replace(spec, table=replace(spec.table, own=True))
        for part, table in self.tables.items():
            where = f"{self.source}, {part}"
            with in_file(table):
                x = (
                    images[part]
                    if images
                    else decode_inputs(spec, table, where, notes=self.notes, lenient=part != "train")
                )
                weights = weights_of(table.column(weight[0]), f"{where}: column '{weight[0]}'") if weight else None
                splits[part] = Split(x, decode_targets(spec, table, where), self._names(part), weights)
        return Imported(schema, splits, tuple(self.notes))

    # ----------------------------------------------------------------------------------------- label

    def _known(self, key: str, column: str) -> None:
        if column not in self._train.column_names:
            names = self._train.column_names
            raise ConfigurationError(
                f"{key}: '{column}' is not a column of {self.source}{nearest(column, names)} Columns: "
                f"{', '.join(names)}"
            )

    def _chosen(self, labels: list[str]) -> tuple[list[str], list[str]]:
        """Return the columns that keys name as inputs, and as none."""
        keys = self.keys
        if keys.input_column and keys.input_columns:
            raise ConfigurationError("input-columns: input-column names inputs, too; give one of the two")
        key = "input-columns" if keys.input_columns else "input-column"
        several = keys.input_column in self._train.column_names  # a name with a "+" in it
        parts = [keys.input_column] if several else keys.input_column.split("+") if keys.input_column else []
        chosen = [*separated(keys.input_columns)] or [part.strip() for part in parts]
        dropped = [*separated(keys.drop_columns)]
        for name, columns in ((key, chosen), ("drop-columns", dropped)):
            for column in columns:
                self._known(name, column)
            if twice := [column for column in (*labels, keys.weight_column) if column in columns]:
                what = "the weight" if twice[0] == keys.weight_column else "the label"
                raise ConfigurationError(f"{name}: '{twice[0]}' is {what} of {self.source}; name another column")
        if both := [column for column in chosen if column in dropped]:
            raise ConfigurationError(f"drop-columns: '{both[0]}' is also an input column; name it once")
        return chosen, dropped

    def _drop(self, columns: list[str]) -> None:
        """Leave out the rows in which one of the columns has no value."""
        for part, table in self.tables.items():
            lacking = np.any([lacks(table.column(column)) for column in columns], axis=0)
            if lacking.all():
                raise DataError(f"{self.source}, {part}: every row misses an input; use missing = 'median' instead")
            if lacking.any():
                self.tables[part] = noted(table.filter(pa.array(~lacking)), [])
                dropped = f"{int(lacking.sum())} of {len(lacking)} rows dropped"
                self.notes.append(f"{LEFT_OUT}{part}: {dropped}, since an input is missing")
                for column in (c for c in table.column_names if c.lower() in CLIENTS):
                    before, left = (set(names_in(t.column(column), column)) for t in (table, self.tables[part]))
                    if gone := sorted(before - left):
                        self.notes.append(f"{LEFT_OUT}{part}: no row is left of column '{column}' for {listed(gone)}")
                        log.warning("%s: %s", self.source, self.notes[-1])

    def _label(self) -> list[str]:
        """Return the label column, or that of responses, or several columns of numbers to predict."""
        if response := self.keys.response_column:
            self._known("response-column", response)
            if self.keys.label_column:
                raise ConfigurationError("response-column: label-column names a label, too; give one of the two")
            return [response]
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
        return {"target": columns, **self._scales(columns)}

    def _scales(self, columns: list[str]) -> dict[str, Any]:
        """Return the schema's scales of targets, unless one is the same in all training rows, or missing in some."""
        if any(lacks(self._train.column(column)).any() for column in columns):
            return {}  # an error when they are decoded
        found = [moments(self._train.column(column), column) for column in columns]
        return {"scales": [[*one] for one in found]} if all(std > 0 for _, std in found) else {}

    def _outputs(self, label: str) -> dict[str, Any]:
        """Return the schema's keys of the label, and replace its column by the values that they list."""
        for part, table in self.tables.items():
            missing = np.flatnonzero(lacks(table.column(label)))
            with in_file(table):
                if len(missing):
                    raise DataError(
                        f"{self.source}, {part}: column '{label}' has no label in row {missing[0]}, {len(missing)} "
                        "rows in all; remove these rows, or name another column with label-column"
                    )
        column = self._train.column(label)
        if self.keys.response_column:
            if not is_text(column.type):
                raise ConfigurationError(
                    f"response-column: column '{label}' of {self.source} holds {column.type}, no texts"
                )
            self.notes.append(f"responses: column '{label}'")
            return {"response": label}
        if are_labels_of_words(column.type):
            return labels_of_lists(self.tables, label, self.source, self.notes)
        if is_number(column.type):
            values = numbers_of(column, f"{self.source}, train: column '{label}'")
            distinct = len(np.unique(values))
            if (values != np.round(values)).any() or (distinct > _CATEGORIES and 10 * distinct > len(values)):
                self.notes.append(f"target: column '{label}', numbers to predict")
                return {"target": label, **self._scales([label])}
        if not (is_text(column.type) or is_number(column.type) or pa.types.is_boolean(column.type)):
            raise ConfigurationError(
                f"label-column: column '{label}' of {self.source} holds {column.type}, not classes or numbers"
            )
        words = {part: self._classes_of(table.column(label)) for part, table in self.tables.items()}
        if label not in self.classes and not is_number(column.type):
            words = self._in_one_spelling(label, words)
        known = self.classes.get(label) or sorted(set(words["train"]))
        for part, unknown in {part: sorted({*own} - {*known}) for part, own in words.items()}.items():
            if not unknown:
                continue
            raise DataError(
                f"{self.source}: the {part} rows have classes that no training row has: {listed(unknown)}. Remove "
                "these rows, or add training rows"
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

    def _in_one_spelling(self, column: str, words: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
        """Return the texts of a column, by part, each in the spelling of its value; note how many have changed."""
        spelling = spellings({word for part in words.values() for word in part})
        self._merged(column, spelling, Counter(word for part in words.values() for word in part))
        return {part: [spelling[word] for word in own] for part, own in words.items()}

    def _merged(self, column: str, spelling: Mapping[str, str], cells: Mapping[str, int]) -> None:
        """Note which words of a column are one value in several spellings, and which differ in case alone."""
        several: dict[str, list[str]] = {}
        for word, value in spelling.items():
            several.setdefault(value, []).append(word)
        merged = {value: sorted(own) for value, own in several.items() if len(own) > 1}
        if merged:
            count = sum(cells[word] for value, own in merged.items() for word in own if word != value)
            said = listed(f"{' = '.join(map(repr, own))} is {value!r}" for value, own in sorted(merged.items()))
            self.notes.append(f"column '{column}': {count} cells in another spelling of the same value: {said}")
        folded = Counter(value.casefold() for value in several)
        if alike := sorted(value for value in several if folded[value.casefold()] > 1):
            self.notes.append(f"column '{column}': values that differ in case alone are different: {listed(alike)}")

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
        if sentences := [c for c, kind in kinds.items() if is_words(kind)]:
            if len(sentences) > 1:
                raise self._open("lists of words", sentences)
            return "texts", sentences
        numbers = [c for c, kind in kinds.items() if is_number(kind) or is_vector(kind) or pa.types.is_boolean(kind)]
        words = [c for c, kind in kinds.items() if is_text(kind) and c not in self._dates]
        if named and (other := [c for c in kinds if c not in numbers and c not in words and c not in self._dates]):
            raise ConfigurationError(
                f"input-column: column '{other[0]}' of {self.source} holds {kinds[other[0]]}, not images, "
                "texts or numbers"
            )
        if len(words) == 1 and not numbers and not self._dates:
            return "texts", words
        texts = [] if named else [c for c in words if not self._categorical(c)]
        if len(texts) > 1:
            raise self._open("texts", texts)
        if texts and self._dates:  # as in tables of patients, whose names or remarks are no inputs
            raise self._open("a text among columns of a table", [*kinds])
        if texts:
            return "texts", texts
        if not numbers and not words and not self._dates:
            raise DataError(
                f"{self.source} has no column of images, texts or numbers to learn from; its columns are "
                f"{', '.join(self._train.column_names)}"
            )
        return "table", [c for c in kinds if c in numbers or c in words or c in self._dates]

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
            "input-column, or the columns of a table with input-columns; drop-columns leaves columns out"
        )

    def _texts(self, column: str) -> dict[str, Any]:
        if is_words(self._train.schema.field(column).type):
            self.notes.append(f"inputs: lists of words in column '{column}', as tokens of {self.keys.tokenizer}")
            return {"texts": {"column": column, "length": 1}}
        length = 0 if self.keys.tokenizer else self.keys.text_length
        if not length:
            lengths = pc.utf8_length(self._train.column(column).cast(pa.string()))
            length = min(LONGEST_TEXT, max(1, pc.max(lengths).as_py() or 1))
        what = f"as tokens of {self.keys.tokenizer}" if self.keys.tokenizer else f"the last {length} characters of each"
        self.notes.append(f"inputs: texts of column '{column}', {what}")
        return {"texts": {"column": column, "length": length}}

    def _table(self, columns: list[str]) -> dict[str, Any]:
        numbers: dict[str, list[float]] = {}
        dates: dict[str, list[float]] = {}
        categories: dict[str, list[str]] = {}
        vectors: dict[str, int] = {}
        fill: dict[str, float | str] = {}
        indicators: list[str] = []
        forms = set[str]()
        for column in columns:
            kind = self._train.schema.field(column).type
            if is_vector(kind):
                vectors[column] = self._vector(column)
            elif is_number(kind) or column in self._dates:
                form = ISO
                if column in self._dates and is_text(kind):  # columns of Arrow's types need no format
                    forms.add(form := self.keys.date_format or self._format(column))
                lacking, values = self._values(column, form)
                if not len(values):
                    self.notes.append(f"not used: column '{column}', which has no value in any training row")
                    continue
                mean, std = self._moments(column, values)
                if not std > 0:
                    self.notes.append(
                        f"not used: column '{column}', which is {mean:g} in all training rows that have it"
                    )
                    continue
                plain = self.keys.standardise == "none" and column not in self._dates
                (dates if column in self._dates else numbers)[column] = [0.0, 1.0] if plain else [mean, std]
                if self.keys.missing in (MEDIAN, INDICATOR):
                    fill[column] = float(np.median(values))
                    indicators += [column] if lacking and self.keys.missing == INDICATOR else []
            else:
                categories[column] = self._categories(column, fill)
        if len(forms) > 1:
            raise ConfigurationError(
                f"date-format: the columns of dates of {self.source} have several formats ({listed(sorted(forms))}); "
                "leave columns out with drop-columns"
            )
        schema: dict[str, dict[str, Any]] = {
            "numbers": numbers, "dates": dates, "categories": categories, "vectors": vectors
        }  # fmt: skip
        for what, found in schema.items():
            if found:
                sized = [f"{c} ({n if isinstance(n, int) else len(n)})" for c, n in found.items()]
                plain_names = what in ("numbers", "dates")
                self.notes.append(f"inputs: {what} of columns {listed(found if plain_names else sized)}")
        if not any(schema.values()):
            raise DataError(f"{self.source}: all input columns are constant; name others with input-column")
        parts = self.keys.date_parts if dates else ""
        rest: dict[str, Any] = {
            "missing": self.keys.missing if fill or self.keys.missing == DROP else "", "fill": fill,
            "indicators": indicators, "date-parts": [*separated(parts)], "date-format": max(forms, default=""),
        }  # fmt: skip
        if fill:
            self.notes.append(f"missing values: {self.keys.missing}, filled in columns {listed(fill)}")
        if self.keys.fitted_scales:
            own = TableSchema({c: (m, d) for c, (m, d) in numbers.items()}, fill=fill)
            own = replace(own, categories={c: tuple(words) for c, words in categories.items()})
            fitted = applied(own, self.keys.fitted_scales)
            if self.keys.standardise != "none":
                schema["numbers"] = {c: [*scale] for c, scale in fitted.numbers.items()}
            fill = {**fitted.fill}
        # Plain keys come first in TOML, before the tables.
        return {what: found for what, found in rest.items() if found and what != "fill"} | {
            what: found for what, found in (schema | {"fill": fill}).items() if found
        }  # fmt: skip

    def _format(self, column: str) -> str:
        """Return the format of a column of dates; raise :class:`ConfigurationError` if clients have several."""
        try:
            return format_of(self._train.column(column), f"column '{column}'")
        except ConfigurationError as error:
            said = self._mixed_dates(column)
            raise ConfigurationError(f"{error} ({said})" if said else str(error)) from error

    def _mixed_dates(self, column: str) -> str:
        """Return how clients write the dates of a column, if they do not all in one way."""
        naming = next((c for known in CLIENTS for c in self._train.column_names if c.lower() == known), "")
        if not naming:
            return ""
        return mixed_dates(self._train.column(column), lambda: names_in(self._train.column(naming), naming))

    def _values(self, column: str, form: str) -> tuple[int, NDArray[Any]]:
        """Return how many training rows miss a number or a date, and the others' values; dates as days.

        Raises:
            DataError: if a value of any split is missing, and missing values are refused, or is not finite.
        """
        found = {}
        for part, table in self.tables.items():
            where, cells = f"{self.source}, {part}: column '{column}'", table.column(column)
            filled = self.keys.missing in (MEDIAN, INDICATOR)
            lacking = lacks(cells) if filled else np.zeros(len(cells), bool)
            try:
                with in_file(table):
                    if column in self._dates:
                        values = days_of(cells, form, where)
                        if (wrong := np.isnan(values) & ~lacking).any():
                            refuse_missing(wrong, where)
                    else:  # zeros stand in for what is missing, so that messages count the rows of the file
                        if lacking.any():
                            cells = pc.if_else(pa.array(lacking), pa.array([0], cells.type)[0], cells)
                        values = numbers_of(cells, where)
                    found[part] = values[~lacking]
            except DataError as error:
                hint = "" if filled else ", or set missing to 'median', 'indicator' or 'drop'"
                raise DataError(f"{error}, or choose other columns with input-columns{hint}") from error
        return self._train.num_rows - len(found["train"]), found["train"]

    def _moments(self, column: str, values: NDArray[Any]) -> tuple[float, float]:
        """Return mean and deviation of a numeric column's training values, to a millionth of the deviation.

        Raises:
            DataError: if the mean cannot be written as a float.
        """
        mean, std = moments(values, column)
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

    def _categories(self, column: str, fill: dict[str, float | str]) -> list[str]:
        """Return the categories of a column, as :func:`encode_table` reads them.

        With ``missing = "median"``, the most frequent one fills in; otherwise a missing value is a category of its own.
        """
        codes, words = category_codes(self._train.column(column))
        cells = Counter[str]()
        for table in self.tables.values():
            for cell in pc.value_counts(table.column(column).drop_null()).to_pylist():
                cells[str(cell["values"])] += cell["counts"]
        spelling = spellings([*cells, *words])
        self._merged(column, {word: spelling[word] for word in cells}, cells)
        words = [spelling[word] for word in words]
        if len(words) > MOST_CATEGORIES:
            raise DataError(
                f"{self.source}: column '{column}' has {len(words)} categories, and at most {MOST_CATEGORIES} become "
                "features; leave it out with drop-columns, or group its values"
            )
        known = {word for word in words if word}
        if self.keys.missing == MEDIAN:
            counts = np.bincount(codes, minlength=len(words))
            often = sorted(known, key=lambda word: (-int(counts[[one == word for one in words]].sum()), word))
            if not often:
                raise DataError(f"{self.source}: column '{column}' has no value; leave it out with drop-columns")
            fill[column] = often[0]
        elif "" in words:
            known.add("")
            self.notes.append(f"column '{column}': a missing value is a category of its own, \"\"")
        return sorted(known)

    # --------------------------------------------------------------------------------------- decoding

    def _names(self, part: str) -> dict[str, NDArray[np.str_]]:
        """Return the columns that may name clients or domains, or choose rows: those whose values repeat."""
        return {
            column: names_in(self.tables[part].column(column), f"{self.source}, {part}: column '{column}'")
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
