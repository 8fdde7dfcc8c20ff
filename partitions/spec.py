"""Description of a dataset, known before it is read, and its contents as plain arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from florilegium.common.errors import ConfigurationError, DataError
from florilegium.common.model_folders import find_folder, text_facts, tokenizer_hash
from florilegium.common.text import ALPHABET, OTHER, VOCABULARY_SIZE
from florilegium.partitions.sources import fitted_scales
from florilegium.partitions.sources.tables import TableSchema
from florilegium.partitions.sources.words import Vocabulary
from florilegium.tasks.choices import DEFAULTS, Choices
from florilegium.tasks.registry import CLASSIFICATION, REGRESSION, SEGMENTATION, SEQUENCE, make_task
from florilegium.tasks.task import Targets, Task

PARTS = ("train", "test")
"""The parts of a dataset, and of a client's rows."""


@dataclass(frozen=True)
class DatasetSpec:
    """Description of a dataset, known before it is read.

    Attributes:
        name: name in messages and in the names of files.
        hub: id on the Hugging Face hub; "" if it is not there.
        kind: how columns are decoded to arrays. "numbers" are floats and "tokens" integers that a network receives as
            they are; "pieces" are texts as tokens of a pretrained model. What is learned does not follow from it.
        x: the input column of images and texts (for tables see ``table``).
        y: the label column, or the first column of targets; "" if there is none, and all examples get class 0.
        classes: number of classes C; 0 if targets are numbers.
        shape: shape of one input: (channels, height, width), (length,), (words, numbers), (features,), or any shape
            of "numbers".
        mean, std: per-channel statistics of the training images, in units of 0..1, used to normalise.
        client_columns: columns that name a natural client, in order of preference.
        test: whether the hub has a test split; otherwise a fifth of every client's data is held out.
        labels: label values in the file, if they are not already 0..C-1.
        subset: configuration name on the hub.
        source: name of the dataset whose local files are used, if it is another one.
        table: the input columns of a table, and how they become features.
        folder: folder of a custom dataset, described by its ``schema.toml``.
        tokens: number of different tokens, each in 0..tokens-1.
        made: "module:function" that generates a synthetic dataset from the run's settings.
        derived: "module:function" that computes the splits from those of the source.
        task: what is learned, a name in :data:`florilegium.tasks.registry.TASKS`; "": classes of labels, and
            regression of numbers, labels of positions.
        further: columns of targets besides y.
        positions: shape of the targets of one row, if y holds arrays of classes.
        weight: column of weights of rows in the training loss; "": 1 each.
        scales: mean and standard deviation of each target column of the training rows, if they are known.
        choices: what the configuration says of the task.
        brightest: the largest value that a pixel can have, if the inputs are images.
        raw: "module:function" that returns the rows, not read yet, given the description and the source, where neither
            the hub nor a file in the hub's schema has them.
        revision: the commit of the hub's repository that its rows are of, a tag or a branch; "": the branch "main".
        tokenizer: folder of the tokenizer of "pieces".
        responses: whether texts are prompts, and column y holds the responses, which stand behind them.
        word_labels: whether column x holds lists of words, and y a list with a label for each.
    """

    name: str
    hub: str
    kind: Literal["image", "characters", "words", "table", "numbers", "tokens", "pieces"]
    x: str
    y: str
    classes: int
    shape: tuple[int, ...]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    client_columns: tuple[str, ...] = ()
    test: bool = True
    labels: tuple[int | str, ...] = ()
    subset: str | None = None
    source: str = ""
    table: TableSchema | None = None
    folder: str = ""
    tokens: int = 0
    made: str = ""
    derived: str = ""
    # Not in the names of cached custom datasets:
    task: str = field(default="", repr=False)
    further: tuple[str, ...] = field(default=(), repr=False)
    positions: tuple[int, ...] = field(default=(), repr=False)
    weight: str = field(default="", repr=False)
    scales: tuple[tuple[float, float], ...] = field(default=(), repr=False)
    choices: Choices = field(default=DEFAULTS, repr=False)
    brightest: int = field(default=255, repr=False)
    raw: str = field(default="", repr=False)
    revision: str = field(default="", repr=False)
    tokenizer: str = field(default="", repr=False)
    responses: bool = field(default=False, repr=False)
    word_labels: bool = field(default=False, repr=False)

    @property
    def learned(self) -> Task:
        """The task, made for this dataset's targets."""
        of_labels = (SEGMENTATION if len(self.positions) > 1 else SEQUENCE) if self.positions else CLASSIFICATION
        name = self.task or (REGRESSION if self.targets.numbers else of_labels)
        return make_task(name, self.targets, self.choices)

    def learned_as(self, task: str, choices: Choices) -> DatasetSpec:
        """Return the description with another task ("": the same), and other choices of it."""
        same = task in ("", self.task) and choices == self.choices
        return self if same else replace(self, task=task or self.task, choices=choices)

    @property
    def targets(self) -> Targets:
        """What a task is told of the targets."""
        columns = (self.y, *self.further) if self.y else ()
        padding = OTHER if self.kind == "characters" else -1
        return Targets(
            columns, self.classes, tuple(self.labels), self.positions, self.shape, self.codes, padding, self.responses
        )

    def scaled_by(self, chosen: str, fitted: str = "") -> DatasetSpec:
        """Return the description with numbers of a table scaled as keys ``standardise`` and ``fitted-scales`` say.

        Raises:
            ConfigurationError: if the dataset is no table, or scales that were fitted are not of its columns.
        """
        if fitted:
            if self.table is None or self.arrays:
                raise ConfigurationError(
                    f"fitted-scales: it is for tables in their own units, and '{self.name}' is none; leave it out"
                )
            return replace(self, table=fitted_scales.applied(self.table, fitted)).scaled_by(chosen)
        if chosen in ("", "federation"):
            return self
        if self.table is None:
            raise ConfigurationError(
                f"standardise: '{chosen}' is for tables, and '{self.name}' has inputs of kind '{self.kind}'; leave "
                "it out"
            )
        plain = dict.fromkeys(self.table.numbers, (0.0, 1.0))
        return replace(self, table=replace(self.table, **{"own": True} if chosen == "client" else {"numbers": plain}))

    def read_by(self, tokenizer: str, length: int) -> DatasetSpec:
        """Return the description of a text dataset whose texts a pretrained model's tokenizer reads.

        Args:
            tokenizer: value of key ``tokenizer``; "": the description stays as it is.
            length: the most tokens of a text; 0: as many as the model reads.

        Raises:
            ConfigurationError: if its inputs are no texts, or there is no such tokenizer.
        """
        if not tokenizer:
            if self.responses or self.word_labels:
                what = "responses to prompts" if self.responses else "labels of words"
                raise ConfigurationError(f"tokenizer: '{self.name}' has {what}, which only a tokenizer reads")
            return self
        if self.kind not in ("characters", "words"):
            raise ConfigurationError(f"tokenizer: '{self.name}' has inputs of kind '{self.kind}', not texts")
        if self.arrays and np.load(self.arrays / "train-x.npy", mmap_mode="r").dtype != np.int32:
            raise ConfigurationError(
                f"tokenizer: '{self.name}' holds its texts as characters; give array_dataset the tokenizer"
            )
        folder = find_folder(tokenizer, "tokenizer")
        facts = text_facts(folder, "tokenizer")
        if length > facts.limit:
            raise ConfigurationError(f"text-length: {folder} reads {facts.limit} tokens at most (found: {length})")
        shape = (length or facts.limit,)
        labels = self.labels or (tuple(ALPHABET) if self.kind == "characters" and self.classes == len(ALPHABET) else ())
        positions = shape if self.word_labels else self.positions
        return replace(
            self, kind="pieces", shape=shape, tokens=facts.vocabulary, tokenizer=str(folder), labels=labels,
            positions=positions,
        )  # fmt: skip

    @property
    def hidden(self) -> list[str]:
        """What its ``repr`` leaves out of what its rows depend on, for the names of caches."""
        read = [tokenizer_hash(Path(self.tokenizer))] if self.tokenizer else []
        return [
            *read,
            *(["responses"] if self.responses else []),
            *(["word labels"] if self.word_labels else []),
            *self.further,
            *([self.weight] if self.weight else []),
            *(self.table.further if self.table else []),
        ]

    @property
    def arrays(self) -> Path | None:
        """The folder that holds its decoded arrays, if it is described by one that does."""
        return Path(self.folder) if self.folder and Path(self.folder, "train-x.npy").exists() else None

    @property
    def codes(self) -> int:
        """The number of different codes, of characters or tokens, in a network's inputs; 0: they are numbers."""
        return (self.tokens or VOCABULARY_SIZE) if self.kind in ("characters", "tokens", "pieces") else 0


