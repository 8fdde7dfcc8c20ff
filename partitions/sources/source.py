"""Where a dataset is, and which keys help to describe it: the first step of a row, before anything is read."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from florilegium.common.contents import changed, content_of
from florilegium.common.errors import ConfigurationError, DataError
from florilegium.common.settings import folder
from florilegium.partitions.settings import FederationSettings, SourceSettings
from florilegium.partitions.sources.date_parts import DAYS
from florilegium.partitions.sources.parts import contents
from florilegium.partitions.sources.tables import REFUSE

DATA_VARIABLE = "FLORILEGIUM_DATA"
"""Environment variable: the folder that holds ``<dataset>/train.parquet`` and ``test.parquet``."""

AUTO = "auto"
"""Value of key ``tokenizer`` that stands for the model's own, if it is a pretrained one; else for none."""
CLIENT = "client"
"""The column that names each row's client, where the data have no column of their own for that."""
LONGEST_TEXT = 200
"""Texts are cut to this many characters, unless a key says otherwise."""

MAIN = "main"
"""The branch of a repository of the hub that is read where no revision is named."""

Tables = tuple[dict[str, pa.Table], list[str]]
"""The rows of "train" and perhaps "test", and a line of text for each decision."""


_ANY = ("weight_column", "standardise", "tokenizer", "fitted_scales")
"""Keys that go with a schema, too."""


@dataclass(frozen=True)
class Inference:
    """The keys that help to infer a schema; empty where the data decide.

    Attributes:
        input_column: input columns, joined by "+".
        label_column: the label's column.
        text_length: characters of a text.
        image_size: height and width of images.
        input_columns, drop_columns: columns of a table that are inputs, and that are none, separated by commas.
        missing: what is done where an input is missing; "": it is an error.
        date_parts, date_format: what dates become, and how they are written.
        weight_column: the column of weights.
        standardise: whose rows give the scales of a table's numbers; "": all training rows'.
        tokenizer: folder, name or hub id of what reads texts as tokens; "": they are characters or words.
        response_column: the column of responses, if texts are prompts.
        fitted_scales: scales that were fitted; "": those of the rows.
    """

    input_column: str = ""
    label_column: str = ""
    text_length: int = 0
    image_size: int = 0
    input_columns: str = ""
    drop_columns: str = ""
    missing: str = ""
    date_parts: str = ""
    date_format: str = ""
    weight_column: str = ""
    standardise: str = ""
    tokenizer: str = ""
    response_column: str = ""
    fitted_scales: str = ""

    @property
    def facts(self) -> dict[str, str | int]:
        """Return what tells apart schemas inferred with these keys; new keys are in it only if they are set."""
        first = ("input_column", "label_column", "text_length", "image_size")
        return {name: value for name, value in vars(self).items() if value or name in first}

    def given(self) -> list[str]:
        """Return the keys that are set."""
        anywhere = (*_ANY, "text_length") if self.tokenizer else _ANY
        return [name.replace("_", "-") for name, value in vars(self).items() if value and name not in anywhere]


@dataclass(frozen=True)
class Source:
    """Where a dataset is. Paths have their home folder.

    Attributes:
        name: its name, a reference ``hub:…``, or the path of a folder: the value of key ``dataset``.
        path: the folder that this name is, if it is a path.
        cache: the folder of the cache.
        data: the folder of local copies of datasets, which ``data-dir`` or $FLORILEGIUM_DATA names; None without.
        demanded: whether it is ``data-dir``, so that the dataset must be there.
        embeddings: the file of word vectors, for datasets of words; "" without.
        revision: the commit, tag or branch of the hub that key ``dataset-revision`` names; "": the dataset's own.
        keys: what helps to infer its schema.
    """

    name: str
    path: Path
    cache: Path
    data: Path | None
    demanded: bool
    embeddings: str
    revision: str
    keys: Inference

    @staticmethod
    def of(settings: SourceSettings) -> Source:
        """Return where the dataset of ``settings`` is."""
        s, data = settings, settings.data_dir or os.environ.get(DATA_VARIABLE)
        path = folder(s.dataset) if "/" in s.dataset else Path(s.dataset)
        local = None if data is None else folder(data)
        embeddings = s.embeddings if isinstance(s, FederationSettings) else ""
        keys = Inference(
            s.input_column, s.label_column, s.text_length, s.image_size, s.input_columns, s.drop_columns,
            "" if s.missing == REFUSE else s.missing, "" if s.date_parts == DAYS else s.date_parts, s.date_format,
            s.weight_column, "" if s.standardise == "federation" else s.standardise,
            "" if s.tokenizer == AUTO else s.tokenizer, s.response_column, s.fitted_scales,
        )  # fmt: skip
        return Source(s.dataset, path, s.cache, local, bool(s.data_dir), embeddings, s.dataset_revision, keys)

    def local_copy(self, name: str) -> Path | None:
        """Return the folder of local parquet files of dataset ``name``; None if there is none.

        Raises:
            DataError: if ``data-dir`` is set but does not contain the dataset. For the environment variable's folder
                this is no error, unless its path is relative.
        """
        if self.data is None:
            return None
        path = self.data / name
        if not self.demanded and not path.is_absolute():
            raise DataError(f"{DATA_VARIABLE}: '{self.data}' is a relative path; give an absolute one")
        for folder_of_files in (path, path / "data"):  # as in a clone of the hub's repository
            if "train" in contents(folder_of_files, [".parquet"]).parts:
                return folder_of_files
        if self.demanded:
            raise DataError(
                f"data-dir: there is no {path / 'train.parquet'}. Expected {self.data}/<dataset>/train.parquet "
                "and test.parquet in the hub's own schema; leave data-dir empty to load from the hub."
            )
        return None

    def refuse_keys(self) -> None:
        """Raise :class:`ConfigurationError` if keys describe the columns, for a dataset that is described already."""
        if given := self.keys.given():
            raise ConfigurationError(
                f"{given[0]}: the columns of '{self.name}' are described already; the key is for data without a "
                "schema. Leave it out"
            )


@dataclass(frozen=True)
class Unread:
    """Rows that nobody has read yet.

    Attributes:
        name: name of the dataset in messages and in the names of files.
        where: where the rows are, for messages.
        files: the files of which a change is noticed; none for rows that come from the hub.
        read: reads the rows.
        form: how messages name a part of the rows: "{0}" is ``where``, "{1}" the part.
        revision: the commit, tag or branch of the hub that they are of; "" if they do not come from the hub.
        foreign: whether the rows were written for no description, so that images have sizes, and labels types, of their
            own.
    """

    name: str
    where: str
    files: Sequence[Path]
    read: Callable[[], Tables]
    form: str = "{0}, {1}"
    foreign: bool = False
    revision: str = ""

    def identity(self, cache: Path) -> list[str]:
        """Return a hash of the files' content, or a revision of the hub; ``cache`` remembers hashes."""
        found = [content_of(self.files, cache)] if self.files else []
        return [*found, *([self.revision] if self.revision not in ("", MAIN) else [])]

    def whole(self, cache: Path) -> Tables:
        """Read the rows.

        Raises:
            DataError: if they cannot be read, or their files change meanwhile.
        """
        before, found = self.identity(cache), self.read()
        if self.identity(cache) != before:
            raise changed(self.where)
        return found
