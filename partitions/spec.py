"""What is known of a dataset before it is read, and what it is once it has been read: plain arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from florilegium.partitions.sources.tables import TableSchema
from florilegium.partitions.sources.words import Vocabulary


@dataclass(frozen=True)
class DatasetSpec:
    """What is known of a dataset before it is read.

    Attributes:
        name: its word in the configuration.
        hub: its id on the Hugging Face hub ("" where it has none).
        kind: how its columns become arrays.
        x: the input column (images and texts; tables name theirs in ``florilegium.partitions.sources.tables``).
        y: the label column; "" where there is none, and all examples are of one class.
        classes: number of classes C; 1, the number of outputs, where y is a number to predict ("regression").
        shape: shape of one input: (channels, height, width), (length,), (words, numbers) or (features,).
        mean, std: per-channel statistics of the training images, in units of 0..1, used to normalise.
        client_columns: columns that name a natural client, in order of preference.
        test: whether the hub has a test split; otherwise a fifth of every client's data is held back.
        labels: the classes' values in the file where they are not 0..C-1 already.
        subset: the hub's configuration name.
        source: the dataset whose local files these are, where it is another one.
        table: the columns of a table, and how they become features.
        folder: the folder of a dataset of the user's own, which its ``schema.toml`` describes.
        made: "module:function" that draws it from the run's settings, where it has no files.
        derived: "module:function" that makes its splits of those of the source.
    """

    name: str
    hub: str
    kind: Literal["image", "characters", "words", "table", "regression"]
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
    made: str = ""
    derived: str = ""


@dataclass(frozen=True)
class Split:
    """The decoded rows of a split, one array entry each.

    Attributes:
        x: inputs: uint8 images (n, height, width, channels), uint8 character codes (n, length), int32 word numbers
            (n, words), or float32 features (n, features).
        y: int64 classes (n,), each in 0..C-1; or float32 targets (n,).
        clients: natural client names by column, each (n,).
    """

    x: NDArray[np.generic]
    y: NDArray[Any]
    clients: Mapping[str, NDArray[np.str_]]

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class Dataset:
    """A dataset in memory-mapped arrays.

    Attributes:
        spec: its description.
        train: the training rows.
        test: the test rows; None where the source has only training rows.
        fingerprint: changes when the source does.
        vocabulary: of texts in words.
        server: what the server holds, where that is made too and not a choice of training rows.
    """

    spec: DatasetSpec
    train: Split
    test: Split | None
    fingerprint: str
    vocabulary: Vocabulary | None = None
    server: Split | None = None