@dataclass(frozen=True)
class Split:
    """The n decoded rows of a split.

    Attributes:
        x: inputs: uint8 images (n, height, width, channels), uint8 character codes (n, length), int32 word indices
            (n, words) or tokens of texts (n, length), int64 tokens (n, length), or float32 features (n, features) or
            numbers (n, …).
        y: targets (n, *shape) of the task. In files, and before a task reads them (:meth:`Dataset.read_by`): int64
            classes (n,), each in 0..C-1; or float32 numbers, (n,) of one column and (n, k) of k columns.
        clients: natural client names by column, each (n,).
        weights: weight of each row in the training loss, (n,); None: 1 each.
    """

    x: NDArray[np.generic]
    y: NDArray[Any]
    clients: Mapping[str, NDArray[np.str_]]
    weights: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class Dataset:
    """A dataset in memory-mapped arrays.

    Attributes:
        spec: description of the dataset.
        train: the training rows.
        test: the test rows; None if the source has only training rows.
        fingerprint: hash that changes with the source files.
        vocabulary: word vectors, for a dataset of words.
        server: the server's examples, if they are generated rather than chosen from the training rows.
        validation: rows to validate with; None if the source has none, or they stand in for test rows.
        notes: what was said when a described dataset was read, as of rows that were left out, a line each.
    """

    spec: DatasetSpec
    train: Split
    test: Split | None
    fingerprint: str
    vocabulary: Vocabulary | None = None
    server: Split | None = None
    notes: tuple[str, ...] = ()
    validation: Split | None = None

    def read_by(self, task: str = "", choices: Choices = DEFAULTS) -> Dataset:
        """Return the dataset with targets as task ``task`` needs them; "": the dataset's own task.

        Raises:
            ConfigurationError: if the task cannot be learned from these targets.
            DataError: if nothing can be learned from the training rows, as without any event.
        """
        spec = self.spec.learned_as(task, choices)
        learned = spec.learned
        train, test, server, validation = (
            split and replace(split, y=learned.derived(split.x, split.y))
            for split in (self.train, self.test, self.server, self.validation)
        )
        assert train is not None
        if gap := learned.gap(train.y):
            raise DataError(f"task: {gap} of '{spec.name}'")
        return replace(self, spec=spec, train=train, test=test, server=server, validation=validation)
