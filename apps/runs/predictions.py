"""Predict with an exported model, or with one kept by a device."""

from __future__ import annotations

import csv
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from florilegium.apps.settings.configuration import defaults
from florilegium.clients.core.export import learned_by, load_model, predict, spec_of
from florilegium.common.errors import DataError
from florilegium.partitions.clientdata import resize, to_inputs
from florilegium.partitions.device_data import read_device_schema, read_inputs, read_rows
from florilegium.partitions.loading import dataset_of
from florilegium.partitions.settings import FederationSettings
from florilegium.partitions.sources.columns import refuse_twins
from florilegium.partitions.sources.rows import laid_out
from florilegium.partitions.sources.words import vocabulary
from florilegium.partitions.spec import DatasetSpec
from florilegium.tasks.registry import CLASSIFICATION, make_task


def _rows(path: Path, spec: DatasetSpec) -> torch.Tensor:
    """Read a ``.npy`` file of decoded rows (n, …) and return them as network inputs."""
    try:
        rows = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is not a readable .npy file: {error}") from error
    rows = laid_out(spec, rows, f"{path}: rows")
    return torch.from_numpy(rows).float() if spec.kind == "words" else to_inputs(spec, rows)  # words: already vectors


def inputs_of(inputs: Any, settings: FederationSettings) -> tuple[torch.Tensor, DatasetSpec]:
    """Return network inputs for the dataset of a run, and the dataset's description.

    Args:
        inputs: rows in the dataset's decoded form, a table of its columns, or a path to a file of rows or pictures.
        settings: the run's configuration.

    Raises:
        DataError: if the inputs do not fit the dataset.
    """
    spec = dataset_of(settings)
    words = vocabulary(settings.embeddings, settings.cache_dir, spec.shape[1]) if spec.kind == "words" else None
    if isinstance(inputs, str | Path):
        path = Path(inputs)
        return (_rows(path, spec) if path.suffix == ".npy" else read_inputs(path, spec, words)[0]), spec
    if isinstance(inputs, pd.Series):
        raise DataError("inputs: a pandas Series is a single row or column; give a DataFrame, such as frame.loc[[row]]")
    if isinstance(inputs, pd.DataFrame):
        refuse_twins(map(str, inputs.columns), "inputs: the DataFrame")
        inputs = inputs.to_dict("list")
    return read_rows(inputs, spec, words), spec


def table_of_predictions(model: torch.nn.Module, x: torch.Tensor, spec: DatasetSpec) -> pd.DataFrame:
    """Return what ``model`` predicts for inputs (n, …): the task's columns, such as "class" and "probability"."""
    task = learned_by(model, spec)
    return pd.DataFrame(task.predictions(predict(model, x, task).numpy()))


def write_predictions(model_folder: Path, inputs: Path, embeddings: str = "", schema: Path | None = None) -> None:
    """Predict ``inputs`` with an exported model; write CSV to standard output.

    Each line has what the task predicts of one row, or of one picture if ``inputs`` is a folder of pictures: the class,
    in the data's own words if they are known, and its probability, or numbers. A model whose inputs are words needs the
    ``embeddings`` file it was trained with. ``schema`` is a file that names the columns of a device's data.
    """
    model, card = load_model(model_folder)
    spec, names = spec_of(model_folder, card), None
    if inputs.suffix == ".npy":
        x = _rows(inputs, spec)
    else:
        cache = str(defaults()["cache-dir"])
        words = vocabulary(embeddings, cache, spec.shape[1]) if spec.kind == "words" and inputs.exists() else None
        x, names = read_inputs(inputs, spec, words, None if schema is None else read_device_schema(schema))
    task = learned_by(model, spec)
    if card.labels and (labels := tuple(card.labels)) != task.targets.labels:  # those of the run's data
        task = make_task(card.task or CLASSIFICATION, replace(task.targets, labels=labels))
    found = task.predictions(predict(model, resize(x, card.shape) if card.shape else x, task).numpy())
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["picture" if names else "row", *found])
    for row, *cells in zip(names or range(len(x)), *found.values(), strict=True):
        writer.writerow([row, *(f"{cell:{task.decimals}}" if isinstance(cell, float) else cell for cell in cells)])
